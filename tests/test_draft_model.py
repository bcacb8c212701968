"""The draft model in the engine: text, drafts and K/V through every event, one by one and in parallel."""

from __future__ import annotations

import doctest
import gc
import weakref
from collections import Counter

import draft_model_checks as checks
import pytest
import torch
from draft_model_checks import GREEDY, MASK, NEW, PROMPTS, STATIC, engine, in_parallel, one_by_one, watch

from ascend_spec.config.methods.draft_model import DraftModelSpeculatorConfig
from ascend_spec.drafters import DraftModelDrafter
from ascend_spec.drafters import draft_model as draft_model_module
from ascend_spec.engine import LLM
from ascend_spec.engine import llm as llm_module
from ascend_spec.runtime.capture import no_host_sync
from ascend_spec.types import DraftBatch

FACTS = pytest.mark.parametrize("facts", [None, STATIC], ids=["exact", "static"])
PARALLEL = pytest.mark.parametrize("parallel", [False, True], ids=["chain", "pard"])


def reference(parallel: bool):
    return in_parallel if parallel else one_by_one


# ---- text and drafts
@PARALLEL
@pytest.mark.parametrize("preempt_at", [(), (4, 7)], ids=["", "preempted"])
@pytest.mark.parametrize("budget", [512, 12], ids=["whole", "chunked"])
@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("num_drafts", [1, 4, 8])
def test_text_is_plain_decodings(num_drafts, batch, budget, preempt_at, parallel):
    prompts = PROMPTS[2:3] if batch == 1 else PROMPTS
    llm = engine("near", num_drafts, parallel=parallel, max_num_batched_tokens=budget)
    watch(llm, "near", prompts, reference(parallel), preempt_at)
    assert llm.metrics.num_preemptions == len(preempt_at)
    assert llm.metrics.num_draft_tokens > 0


@FACTS
@PARALLEL
def test_drafts_after_any_number_of_rejections_are_those_of_a_fresh_model(facts, parallel):
    accepted: Counter[tuple[int, int]] = Counter()
    for kind in ("same", "near", "other"):
        accepted += watch(engine(kind, 3, parallel=parallel, facts=facts), kind, PROMPTS, reference(parallel))
    some = (
        range(2) if parallel else range(4)
    )  # a model that never saw a mask token is right once, and by luck twice
    assert {count for count, drafted in accepted if drafted == 3} >= {*some}


@FACTS
def test_a_model_that_drafts_for_itself_is_always_right(facts):
    llm = engine("same", 4, facts=facts, max_num_batched_tokens=24)
    watch(llm, "same")
    assert llm.metrics.num_accepted_tokens == llm.metrics.num_draft_tokens > 0


@FACTS
@PARALLEL
def test_a_pool_that_runs_out(facts, parallel):
    """Enough for one request of full length, so that the newest give theirs up."""
    sizes = {"max_model_len": 48, "block_size": 4, "num_kv_blocks": 14}
    llm = engine("near", 4, parallel=parallel, facts=facts, **sizes)
    watch(llm, "near", PROMPTS, reference(parallel))
    assert llm.metrics.num_preemptions > 0


@FACTS
@PARALLEL
def test_steps_without_drafts(facts, parallel):
    """No drafts for three requests or more; the K/V is there when they are asked for again."""
    ranges = {"num_speculative_tokens_per_batch_size": [[1, 2, 4], [3, 8, 0]]}
    llm = engine("same", 4, parallel=parallel, facts=facts, config=ranges, max_num_batched_tokens=20)
    params = [checks.SamplingParams(temperature=0.0, max_tokens=n) for n in (4, 5, 6)]
    for prompt, short in zip(PROMPTS[:3], params, strict=True):
        llm.add_request(prompt, short)
    accepted = watch(llm, "same", [PROMPTS[5]], reference(parallel))
    assert accepted[0, 0] > 3
    assert any(drafted for _, drafted in accepted)
    assert parallel or all(count == drafted for count, drafted in accepted)


@FACTS
def test_each_request_gets_as_many_drafts_as_it_can_use(facts):
    llm = engine("same", 8, facts=facts)
    lengths = [2, 5, 9, 14]
    params = [checks.SamplingParams(temperature=0.0, max_tokens=n) for n in lengths]
    outputs = llm.generate(PROMPTS[:4], params)
    for prompt, output, length in zip(PROMPTS[:4], outputs, lengths, strict=True):
        assert list(output.token_ids) == checks.greedy_reference(tuple(prompt), length)
    assert llm.metrics.num_accepted_tokens == llm.metrics.num_draft_tokens


# ---- the device is not waited for
def test_a_device_is_not_waited_for():
    llm = engine("near", 3, facts=STATIC, max_num_batched_tokens=20)
    propose, follow, calls = llm.drafter.propose, llm.drafter.follow, []

    def watched(function):
        def call(batch: DraftBatch):
            with no_host_sync():
                calls.append(function.__name__)
                return function(batch)

        return call

    llm.drafter.propose, llm.drafter.follow = watched(propose), watched(follow)
    watch(llm, "near")
    assert {*calls} == {"propose", "follow"}


