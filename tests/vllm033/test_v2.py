"""vLLM 0.33's second runner, by Triton's interpreter: our drafter, our draw, vLLM's draft model under it."""

from __future__ import annotations

import json
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
    Answer,
    Answers,
    K,
    attached_lines,
    case,
    check_attached_once,
    check_looked_up,
    check_same_text,
    check_seeded,
    draft_model,
    proposals,
)
from vllm_support import supports

V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1", **INTERPRETED}
LOGPROBS = {"sampling": {"temperature": 0.0, "logprobs": 1}}
PENALTY = {"sampling": {"temperature": 0.0, "repetition_penalty": 1.3}}
ONE_TOKEN = {"sampling": {"temperature": 1.5, "seed": 3, "top_k": 1}}
SPREAD = {"sampling": {"temperature": 0.7, "seed": 5}}
SAMPLED = {"draft_sample_method": "probabilistic"}
ADAPTIVE = {"enable_adaptive_verification": True}
FAILS_ONCE = ["a_drafter_that_fails_once", "drafts_in_the_log"]
WARMED_UP = {
    "enforce_eager": False,
    "compilation_config": {"mode": 0, "cudagraph_mode": "NONE"},
    "kernel_config": {"enable_jit_warmup": True},
}


@pytest.fixture(scope="session")
def answers(ask: Any, shared: Path) -> Answers:
    target = shared / "target"
    cases = {
        "off": case(target, None, plugin=False),
        "ngram": case(target, NGRAM, GREEDY, SEEDED, BACKWARDS, changes=["drafts_in_the_log"]),
        "draft model": case(target, draft_model(shared / "draft"), **HOOK),
        "another vLLM": case(target, None, changes=["a_sampler_of_another_vllm"]),
        "adaptive": case(
            target,
            draft_model(shared / "draft", **ADAPTIVE),
            GREEDY,
            SEEDED,
            BACKWARDS,
            changes=["drafts_left_out"],
            options={"rejection_sample_method": "coupled"},
        ),
        "adaptive, ours": case(target, {**NGRAM, **ADAPTIVE}, changes=["drafts_left_out"]),
        "recent": case(target, NGRAM, changes=["drafts_in_the_log"], options={"match": "recent"}),
        "suffix": case(target, NGRAM, options={"method": "suffix"}),
        "disable": case(target, draft_model(shared / "draft"), options={"on_error": "disable"}),
        "watermark": case(target, None, watermark_config={"key": 1, "algorithm": "gumbel"}),
    }
    return ask("v2", cases, **V2)


@pytest.fixture(scope="session")
def more(ask: Any, shared: Path) -> Answers:
    target = shared / "target"
    cases = {
        "off": case(target, None, LOGPROBS, PENALTY, plugin=False),
        "ngram": case(target, NGRAM, LOGPROBS, PENALTY),
        "no drafts": case(target, None, LOGPROBS),
        "warmed up": case(target, NGRAM, **WARMED_UP, changes=["top_k_without_triton"]),
        "top-k": case(target, NGRAM, ONE_TOKEN, changes=["top_k_without_triton"]),
        "sampled drafts": case(target, draft_model(shared / "draft", **SAMPLED), GREEDY, SEEDED, BACKWARDS),
        "a drafter that fails": case(target, NGRAM, changes=["a_drafter_that_fails"]),
        "a drafter that fails once": case(target, NGRAM, changes=FAILS_ONCE),
        "a drafter that is left off": case(
            target, NGRAM, changes=FAILS_ONCE, options={"on_error": "disable"}
        ),
        "its own draft": case(target, draft_model(target, **SAMPLED), SPREAD),
    }
    return ask("v2-more", cases, **V2)


