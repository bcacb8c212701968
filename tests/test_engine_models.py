"""The engine on every supported architecture: greedy text equals transformers' `generate`, with prompts cut
into chunks, drafts accepted and rejected, and longrope's boundary crossed."""

from __future__ import annotations

import copy

import pytest
import torch
from engine_fixtures import oracle
from tiny_models import BOUNDARY, SUPPORTED, build, config

from ascend_spec.engine import LLM
from ascend_spec.engine.request import Request
from ascend_spec.models import CausalLM
from ascend_spec.scorer import BatchExpansionScorer, MQAScorer
from ascend_spec.types import SamplingParams

NEW_TOKENS = 12
#: beyond the longrope boundary, below it, crossing it while decoding, crossing it with the first token
LENGTHS = (40, 9, BOUNDARY - 5, BOUNDARY)


def references(hf_model, prompts: list[list[int]]) -> list[list[int]]:
    options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
    return [
        hf_model.generate(torch.tensor([prompt]), **options)[0, len(prompt) :].tolist() for prompt in prompts
    ]


@pytest.fixture(scope="module", params=SUPPORTED)
def case(request):
    hf_model = build(config(request.param))
    g = torch.Generator().manual_seed(2)
    prompts = [torch.randint(3, hf_model.config.vocab_size, (n,), generator=g).tolist() for n in LENGTHS]
    expected = references(copy.deepcopy(hf_model), prompts)
    return CausalLM.from_module(hf_model), prompts, expected


@pytest.mark.parametrize("scorer", [MQAScorer, BatchExpansionScorer])
@pytest.mark.parametrize("chunk", [16, 512])
@pytest.mark.parametrize("drafts", ["none", "ngram", "oracle"])
def test_equals_generate(case, drafts, chunk, scorer):
    model, prompts, expected = case
    texts = [prompt + reference for prompt, reference in zip(prompts, expected, strict=True)]
    speculative_config = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}
    llm = LLM(
        model,
        speculative_config=None if drafts == "none" else speculative_config,
        drafter=oracle(texts, 4) if drafts == "oracle" else None,
        max_num_batched_tokens=chunk,
        block_size=4,
        scorer=scorer,
    )
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True))
    assert [list(output.token_ids) for output in outputs] == expected
    if drafts == "oracle":
        assert llm.metrics.num_accepted_tokens > 0


def test_a_longrope_request_that_keeps_its_short_keys_differs(monkeypatch):
    """The mutant of the recomputation at the boundary: the test above must be able to see it."""

    def keep(self, num_new):
        self.num_computed_tokens = self.num_tokens - 1

    monkeypatch.setattr(Request, "roll_back", keep)
    hf_model = build(config("phi3-longrope"))
    prompts = [list(range(3, 3 + BOUNDARY - 5))]
    expected = references(copy.deepcopy(hf_model), prompts)
    llm = LLM(CausalLM.from_module(hf_model), block_size=4)
    output = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True))[0]
    assert list(output.token_ids) != expected[0]


@pytest.mark.parametrize("num_kv_blocks", [3, 4, 5])
def test_a_longrope_request_crosses_its_boundary_in_a_full_pool(num_kv_blocks):
    """All cross at the end of a block: the token that crosses needs a block that others hold."""
    hf_model = build(config("phi3-longrope"))
    prompts = [list(range(3 + n, n + BOUNDARY - 2)) for n in range(4)]
    expected = references(copy.deepcopy(hf_model), prompts)
    llm = LLM(CausalLM.from_module(hf_model), max_model_len=48, block_size=16, num_kv_blocks=num_kv_blocks)
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True))
    assert [list(output.token_ids) for output in outputs] == expected
    assert len(llm.blocks.free_block_ids) == num_kv_blocks
