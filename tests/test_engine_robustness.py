"""What must not take the engine down with it: drafters, callbacks, requests and steps that go wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_fixtures import FunctionDrafter, greedy_reference, tiny_model

from ascend_spec.engine import LLM
from ascend_spec.runtime import DeviceFacts
from ascend_spec.types import Draft, SamplingParams, TokenTree

STATIC = DeviceFacts(block_size=4, host_readable=False, static_shapes=True)
PROMPT = [1, 2, 3, 4] * 4
NEW = 8
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW)
K, SLOTS, VOCAB = 3, 8, 64
CONFIG = {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def reference(prompt) -> tuple[int, ...]:
    return tuple(greedy_reference(tuple(prompt), NEW))


# -------------------------------------------------------------------------------------------------- drafters
TOKENS = torch.full((SLOTS, K), 5, dtype=torch.int32)
LOGITS = torch.zeros(SLOTS, K, VOCAB)
ONES = torch.ones(SLOTS)


@pytest.mark.parametrize("facts", [None, STATIC], ids=["exact", "static"])
@pytest.mark.parametrize(
    "draft",
    [
        None,
        Draft(TOKENS.long()),
        Draft(TOKENS.float()),
        Draft(TOKENS[0]),
        Draft(TOKENS[:1]),
        Draft(TOKENS[:2]),
        Draft(TOKENS, LOGITS),  # would be judged as deterministic, which it does not say it is
        Draft(TOKENS, temperature=ONES),
        Draft(TOKENS, LOGITS[..., :-1], ONES),
        Draft(TOKENS, LOGITS[:, :1], ONES),
        Draft(TOKENS, LOGITS.long(), ONES),
        Draft(TOKENS, LOGITS, ONES.double()),
        Draft(TOKENS, LOGITS, ONES[:, None]),
        Draft(TOKENS, LOGITS, torch.tensor(1.0)),
        Draft(TOKENS, tree=TokenTree(torch.full((K,), -1, dtype=torch.int32))),
    ],
)
def test_a_malformed_draft_costs_the_drafts_alone(model, draft, facts):
    class Malformed:
        def propose(self, batch):
            return draft

    llm = LLM(model, speculative_config=CONFIG, drafter=Malformed(), facts=facts, max_num_seqs=SLOTS)
    outputs = llm.generate([PROMPT, [1, 2]], [GREEDY, replace(GREEDY, temperature=0.7, seed=1)])
    assert outputs[0].token_ids == reference(PROMPT)
    assert outputs[1].finish_reason == "length"
    assert llm.metrics.num_drafts == 0
    assert sum(llm.metrics.fallbacks.values()) == NEW


@pytest.mark.parametrize("facts", [None, STATIC], ids=["exact", "static"])
@pytest.mark.parametrize("width", [0, 1, 9])
def test_a_draft_may_be_narrower_or_wider_than_was_asked_for(model, width, facts):
    drafter = FunctionDrafter(lambda history, wanted: [5] * width, width)
    llm = LLM(model, speculative_config=CONFIG, drafter=drafter, facts=facts)
    assert llm.generate([PROMPT], GREEDY)[0].token_ids == reference(PROMPT)
    assert not llm.metrics.fallbacks
    assert (llm.metrics.num_drafts > 0) == (width > 0)


# -------------------------------------------------------------------------------------------------- requests
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1e-40},  # 1 / temperature is infinite in float32: token 0 would be drawn
        {"temperature": 1e39},  # infinite in float32: would be greedy
        {"temperature": "1"},
        {"max_tokens": 2.5},
        {"max_tokens": None},
        {"min_tokens": 1.5},
        {"seed": 1.5},
        {"stop": (5,)},
        {"stop": None},
        {"stop_token_ids": ("a",)},
        {"stop_token_ids": 3},
    ],
)
def test_parameters_of_a_wrong_kind_fail_alone(model, params):
    outputs = LLM(model).generate([PROMPT, [1, 2]], [GREEDY, replace(GREEDY, **params)])
    assert outputs[0].token_ids == reference(PROMPT)
    assert outputs[1].finish_reason == "error"
    assert next(iter(params)) in outputs[1].error.replace("stop token id", "stop_token_ids")


@pytest.mark.parametrize("prompt", [5, None, [1.7], [[1, 2]], ["a"], b"ab", {"prompt": "x"}])
def test_a_prompt_of_a_wrong_kind_fails_alone(model, prompt):
    outputs = LLM(model).generate([PROMPT, prompt], GREEDY)
    assert outputs[0].token_ids == reference(PROMPT)
    assert "sequence of token ids" in outputs[1].error


def test_a_prompt_that_the_tokenizer_rejects_fails_alone(model):
    class Strict:
        def encode(self, text):
            return list(text.encode("ascii"))  # raises UnicodeEncodeError

        def decode(self, ids, skip_special_tokens=True):
            return ""

    llm = LLM(model, tokenizer=Strict())
    outputs = llm.generate(["\x01\x02", "\ud800"], GREEDY)
    assert [output.finish_reason for output in outputs] == ["length", "error"]
    assert "cannot encode" in outputs[1].error


@pytest.mark.parametrize("convert", [torch.tensor, lambda ids: torch.tensor(ids).numpy(), tuple])
def test_one_prompt_may_be_any_sequence_of_integers(model, convert):
    assert [output.token_ids for output in LLM(model).generate(convert(PROMPT), GREEDY)] == [
        reference(PROMPT)
    ]


def test_a_generated_request_id_avoids_those_in_use(model):
    llm = LLM(model)
    llm.add_request(PROMPT, GREEDY, request_id="request-0")
    assert llm.generate([PROMPT], GREEDY)[0].request_id != "request-0"


# ------------------------------------------------------------------------------------------------ at the start
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size=0"),
        ({"block_size": -1}, "block_size=-1"),
        ({"num_kv_blocks": 0}, "0 blocks"),
        ({"max_num_seqs": "3"}, "max_num_seqs='3' was given; choose an integer"),
        ({"max_num_batched_tokens": 2.5}, "max_num_batched_tokens=2.5"),
        (
            {"speculative_config": {**CONFIG, "num_speculative_tokens": 128}},
            "max_model_len is 128. Lower 'num_speculative_tokens' to 127",
        ),
        ({"speculative_config": CONFIG, "max_num_batched_tokens": 2}, "max_num_batched_tokens is 2"),
        ({"drafter": FunctionDrafter(lambda history, wanted: [], 3)}, "without speculative_config"),
    ],
)
def test_options_that_make_no_sense_are_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        LLM(model, **options)


def test_a_model_may_be_named_by_a_path_object(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        LLM(Path(tmp_path / "nothing"))


# ---------------------------------------------------------------------------------------- steps that break off
@pytest.mark.parametrize("facts", [None, STATIC], ids=["exact", "static"])
@pytest.mark.parametrize("where", ["forward", "_propose"], ids=["before_commit", "after_commit"])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_step_that_breaks_off_is_repeated(model, monkeypatch, at, where, facts):
    """Device and host would disagree about the text if the broken step's tokens stayed in the pool."""
    llm = LLM(model, speculative_config=CONFIG, facts=facts)
    for prompt in (PROMPT, [5, 6], [7] * 5):
        llm.add_request(prompt, GREEDY)
    outputs = []
    for _ in range(at):
        outputs += llm.step()

    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model if where == "forward" else llm, where, interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.step()
    while llm.has_unfinished_requests:
        outputs += llm.step()
    assert {output.prompt_token_ids: output.token_ids for output in outputs} == {
        tuple(prompt): reference(prompt) for prompt in (PROMPT, [5, 6], [7] * 5)
    }


def test_a_callback_that_raises_costs_other_requests_nothing(model):
    llm = LLM(model, speculative_config=CONFIG)
    received = []

    def broken(chunk):
        raise ValueError("broken callback")

    llm.add_request([1, 2], GREEDY, callback=broken)
    llm.add_request(PROMPT, GREEDY, callback=received.append)
    raised = 0
    while llm.has_unfinished_requests:
        try:
            llm.step()
        except ValueError:
            raised += 1
    assert raised > 0
    assert tuple(token for chunk in received for token in chunk.token_ids) == reference(PROMPT)
    assert received[-1].finish_reason == "length"
