"""Text keeps to its grammar, to the end of it and no further."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from engine_fixtures import TINY_VOCAB, FunctionDrafter, ScriptedModel, half_right
from letters import END, LETTERS, UNKNOWN, ids_of, letter_model, letter_tokenizer, speculative

import ascend_spec.samplers.grammar as grammars
from ascend_spec.engine import LLM
from ascend_spec.samplers.grammar import Grammar, GrammarCompiler
from ascend_spec.types import SamplingParams, StructuredOutputsParams

PROMPTS = [[1, 2, 3, 4] * 4, [5, 6], [8, 9, 10] * 5, [3] * 5]
REGEX = "[a-f]{2}( [0-9]{1,3}){1,2}"


def params(regex: str = REGEX, **changes) -> SamplingParams:
    asked = StructuredOutputsParams(regex=regex)
    return replace(SamplingParams(max_tokens=40, seed=3, structured_outputs=asked), **changes)


def engines(end: str | None, eos_token_ids: tuple[int, ...], asked: SamplingParams):
    """Without drafts, and with drafts that are partly right."""
    model, tokenizer = letter_model(eos_token_ids), letter_tokenizer(end)
    plain = LLM(model, tokenizer=tokenizer)
    yield plain
    outputs = plain.generate(PROMPTS, asked)
    texts = [[*output.prompt_token_ids, *output.token_ids, 1, 2, 3, 4] for output in outputs]
    rule = speculative(3, "coupled" if asked.temperature else "standard")
    drafter = half_right(texts, 3, TINY_VOCAB)
    yield LLM(model, tokenizer=tokenizer, speculative_config=rule, drafter=drafter)


def check_end(end: str | None, eos_token_ids: tuple[int, ...], asked: SamplingParams) -> None:
    texts = []
    for llm in engines(end, eos_token_ids, asked):
        outputs = llm.generate(PROMPTS, asked)
        for output in outputs:
            assert re.fullmatch(REGEX, output.text), output.text
            assert (output.finish_reason, output.error) == ("stop", None)
        texts.append([output.token_ids for output in outputs])
    assert texts[0] == texts[1]
    assert llm.metrics.num_accepted_tokens > 0


CASES = {
    "end of sequence": ("</s>", (END,), {}),
    "which is ignored": ("</s>", (END,), {"ignore_eos": True}),
    "which only the tokenizer knows": ("</s>", (), {}),
    "nobody knows one": (None, (), {}),
    "a stop token of the request": (None, (), {"stop_token_ids": (END,)}),
    "a stop token that is text": ("</s>", (END,), {"stop_token_ids": (LETTERS.index("P"),)}),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
@pytest.mark.parametrize("case", CASES)
def test_text_ends_with_its_grammar(case, temperature):
    end, eos_token_ids, changes = CASES[case]
    check_end(end, eos_token_ids, params(temperature=temperature, **changes))


@pytest.mark.parametrize("case", ["which is ignored", "which only the tokenizer knows", "nobody knows one"])
def test_a_grammar_that_does_not_end_the_request_is_noticed(case, monkeypatch):
    monkeypatch.setattr(Grammar, "has_ended", False)
    end, eos_token_ids, changes = CASES[case]
    with pytest.raises((AssertionError, RuntimeError)):
        check_end(end, eos_token_ids, params(**changes))


def test_the_longest_text_where_nothing_says_the_end():
    """Without a stop token a text that is whole goes on as long as it can."""
    llm = LLM(letter_model(()), tokenizer=letter_tokenizer(None))
    for output in llm.generate(PROMPTS, params("[a-f]{2}[0-9]{0,4}")):
        assert re.fullmatch("[a-f]{2}[0-9]{4}", output.text)
    (output,) = llm.generate([PROMPTS[0]], params("[a-f]+", max_tokens=9))
    assert (len(output.text), output.finish_reason) == (9, "length")


def test_min_tokens_does_not_hold_up_an_end_without_a_token():
    llm = LLM(letter_model(()), tokenizer=letter_tokenizer(None))
    (output,) = llm.generate([PROMPTS[0]], params("abc", min_tokens=10))
    assert (output.text, output.finish_reason) == ("abc", "stop")


@pytest.mark.parametrize("k", [0, 3])
def test_a_processor_cannot_leave_the_grammar(k):
    def everything(output, logits):
        return torch.zeros_like(logits) if len(output) == 3 else logits

    config = speculative(k) if k else None
    llm = LLM(letter_model(), tokenizer=letter_tokenizer(), speculative_config=config)
    asked = params("[B-D]{9}", temperature=0.0, logits_processors=(everything,))
    (output,) = llm.generate([PROMPTS[0]], asked)
    assert re.fullmatch("[B-D]{3}", output.text)
    assert output.finish_reason == "error"
    assert output.error.startswith("token 0 was drawn, which structured_outputs forbids here")


# ------------------------------------------------------------------------------------------ special tokens
def allowed(grammar: Grammar) -> list[int]:
    words = grammar.bitmasks(())[0]
    return [token for token in range(32 * len(words)) if int(words[token // 32]) >> (token % 32) & 1]


def test_special_tokens_are_no_text():
    compiler = GrammarCompiler(letter_tokenizer(), TINY_VOCAB, (END,))
    grammar = compiler.compile(StructuredOutputsParams(regex="[^x]+"), stop_token_ids=(UNKNOWN, 5))
    text = [token for token, letter in enumerate(LETTERS) if letter != "x"]
    assert allowed(grammar) == text
    assert grammar.accept(ids_of("a")[0])
    assert allowed(grammar) == [*text, UNKNOWN, END]  # the request's stop token too, since it is no text


def check_silence(capfd) -> None:
    """Drafts of ids that have no text, of ids that the tokenizer does not have, and behind the end."""
    script = [*ids_of("xab 12"), END, *[0] * 20]
    drafts = iter([[UNKNOWN], [TINY_VOCAB + 5] * 3, [END], [*ids_of("12"), END, 5], [END, END], [7]] * 9)
    drafter = FunctionDrafter(lambda history, wanted: next(drafts), 4)
    for end in ("</s>", None):
        llm = LLM(
            ScriptedModel(script, TINY_VOCAB + 9, 64, eos=(END,) if end else ()),
            tokenizer=letter_tokenizer(end), speculative_config=speculative(4), drafter=drafter,
        )  # fmt: skip
        outputs = llm.generate(
            [ids_of("x")] * 3, params("[a-z]{2} [0-9]{2}", temperature=0.0, ignore_eos=True)
        )
        assert [output.text for output in outputs] == ["ab 12"] * 3
    assert capfd.readouterr().err == ""


def test_nothing_is_written_to_stderr(capfd):
    check_silence(capfd)


def test_a_matcher_that_complains_is_noticed(capfd, monkeypatch):
    monkeypatch.setattr(grammars, "_allows", lambda bitmask, token: token >= 0)
    with pytest.raises((AssertionError, RuntimeError)):
        check_silence(capfd)
