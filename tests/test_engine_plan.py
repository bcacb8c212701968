"""What the plan says is what the engine does: K by batch size, lookahead, chunks, failures, threads, warm-up."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_fixtures import TINY_VOCAB, greedy_reference, half_right, tiny_model

import ascend_spec
import ascend_spec_ops
from ascend_spec.config import (
    ConfigError,
    Plan,
    SpeculatorConfig,
    register_speculative_method,
    registered_speculative_methods,
)
from ascend_spec.config.plan import PROCESSORS
from ascend_spec.engine import LLM
from ascend_spec.engine.scheduler import Scheduler
from ascend_spec.runtime import DeviceFacts
from ascend_spec.types import Draft, DraftBatch, SamplingParams
from ascend_spec_ops.threads import thread_limit
from ascend_spec_ops.warm_up import DUMMY_CALLS

STATIC = DeviceFacts(block_size=4, host_readable=False, static_shapes=True)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
PROMPTS = [[5, 6], [11, 12, 13, 14, 15], [8, 9, 10] * 9, [3] * 7]


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def texts(prompts=PROMPTS, num_tokens=40):
    return [[*prompt, *greedy_reference(tuple(prompt), num_tokens)] for prompt in prompts]


class ScriptedDrafter:
    """The drafter of a method that is registered by a test: half of what it drafts is right."""

    def __init__(self, width: int) -> None:
        self.inner = half_right(texts(), width, TINY_VOCAB)
        self.wanted: list[int] = []

    @classmethod
    def from_plan(cls, plan):
        return cls(plan.num_speculative_tokens)

    def propose(self, batch: DraftBatch) -> Draft:
        self.wanted.append(int(batch.num_speculative_tokens.max()))
        return self.inner.propose(batch)


class ScriptedConfig(SpeculatorConfig):
    speculator_class = "scripted_drafter:ScriptedDrafter"

    @property
    def num_lookahead_tokens(self) -> int:
        return 5

    @property
    def num_prefill_lookahead_tokens(self) -> int:
        return 3


@pytest.fixture
def scripted(monkeypatch):
    registered_speculative_methods()  # entry points are read once
    monkeypatch.setattr("ascend_spec.config.registry._registered", {})
    monkeypatch.setitem(sys.modules, "scripted_drafter", sys.modules[__name__])
    register_speculative_method("scripted", ScriptedConfig)
    return {"method": "scripted", "num_speculative_tokens": 4}


def generate(llm, prompts=PROMPTS):
    outputs = llm.generate(prompts, GREEDY)
    assert [list(output.token_ids) for output in outputs] == [
        greedy_reference(tuple(prompt), GREEDY.max_tokens) for prompt in prompts
    ]
    return llm


def test_a_registered_method_runs_by_its_name(model, scripted):
    llm = generate(LLM(model, speculative_config=scripted))
    assert (llm.plan.method, llm.plan.name) == ("custom_class", "scripted")
    assert type(llm.drafter) is ScriptedDrafter
    assert 0 < llm.metrics.num_accepted_tokens < llm.metrics.num_draft_tokens


def test_k_follows_the_batch_size(model, scripted):
    ranges = [[1, 1, 4], [2, 2, 1], [3, 8, 0]]
    llm = LLM(model, speculative_config={**scripted, "num_speculative_tokens_per_batch_size": ranges})
    for prompt, max_tokens in zip(PROMPTS, (24, 18, 12, 6), strict=True):
        llm.add_request(prompt, replace(GREEDY, max_tokens=max_tokens))
    seen = {}
    while llm.has_unfinished_requests:
        llm.drafter.wanted.clear()
        batch = len(llm.scheduler.running) or len(PROMPTS)
        llm.step()
        seen.setdefault(batch, set()).add(max(llm.drafter.wanted, default=0))
    assert seen[4] == seen[3] == {0}
    assert seen[2] == {1}
    assert max(seen[1]) == 4


def test_a_batch_that_grows_verifies_no_more_than_it_may(model, scripted):
    """Drafts are proposed before it is known who joins; a second request is admitted with them in hand."""
    ranges = [[1, 1, 4], [2, 8, 1]]
    llm = LLM(model, speculative_config={**scripted, "num_speculative_tokens_per_batch_size": ranges})
    llm.add_request(PROMPTS[0], replace(GREEDY, max_tokens=30))
    llm.step()
    assert llm.scheduler.running[0].num_drafts > 1
    llm.add_request(PROMPTS[1], GREEDY)
    before = llm.metrics.num_draft_tokens
    llm.step()
    assert llm.metrics.num_draft_tokens - before <= 1


def drafts_end_where_the_drafter_does(model, scripted, facts=None):
    """One long and one short request: the long one goes on without drafts, the short one keeps its own."""
    llm = LLM(model, speculative_config={**scripted, "num_speculative_tokens": 3}, facts=facts)
    limit = 20
    object.__setattr__(llm.plan.speculator, "limit", limit)
    ids = [llm.add_request(PROMPTS[2], replace(GREEDY, max_tokens=16)), llm.add_request(PROMPTS[0], GREEDY)]
    requests = [llm._live[request_id].request for request_id in ids]
    while llm.has_unfinished_requests:
        llm.step()
        for request in llm.scheduler.running:
            assert request.num_tokens + request.num_drafts <= max(limit, request.num_tokens)
    assert sum(requests[0].accepted) == 0
    assert sum(requests[1].accepted) > 0


@pytest.fixture
def short_sighted(monkeypatch):
    """The registered method's drafter sees ``limit`` tokens, once that is set."""
    monkeypatch.setattr(
        ScriptedConfig,
        "max_model_len",
        property(lambda self: getattr(self, "limit", self.target.max_model_len)),
    )