@pytest.fixture(scope="session")
def broken(ask: Any, shared: Path) -> Answers:
    target = shared / "target"
    own = draft_model(target, **SAMPLED)
    cases = {
        "first draft unchecked": case(target, NGRAM, changes=["broken_first_draft_unchecked"]),
        "history of a neighbour": case(
            target, NGRAM, changes=["broken_history_of_a_neighbour", "drafts_in_the_log"]
        ),
        "counted on the host": case(
            target,
            draft_model(shared / "draft", **ADAPTIVE),
            changes=["drafts_left_out", "broken_drafts_counted_on_the_host"],
        ),
        "seeds by place": case(target, NGRAM, GREEDY, SEEDED, BACKWARDS, changes=["broken_seeds_by_place"]),
        "deterministic": case(target, own, SPREAD, changes=["broken_drafts_taken_as_deterministic"]),
        "draft temperature": case(target, own, SPREAD, changes=["broken_draft_temperature_forgotten"]),
    }
    return ask("v2-broken", cases, **V2)


@pytest.mark.parametrize(
    ("name", "drafter"), [("ngram", "ours"), ("draft model", "vLLM's own, with the weights of .+")]
)
def test_attached_once(name: str, drafter: str, answers: Answers) -> None:
    check_attached_once(answers[name])
    assert answers[name]["runner"] == "vllm.v1.worker.cpu.model_runner"
    assert re.search(f"drafter: {drafter}; sampler: ours", attached_lines(answers[name])[0])


@supports(
    "vllm 0.33.0", "V2", {"ngram": "n-gram (ours)", "draft model": "draft model"}, "text at temperature 0"
)
@pytest.mark.parametrize("name", ["ngram", "draft model"])
def test_greedy_text_is_kept(name: str, answers: Answers) -> None:
    check_same_text(answers[name], answers["off"])


def test_drafts_are_looked_up(answers: Answers) -> None:
    check_looked_up(answers["ngram"])


def test_the_most_recent_match_is_looked_up(answers: Answers) -> None:
    check_looked_up(answers["recent"], "recent")
    check_same_text(answers["recent"], answers["off"])
    with pytest.raises(AssertionError):
        check_looked_up(answers["recent"])


def test_seeds_decide(answers: Answers) -> None:
    check_seeded(answers["ngram"])


def check_left_out(answer: Answer, off: Answer) -> None:
    """vLLM leaves out drafts that its drafter is not confident of, and knows on the device alone whose they are."""
    check_same_text(answer, off)
    steps = [
        json.loads(line.removeprefix("verified ")) for line in answer["log"] if line.startswith("verified ")
    ]
    assert all(kept <= had for step in steps for had, kept in zip(*step, strict=True))
    uneven = [kept for had, kept in steps if 0 < sum(kept) < sum(had) and max(kept) - min(kept) > 1]
    assert len(uneven) > 2, "vLLM's own counts on the host are as even as can be"


def test_drafts_that_vllm_leaves_out(answers: Answers) -> None:
    check_left_out(answers["adaptive"], answers["off"])
    # whose drafts are left out hangs on the neighbours, and under this rule no token hangs on that
    check_seeded(answers["adaptive"])


def test_adaptive_verification_is_refused_for_a_drafter_of_ours(answers: Answers) -> None:
    error = answers["adaptive, ours"]["error"]
    assert error.startswith("ConfigError")
    assert "'enable_adaptive_verification' was given as true, but method 'ngram' tells no confidence" in error


def test_suffix_is_refused(answers: Answers) -> None:
    error = answers["suffix"]["error"]
    assert error.startswith("ConfigError")
    assert "given as 'suffix', which vLLM's V2 model runner does not have; its V1 runner does" in error


def test_a_missing_seam_is_named(answers: Answers) -> None:
    error = answers["another vLLM"]["error"]
    assert error.startswith("SeamError: Sampler._sample_random of this vLLM takes (logits, top_k)")


def test_disable_is_refused_for_a_drafter_of_vllms(answers: Answers) -> None:
    error = answers["disable"]["error"]
    assert error.startswith("ConfigError")
    assert "'ascend_spec.on_error' was given as 'disable'" in error
    assert "V2 runner" in error


def test_watermarks_are_refused(answers: Answers) -> None:
    error = answers["watermark"]["error"]
    assert error.startswith("ConfigError")
    assert "watermark" in error


