"""A real model in vLLM: text with and without speculation, free and held to a grammar."""

from __future__ import annotations

import json
import re

import pytest
import vllm_cpu_cases as cases
from smollm2 import smollm2_path

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


def speculations() -> dict[str, dict]:
    return {
        "ngram": {
            "method": "ngram",
            "num_speculative_tokens": 4,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 3,
        },
        "draft_model": {"method": "draft_model", "model": str(smollm2_path()), "num_speculative_tokens": 2},
    }


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_text(vllm, engine, without, method):
    config = {"speculative_config": speculations()[method], **cases.PLUGIN}
    answer = vllm("vllm_cpu_engine:generate", engine={**engine, **config}, batches=batches())
    assert answer["outputs"] == without
    for counts in answer["metrics"]:
        assert counts["num_accepted_tokens"] > 0
    table, phone, choice = (output["text"] for output in answer["outputs"][1])
    assert set(json.loads(table)) == {"name", "age"}
    assert re.fullmatch(PHONE, phone)
    assert choice in HELD[2][1]["choice"]
