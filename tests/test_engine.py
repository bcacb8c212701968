"""The engine against `generate`: however it drafts, batches, chunks, pads, preempts, tokens are the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engine_fixtures import (
    TINY_VOCAB,
    FunctionDrafter,
    ScriptedModel,
    always_wrong,
    greedy_reference,
    half_right,
    oracle,
    tiny_model,
)

from ascend_spec.engine import LLM, RequestError
from ascend_spec.runtime import DeviceFacts, Recorder
from ascend_spec.samplers import RejectionSampler
from ascend_spec.scorer import BatchExpansionScorer, MQAScorer
from ascend_spec.types import Draft, SamplingParams

#: as an accelerator sees a step: fixed shapes, and drafts the host cannot look at
STATIC = DeviceFacts(block_size=4, host_readable=False, static_shapes=True)
PROMPTS = [[1, 2, 3, 4] * 6, [5, 6], [7], [8, 9, 10] * 9, list(range(20, 37)), [11, 12, 13] * 2, [3] * 5]
NEW = 12
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def speculative(num_drafts: int) -> dict:
    return {
        "method": "ngram",
        "num_speculative_tokens": num_drafts,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3,
    }


def references(prompts=PROMPTS, new=NEW) -> list[list[int]]:
    return [greedy_reference(tuple(prompt), new) for prompt in prompts]


def texts(prompts=PROMPTS, new=NEW + 20) -> list[list[int]]:
    return [prompt + reference for prompt, reference in zip(prompts, references(prompts, new), strict=True)]


DRAFTERS = {
    "none": lambda k: None,
    "ngram": lambda k: None,
    "oracle": lambda k: oracle(texts(), k),
    "wrong": lambda k: always_wrong(texts(), k, TINY_VOCAB),
    "half": lambda k: half_right(texts(), k, TINY_VOCAB),
}


def make(model, drafter: str = "ngram", k: int = 3, **options) -> LLM:
    config = None if drafter == "none" else speculative(k)
    return LLM(model, speculative_config=config, drafter=DRAFTERS[drafter](k), **options)


def tokens(outputs) -> list[list[int]]:
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [list(output.token_ids) for output in outputs]


def assert_empty(llm: LLM, num_blocks: int) -> None:
    """Nothing of any request is left behind."""
    assert not llm.has_unfinished_requests
    assert sorted(llm.blocks.free_block_ids) == list(range(num_blocks))
    assert not llm.scheduler.running
    assert not llm.scheduler.waiting
    assert len(llm.scheduler.free_slots) == llm.pool.token_ids.shape[0] - 1


# ---------------------------------------------------------------------------------------- equal to generate
@pytest.mark.parametrize("options", [{}, {"facts": STATIC, "capturer": "recorder"}], ids=["exact", "static"])
@pytest.mark.parametrize("scorer", [MQAScorer, BatchExpansionScorer])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_tokens_equal_generate(model, drafter, scorer, options):
    recorder = Recorder()
    if "capturer" in options:
        options = {**options, "capturer": recorder}
    llm = make(model, drafter, scorer=scorer, max_num_batched_tokens=24, **options)
    assert tokens(llm.generate(PROMPTS, GREEDY)) == references()
    if "capturer" in options:
        assert recorder.num_replays > recorder.num_captures > 0
    metrics = llm.metrics
    if drafter == "oracle":
        assert metrics.acceptance_rate == 1.0
    if drafter == "wrong":
        assert metrics.num_accepted_tokens == 0 < metrics.num_draft_tokens
    if drafter in ("half", "ngram"):
        assert 0 < metrics.num_accepted_tokens < metrics.num_draft_tokens
    assert_empty(llm, len(llm.blocks.free_block_ids))


@pytest.mark.parametrize("num_drafts", [1, 2, 3, 5])
def test_prompts_about_as_long_as_a_verification_are_still_prompts(model, num_drafts):
    prompts = [list(range(1, 1 + n)) for n in (num_drafts, num_drafts + 1, num_drafts + 2) for _ in range(3)]
    llm = make(model, "ngram", num_drafts, facts=STATIC)
    assert tokens(llm.generate(prompts, GREEDY)) == references(prompts)


@pytest.mark.parametrize("chunk", [2, 5, 16])
def test_a_last_chunk_of_one_token(model, chunk):
    prompts = [list(range(1, chunk + 2)), list(range(2, chunk + 3))]
    llm = make(model, "ngram", min(3, chunk - 1), max_num_batched_tokens=chunk)
    assert tokens(llm.generate(prompts, GREEDY)) == references(prompts)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_one_request_at_a_time_with_many_drafts(model, k):
    llm = make(model, "half", k, max_num_seqs=1)
    assert tokens(llm.generate(PROMPTS, GREEDY)) == references()


@pytest.mark.parametrize("k", [0, 1, 3, 5])
@pytest.mark.parametrize("facts", [None, STATIC], ids=["exact", "static"])
def test_preemption_changes_nothing(model, k, facts):
    prompts = [list(range(n, n + 9)) for n in range(1, 6)]
    wanted = references(prompts, 20)
    drafter = half_right(texts(prompts, 40), k, TINY_VOCAB) if k else None
    # a pool for one full request and a half: five that grow to 29 tokens each cannot stay
    llm = LLM(model, speculative_config=speculative(k) if k else None, drafter=drafter, facts=facts,
              max_model_len=48, block_size=4, num_kv_blocks=18)  # fmt: skip
    assert tokens(llm.generate(prompts, replace(GREEDY, max_tokens=20))) == wanted
    assert llm.metrics.num_preemptions >= 2
    assert_empty(llm, 18)


@pytest.mark.parametrize("block_size", [1, 4, 64])
def test_no_block_is_lost_over_many_requests_aborted_ones_too(model, block_size):
    llm = make(
        model, "half", 3, block_size=block_size, max_model_len=64, max_num_seqs=4, num_kv_blocks=4 * 64
    )
    for round_ in range(6):
        ids = [llm.add_request(prompt, GREEDY) for prompt in PROMPTS]
        for _ in range(2 + round_):
            llm.step()
        for request_id in ids[round_ % 3 :: 2]:
            llm.abort(request_id)
        while llm.has_unfinished_requests:
            llm.step()
    assert_empty(llm, 4 * 64)


# ---------------------------------------------------------------------------- defects these tests would catch
class RollbackOffByOne(RejectionSampler):
    """Emits one token more than it may: as if the rejected draft had been kept."""

    def __call__(self, logits, metadata, *args):
        output = super().__call__(logits, metadata, *args)
        for row, n in enumerate(metadata.num_draft_tokens):
            if 0 < output[row, 0] <= n:
                output[row, 0] += 1
                output[row, output[row, 0]] = 1
        return output


class ForgetsDraftKeys(MQAScorer):
    def pack(self, *args):
        plan = super().pack(*args)
        slots = plan.attention.slot_mapping.clone()
        slots[plan.attention.query_start_loc[1:-1].long() - 1] = -1
        return replace(plan, attention=replace(plan.attention, slot_mapping=slots))


class PositionsOneBehind(MQAScorer):
    def pack(self, *args):
        plan = super().pack(*args)
        return replace(plan, positions=(plan.positions - 1).clamp(min=0))


@pytest.mark.parametrize("mutant", [RollbackOffByOne, ForgetsDraftKeys, PositionsOneBehind])
def test_mutants_are_caught(model, mutant, monkeypatch):
    if issubclass(mutant, MQAScorer):
        llm = make(model, "half", 3, scorer=mutant)
    else:
        monkeypatch.setattr("ascend_spec.engine.llm.RejectionSampler", mutant)
        llm = make(model, "half", 3)
    assert tokens(llm.generate(PROMPTS, GREEDY)) != references()


# --------------------------------------------------------------------------------------- rows and bookkeeping
def counting_model(eos=()) -> ScriptedModel:
    return ScriptedModel([n % 50 for n in range(64)], vocab_size=50, max_model_len=64, eos=eos)


@pytest.mark.parametrize("right", range(6))
def test_numbers_are_counted_without_gap_or_repeat(right):
    """The drafter is right for the first of five drafts and then wrong: each number comes once."""

    def function(history, wanted):
        following = [(history[-1] + 1 + i) % 50 for i in range(5)]
        return [*following[:right], *[(token + 7) % 50 for token in following[right:]]]

    llm = LLM(counting_model(), speculative_config=speculative(5), drafter=FunctionDrafter(function, 5))
    output = llm.generate([0, 1, 2], replace(GREEDY, max_tokens=40))[0]
    assert list(output.token_ids) == list(range(3, 43))
    per_position = llm.metrics.num_accepted_tokens_per_pos
    assert [position for position, count in enumerate(per_position) if count] == list(range(right))
    assert sum(output.accepted) == llm.metrics.num_accepted_tokens


def test_a_step_counts_every_row_against_the_budget_and_positions_match_lengths():
    model = counting_model()
    drafter = FunctionDrafter(lambda history, wanted: [(history[-1] + 1 + i) % 50 for i in range(wanted)], 4)
    llm = LLM(
        model, speculative_config=speculative(4), drafter=drafter, max_num_batched_tokens=13, block_size=8
    )
    outputs = llm.generate([list(range(n)) for n in (24, 25, 26, 3, 1)], replace(GREEDY, max_tokens=30))
    assert tokens(outputs) == [[m % 50 for m in range(n, n + 30)] for n in (24, 25, 26, 3, 1)]
    for input_ids, positions, attention in model.calls:
        assert len(input_ids) <= 13
        assert min(input_ids) >= 0
        last_rows = (attention.query_start_loc[1:] - 1).tolist()
        assert [positions[row] + 1 for row in last_rows] == list(attention.seq_lens_cpu)
        assert attention.seq_lens.tolist() == list(attention.seq_lens_cpu)


@pytest.mark.parametrize("facts", [None, STATIC], ids=["exact", "static"])
def test_drafts_wait_while_a_request_is_left_out(model, facts):
    """A budget of three rows for seven requests: most are left out of most steps, drafts in hand."""
    calls = []
    forward = model.forward

    class Watched:
        info, allocate_kv_cache = model.info, model.allocate_kv_cache

        def forward(self, input_ids, *args):
            calls.append(input_ids.tolist())
            return forward(input_ids, *args)

    llm = LLM(Watched(), speculative_config=speculative(2), drafter=DRAFTERS["half"](2),
              max_num_batched_tokens=3, facts=facts)  # fmt: skip
    assert tokens(llm.generate(PROMPTS, GREEDY)) == references()
    assert min(min(ids) for ids in calls) >= 0


def test_a_schedule_of_seven_five_zero_seven_drafts_has_no_stale_column():
    schedule = [7, 5, 0, 7]
    steps = iter(range(1000))

    def function(history, wanted):
        return [(history[-1] + 1 + i) % 50 for i in range(min(wanted, schedule[next(steps) % 4]))]

    model = counting_model()
    llm = LLM(model, speculative_config=speculative(7), drafter=FunctionDrafter(function, 7))
    output = llm.generate([0], replace(GREEDY, max_tokens=50))[0]
    assert list(output.token_ids) == [n % 50 for n in range(1, 51)]
    assert [len(ids) for ids, _, _ in model.calls] == [1, 8, 6, 1, 8, 8, 6, 1, 8, 3]
    assert llm.metrics.num_zero_draft_steps == 3  # the first token, and twice in the schedule


def test_host_and_device_histories_agree_after_every_step(model):
    llm = make(model, "half", 3, max_num_batched_tokens=16, facts=STATIC)
    for prompt in PROMPTS:
        llm.add_request(prompt, GREEDY)
    while llm.has_unfinished_requests:
        llm.step()
        for request in llm.scheduler.running:
            length = int(llm.pool.num_tokens[request.slot])
            assert llm.pool.token_ids[request.slot, :length].tolist() == request.token_ids
            assert request.num_computed_tokens < request.num_tokens
            assert len(request.block_ids) * llm.blocks.block_size >= request.num_computed_tokens


def test_one_copy_to_the_host_a_step(monkeypatch):
    """Around a model that reads nothing; inside our operators, implementations for the CPU may."""

    class Quiet(ScriptedModel):
        def forward(self, input_ids, positions, kv_caches, attention, logits_indices):
            following = self.script[positions[logits_indices] + 1]
            return torch.zeros(len(following), 50).scatter_(1, following[:, None], 1.0)

    llm = make(Quiet([n % 7 for n in range(64)], 50, 64), "ngram", 3, facts=STATIC, max_num_seqs=4)
    for prompt in PROMPTS:
        llm.add_request(prompt, GREEDY)
    reads = []
    for name in ("tolist", "item", "cpu", "__bool__", "__int__", "__index__", "__float__"):
        original = getattr(torch.Tensor, name)

        def method(self, *args, name=name, original=original):
            reads.append(name)
            return original(self, *args)

        monkeypatch.setattr(torch.Tensor, name, method, raising=False)
    while llm.has_unfinished_requests:
        reads.clear()
        llm.step()
        assert reads == ["tolist"]


# --------------------------------------------------------------------------------------------- bad drafters
def broken(history, wanted):
    raise IndexError("list index out of range")


BAD_DRAFTERS = {
    "raises": FunctionDrafter(broken, 3),
    "outside_vocabulary": FunctionDrafter(lambda history, wanted: [TINY_VOCAB, TINY_VOCAB + 5, 2**30], 3),
    "outside_after_one": FunctionDrafter(lambda history, wanted: [1, TINY_VOCAB, 2], 3),
    "nothing": FunctionDrafter(lambda history, wanted: [], 3),
    "too_many": FunctionDrafter(lambda history, wanted: [1, 2, 3, 4, 5, 6, 7, 8], 8),
}


@pytest.mark.parametrize("facts", [None, STATIC], ids=["exact", "static"])
@pytest.mark.parametrize("name", BAD_DRAFTERS)
def test_a_bad_drafter_costs_speed_and_nothing_else(model, name, facts, caplog):
    llm = LLM(model, speculative_config=speculative(3), drafter=BAD_DRAFTERS[name], facts=facts)
    assert tokens(llm.generate(PROMPTS, GREEDY)) == references()
    if name == "raises":
        (reason, count), = llm.metrics.fallbacks.items()  # fmt: skip
        assert "IndexError" in reason
        assert count > 1
        assert len([record for record in caplog.records if "drafter failed" in record.message]) == 1
        assert llm.metrics.num_drafts == 0
    if name in ("raises", "outside_vocabulary", "nothing") and facts is None:
        assert llm.metrics.num_draft_tokens == 0


def test_a_drafter_that_fails_once_is_asked_again(model):
    good, calls = DRAFTERS["oracle"](3), []

    class Flaky:
        def propose(self, batch):
            calls.append(1)
            if len(calls) == 2:
                raise RuntimeError("once")
            return good.propose(batch)

    llm = LLM(model, speculative_config=speculative(3), drafter=Flaky())
    assert tokens(llm.generate(PROMPTS, GREEDY)) == references()
    assert llm.metrics.num_accepted_tokens > 0
    assert sum(llm.metrics.fallbacks.values()) == 1


# ---------------------------------------------------------------------------------------------- bad requests
def test_a_request_with_logits_that_are_not_finite_fails_alone():
    model = tiny_model()
    with torch.no_grad():
        model.hf_model.get_input_embeddings().weight[63] = float("nan")
    llm = LLM(model, speculative_config=speculative(3), block_size=4, max_model_len=64, num_kv_blocks=40)
    for _ in range(3):  # its blocks, cleared, serve the next round
        outputs = llm.generate([PROMPTS[0], [1, 2, 63, 4], PROMPTS[3], [63]], GREEDY)
        assert [output.finish_reason for output in outputs] == ["length", "error", "length", "error"]
        assert "not finite" in outputs[1].error
        assert [list(outputs[i].token_ids) for i in (0, 2)] == references([PROMPTS[0], PROMPTS[3]])
    assert not any(cache.isnan().any() for caches in llm.kv_caches for cache in caches)
    assert_empty(llm, 40)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "empty prompt was given; a prompt needs at least one token"),
        (list(range(1, 33)), "a prompt of 32 tokens was given; with max_model_len=32 at most 31 fit"),
        ([1, 64], "token id 64; the model's ids are 0 to 63"),
        ([1, -1], "token id -1"),
        ("text", "without a tokenizer"),
    ],
)
def test_a_bad_prompt_is_refused_alone(model, prompt, message):
    llm = make(model, "ngram", max_model_len=32)
    with pytest.raises(RequestError, match=message):
        llm.generate([prompt], GREEDY)
    outputs = llm.generate([[5, 6], prompt, [7]], GREEDY)
    assert [output.finish_reason for output in outputs] == ["length", "error", "length"]
    assert message in outputs[1].error
    assert [list(outputs[i].token_ids) for i in (0, 2)] == references([[5, 6], [7]])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"min_tokens": 17}, "min_tokens=17 was given; choose 0 to max_tokens=16"),
        ({"stop_token_ids": (64,)}, "stop token id 64"),
        ({"stop": ("x",)}, "without a tokenizer"),
        ({"stop": "x"}, "pass a tuple of strings"),
    ],
)
def test_bad_parameters_are_refused(model, params, message):
    with pytest.raises(RequestError, match=message):
        make(model).generate([[1]], SamplingParams(**params))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_kv_blocks": 3, "block_size": 4, "max_model_len": 16},
            "3 blocks of 4 tokens .12 tokens. .*=16",
        ),
        ({"max_model_len": 129}, "max_model_len=129 was given; this model allows 2 to 128"),
        ({"max_num_seqs": 0}, "max_num_seqs=0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens=0"),
        ({"speculative_config": {"method": "nonsense", "num_speculative_tokens": 3}}, "nonsense"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_at_start(model, options, message):
    with pytest.raises(ValueError, match=message):
        LLM(model, **options)


def test_a_request_id_in_use_is_refused(model):
    llm = make(model)
    llm.add_request([1], request_id="a")
    with pytest.raises(RequestError, match="'a' was given, which is in use"):
        llm.add_request([2], request_id="a")
    assert llm.abort("a").finish_reason == "abort"
    assert llm.abort("a") is None


# -------------------------------------------------------------------------------------------------- sampling
def test_a_seed_decides_whatever_the_batch(model):
    params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=NEW) for seed in (1, 2, -3, 2**70)]
    prompts = [[5, 6], [7], [8, 9], [1, 2, 3]]
    together = tokens(make(model, "none").generate(prompts, params))
    alone = [tokens(make(model, "none").generate([p], s))[0] for p, s in zip(prompts, params, strict=True)]
    assert together == alone
    assert tokens(make(model, "none", seed=5).generate(prompts, SamplingParams())) == tokens(
        make(model, "none", seed=5).generate(prompts, SamplingParams())
    )
    other = [replace(p, seed=p.seed + 1) for p in params]
    assert tokens(make(model, "none").generate(prompts, other)) != together


@pytest.mark.parametrize("with_logits", [False, True], ids=["one_hot", "drawn"])
def test_sampled_tokens_follow_the_targets_law(with_logits):
    """First three tokens of 2000 requests against their exact joint distribution, with drafts in between."""
    generator = torch.Generator().manual_seed(0)
    vocab, n = 4, 2000
    table = torch.randn(8, vocab, generator=generator)

    class Law(ScriptedModel):
        def forward(self, input_ids, positions, kv_caches, attention, logits_indices):
            return table[input_ids[logits_indices].long() + 4 * (positions[logits_indices] % 2)]

    class Random:
        def propose(self, batch):
            logits = torch.zeros(batch.token_ids.shape[0], 2, vocab)
            logits[..., 0] = 1.0
            drawn = (
                torch.multinomial(logits.softmax(-1).view(-1, vocab), 1, generator=generator)
                .view(-1, 2)
                .int()
            )
            if not with_logits:
                return Draft(drawn)
            return Draft(drawn, logits, torch.ones(len(drawn)))

    llm = LLM(
        Law([0], vocab, 16), speculative_config=speculative(2), drafter=Random(), max_num_seqs=64, seed=1
    )
    outputs = llm.generate([[1]] * n, SamplingParams(temperature=1.0, max_tokens=4))
    assert 0 < llm.metrics.num_accepted_tokens < llm.metrics.num_draft_tokens
    first, second, third = (torch.tensor([output.token_ids[i] for output in outputs]) for i in (0, 1, 2))
    even, odd = table[:4].softmax(1), table[4:].softmax(1)
    law = even[1][:, None, None] * odd[:, :, None] * even[None, :, :]
    observed = torch.bincount(first * 16 + second * 4 + third, minlength=64).double()
    chi_square = ((observed - n * law.flatten()) ** 2 / (n * law.flatten())).sum()
    assert chi_square < 103.4  # 63 degrees of freedom, p = 0.001