# ---- more of vLLM around the draw
@pytest.mark.full
def test_logprobs_are_vllms(more: Answers) -> None:
    off, ngram, plain = (more[name]["passes"][0] for name in ("off", "ngram", "no drafts"))
    for ours in (ngram, plain):
        assert ours["tokens"] == off["tokens"]
        for mine, theirs in zip(ours["logprobs"], off["logprobs"], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4)
    assert ngram["counters"]["accepted_tokens"] > 0


@pytest.mark.full
def test_penalties_see_accepted_drafts(more: Answers) -> None:
    off, ngram = more["off"]["passes"], more["ngram"]["passes"]
    assert ngram[1]["tokens"] == off[1]["tokens"] != off[0]["tokens"]


@supports("vllm 0.33.0", "V2", {"sampled drafts": "draft model, sampled drafts"}, "text at temperature 0")
@pytest.mark.full
@pytest.mark.parametrize("name", ["warmed up", "top-k", "sampled drafts"])
def test_text_is_greedy(name: str, more: Answers) -> None:
    check_same_text(more[name], more["off"])


@pytest.mark.full
def test_seeds_decide_sampled_drafts(more: Answers) -> None:
    check_seeded(more["sampled drafts"])


@pytest.mark.full
def test_a_drafter_that_fails_costs_its_drafts(more: Answers) -> None:
    """The last token stands for all drafts then, and is right now and then."""
    check_same_text(more["a drafter that fails"], more["off"])
    assert (
        sum("this step goes on without drafts" in line for line in more["a drafter that fails"]["log"]) == 1
    )


def check_left_off(answer: Answer, off: Answer) -> None:
    """Its failure is told once, and all drafts are the last token, which vLLM's V2 runner wants in empty places."""
    check_same_text(answer, off)
    assert sum("speculation is off from now on" in line for line in answer["log"]) == 1
    assert all(drafts == [history[-1]] * K for history, drafts in proposals(answer))


@pytest.mark.full
def test_a_drafter_that_has_failed_is_not_asked_again(more: Answers) -> None:
    """This one fails the first time alone: asked again, it drafts as ever."""
    check_left_off(more["a drafter that is left off"], more["off"])
    with pytest.raises(AssertionError):
        check_left_off(more["a drafter that fails once"], more["off"])
    assert any(
        drafts != [history[-1]] * K for history, drafts in proposals(more["a drafter that fails once"])
    )


def check_own_draft(answer: Answer) -> None:
    """Drafts drawn from the target's own distribution are all accepted, whatever the temperature."""
    assert "error" not in answer, answer
    counters = answer["passes"][0]["counters"]
    assert counters["draft_tokens"] > 20
    assert counters["accepted_tokens"] == counters["draft_tokens"]


@pytest.mark.full
def test_drafts_are_judged_by_what_they_were_drawn_from(more: Answers) -> None:
    check_own_draft(more["its own draft"])


# ---- the tests can fail
@pytest.mark.full
def test_an_unchecked_draft_is_noticed(broken: Answers, answers: Answers) -> None:
    assert "error" not in broken["first draft unchecked"]
    with pytest.raises(AssertionError):
        check_same_text(broken["first draft unchecked"], answers["off"])


@pytest.mark.full
def test_a_neighbours_history_is_noticed(broken: Answers, answers: Answers) -> None:
    check_same_text(broken["history of a neighbour"], answers["off"])
    with pytest.raises(AssertionError):
        check_looked_up(broken["history of a neighbour"])


@pytest.mark.full
def test_drafts_counted_on_the_host_are_noticed(broken: Answers, answers: Answers) -> None:
    assert "error" not in broken["counted on the host"]
    with pytest.raises(AssertionError):
        check_left_out(broken["counted on the host"], answers["off"])


@pytest.mark.full
def test_seeds_by_place_are_noticed(broken: Answers) -> None:
    with pytest.raises(AssertionError):
        check_seeded(broken["seeds by place"])


@pytest.mark.full
@pytest.mark.parametrize("name", ["deterministic", "draft temperature"])
def test_a_wrong_draft_distribution_is_noticed(name: str, broken: Answers) -> None:
    assert "error" not in broken[name]
    with pytest.raises(AssertionError):
        check_own_draft(broken[name])