@FACTS
def test_a_failing_call_costs_its_drafts(facts, monkeypatch):
    """And the next one computes all K/V anew: what there is nobody knows."""
    config = {"ascend_spec": {"on_error": "continue"}}
    llm = engine("same", 3, facts=facts, config=config)
    draw, calls = draft_model_module.sample, []

    def fails_once(*args):
        calls.append(args)
        if len(calls) == 8:
            raise RuntimeError("this draw fails")
        return draw(*args)

    monkeypatch.setattr(draft_model_module, "sample", fails_once)
    accepted = watch(llm, "same")
    assert sum(llm.metrics.fallbacks.values()) == 1
    assert all(count == drafted for count, drafted in accepted)


# ---- long requests
def short_sighted(parallel: bool = False, facts=None, length: int = 24) -> tuple[LLM, list[int]]:
    """The target's own weights, for no more than 24 tokens; and the positions that were computed."""
    llm = engine(
        "same", 4, facts=facts, parallel=parallel, config={"max_model_len": length}, max_num_batched_tokens=20
    )
    llm.drafter.max_model_len = length
    forward, seen = llm.drafter.model.forward, []

    def watched(ids, positions, *args):
        seen.extend(positions.tolist())
        return forward(ids, positions, *args)

    llm.drafter.model = type(
        "Watched", (), {"forward": staticmethod(watched), "info": llm.drafter.model.info}
    )
    return llm, seen


@FACTS
@PARALLEL
def test_a_request_beyond_the_drafts_reach_goes_on_without_drafts(facts, parallel):
    llm, positions = short_sighted(parallel, facts)
    long, short = [8, 9, 10] * 9, [3]
    counts: dict[int, Counter] = {len(long): Counter(), len(short): Counter()}
    step = llm.step

    def counted():
        for request in llm.scheduler.running:
            if request.decodes and request.num_output_tokens < NEW - 1:
                counts[len(request.prompt_token_ids)][request.num_drafts > 0] += 1
        return step()

    llm.step = counted
    watch(llm, "same", [long, short], reference(parallel))
    assert not counts[len(long)][True]
    assert counts[len(short)][True]
    assert max(positions) < 24
    if not facts:
        assert len(positions) < 120  # of the long one nothing is computed


def test_drafting_stops_at_the_drafts_length():
    llm, positions = short_sighted(length=12)
    accepted = watch(llm, "same", [[11, 12, 13, 14, 15]])
    assert any(drafted for _, drafted in accepted)
    assert accepted[0, 0] > 2
    assert max(positions) == 10  # the last draft stands at 11, and is not computed


# ---- memory
def test_caches_are_as_many_blocks_as_the_targets_and_end_with_the_engine(tmp_path):
    target, draft = (checks.save(checks.hf_draft(kind), tmp_path / kind) for kind in ("same", "other"))
    config = {"method": "draft_model", "model": draft, "num_speculative_tokens": 2}
    llm = LLM(checks.CausalLM.load(target), speculative_config=config)
    kv, caches = llm.plan.kv, llm.drafter.kv_caches
    assert {cache.shape[:2] for pair in caches for cache in pair} == {(kv.num_blocks, kv.block_size)}
    held = sum(cache.numel() * cache.element_size() for pair in caches for cache in pair)
    assert held == kv.draft_bytes_per_token * kv.block_size * kv.num_blocks
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [list(out.token_ids) for out in outputs] == [
        checks.greedy_reference(tuple(p), NEW) for p in PROMPTS
    ]
    dead = [weakref.ref(cache) for pair in caches for cache in pair]
    del llm, caches
    gc.collect()
    assert not any(ref() is not None for ref in dead)


# ---- as a library
def test_docstring_example():
    result = doctest.testmod(draft_model_module)
    assert result.attempted > 0
    assert result.failed == 0


