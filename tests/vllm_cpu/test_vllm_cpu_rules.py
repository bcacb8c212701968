"""Every acceptance rule in vLLM's V1 runner: greedy text, seeded text, and what a rule promises beside the law
(which is tested in test_vllm_cpu_law.py)."""

from __future__ import annotations

from typing import Any

import pytest
import vllm_cpu_cases as cases
from test_vllm_cpu_matrix import NAMES, check_accepted, plain, tokens  # noqa: F401
from vllm_support import supports

METHODS = ("ngram", "draft_model", "draft_model_sampled", "eagle")
#: rule -> what is said in vLLM's own fields, and in ours
FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "block": ({}, {"rejection_sample_method": "block"}),
    "block in vLLM's field": ({"rejection_sample_method": "block"}, {}),
    "typical": ({}, {"rejection_sample_method": "typical"}),
    "synthetic": ({"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}, {}),
    "fly": ({}, {"rejection_sample_method": "fly"}),
    "coupled": ({}, {"rejection_sample_method": "coupled"}),
}
#: what keeps greedy text as it is
KEEPS_TEXT = ("block", "typical", "coupled")
LOSSLESS = ("block", "coupled")
SHOWN = {
    "block": "text at temperature 0, seeds",
    "typical": "text at temperature 0, seeds",
    "synthetic": "runs, seeds",
    "fly": "runs, seeds",
    "coupled": "text at temperature 0 and of seeded requests",
}
Answer = dict[str, Any]


def speculate(
    vllm: Any,
    models: dict[str, str],
    method: str,
    rule: str,
    batches: list[list[cases.Request]],
    mutant: str | None = None,
    **fields: Any,
) -> Answer:
    """``fields``: more of vLLM's speculative config, or under "ascend_spec" of ours."""
    theirs, ours = FIELDS[rule]
    config = {**cases.methods(models)[method], **theirs}
    options = {"ascend_spec": {**cases.OPTIONS.get(method, {}), **ours, **fields.pop("ascend_spec", {})}}
    engine = {"speculative_config": {**config, **fields}, "additional_config": options, "max_num_seqs": 16}
    engine["model"] = cases.target(method, models)
    return vllm("vllm_cpu_engine:generate", mutant=mutant, engine=engine, batches=batches)


def acceptance(answer: Answer, batch: int = 0) -> float:
    counts = answer["metrics"][batch]
    return counts["num_accepted_tokens"] / counts["num_draft_tokens"]


@pytest.fixture(scope="session")
def seeded(vllm: Any, models: dict[str, str]) -> list[list[int]]:
    """What seeded requests get from our sampler without speculation."""
    answer = vllm(
        "vllm_cpu_engine:generate", engine={"model": models["target"], **cases.PLUGIN}, batches=[sampled()]
    )
    return tokens(answer, 0)


def sampled() -> list[cases.Request]:
    """Half of them are cut to their likeliest tokens."""
    cut = cases.sampled(temperature=0.8, top_k=20, top_p=0.9)
    return [*cases.sampled(), *cut]


def check_attached(answer: Answer, rule: str) -> None:
    (attached,) = [line for line in answer["log"] if "is attached to" in line]
    name = rule.split()[0]
    assert f"rule {name} ({'lossless' if name in LOSSLESS else 'lossy'})" in attached
    assert "sampler: ours" in attached
    warned = [line for line in answer["log"] if "is lossy: output no longer has" in line]
    assert len(warned) == (name not in LOSSLESS)


def check_seeded(answer: Answer, seeded: list[list[int]]) -> None:
    """``coupled``: the text is that of plain decoding, whatever the drafts."""
    assert tokens(answer, 1) == seeded


def supported(test: Any) -> Any:
    """A row of the support table for each method under each rule."""
    for rule, what in SHOWN.items():
        names = {method: NAMES[method] for method in METHODS}
        test = supports("vllm-cpu 0.32.0", "V1", names, what, rule)(test)
    return test


@supported
@pytest.mark.parametrize("rule", [rule for rule in FIELDS if rule in SHOWN])
@pytest.mark.parametrize("method", METHODS)
def test_method_and_rule(vllm, models, plain, seeded, method, rule):  # noqa: F811
    answer = speculate(vllm, models, method, rule, [cases.greedy(), sampled(), sampled()[::-1]])
    check_attached(answer, rule)
    if rule in KEEPS_TEXT:
        assert tokens(answer, 0) == plain
    check_accepted(answer, "some")
    assert all(len(text) == len(other) for text, other in zip(tokens(answer, 1), seeded, strict=True))
    assert tokens(answer, 2)[::-1] == tokens(answer, 1), "the same seed gave other tokens in another order"
    if rule == "coupled":
        check_seeded(answer, seeded)


@supports("vllm-cpu 0.32.0", "V1", ["suffix (ours)"], SHOWN["coupled"], "coupled")
def test_drafts_from_a_memory(vllm, models, plain, seeded):  # noqa: F811
    """A memory of other requests' outputs has other drafts each time, on which no seeded text hangs under "coupled"."""
    answer = speculate(vllm, models, "suffix", "coupled", [cases.greedy(), sampled(), sampled()[::-1]])
    check_attached(answer, "coupled")
    check_accepted(answer, "some")
    assert tokens(answer, 0) == plain
    check_seeded(answer, seeded)
    assert tokens(answer, 2)[::-1] == seeded
    drafted = [answer["metrics"][batch]["num_draft_tokens"] for batch in (1, 2)]
    assert drafted[0] != drafted[1], "the same drafts again"


def test_a_rule_in_vllms_field_is_ours(vllm, models, seeded):
    """vLLM's V1 runner would run "block" as "standard", and its drafter would draw nothing."""
    own, theirs = (
        speculate(vllm, models, "draft_model_sampled", rule, [sampled()])
        for rule in ("block", "block in vLLM's field")
    )
    assert tokens(own, 0) == tokens(theirs, 0) != seeded
    assert own["metrics"] == theirs["metrics"]


# ---- what a rule promises
def check_two_of_three(answer: Answer) -> None:
    """Rates 1, 1, 0: of three drafts two are accepted each time, whatever they are."""
    for counts in answer["metrics"]:
        assert counts["num_accepted_tokens"] == 2 * counts["num_drafts"] > 0


def synthetic(vllm, models, rates, batches, mutant=None):
    fields = {"synthetic_acceptance_length": None, "synthetic_acceptance_rates": rates}
    return speculate(vllm, models, "draft_model", "synthetic", batches, mutant, **fields)


def test_synthetic_accepts_at_its_rates(vllm, models):
    both = [cases.greedy(), cases.sampled()]
    check_two_of_three(synthetic(vllm, models, [1.0, 1.0, 0.0], both))
    many = [{"prompt": prompt} for prompt in 20 * cases.prompts()]
    counts = synthetic(vllm, models, [0.7, 0.4, 0.1], [many])["metrics"][0]
    mean = counts["num_accepted_tokens"] / counts["num_drafts"]
    variance = 0.7 + 3 * 0.4 + 5 * 0.1 - 1.2**2
    assert counts["num_drafts"] > 500
    assert abs(mean - 1.2) < 4.5 * (variance / counts["num_drafts"]) ** 0.5


@pytest.mark.parametrize("mutant", ["rule_is_not_passed", "options_are_swapped"])
def test_mutants_of_synthetic_are_found(vllm, models, mutant):
    answer = synthetic(vllm, models, [1.0, 1.0, 0.0], [cases.greedy()], mutant)
    with pytest.raises(AssertionError):
        check_two_of_three(answer)


def typical(vllm, models, threshold, alpha, mutant=None):
    options = {"posterior_threshold": threshold, "posterior_alpha": alpha}
    batch = cases.sampled() * 4
    return acceptance(
        speculate(vllm, models, "draft_model_sampled", "typical", [batch], mutant, ascend_spec=options)
    )


def test_typical_reads_its_options(vllm, models):
    """A threshold of 1 leaves it to alpha and the entropy; a small one accepts more."""
    strict = typical(vllm, models, 1.0, 1.0)
    loose = typical(vllm, models, 0.001, 1.0)
    assert strict < loose - 0.1
    assert typical(vllm, models, 0.001, 1.0, "rule_is_not_passed") < loose - 0.1


def coupled(vllm, models, method, mutant=None):
    return speculate(vllm, models, method, "coupled", [cases.greedy(), sampled()], mutant)


def test_drafts_share_the_targets_noise(vllm, models, seeded):
    """They agree more often than the likeliest tokens do, and than draws of their own would."""
    shared, greedy, own = (
        coupled(vllm, models, "draft_model_sampled"),
        coupled(vllm, models, "draft_model"),
        coupled(vllm, models, "draft_model_sampled", "drafts_have_noise_of_their_own"),
    )
    for answer in (shared, greedy, own):
        check_seeded(answer, seeded)
    assert acceptance(shared, 1) > 1.2 * acceptance(greedy, 1)
    assert acceptance(shared, 1) > 1.2 * acceptance(own, 1)


def test_a_rule_that_is_not_passed_is_found(vllm, models, seeded):
    answer = coupled(vllm, models, "draft_model", "rule_is_not_passed")
    with pytest.raises(AssertionError):
        check_seeded(answer, seeded)


# ---- min-p, which vLLM has without speculation alone
def test_min_p(vllm, models):
    """With min-p of 1 the likeliest token alone is left; vLLM refuses it together with speculation."""
    requests = cases.sampled(temperature=1.5, min_p=1.0)
    engine = {"model": models["target"], **cases.PLUGIN}
    answer = vllm("vllm_cpu_engine:generate", engine=engine, batches=[requests, cases.greedy()])
    assert tokens(answer, 0) == tokens(answer, 1)
    ignored = vllm("vllm_cpu_engine:generate", mutant="min_p_is_ignored", engine=engine, batches=[requests])
    assert tokens(ignored, 0) != tokens(answer, 1)
