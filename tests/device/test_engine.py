"""The engine on the device says what it says on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from device.support import on_kinds
from engine_fixtures import tiny_llama
from tiny_models import build, config

from ascend_spec.engine import LLM
from ascend_spec.models import CausalLM
from ascend_spec.types import SamplingParams

PROMPTS = [[1, 2, 3, 4] * 6, [5, 6], [7], [8, 9, 10] * 9, list(range(20, 37)), [11, 12, 13] * 2, [3] * 5]
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


def tokens(hf_model, device: str, params: SamplingParams, speculative_config: dict | None) -> list:
    llm = LLM(
        CausalLM.from_module(copy.deepcopy(hf_model).to(device)),
        speculative_config=speculative_config,
        max_num_batched_tokens=24,
        num_kv_blocks=64,
    )
    outputs = llm.generate(PROMPTS, params)
    assert [output.error for output in outputs] == [None] * len(PROMPTS)
    assert (llm.metrics.num_accepted_tokens > 0) == (speculative_config is not None)
    return [list(output.token_ids) for output in outputs]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("speculative_config", [None, NGRAM], ids=["plain", "ngram"])
@pytest.mark.parametrize("kind", on_kinds())
def test_tokens_equal_those_of_the_cpu(kind, speculative_config, temperature):
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=24)
    expected = tokens(tiny_llama(), "cpu", params, speculative_config)
    assert tokens(tiny_llama(), kind, params, speculative_config) == expected


@pytest.mark.parametrize("name", ["qwen3", "mistral", "gemma2"])
@pytest.mark.parametrize("kind", on_kinds())
def test_other_architectures(kind, name):
    """Norms on queries and keys, a sliding window, a soft cap."""
    hf_model = build(config(name))
    params = SamplingParams(temperature=0.0, max_tokens=24)
    assert tokens(hf_model, kind, params, NGRAM) == tokens(hf_model, "cpu", params, NGRAM)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", on_kinds())
def test_half_precision_runs(kind, dtype):
    """Texts of different dtypes differ by right; that every request ends with its tokens is checked here."""
    result = tokens(tiny_llama().to(dtype), kind, SamplingParams(temperature=0.0, max_tokens=24), NGRAM)
    assert [len(row) for row in result] == [24] * len(PROMPTS)
