"""Sampling parameters under speculation: each token is drawn as if tokens were decoded one at a time."""

from __future__ import annotations

import string
from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from engine_fixtures import TINY_VOCAB, FunctionDrafter, half_right, oracle, tiny_llama
from letters import LETTERS, letter_model, letter_tokenizer, speculative

import ascend_spec.samplers.packing as packing
import ascend_spec.samplers.processors as processors
from ascend_spec.engine import LLM, RequestError
from ascend_spec.runtime import DeviceFacts, Recorder
from ascend_spec.types import SamplingParams, StructuredOutputsParams

PROMPTS = [[1, 2, 3, 4] * 4, [5, 6], [8, 9, 10] * 5, list(range(20, 37)), [3] * 5]
SAMPLED = SamplingParams(temperature=1.0, max_tokens=14, seed=5)


def add_to_last(bias: float, output: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Depends on the token before: what a row sees of the drafts matters."""
    if output:
        logits[(output[-1] + 1) % TINY_VOCAB] += bias
    return logits


def forbid_prompt(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
    logits[prompt] = float("-inf")
    return logits


CASES = {
    "plain": {},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.2},
    "cuts": {"top_k": 9, "top_p": 0.8, "min_p": 0.05, "temperature": 1.7},
    "repetition": {"repetition_penalty": 1.8},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 1.1},
    "penalties": {"repetition_penalty": 0.8, "presence_penalty": -0.7, "frequency_penalty": 0.9, "top_p": 0.9},
    "logit_bias": {"logit_bias": {3: 4.0, 11: -100.0}},
    "allowed": {"allowed_token_ids": (1, 2, 3, 31, 32, 63)},
    "bad_words": {"bad_words": ("7", *map("".join, product(string.ascii_lowercase, repeat=2)))},
    "min_tokens": {"min_tokens": 5, "stop_token_ids": tuple(range(0, TINY_VOCAB, 2))},
    "processor": {"logits_processors": (partial(add_to_last, 6.0),)},
    "processor of the prompt": {"logits_processors": (forbid_prompt, partial(add_to_last, 3.0))},
    "regex": {"structured_outputs": StructuredOutputsParams(regex="[a-f]{2}( [0-9]{3})+")},
    "choice": {"structured_outputs": StructuredOutputsParams(choice=("abc", "abd 1", "zz"))},
    "all": {
        "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.3, "logit_bias": {7: 1.0}, "bad_words": ("ab", "c"),
        "logits_processors": (partial(add_to_last, 2.0),), "frequency_penalty": 0.3,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return letter_tokenizer()


@pytest.fixture(scope="module")
def model():
    return letter_model()


def params_of(case: str, temperature: float) -> SamplingParams:
    params = replace(SAMPLED, **CASES[case])
    return params if temperature else replace(params, temperature=0.0)


def generate(llm: LLM, params: SamplingParams) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, [replace(params, seed=params.seed + i) for i in range(len(PROMPTS))])
    assert [output.error for output in outputs] == [None] * len(PROMPTS)
    return [list(output.token_ids) for output in outputs]


def compare(model, tokenizer, case: str, temperature: float, **options) -> LLM:
    """With drafts that are partly right, the text must be that of plain decoding."""
    params = params_of(case, temperature)
    plain = generate(LLM(model, tokenizer=tokenizer), params)
    texts = [prompt + tokens for prompt, tokens in zip(PROMPTS, plain, strict=True)]
    rule = "coupled" if temperature else "standard"
    llm = LLM(
        model, tokenizer=tokenizer, speculative_config=speculative(3, rule),
        drafter=half_right(texts, 3, TINY_VOCAB), **options,
    )  # fmt: skip
    assert generate(llm, params) == plain
    assert 0 < llm.metrics.num_accepted_tokens < llm.metrics.num_draft_tokens
    return llm


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
@pytest.mark.parametrize("case", CASES)
def test_text_is_that_of_plain_decoding(model, tokenizer, case, temperature):
    compare(model, tokenizer, case, temperature)


@pytest.mark.parametrize(
    "case", ["plain", "cuts", "penalties", "bad_words", "min_tokens", "allowed", "regex"]
)
def test_captured_steps_too(model, tokenizer, case):
    facts = DeviceFacts(block_size=4, host_readable=False, static_shapes=True)
    recorder = Recorder()
    compare(model, tokenizer, case, 1.0, facts=facts, capturer=recorder)
    assert (recorder.num_replays > 0) == (case != "regex")  # whose masks are made on the host


def count_captures(model, tokenizer, sizes: int) -> int:
    """Of requests whose parameters have 1 to ``sizes`` entries, one after the other."""
    recorder = Recorder()
    facts = DeviceFacts(block_size=4, host_readable=False, static_shapes=True)
    llm = LLM(
        model, tokenizer=tokenizer, speculative_config=speculative(1, "standard"), facts=facts,
        capturer=recorder, max_num_seqs=1,
    )  # fmt: skip
    pairs = ["".join(pair) for pair in product(string.ascii_lowercase[:8], repeat=2)]
    for size in range(1, sizes + 1):
        params = SamplingParams(
            max_tokens=3, logit_bias=dict.fromkeys(range(size), 1.0), bad_words=pairs[:size]
        )
        assert llm.generate([PROMPTS[1]], params)[0].error is None
    assert recorder.num_replays > sizes
    return recorder.num_captures


def test_few_captures_for_many_sizes(model, tokenizer, monkeypatch):
    assert count_captures(model, tokenizer, 50) <= 14  # 7 powers of two, with a draft and without
    monkeypatch.setattr(packing, "_power_of_two", lambda size: size)
    assert count_captures(model, tokenizer, 16) > 14


@pytest.mark.parametrize("case", [case for case in CASES if case != "plain"])
def test_the_parameters_do_something(model, tokenizer, case):
    plain = generate(LLM(model, tokenizer=tokenizer), SAMPLED)
    assert generate(LLM(model, tokenizer=tokenizer), params_of(case, 1.0)) != plain


def test_what_is_forbidden_never_comes(model, tokenizer):
    oracle_of = FunctionDrafter(lambda history, wanted: [(history[-1] + 1) % TINY_VOCAB] * wanted, 3)
    llm = LLM(model, tokenizer=tokenizer, speculative_config=speculative(3, "standard"), drafter=oracle_of)
    allowed = set(CASES["allowed"]["allowed_token_ids"])
    for tokens in generate(llm, params_of("allowed", 1.0)):
        assert set(tokens) <= allowed
    for tokens in generate(llm, params_of("bad_words", 1.0)):
        assert LETTERS.index("7") not in tokens
        assert not any(before < 26 and after < 26 for before, after in pairwise(tokens))
    for output in llm.generate(PROMPTS, replace(params_of("regex", 1.0), max_tokens=30)):
        assert set(output.text[:2]) <= set("abcdef")
    for output in llm.generate(PROMPTS, params_of("choice", 1.0)):
        assert (output.text, output.finish_reason) in [
            (t, "stop") for t in CASES["choice"]["structured_outputs"].choice
        ]


# ------------------------------------------------------------------------------------------------ logprobs
@pytest.mark.parametrize("case", ["plain", "cuts", "penalties", "regex"])
def test_logprobs_are_those_of_the_model(model, tokenizer, case):
    params = replace(params_of(case, 1.0), logprobs=3)
    plain = LLM(model, tokenizer=tokenizer).generate(PROMPTS, params)
    texts = [[*o.prompt_token_ids, *o.token_ids] for o in plain]
    llm = LLM(
        model, tokenizer=tokenizer, speculative_config=speculative(3, "coupled"),
        drafter=half_right(texts, 3, TINY_VOCAB),
    )  # fmt: skip
    for one, other, text in zip(plain, llm.generate(PROMPTS, params), texts, strict=True):
        assert one.token_ids == other.token_ids
        with torch.inference_mode():
            rows = tiny_llama()(torch.tensor([text])).logits[0].log_softmax(-1)
        for output in (one, other):
            assert len(output.logprobs) == len(output.token_ids)
            for place, (token, entry) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
                row = rows[len(output.prompt_token_ids) + place - 1]
                assert len(entry) in (3, 4)
                assert entry[token].logprob == pytest.approx(float(row[token]), abs=1e-4)
                assert entry[token].rank == int((row >= row[token]).sum())
                assert set(row.topk(3).indices.tolist()) <= set(entry)


def test_only_those_who_ask_get_logprobs(model, tokenizer):
    params = [replace(SAMPLED, logprobs=n, seed=i) for i, n in enumerate((None, 0, 2, None, 5))]
    outputs = LLM(model, tokenizer=tokenizer, speculative_config=speculative(2, "standard")).generate(
        PROMPTS, params
    )
    for output, given in zip(outputs, params, strict=True):
        if given.logprobs is None:
            assert output.logprobs is None
        else:
            sizes = {len(entry) for entry in output.logprobs}
            assert sizes <= {max(1, given.logprobs), given.logprobs + 1}


# ----------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_k": -2}, "top_k=-2 was given; choose an integer, 1 or more, or 0 or -1"),
        ({"top_p": 0.0}, "top_p=0.0 was given; choose a number above 0, at most 1"),
        ({"top_p": float("nan")}, "top_p=nan was given"),
        ({"min_p": 1.5}, "min_p=1.5 was given; choose a number from 0 to 1"),
        (
            {"repetition_penalty": 0.0},
            "repetition_penalty=0.0 was given; choose a number from 1e-06 to 1e+06",
        ),
        ({"presence_penalty": 3}, "choose a number from -2 to 2"),
        ({"frequency_penalty": "a"}, "frequency_penalty='a' was given"),
        ({"logprobs": 21}, "logprobs=21 was given; choose an integer from 0 to 20"),
        ({"logprobs": True}, "logprobs=True was given"),
        ({"logit_bias": {64: 1.0}}, "pass a dict from token ids, 0 to 63"),
        ({"logit_bias": {1: float("inf")}}, "to numbers from -100 to 100"),
        ({"allowed_token_ids": ()}, "at least one of the model's ids"),
        ({"allowed_token_ids": (-1,)}, "at least one of the model's ids"),
        ({"bad_words": ("",)}, "pass a tuple of strings that are not empty"),
        ({"bad_words": "word"}, "pass a tuple of strings"),
        ({"logits_processors": ("x",)}, "pass a tuple of callables"),
        ({"logits_processors": (max,)}, "pass a function of (output_token_ids, logits)"),
        ({"logits_processors": (lambda logits: logits,)}, "pass a function of (output_token_ids, logits)"),
        ({"bad_words": ("\ud800",)}, "cannot be encoded"),
        ({"temperature": np.array([0.5, 0.6])}, "choose 0 (greedy) or"),
        ({"structured_outputs": {"regex": "a"}}, "pass one of ascend_spec.types.StructuredOutputsParams"),
        (
            {"structured_outputs": StructuredOutputsParams(choice="abc")},
            "choice='abc' was given; pass a tuple of texts",
        ),
        ({"structured_outputs": StructuredOutputsParams(json_object="no")}, "choose True or False"),
        ({"structured_outputs": StructuredOutputsParams()}, "with nothing; give exactly one of"),
        (
            {"structured_outputs": StructuredOutputsParams(regex="a", choice=("b",))},
            "with regex, choice; give exactly",
        ),
        (
            {"structured_outputs": StructuredOutputsParams(regex="(")},
            "structured_outputs.regex cannot be compiled",
        ),
        (
            {"structured_outputs": StructuredOutputsParams(json="{")},
            "structured_outputs.json cannot be compiled",
        ),
    ],
)
def test_bad_parameters_are_refused(model, tokenizer, changes, message):
    with pytest.raises(RequestError) as caught:
        LLM(model, tokenizer=tokenizer).add_request([1, 2], replace(SAMPLED, **changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [{"top_k": 2**40}, {"seed": np.int64(5)}, {"bad_words": (" ",)}, {"temperature": np.float32(0.5)}],
)
def test_odd_but_good_parameters(model, tokenizer, changes):
    generate(LLM(model, tokenizer=tokenizer), replace(SAMPLED, **changes))


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raise_unsayable():
    raise Unsayable


@pytest.mark.parametrize(
    ("processor", "why"),
    [
        (lambda output, logits: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda output, logits: None, "it returned NoneType"),
        (lambda output, logits: logits[:5], "it returned [5] and not logits of shape [64]"),
        (lambda output, logits: logits.resize_(1), "it returned [1] and not logits of shape [64]"),
        (lambda output, logits: logits + 1j, "it returned [64] complex numbers and not logits"),
        (lambda output, logits: logits.to("meta"), "NotImplementedError"),
        (lambda output, logits: raise_unsayable(), "Unsayable: (it cannot say what)"),
    ],
)
@pytest.mark.parametrize("k", [0, 3])
def test_a_processor_that_fails_costs_its_request_alone(model, tokenizer, processor, why, k):
    config = speculative(k, "standard") if k else None
    llm = LLM(model, tokenizer=tokenizer, speculative_config=config)
    bad = replace(SAMPLED, logits_processors=(processor,), temperature=0.0)
    good = replace(SAMPLED, temperature=0.0)
    outputs = llm.generate(PROMPTS[:3], [good, bad, good])
    assert [output.finish_reason for output in outputs] == ["length", "error", "length"]
    assert outputs[1].error.startswith("a logits processor of this request failed: ")
    assert why in outputs[1].error
    alone = LLM(model, tokenizer=tokenizer).generate(PROMPTS[:3:2], good)
    assert [o.token_ids for o in outputs[::2]] == [o.token_ids for o in alone]


def test_a_default_argument_is_not_the_prompt(model, tokenizer):
    def with_default(output, logits, bias=6.0):
        return add_to_last(bias, output, logits)

    params = replace(SAMPLED, logits_processors=(with_default,))
    same = replace(SAMPLED, logits_processors=(partial(add_to_last, 6.0),))
    assert generate(LLM(model, tokenizer=tokenizer), params) == generate(
        LLM(model, tokenizer=tokenizer), same
    )


@pytest.mark.parametrize(("max_tokens", "words"), [(2, 3), (3, 4), (100, 4), (1, 1)])
def test_words_that_do_not_fit_the_output_are_left_out(model, tokenizer, max_tokens, words):
    llm = LLM(model, tokenizer=tokenizer, max_model_len=10)
    params = SamplingParams(max_tokens=max_tokens, bad_words=("a", "ab", "cd", "abc", "abcdefg"))
    request_id = llm.add_request([1, 2, 3, 4], params)
    assert len(llm._live[request_id].request.bad_words_token_ids) == words


@pytest.mark.parametrize("case", ["bad_words", "regex"])
def test_words_need_a_tokenizer(model, case):
    with pytest.raises(RequestError, match="an engine without a tokenizer"):
        LLM(model).add_request([1, 2], params_of(case, 1.0))


# ------------------------------------------------------------------------------------------------ mutants
class NoDraftsSeen:
    """Penalties at row ``i`` leave out the drafts before it."""

    def __init__(self, ops):
        self.ops = ops

    def __getattr__(self, name):
        return getattr(self.ops, name)

    def apply_penalties(self, logits, token_ids, slots, prompt, num_tokens, drafts, *rest):
        self.ops.apply_penalties(
            logits, token_ids, slots, prompt, num_tokens, torch.full_like(drafts, -1), *rest
        )


def without_drafts(plan, todo, token_ids, count):
    return tokens_before(
        plan, replace(todo, row_offsets=torch.zeros_like(todo.row_offsets)), token_ids, count
    )


tokens_before = processors._tokens_before
MUTANTS = {
    "34: penalties without drafts": (
        "penalties", partial(setattr, processors, "ascend_spec_ops", NoDraftsSeen(processors.ascend_spec_ops)),
    ),
    "bad words without drafts": (
        "bad_words", partial(setattr, processors, "_tokens_before", without_drafts),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(model, tokenizer, name, monkeypatch):
    case, mutate = MUTANTS[name]
    monkeypatch.setattr(processors, "ascend_spec_ops", processors.ascend_spec_ops)  # restored afterwards
    monkeypatch.setattr(processors, "_tokens_before", tokens_before)
    mutate()
    with pytest.raises(AssertionError):
        compare(model, tokenizer, case, 1.0)


def test_greedy_text_with_an_oracle_is_all_drafts(model, tokenizer):
    """A processor that made drafts and target disagree would cost acceptance and show nowhere else."""
    params = params_of("penalties", 0.0)
    plain = generate(LLM(model, tokenizer=tokenizer), params)
    texts = [prompt + tokens for prompt, tokens in zip(PROMPTS, plain, strict=True)]
    llm = LLM(
        model, tokenizer=tokenizer, speculative_config=speculative(4, "standard"), drafter=oracle(texts, 4)
    )
    assert generate(llm, params) == plain
    assert llm.metrics.acceptance_rate == 1.0