@pytest.mark.parametrize("facts", [None, STATIC], ids=["exact", "static"])
def test_drafts_end_where_the_drafter_does(model, scripted, short_sighted, facts):
    drafts_end_where_the_drafter_does(model, scripted, facts)


def test_a_plan_whose_limit_is_ignored_fails(model, scripted, short_sighted, monkeypatch):
    monkeypatch.setattr(Plan, "max_drafted_len", property(lambda self: self.target.max_model_len))
    with pytest.raises(AssertionError):
        drafts_end_where_the_drafter_does(model, scripted)


def lookahead_is_reserved(model, config, **options):
    llm = LLM(model, speculative_config=config, block_size=4, **options)
    for prompt in PROMPTS:
        llm.add_request(prompt, GREEDY)
    while llm.has_unfinished_requests:
        scheduled = llm.scheduler.schedule()
        for request in llm.scheduler.running:
            if any(item.request_id == request.request_id for item in scheduled):
                room = len(request.block_ids) * llm.blocks.block_size
                assert room >= request.num_tokens + llm.plan.num_lookahead_tokens
        llm.scheduler.schedule = lambda scheduled=scheduled: scheduled
        llm.step()
        del llm.scheduler.schedule


def test_lookahead_slots_are_reserved(model, scripted):
    lookahead_is_reserved(model, scripted)
    # a pool in which requests must be preempted for them
    lookahead_is_reserved(model, scripted, max_model_len=48, num_kv_blocks=16)


def test_a_scheduler_without_lookahead_fails(model, scripted, monkeypatch):
    monkeypatch.setattr(Scheduler, "_reach", lambda self, request: request.num_tokens)
    with pytest.raises(AssertionError):
        lookahead_is_reserved(model, scripted)


def test_lookahead_changes_nothing_under_preemption(model, scripted):
    prompts = [list(range(n, n + 9)) for n in range(1, 6)]
    llm = LLM(model, speculative_config=scripted, max_model_len=48, block_size=4, num_kv_blocks=18)
    outputs = llm.generate(prompts, replace(GREEDY, max_tokens=20))
    assert [list(output.token_ids) for output in outputs] == [greedy_reference(tuple(p), 20) for p in prompts]
    assert llm.metrics.num_preemptions > 0


def test_a_pool_must_hold_the_lookahead_too(model, scripted):
    with pytest.raises(ValueError, match="max_model_len=48 and 5 tokens of lookahead"):
        LLM(model, speculative_config=scripted, max_model_len=48, block_size=4, num_kv_blocks=13)


def chunks_leave_enough(model, config, budget):
    llm = LLM(model, speculative_config=config, max_num_batched_tokens=budget)
    llm.add_request(PROMPTS[2], GREEDY)
    ends = []
    while llm.has_unfinished_requests:
        llm.step()
        ends += [
            len(PROMPTS[2]) - request.num_computed_tokens
            for request in llm.scheduler.running
            if not request.decodes
        ]
    assert ends, "the prompt was never cut"
    assert min(ends) >= llm.plan.num_prefill_lookahead_tokens


