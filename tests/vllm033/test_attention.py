"""Our attention in stock vLLM 0.33, both runners, on a backend whose cache has the layout of vLLM's backends for GPUs;
and the places of its second runner that speculation on trees will hold on to."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from attention_beside_stock import Step, check_steps
from vllm033_cases import (
    GREEDY,
    INTERPRETED,
    NGRAM,
    Answer,
    Answers,
    K,
    attached_lines,
    case,
    check_same_text,
)

LAYERS = {f"model.layers.{i}.self_attn.attn" for i in range(2)}
RUNNERS = {
    "v1": {"VLLM_USE_V2_MODEL_RUNNER": "0"},
    "v2": {"VLLM_USE_V2_MODEL_RUNNER": "1", **INTERPRETED},
}


BROKEN = ["keys_read_by_block", "last_key_unseen"]


def ours(target: Path, *changes: str) -> dict[str, Any]:
    return case(target, NGRAM, changes=[*changes, "attention_beside_stock"], options={"mqa_attention": True})


@pytest.fixture(scope="session", params=RUNNERS)
def answers(request: pytest.FixtureRequest, ask: Any, shared: Path) -> Answers:
    target = shared / "target"
    cases = {"off": case(target, None, plugin=False), "ours": ours(target)}
    return ask(f"attention-{request.param}", cases, **RUNNERS[request.param])


@pytest.fixture(scope="session")
def broken(ask: Any, shared: Path) -> Answers:
    cases = {name: ours(shared / "target", f"broken_{name}") for name in BROKEN}
    return ask("attention-broken", cases, **RUNNERS["v1"])


def steps(answer: Answer) -> list[Step]:
    return [
        json.loads(line.removeprefix("attention ")) for line in answer["log"] if line.startswith("attention ")
    ]


def test_greedy_text_and_numbers(answers: Answers) -> None:
    check_same_text(answers["ours"], answers["off"])
    check_steps(steps(answers["ours"]), LAYERS, K + 1)
    assert attached_lines(answers["ours"])[0].endswith("attention: ours, where drafts are judged")


@pytest.mark.parametrize("name", BROKEN)
def test_wrong_attention_is_noticed(name: str, broken: Answers) -> None:
    assert "error" not in broken[name]
    assert any(step["ours"] for step in steps(broken[name]))
    with pytest.raises(AssertionError):
        check_steps(steps(broken[name]), LAYERS, K + 1)


# ---- for trees
Told = list[tuple[str, Any]]


@pytest.fixture(scope="session")
def told(ask: Any, shared: Path) -> Told:
    cases = {"seams": case(shared / "target", NGRAM, GREEDY, changes=["tree_seams_in_the_log"])}
    answer = ask("tree-seams", cases, **RUNNERS["v2"])["seams"]
    assert "error" not in answer, answer
    lines = [line.removeprefix("seam ") for line in answer["log"] if line.startswith("seam ")]
    return [(seam, seen) for seam, seen in map(json.loads, lines)]


def check_tree_seams(told: Told) -> None:
    """Of each step: its inputs in buffers that stay, then every layer by a late look-up, the judge that was given,
    and how much was accepted."""
    assert told[0] == ("custom_sampler", None)
    starts = [place for place, (seam, _) in enumerate(told) if seam == "prepare_inputs"]
    assert len({told[place][1] for place in starts}) == 1, "the inputs' buffers stay"
    parts = [told[first:last] for first, last in pairwise([*starts, len(told)])]
    judged = [part for part in parts if ("rejection sampler", None) in part]
    assert len(judged) > 5
    for part in judged:
        names = [seam for seam, _ in part]
        assert names == [
            "prepare_inputs",
            *["layer.impl.forward"] * 2,
            "rejection sampler",
            "postprocess_state",
        ]
    assert max(max(part[-1][1]) for part in judged) > 1, "what was accepted is told"


def test_seams_for_trees_are_there(told: Told) -> None:
    check_tree_seams(told)


@pytest.mark.parametrize(
    "seam",
    ["custom_sampler", "prepare_inputs", "layer.impl.forward", "rejection sampler", "postprocess_state"],
)
def test_a_vanished_seam_is_noticed(seam: str, told: Told) -> None:
    with pytest.raises(AssertionError):
        check_tree_seams([each for each in told if each[0] != seam])
