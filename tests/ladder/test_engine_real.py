"""Greedy text of the engine equals transformers' `generate`, whatever is drafted and however it is scheduled.

The full product of settings runs on a tiny random model. On a real one (SmolLM2-135M, fp32) a small set of
cells has each level of each factor at least once, and ``--full`` runs them all. A differing token fails
unless transformers' own two best logits lie closer than ``NEAR_TIE`` there: then sums taken in another order
may decide.
"""

from __future__ import annotations

import colorsys
import fnmatch
import inspect
import itertools
import shlex
import string
import textwrap
from dataclasses import dataclass, field
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
from engine_fixtures import TINY_VOCAB, always_wrong, greedy_reference, oracle, tiny_llama, tiny_model
from smollm2 import smollm2_path
from transformers import AutoModelForCausalLM

from ascend_spec.engine import LLM
from ascend_spec.models import CausalLM, load_tokenizer
from ascend_spec.types import SamplingParams

NEAR_TIE = 1e-4
WHOLE = 512


@dataclass(frozen=True)
class Cell:
    drafter: str
    num_drafts: int
    batch: int
    chunk: int
    preempt: bool

    def __str__(self) -> str:
        chunk = "whole" if self.chunk == WHOLE else self.chunk
        return f"{self.drafter}{self.num_drafts}-batch{self.batch}-chunk{chunk}" + "-preempt" * self.preempt


DRAFTING = [("off", 0), *itertools.product(("ngram", "oracle", "wrong"), (1, 3, 8))]
#: a request alone always fits, so that only a batch can be made to preempt
PRODUCT = [
    Cell(drafter, num_drafts, batch, chunk, preempt)
    for (drafter, num_drafts), (batch, preempt), chunk in itertools.product(
        DRAFTING, ((1, False), (7, False), (7, True)), (16, 64, WHOLE)
    )
]
COVERING = [
    Cell("off", 0, 7, WHOLE, False),
    Cell("oracle", 8, 1, 16, False),
    Cell("ngram", 3, 7, 64, True),
    Cell("wrong", 1, 7, WHOLE, True),
]


@dataclass
class Case:
    """A model with prompts and what `generate` says to them."""

    hf_model: Any
    model: Any
    prompts: list[list[int]]
    references: list[list[int]]
    new_tokens: int
    max_model_len: int
    small_pool: int
    """Blocks with which seven requests cannot all stay."""
    block_size: int | None = None
    near_ties: list[str] = field(default_factory=list)

    def run(self, cell: Cell) -> LLM:
        texts = [prompt + reference for prompt, reference in zip(self.prompts, self.references, strict=True)]
        width, vocab_size = cell.num_drafts, self.model.info.vocab_size
        drafter = {
            "oracle": lambda: oracle(texts, width),
            "wrong": lambda: always_wrong(texts, width, vocab_size),
        }.get(cell.drafter, lambda: None)()
        config = {
            "method": "ngram",
            "num_speculative_tokens": width,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 4,
        }
        llm = LLM(
            self.model,
            speculative_config=config if cell.drafter != "off" else None,
            drafter=drafter,
            max_model_len=self.max_model_len,
            block_size=self.block_size,
            max_num_seqs=cell.batch,
            max_num_batched_tokens=cell.chunk,
            num_kv_blocks=self.small_pool if cell.preempt else None,
        )
        outputs = llm.generate(self.prompts, SamplingParams(temperature=0.0, max_tokens=self.new_tokens))
        for index, output in enumerate(outputs):
            assert output.error is None
            self.compare(index, list(output.token_ids), cell)
        return llm

    def compare(self, index: int, tokens: list[int], cell: Cell) -> None:
        reference = self.references[index]
        if tokens == reference:
            return
        pairs = itertools.zip_longest(tokens, reference)
        at = next(i for i, (token, wanted) in enumerate(pairs) if token != wanted)
        with torch.no_grad():
            context = torch.tensor([self.prompts[index] + reference[:at]])
            best = self.hf_model(context, logits_to_keep=1).logits[0, -1].topk(2).values
        gap = float(best[0] - best[1])
        where = f"{cell}, prompt {index}, token {at}: gap {gap:.1e}"
        assert gap < NEAR_TIE, f"{where}: {tokens[at:][:5]}, generate has {reference[at:][:5]}"
        self.near_ties.append(where)


