"""Cases for stock vLLM 0.33 (``vllm033/engine.py``), and what is asked of the answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
Answers = dict[str, Answer]

K = 3
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": K,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}
HOOK = {"worker_extension_cls": "ascend_spec.vllm.Extension"}
GREEDY = {"sampling": {"temperature": 0.0}}
#: sharp enough for some drafts to be accepted
SEEDED = {"sampling": {"temperature": 0.2, "seed": 11}}
BACKWARDS = {**SEEDED, "reversed": True}
INTERPRETED = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


def draft_model(path: Path, **options: Any) -> dict[str, Any]:
    return {"method": "draft_model", "model": str(path), "num_speculative_tokens": K, **options}


def case(
    model: Path,
    speculative_config: dict[str, Any] | None,
    *passes: dict[str, Any],
    plugin: bool = True,
    changes: Sequence[str] = (),
    options: dict[str, Any] | None = None,
    **engine: Any,
) -> dict[str, Any]:
    """One engine; ``passes`` are greedy decoding if none are given."""
    arguments = {"model": str(model), **engine}
    if speculative_config is not None:
        arguments["speculative_config"] = speculative_config
    if plugin:
        arguments["additional_config"] = {"ascend_spec": options or {}}
    return {"engine": arguments, "passes": list(passes or [GREEDY]), "changes": list(changes)}


def attached_lines(answer: Answer) -> list[str]:
    return [line for line in answer["log"] if line.startswith("ascend-spec is attached to")]


def check_attached_once(answer: Answer) -> None:
    assert "error" not in answer, answer
    assert answer["attached"]
    assert len(attached_lines(answer)) == 1, answer["log"]


def check_same_text(answer: Answer, off: Answer) -> None:
    """Greedy text is that of vLLM alone, and drafts were both accepted and rejected."""
    assert "error" not in answer, answer
    assert not off["attached"]
    counters = answer["passes"][0]["counters"]
    assert 0 < counters["accepted_tokens"] < counters["draft_tokens"]
    assert answer["passes"][0]["tokens"] == off["passes"][0]["tokens"]


def check_seeded(answer: Answer) -> None:
    """A request's tokens hang on its seed, not on its neighbours or its place among them."""
    assert "error" not in answer, answer
    greedy, forwards, backwards = answer["passes"]
    assert forwards["counters"]["accepted_tokens"] > 0
    assert forwards["tokens"] != greedy["tokens"]
    assert forwards["tokens"] == backwards["tokens"]


def lookup(history: list[int], match: str = "earliest") -> list[int]:
    """Drafts of ``NGRAM``: what followed the longest, then ``match``, occurrence of the end of ``history``. vLLM's V2
    runner wants K of them; the last token fills up."""
    found: list[int] = []
    for length in range(NGRAM["prompt_lookup_max"], NGRAM["prompt_lookup_min"] - 1, -1):
        end = history[-length:]
        starts = [i for i in range(len(history) - length) if history[i : i + length] == end]
        if starts:
            found = history[starts[0 if match == "earliest" else -1] + length :][:K]
            break
    return found + [history[-1]] * (K - len(found))


def check_looked_up(answer: Answer, match: str = "earliest") -> None:
    """Drafts are those of the history as it stood, by the log of ``drafts_in_the_log``."""
    found = proposals(answer)
    assert len(found) > 20
    assert all(drafts == lookup(history, match) for history, drafts in found)


def proposals(answer: Answer) -> list[tuple[list[int], list[int]]]:
    """Histories and what was proposed for them, by the log of ``drafts_in_the_log``."""
    assert "error" not in answer, answer
    lines = [line.removeprefix("drafts ") for line in answer["log"] if line.startswith("drafts ")]
    return [json.loads(line) for line in lines]
