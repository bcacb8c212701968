"""What the plugin refuses, and that ``check-config`` says the same without vLLM."""

from __future__ import annotations

import json
from typing import Any

import pytest
from config_fixtures import Checkpoints
from vllm_fake_config import fake_vllm_config, plan

from ascend_spec.cli import check_config, main
from ascend_spec.config import ConfigError, SpeculatorConfig, register_speculative_method, registry
from ascend_spec.vllm import refusals, translate
from ascend_spec.vllm.translate import plan_for

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
DRAFT = {"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 4}
SUFFIX = {"method": "suffix"}
EAGLE = {"method": "eagle3", "model": "org/head", "num_speculative_tokens": 4}
ADAPTIVE = {"enable_adaptive_verification": True}

#: fields of vLLM's, options of ours, runner -> fields that are refused there
CASES: list[tuple[dict[str, Any], dict[str, Any], str, list[str]]] = [
    (NGRAM, {}, "v1", []),
    (NGRAM, {}, "v2", []),
    (NGRAM, {"disable_by_batch_size": 3}, "v1", ["ascend_spec.disable_by_batch_size"]),
    (NGRAM, {"match": "recent"}, "v1", []),
    (NGRAM, {"match": "recent", "mqa_attention": True}, "v2", []),
    ({**NGRAM, "method": "ngram_gpu"}, {"match": "recent"}, "v1", ["ascend_spec.match"]),
    ({**NGRAM, "method": "ngram_gpu"}, {"match": "recent"}, "v2", []),
    (NGRAM, {"method": "ngram"}, "v1", []),
    (DRAFT, {"method": "ngram"}, "v1", ["ascend_spec.method"]),
    # vLLM's own word for it, or carried by its n-gram method
    ({**NGRAM, **SUFFIX}, {}, "v1", []),
    (NGRAM, {**SUFFIX, "suffix_memory_path": "memory", "on_error": "disable"}, "v1", []),
    ({**NGRAM, "suffix_decoding_max_spec_factor": 2.0}, SUFFIX, "v1", []),
    (DRAFT, SUFFIX, "v1", ["ascend_spec.method"]),
    ({**NGRAM, "method": "ngram_gpu"}, SUFFIX, "v1", ["ascend_spec.method"]),
    (NGRAM, SUFFIX, "v2", ["method"]),
    ({**NGRAM, **SUFFIX}, {}, "v2", ["method"]),
    (NGRAM, {"method": "eagle", "on_error": "raise"}, "v1", ["model"]),
    (EAGLE, {"rejection_sample_method": "coupled"}, "v2", []),
    ({**DRAFT, "draft_sample_method": "probabilistic"}, {"rejection_sample_method": "coupled"}, "v2",
     ["draft_sample_method"]),
    ({**DRAFT, "draft_sample_method": "probabilistic"}, {"rejection_sample_method": "coupled"}, "v1", []),
    ({**DRAFT, "draft_sample_method": "probabilistic"}, {"rejection_sample_method": "block"}, "v1", []),
    ({**DRAFT, "draft_sample_method": "probabilistic"}, {"rejection_sample_method": "block"}, "v2",
     ["draft_sample_method"]),
    # drafts that vLLM leaves out where its drafter is not confident
    ({**NGRAM, **ADAPTIVE}, {}, "v2", ["enable_adaptive_verification"]),
    ({**EAGLE, **ADAPTIVE}, {}, "v2", []),
    ({**EAGLE, **ADAPTIVE}, {"mqa_attention": True}, "v2", ["enable_adaptive_verification"]),
    ({**EAGLE, **ADAPTIVE}, {}, "v1", ["enable_adaptive_verification"]),
    # no speculation where the drafter cannot load
    (EAGLE, {"on_error": "disable"}, "v1", []),
    (EAGLE, {"on_error": "disable"}, "v2", ["ascend_spec.on_error"]),
    (NGRAM, {"on_error": "disable"}, "v2", []),
]  # fmt: skip
IDS = [f"{fields['method']}, {options}, {runner}" for fields, options, runner, _ in CASES]


def refused(error: ConfigError) -> list[dict[str, str]]:
    return [{"field": each.field, "message": each.message} for each in error.findings]


def in_the_plugin(fields: dict[str, Any], options: dict[str, Any], runner: str) -> list[dict[str, str]]:
    try:
        plan("cpu", options=options, runner=runner, **fields)
    except ConfigError as error:
        return refused(error)
    return []


def by_check_config(capsys: Any, config: dict[str, Any], runner: str, *argv: str) -> list[dict[str, str]]:
    assert main(["check-config", json.dumps(config), *argv, "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)[f"vllm_{runner}"]
    assert verdict["ok"] == (not verdict["errors"])
    return verdict["errors"]


def check_refused(fields: dict[str, Any], options: dict[str, Any], runner: str, expected: list[str]) -> None:
    assert [each["field"] for each in in_the_plugin(fields, options, runner)] == expected


@pytest.mark.parametrize(("fields", "options", "runner", "expected"), CASES, ids=IDS)
def test_refused(fields, options, runner, expected):
    check_refused(fields, options, runner, expected)


RIGHT_BY_THEMSELVES = [case[:3] for case in CASES if case[3] != ["model"]]


def check_the_same(capsys: Any, shelf: Checkpoints) -> None:
    for fields, options, runner in RIGHT_BY_THEMSELVES:
        config = {**fields, "ascend_spec": options}
        model = ["--model", shelf["llama"]]
        found = by_check_config(capsys, config, runner, *model)
        assert found == by_check_config(capsys, config, runner), "without a target too"
        assert found == in_the_plugin(fields, options, runner), (config, runner)


def test_check_config_says_the_same(capsys, tmp_path):
    check_the_same(capsys, Checkpoints(tmp_path))


def test_a_target_is_judged_for_each_runner(capsys, tmp_path):
    """Drafting slots: the embedded engine has no such limit."""
    draft = {**DRAFT, "parallel_drafting": True}
    argv = [
        "--model",
        Checkpoints(tmp_path)["llama"],
        "--max-num-seqs",
        "8",
        "--max-num-batched-tokens",
        "24",
    ]
    assert [each["field"] for each in by_check_config(capsys, draft, "v1", *argv)] == [
        "num_speculative_tokens"
    ]
    assert "parallel_drafting" in {each["field"] for each in by_check_config(capsys, draft, "v2", *argv)}


def test_a_registered_method_is_not_one_of_vllms(capsys, monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})

    class Mine(SpeculatorConfig):
        base_method = "ngram"

    register_speculative_method("mine-of-the-refusals", Mine)
    config = {"method": "mine-of-the-refusals", "num_speculative_tokens": 4}
    for runner in ("v1", "v2"):
        (found,) = by_check_config(capsys, config, runner)
        assert found["field"] == "method"
        assert "not built for vLLM yet" in found["message"]
    # inside vLLM it can be named beside a method of vLLM's
    (found,) = in_the_plugin(NGRAM, {"method": "mine-of-the-refusals"}, "v1")
    assert found["field"] == "ascend_spec.method"


# ---- what takes vLLM's own configuration to know
@pytest.mark.parametrize(
    ("fields", "runner", "changed", "said"),
    [
        (EAGLE, "v1", {}, None),
        (EAGLE, "v1", {"async_scheduling": True}, "--no-async-scheduling"),
        (EAGLE, "v1", {"tensor_parallel_size": 2}, "part the ranks"),
        (EAGLE, "v1", {"device_type": "npu"}, "Ascend"),
        (EAGLE, "v2", {}, "V2 runner"),
        (NGRAM, "v1", {"async_scheduling": True, "tensor_parallel_size": 2, "device_type": "npu"}, None),
        (NGRAM, "v2", {"tensor_parallel_size": 2}, "part the ranks"),
    ],
)
def test_disable_is_refused_where_it_cannot_be_kept(fields, runner, changed, said):
    config = fake_vllm_config(**fields)
    places = (config.scheduler_config, config.parallel_config, config.device_config)
    config.device_config.device_type = "cpu"
    for name, value in changed.items():
        (place,) = [each for each in places if hasattr(each, name)]
        setattr(place, name, value)
    plan_for(config, {}, runner)
    if said is None:
        plan_for(config, {"on_error": "disable"}, runner)
        return
    with pytest.raises(ConfigError, match=r"'ascend_spec\.on_error' was given as 'disable'") as caught:
        plan_for(config, {"on_error": "disable"}, runner)
    assert said in str(caught.value)


# ---- the tests can fail
def nothing(*args: Any, **kwargs: Any) -> tuple[()]:
    return ()


@pytest.mark.parametrize("check", ["method", "options", "noise", "adaptive", "disable"])
def test_a_forgotten_refusal_is_noticed(check, monkeypatch):
    monkeypatch.setattr(refusals, f"_refused_{check}", nothing)
    unnoticed = []
    for case in CASES:
        try:
            check_refused(*case)
            unnoticed.append(case)
        except AssertionError:
            pass
    assert len(unnoticed) < len(CASES)


@pytest.mark.parametrize(
    ("place", "name"),
    [(check_config, "refused_in_vllm"), (check_config, "check_runner"), (translate, "refused")],
)
def test_one_that_says_less_is_noticed(place, name, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(place, name, nothing)
    with pytest.raises(AssertionError):
        check_the_same(capsys, Checkpoints(tmp_path))