def check(case: Case, cell: Cell) -> None:
    llm = case.run(cell)
    metrics = llm.metrics
    accepted, rejected = metrics.num_accepted_tokens, metrics.num_draft_tokens - metrics.num_accepted_tokens
    print(f"\n{cell}: {accepted} accepted, {rejected} rejected, {metrics.num_preemptions} preemptions")
    assert (accepted > 0) == (cell.drafter in ("ngram", "oracle"))
    assert (rejected > 0) == (cell.drafter in ("ngram", "wrong")) or case.near_ties
    assert (metrics.num_preemptions > 0) == cell.preempt
    assert sum(metrics.fallbacks.values()) == 0


# ------------------------------------------------------------------------------------------------ tiny model
@pytest.fixture(scope="module")
def tiny():
    generator = torch.Generator().manual_seed(7)
    prompts = []
    for length in (1, 3, 8, 17, 20, 33, 40, 5):
        phrase = torch.randint(1, TINY_VOCAB, (max(1, length // 3),), generator=generator).tolist()
        prompts.append((phrase * 4)[:length])
    references = [greedy_reference(tuple(prompt), 12) for prompt in prompts]
    return Case(
        tiny_llama(), tiny_model(), prompts, references, 12, max_model_len=56, small_pool=14, block_size=4
    )


@pytest.mark.parametrize("cell", PRODUCT, ids=str)
def test_tiny_model(tiny, cell):
    check(tiny, cell)
    assert not tiny.near_ties


# ------------------------------------------------------------------------------------------------ real model
def _chat(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def _real_prompts() -> list[str]:
    """Five of each kind: edits, summaries, conversation, code."""
    sources = [textwrap.indent, shlex.join, colorsys.rgb_to_yiq, string.capwords, fnmatch.filter]
    edits = [
        "Repeat this code, with a comment added in front of it.\n```python\n"
        + inspect.getsource(source)[:420]
        + "```"
        for source in sources
    ]
    summaries = [
        "Summarize this text in two sentences, in its own words.\n" + " ".join(topics[name].split())[:520]
        for name in ("assert", "break", "continue", "integers", "while")
    ]
    talk = [
        "Tell a short story about a lighthouse keeper who finds a letter in a bottle.",
        "I slept badly and have a long day of work before me. What would you advise?",
        "Write a poem of eight lines about the first snow on a quiet street.",
        "Explain to a child why the moon changes its shape.",
        "Invent a conversation between an old clock and a new telephone.",
    ]
    code = [
        "Write a Python function that returns the prime numbers below n.",
        "Write a Python function that counts the words of a text file.",
        "Write a Python class for a stack with push, pop and peek.",
        "Write a Python function that tells whether a string is a palindrome, with a test.",
        "Write a SQL query that lists the ten customers with the highest total of orders.",
    ]
    return [_chat(text) for text in (*edits, *summaries, *talk, *code)]


@pytest.fixture(scope="module")
def real():
    path = smollm2_path()
    tokenizer = load_tokenizer(path)
    hf_model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    prompts = [list(tokenizer.encode(text)) for text in _real_prompts()]
    references = []
    for prompt in prompts:
        output = hf_model.generate(torch.tensor([prompt]), max_new_tokens=128, do_sample=False)
        references.append(output[0, len(prompt) :].tolist())
    longest = max(map(len, prompts)) + 128
    case = Case(hf_model, CausalLM.load(path), prompts, references, 128, max_model_len=longest, small_pool=34)
    yield case
    print(f"\n{len(case.near_ties)} near ties", *case.near_ties, sep="\n  ")


@pytest.mark.parametrize("cell", COVERING, ids=str)
def test_real_model(real, cell):
    check(real, cell)


@pytest.mark.full
@pytest.mark.parametrize("cell", [cell for cell in PRODUCT if cell not in COVERING], ids=str)
def test_real_model_full(real, cell):
    check(real, cell)


def test_the_covering_cells_have_every_level():
    for name in ("drafter", "num_drafts", "batch", "chunk", "preempt"):
        assert {getattr(cell, name) for cell in COVERING} == {getattr(cell, name) for cell in PRODUCT}