@pytest.mark.parametrize("budget", [*range(6, 14), 24, 25, 26])
def test_no_chunk_ends_within_what_the_drafter_still_reads(model, scripted, budget):
    chunks_leave_enough(model, scripted, budget)


def test_a_chunk_that_ends_anywhere_fails(model, scripted, monkeypatch):
    whole = lambda self, request, budget: min(budget, request.num_tokens - request.num_computed_tokens)  # noqa: E731
    monkeypatch.setattr(Scheduler, "_chunk", whole)
    with pytest.raises(AssertionError):
        chunks_leave_enough(model, scripted, 25)


class FailingDrafter:
    def propose(self, batch):
        raise RuntimeError("no drafts today")


def test_a_failing_drafter_may_stop_the_engine(model):
    config = {"method": "ngram", "num_speculative_tokens": 2}
    generate(LLM(model, speculative_config=config, drafter=FailingDrafter()))
    strict = {**config, "ascend_spec": {"on_error": "raise"}}
    with pytest.raises(RuntimeError, match="no drafts today"):
        LLM(model, speculative_config=strict, drafter=FailingDrafter()).generate(PROMPTS, GREEDY)


def test_a_method_with_its_own_cache_needs_a_drafter_that_follows(model, scripted, monkeypatch):
    monkeypatch.setattr(ScriptedConfig, "uses_draft_kv_cache", True, raising=False)
    with pytest.raises(ValueError, match="'scripted' has K/V of its own, but ScriptedDrafter has no follow"):
        LLM(model, speculative_config=scripted)


def test_nothing_is_read_before_the_configuration_is_judged(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "max_position_embeddings": 64, "vocab_size": 9}'
    )
    config = {"method": "eagle3", "model": "org/head", "num_speculative_tokens": 70, "xpress_topc": 3}
    with pytest.raises(ConfigError) as caught:
        LLM(tmp_path, speculative_config=config)
    assert {"num_speculative_tokens", "xpress_topc", "method"} <= {f.field for f in caught.value.findings}


def test_no_speculation_is_a_plan_too(model):
    llm = generate(LLM(model))
    assert (llm.plan.num_speculative_tokens, llm.plan.name, llm.drafter) == (0, "none", None)
    assert llm.metrics.num_draft_tokens == 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"method": "eagle3", "model": "org/head"},
            "method 'eagle3' is known, but its drafter is not built yet",
        ),
        ({"method": "ngram", "kv_cache_dtype": "fp8"}, "'kv_cache_dtype' was given as 'fp8'; it is for vLLM"),
    ],
)
def test_what_is_not_built_is_refused_by_name(model, config, message):
    with pytest.raises(ConfigError) as caught:
        LLM(model, speculative_config={"num_speculative_tokens": 2, **config})
    assert message.lower() in str(caught.value).lower()


def test_kernels_are_compiled_before_the_first_request(model, monkeypatch):
    called = []
    for name, call in DUMMY_CALLS.items():
        monkeypatch.setitem(DUMMY_CALLS, name, lambda device, n=name, c=call: called.append(n) or c(device))
    llm = LLM(model, speculative_config={"method": "ngram", "num_speculative_tokens": 2})
    assert set(called) == set(llm.plan.warm_up) == {"verify:standard", *PROCESSORS, "ngram_match"}
    called.clear()
    assert set(LLM(model).plan.warm_up) == set(called) == {"verify:standard", *PROCESSORS}


def test_threads_are_those_of_the_plan(model):
    before = thread_limit()
    try:
        llm = LLM(model)
        assert thread_limit() == llm.plan.num_threads == torch.get_num_threads()
    finally:
        ascend_spec_ops.limit_threads(before)


def test_consumers_read_the_plan_and_nothing_else():
    """No second derivation: what a plan decides is spelled in the configuration layer alone."""
    root = Path(ascend_spec.__file__).parent
    derived = re.compile(
        r"(?<!plan\.)\bconfig\.(num_spec|prompt_lookup|method\b(?!s)|rejection|ascend_spec\.)"
    )
    found = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for room in ("engine", "drafters", "scorer", "samplers", "models", "runtime")
        for path in sorted((root / room).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if derived.search(line)
    ]
    assert not found
    assert derived.search("k = speculative_config.config.num_speculative_tokens")
    assert not derived.search("k = plan.config.prompt_lookup_min")
