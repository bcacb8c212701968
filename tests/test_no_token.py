"""Rows in which parameters leave nothing to draw: what was drawn before them is kept, and the error says why."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from engine_fixtures import TINY_VOCAB, ScriptedModel, half_right
from letters import ids_of, letter_model, letter_tokenizer, speculative

import ascend_spec.samplers.processors as processors
from ascend_spec.engine import LLM
from ascend_spec.engine.step import DeviceStep
from ascend_spec.samplers import RejectionSampler
from ascend_spec.samplers.packing import token_bitmask
from ascend_spec.types import (
    AttentionMetadata,
    LogitsProcessing,
    SamplingParams,
    SpecDecodeMetadata,
    StepPlan,
    StructuredOutputsParams,
)

PROMPTS = [[1, 2, 3, 4] * 4, [5, 6], [8, 9, 10] * 5]


def fail_at(length: int, output: list[int], logits: torch.Tensor) -> torch.Tensor:
    if len(output) >= length:
        raise KeyError("no more")
    return logits


def spoil_at(value: float, length: int, output: list[int], logits: torch.Tensor) -> torch.Tensor:
    return torch.full_like(logits, value) if len(output) >= length else logits


LETTERS_ONLY = StructuredOutputsParams(regex="[a-z]{5}[0-9]")
CASES = {
    "a processor that fails": ({"logits_processors": (partial(fail_at, 5),)}, 5, "KeyError: 'no more'"),
    "one that forbids all": (
        {"logits_processors": (partial(spoil_at, float("-inf"), 5),)}, 5,
        "logits_processors left no token to draw after 5 tokens of output, or the model gave logits that are not",
    ),
    "one that returns no numbers": (
        {"logits_processors": (partial(spoil_at, float("nan"), 5),)}, 5, "logits_processors left no token to draw",
    ),
    "a grammar and allowed tokens": (
        {"structured_outputs": LETTERS_ONLY, "allowed_token_ids": tuple(range(26))}, 5,
        "structured_outputs and allowed_token_ids together leave no token to draw after 5 tokens of output; the "
        "request was stopped, others go on: give them room, or leave one out",
    ),
    "the grammar's end and min_tokens": (
        {"structured_outputs": StructuredOutputsParams(regex="[a-z]{5}"), "min_tokens": 9}, 5,
        "structured_outputs and min_tokens together leave no token to draw after 5",
    ),
    "a letter that the vocabulary lacks": (
        {"structured_outputs": StructuredOutputsParams(regex="[a-z]{5}é")}, 5,
        "structured_outputs leaves no token to draw after 5 tokens of output; the request was stopped, others go on: "
        "give it room, or leave it out",
    ),
    "a dead end before a processor would fail": (
        {
            "structured_outputs": StructuredOutputsParams(regex="[a-z]{5}é"),
            "logits_processors": (partial(fail_at, 6),),
        },
        5, "structured_outputs leaves no token to draw after 5",
    ),
    "bad words": (
        {"allowed_token_ids": tuple(ids_of("ab")), "bad_words": ("aaa", "aab", "bb", "ba")}, None,
        "allowed_token_ids and bad_words together leave no token to draw",
    ),
}  # fmt: skip


def check(case: str, temperature: float) -> None:
    changes, length, why = CASES[case]
    asked = replace(SamplingParams(temperature=temperature, seed=1, max_tokens=12), **changes)
    good = SamplingParams(temperature=temperature, seed=1, max_tokens=12)
    model, tokenizer = letter_model(), letter_tokenizer()
    wanted = [asked, good, asked]
    plain = LLM(model, tokenizer=tokenizer).generate(PROMPTS, wanted)
    texts = [[*output.prompt_token_ids, *output.token_ids, *[0] * 4] for output in plain]
    rule = speculative(3, "coupled" if temperature else "standard")
    drafter = half_right(texts, 3, TINY_VOCAB)
    llm = LLM(model, tokenizer=tokenizer, speculative_config=rule, drafter=drafter)
    for one, other in zip(plain, llm.generate(PROMPTS, wanted), strict=True):
        assert one.token_ids == other.token_ids
        assert (one.finish_reason, one.error) == (other.finish_reason, other.error)
    assert [output.error is None for output in plain] == [False, True, False]
    for output in plain[::2]:
        assert why in output.error
        assert length in (None, len(output.token_ids))
    assert llm.metrics.num_accepted_tokens > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
@pytest.mark.parametrize("case", CASES)
def test_what_was_drawn_before_is_kept(case, temperature):
    check(case, temperature)


@pytest.mark.parametrize("case", ["a processor that fails", "a grammar and allowed tokens"])
def test_drafts_that_are_lost_are_noticed(case, monkeypatch):
    monkeypatch.setattr(processors, "_limits", lambda logits, plan, todo: None)
    with pytest.raises(AssertionError):
        check(case, 0.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_the_models_own_fault_is_said_to_be_its(value):
    model = ScriptedModel(list(range(40)), TINY_VOCAB, 64)
    forward = model.forward
    model.forward = lambda *args: torch.where(args[1][args[4]][:, None] > 5, value, forward(*args))
    llm = LLM(model, tokenizer=letter_tokenizer())
    asked = SamplingParams(temperature=0.0, max_tokens=9, allowed_token_ids=tuple(range(TINY_VOCAB)))
    (output,) = llm.generate([[0, 1, 2, 3]], asked)
    assert output.token_ids == (4, 5, 6)
    assert output.error == (
        "the model gave logits that are not finite after 3 tokens of output; the request was stopped, others go on: "
        "check the checkpoint and the dtype; its parameters do leave tokens to draw"
    )


def test_an_empty_grammar_that_cannot_be_ended():
    llm = LLM(letter_model(()), tokenizer=letter_tokenizer(None))
    (output,) = llm.generate([[1, 2]], SamplingParams(structured_outputs=StructuredOutputsParams(regex="é")))
    assert "structured_outputs leaves no token to draw after 0 tokens of output" in output.error


# ------------------------------------------------------------------------------------------------ the law
VOCAB, K, ROUND = 6, 2, 400


def first_tokens(rule: str, rounds: int) -> torch.Tensor:
    """``[V]`` frequencies of the first token, where a row has nothing to draw if the draft before it is 1 or 2."""
    generator = torch.Generator().manual_seed(0)
    p = torch.tensor([0.0, 1.0, 0.5, -0.5, 0.2, 0.1]).expand(ROUND * (K + 1), VOCAB)
    q = torch.tensor([0.5, 0.0, 1.0, 0.0, 0.0, 0.0]).expand(ROUND * K, VOCAB)
    owners = torch.arange(ROUND).repeat_interleave(K + 1)
    offsets = torch.arange(K + 1).repeat(ROUND)
    every, none = torch.arange(ROUND * (K + 1)), torch.empty(0, dtype=torch.int64)
    attention = AttentionMetadata(none, none, none, none, (), (), 0)
    counts = torch.zeros(VOCAB, dtype=torch.float64)
    for number in range(rounds):
        drafts = torch.multinomial(q.softmax(1), 1, generator=generator).view(ROUND, K)
        nothing = torch.zeros(ROUND, K + 1, dtype=torch.bool)
        nothing[:, 1:] = (drafts == 1) | (drafts == 2)
        mask = torch.where(nothing.view(-1, 1), 0, int(token_bitmask(range(VOCAB), 1)[0])).to(torch.int32)
        spec = SpecDecodeMetadata(
            drafts.flatten().int(), (K,) * ROUND, torch.arange(1, ROUND + 1, dtype=torch.int32) * K, every, K,
            q.contiguous(), torch.ones(ROUND),
        )  # fmt: skip
        plan = StepPlan(
            none, none, attention, spec, torch.ones(ROUND), torch.arange(ROUND) + number * ROUND,
            torch.zeros(ROUND, dtype=torch.int64), none, LogitsProcessing(owners, offsets, mask),
        )  # fmt: skip
        output = DeviceStep(None, RejectionSampler(rule), [], none).judge(p.clone(), plan)
        assert (output[:, 0] >= 1).all()
        assert not nothing[
            torch.arange(ROUND), output[:, 0].long() - 1
        ].any()  # rows the last tokens came from
        counts += torch.bincount(output[:, 1].long(), minlength=VOCAB)
    return counts / counts.sum()


def check_law(rule: str, rounds: int = 100) -> None:
    law = torch.tensor([0.0, 1.0, 0.5, -0.5, 0.2, 0.1], dtype=torch.float64).softmax(0)
    chi_square = float(((first_tokens(rule, rounds) - law) ** 2 / law).sum()) * rounds * ROUND
    assert chi_square < 26  # 5 degrees of freedom: p-value 1e-4


@pytest.mark.parametrize("rule", ["standard", "block", "coupled"])
def test_the_law_before_an_empty_row_is_the_targets(rule):
    check_law(rule)


def test_drafts_that_are_cut_by_what_they_are_would_be_biased(monkeypatch):
    """The obvious mend: end the drafts before the one that leads to an empty row."""

    def cut(logits, plan, todo):
        empty = (logits.amax(1) == float("-inf")).view(-1, K + 1)
        logits[empty.flatten()] = 0.0
        drafts = plan.spec.draft_token_ids.view(-1, K)
        drafts[empty[:, 1:].cumsum(1) > 0] = -1
        return None

    monkeypatch.setattr(processors, "_limits", cut)
    with pytest.raises(AssertionError):
        check_law("standard")
