"""Every method in vLLM's V1 runner under our sampler: greedy text, reproducible samples, accepted drafts."""

from __future__ import annotations

import json
from typing import Any

import pytest
import vllm_cpu_cases as cases
from vllm_support import supports

#: method -> how many of the drafts greedy requests accept: all, some or none
ACCEPTED = {
    "ngram": "some",
    "suffix_forgetful": "some",
    "draft_model": "some",
    "draft_model_sampled": "some",
    "draft_model_self": "all",
    "eagle": "some",
    "eagle3": "few",
    "oracle": "all",
    "lookup": "some",
    "wrong": "none",
}
OURS = ("ngram", "suffix_forgetful")
#: the same methods in the words of the support table
NAMES = {
    "ngram": "n-gram (ours)",
    "suffix_forgetful": "suffix (ours), without memory",
    "draft_model": "draft model",
    "draft_model_sampled": "draft model, sampled drafts",
    "draft_model_self": "draft model",
    "eagle": "EAGLE",
    "eagle3": "EAGLE-3",
    "oracle": "custom class",
    "lookup": "custom class",
    "wrong": "custom class",
}
Answer = dict[str, Any]


def batches() -> list[list[cases.Request]]:
    """Greedy; sampled, and again in another order; both kinds in one batch."""
    greedy, sampled = cases.greedy(), cases.sampled()
    return [greedy, sampled, sampled[::-1], cases.alternating(greedy, sampled)]


def tokens(answer: Answer, batch: int) -> list[list[int]]:
    return [output["tokens"] for output in answer["outputs"][batch]]


@pytest.fixture(scope="session")
def plain(vllm, models, known_texts) -> list[list[int]]:
    """What vLLM says without speculation and without us; the drafters that know texts know it afterwards."""
    texts = without(vllm, models["target"])
    known = [prompt + text for prompt, text in zip(cases.prompts(), texts, strict=True)]
    known_texts.write_text(json.dumps(known))
    return texts


def without(vllm, model: str) -> list[list[int]]:
    answer = vllm("vllm_cpu_engine:generate", engine={"model": model}, batches=[cases.greedy()])
    assert answer["log"] == []
    return tokens(answer, 0)


def speculate(vllm, models, method: str, mutant: str | None = None, only: slice = slice(None)) -> Answer:
    config = {"speculative_config": cases.methods(models)[method], **cases.plugin(method)}
    engine = {"model": cases.target(method, models), **config}
    return vllm("vllm_cpu_engine:generate", mutant=mutant, engine=engine, batches=batches()[only])


def check_greedy(answer: Answer, plain: list[list[int]]) -> None:
    assert tokens(answer, 0) == plain


def check_samples(answer: Answer, plain: list[list[int]]) -> None:
    sampled, mixed = tokens(answer, 1), tokens(answer, 3)
    assert tokens(answer, 2)[::-1] == sampled, "the same seed gave other tokens in another batch order"
    assert mixed[::2] == plain[::2]
    assert mixed[1::2] == sampled[1::2]
    assert all(a != b for a, b in zip(sampled, plain, strict=True)), "nothing was sampled"


def check_accepted(answer: Answer, how_many: str) -> None:
    counts = answer["metrics"][0]
    drafted, accepted = counts["num_draft_tokens"], counts["num_accepted_tokens"]
    assert drafted > 0
    fits = {
        "all": accepted == drafted,
        "some": 0 < accepted < drafted,
        "few": accepted < drafted / 10,
        "none": accepted == 0,
    }
    assert fits[how_many], f"{accepted} of {drafted} drafts were accepted, not {how_many}"


@supports("vllm-cpu 0.32.0", "V1", NAMES, "text at temperature 0, seeds")
@pytest.mark.parametrize("method", ACCEPTED)
def test_method(vllm, models, plain, method):
    if method == "eagle3":
        plain = without(vllm, models["deep"])
    answer = speculate(vllm, models, method)
    check_greedy(answer, plain)
    check_samples(answer, plain)
    check_accepted(answer, ACCEPTED[method])
    (attached,) = [line for line in answer["log"] if "is attached to" in line]
    drafter = "ours" if method in OURS else "vLLM's own"
    assert "CPUModelRunner" in attached
    assert f"drafter: {drafter}" in attached
    assert "sampler: ours" in attached


def test_ngram_drafts_are_those_of_vllm(vllm, models, plain):
    """At temperature 0 our lookup and vLLM's own propose the same, so the same is accepted."""
    engine = {"model": models["target"], "speculative_config": cases.methods(models)["ngram"]}
    stock = vllm("vllm_cpu_engine:generate", engine=engine, batches=[cases.greedy()])
    ours = speculate(vllm, models, "ngram", only=slice(1))
    for name in ("num_draft_tokens", "num_accepted_tokens", "num_drafts"):
        assert ours["metrics"][0][name] == stock["metrics"][0][name]


def test_real_draft_probabilities(vllm, models, plain):
    """vLLM's sampled drafts are judged by the distribution they came from, which accepts more of them."""
    rates = []
    for mutant in (None, "drafts_as_certain"):
        counts = speculate(vllm, models, "draft_model_sampled", mutant, slice(1, 2))["metrics"][0]
        rates.append(counts["num_accepted_tokens"] / counts["num_draft_tokens"])
    assert rates[0] > 1.5 * rates[1]


@pytest.mark.parametrize(
    ("mutant", "method", "check"),
    [
        ("accept_all", "ngram", check_greedy),
        ("reject_all", "ngram", lambda answer, plain: check_accepted(answer, "some")),
        ("forget_seeds", "ngram", check_samples),
        ("stock_draft_draw", "draft_model_sampled", check_samples),
    ],
)
def test_mutants_are_found(vllm, models, plain, mutant, method, check):
    answer = speculate(vllm, models, method, mutant)
    with pytest.raises(AssertionError):
        check(answer, plain)
