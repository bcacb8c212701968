"""vLLM 0.33's first runner: wrap and official hook attach once, and greedy text is that of vLLM alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from vllm033_cases import (
    BACKWARDS,
    GREEDY,
    HOOK,
    INTERPRETED,
    NGRAM,
    SEEDED,
    Answers,
    attached_lines,
    case,
    check_attached_once,
    check_same_text,
    check_seeded,
    draft_model,
)
from vllm_support import supports

V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
#: carries it
SUFFIX = {"method": "ngram", "num_speculative_tokens": 8}
WAYS = ["wrap", "wrap and hook", "hook"]


@pytest.fixture(scope="session")
def ngram(ask: Any, shared: Path) -> Answers:
    """Engines in one process, one after the other, without Triton."""
    target = shared / "target"
    cases = {
        "off": case(target, None, plugin=False),
        "wrap": case(target, NGRAM, GREEDY, SEEDED, BACKWARDS),
        "wrap and hook": case(target, NGRAM, **HOOK),
        "hook": case(target, NGRAM, **HOOK, changes=["without_the_wrap"]),
        "suffix": case(target, SUFFIX, GREEDY, GREEDY, options={"method": "suffix"}),
    }
    return ask("v1-ngram", cases, **V1)


@pytest.fixture(scope="session")
def draft(ask: Any, shared: Path) -> Answers:
    """Triton's interpreter runs vLLM's kernels around its draft model."""
    target, config = shared / "target", draft_model(shared / "draft")
    cases = {"off": case(target, None, plugin=False), "draft model": case(target, config)}
    return ask("v1-draft-model", cases, **V1, **INTERPRETED)


@pytest.fixture(scope="session")
def broken(ask: Any, shared: Path) -> Answers:
    target = shared / "target"
    cases = {
        "attached each time": case(target, NGRAM, **HOOK, changes=["broken_attached_each_time"]),
        "first draft unchecked": case(target, NGRAM, changes=["broken_first_draft_unchecked"]),
        "not attached": case(target, NGRAM, plugin=False),
    }
    return ask("v1-broken", cases, **V1)


@pytest.mark.parametrize("way", WAYS)
def test_each_way_attaches_once(way: str, ngram: Answers) -> None:
    check_attached_once(ngram[way])
    assert ngram[way]["runner"] == "vllm.v1.worker.cpu_model_runner"
    assert "drafter: ours; sampler: ours" in attached_lines(ngram[way])[0]


@supports("vllm 0.33.0", "V1", ["n-gram (ours)"], "text at temperature 0")
@pytest.mark.parametrize("way", WAYS)
def test_ngram_keeps_greedy_text(way: str, ngram: Answers) -> None:
    check_same_text(ngram[way], ngram["off"])


def test_seeds_decide(ngram: Answers) -> None:
    check_seeded(ngram["wrap"])


@supports("vllm 0.33.0", "V1", ["suffix (ours)"], "text at temperature 0")
def test_suffix_keeps_greedy_text(ngram: Answers) -> None:
    """And knows it the second time."""
    check_attached_once(ngram["suffix"])
    assert re.search("method suffix with K = 8.*drafter: ours", attached_lines(ngram["suffix"])[0])
    check_same_text(ngram["suffix"], ngram["off"])
    first, second = ngram["suffix"]["passes"]
    assert second["tokens"] == first["tokens"]
    assert second["counters"]["accepted_tokens"] > first["counters"]["accepted_tokens"]


@supports("vllm 0.33.0", "V1", ["draft model"], "text at temperature 0")
def test_draft_model_keeps_greedy_text(draft: Answers) -> None:
    check_attached_once(draft["draft model"])
    line = attached_lines(draft["draft model"])[0]
    assert re.search("drafter: vLLM's own, with the weights of .+; sampler: ours", line)
    check_same_text(draft["draft model"], draft["off"])


# ---- the tests can fail
@pytest.mark.full
def test_attaching_each_time_is_noticed(broken: Answers) -> None:
    assert len(attached_lines(broken["attached each time"])) == 2
    with pytest.raises(AssertionError):
        check_attached_once(broken["attached each time"])


@pytest.mark.full
def test_not_attaching_is_noticed(broken: Answers) -> None:
    """vLLM's own sampler needs its compiled library, which is not there: so it was ours that ran elsewhere."""
    assert "rejection_greedy_sample" in broken["not attached"]["error"]


@pytest.mark.full
def test_an_unchecked_draft_is_noticed(broken: Answers, ngram: Answers) -> None:
    assert "error" not in broken["first draft unchecked"]
    with pytest.raises(AssertionError):
        check_same_text(broken["first draft unchecked"], ngram["off"])