def int32(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def library_batch(**changes) -> DraftBatch:
    history = torch.zeros(2, 64, dtype=torch.int32)
    history[0, :5] = int32(PROMPTS[1])
    given = {
        "token_ids": history,
        "num_tokens": int32([5, 0]),
        "num_speculative_tokens": int32([2, 0]),
        "num_computed_tokens": int32([4, 0]),
        "restarted": torch.tensor([True, False]),
        "block_table": torch.arange(8, dtype=torch.int32).view(2, 4),
        **changes,
    }
    return DraftBatch(**given)


def library_drafter(**options) -> DraftModelDrafter:
    drafter = DraftModelDrafter(checks.draft_model("near"), 3, **options)
    drafter.allocate_kv_cache(8, 16)
    return drafter


@pytest.mark.parametrize(("mask", "expected"), [(None, one_by_one), (MASK, in_parallel)])
def test_alone(mask, expected):
    drafter = library_drafter(mask_token_id=mask)
    draft = drafter.propose(library_batch())
    assert draft.token_ids.tolist() == [[*expected("near", tuple(PROMPTS[1]), 2), -1], [-1] * 3]
    assert (draft.logits, draft.token_ids.dtype) == (None, torch.int32)
    nobody = library_batch(num_speculative_tokens=int32([0, 0]))
    assert drafter.propose(nobody).token_ids.tolist() == [[-1] * 3] * 2


@pytest.mark.parametrize("name", ["block_table", "num_computed_tokens", "restarted"])
def test_a_batch_that_lacks_something(name):
    with pytest.raises(ValueError, match=f"a batch without {name} was given"):
        library_drafter().propose(library_batch(**{name: None}))


def test_sampling_needs_temperatures_and_seeds():
    drafter = library_drafter(draft_sample_method="probabilistic")
    with pytest.raises(ValueError, match="a batch without temperature was given"):
        drafter.propose(library_batch())


def test_logits_that_are_not_finite_end_the_drafts():
    logits = torch.zeros(4, 4)
    logits[0, 1], logits[1, 2], logits[2, 3] = 5.0, torch.nan, 5.0
    drafter = DraftModelDrafter(checks.BigramModel(logits), 3)
    drafter.allocate_kv_cache(8, 16)
    batch = library_batch(
        token_ids=torch.zeros(2, 64, dtype=torch.int32), num_speculative_tokens=int32([3, 0])
    )
    assert drafter.propose(batch).token_ids.tolist() == [[1, -1, -1], [-1] * 3]


# ---- defects these checks would catch
def forgets_the_last_draft(self, batch, slots, wanted, *args):
    result = chain(self, batch, slots, wanted, *args)
    self._keep(batch, torch.where(wanted > 0, batch.num_tokens + wanted, self._num_cached))
    return result


def keeps_rejected(self, batch):
    return torch.where(batch.restarted, 0, torch.minimum(self._cached(batch), batch.num_tokens - 1 + 2))


def keeps_everything(self, batch):
    return torch.minimum(self._cached(batch), batch.num_computed_tokens)


def counts_masks(self, batch, num_cached):
    keep(self, batch, num_cached + self.num_speculative_tokens - 1)


def one_position_late(last, drafts, counts, num_tokens, *args):
    return draft_inputs(last, drafts, counts, torch.where(num_tokens > 0, num_tokens + 1, 0), *args)


most_missing = llm_module.most_missing
chain, keep, draft_inputs = DraftModelDrafter._chain, DraftModelDrafter._keep, draft_model_module.draft_inputs


def rejections():
    for kind in ("same", "near"):
        watch(engine(kind, 3), kind)


def no_drafts_for_a_while():
    test_steps_without_drafts(None, False)


def preempted():
    watch(engine("near", 4), "near", PROMPTS, preempt_at=(4, 7))


def masks():
    watch(engine("near", 4, parallel=True), "near", PROMPTS, in_parallel)


def static():
    watch(engine("same", 3, facts=STATIC), "same")


MUTANTS = {
    "30: steps without drafts leave a hole in the K/V": (
        DraftModelDrafter, "follow", lambda self, batch: self._keep(batch, batch.num_computed_tokens),
        no_drafts_for_a_while,
    ),
    "30: unfinished prompts leave a hole": (
        DraftModelDrafter, "follow", lambda self, batch: self._keep(batch, batch.num_computed_tokens),
        lambda: watch(engine("near", 4, max_num_batched_tokens=12), "near"),
    ),
    "31: the last draft is taken for computed": (DraftModelDrafter, "_chain", forgets_the_last_draft, rejections),
    "K/V of rejected drafts is kept": (DraftModelDrafter, "_held", keeps_rejected, rejections),
    "K/V of another request is kept": (DraftModelDrafter, "_held", keeps_everything, preempted),
    "K/V of mask tokens is kept": (DraftModelDrafter, "_keep", counts_masks, masks),
    "drafts stand one position late": (draft_model_module, "draft_inputs", one_position_late, rejections),
    "one row is enough after a full acceptance": (
        llm_module, "most_missing", lambda slots, n, *_: tuple(int(slot in slots) for slot in range(n)), static
    ),
    "K/V of accepted drafts is expected of parallel drafting": (
        llm_module, "most_missing", lambda *args: most_missing(*args[:-1], True),
        lambda: watch(engine("same", 3, parallel=True, facts=STATIC), "same", PROMPTS, in_parallel),
    ),
    "nothing is reserved for drafts": (
        DraftModelSpeculatorConfig, "num_lookahead_tokens", property(lambda self: 0),
        lambda: watch(engine("same", 8, block_size=4), "same"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name, monkeypatch):
    where, attribute, broken, check = MUTANTS[name]
    check()
    monkeypatch.setattr(where, attribute, broken)
    with pytest.raises(AssertionError):
        check()
