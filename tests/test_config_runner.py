"""What each of vLLM's two model runners lacks, of 0.33: named and refused before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from config_fixtures import Checkpoints, planned, restored_registry, warned
from test_config_contracts import TABLE, Row, plan_of
from test_config_plan import FIELD

from ascend_spec.config import (
    BUILT_IN,
    ConfigError,
    Plan,
    SpeculatorConfig,
    checks,
    register_speculative_method,
)

RUNNERS = ("embedded", "v1", "v2")
#: rows of the table of contracts that a runner does not have, and the field that says so
LACKING = {
    "v1": {
        "dspark": "method",
        "dspark without an anchor": "method",
        "dspark of speculators": "method",
        "xpress": "model",
    },
    "v2": {
        "suffix": "method",
        "custom_class": "method",
        "PARD": "parallel_drafting",
        "P-EAGLE": "parallel_drafting",
        "P-EAGLE of speculators": "parallel_drafting",
    },
}
#: options that a runner does not have, with a row that has them
OPTIONS: dict[str, tuple[str, str, Any]] = {
    "enable_adaptive_verification": ("v1", "eagle", True),
    "draft_lm_head_quantization": ("v1", "eagle", "fp8"),
    "parallel_drafting": ("v2", "mtp", True),
    "use_heterogeneous_vocab": ("v2", "draft_model", True),
}
#: methods whose K the V1 runner can change
V1_DYNAMIC = {"ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash"}


@pytest.fixture
def shelf(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def with_options(row: Row, **options: Any) -> Row:
    return Row(**{**vars(row), "config": {**row.config, **options}})


def check_runner(row: Row, runner: str, lacking: str | None, shelf: Checkpoints) -> Plan | None:
    """The plan, or an error about ``lacking`` alone that names both runners."""
    if lacking is None:
        return plan_of(row, shelf, 3, runner=runner)
    with pytest.raises(ConfigError) as caught:
        plan_of(row, shelf, 3, runner=runner)
    [finding] = caught.value.findings
    assert finding.field == lacking
    other = {"v1": "V2", "v2": "V1"}[runner]
    assert f"vLLM's {runner.upper()} model runner does not have; its {other} runner does" in finding.message
    assert "VLLM_USE_V2_MODEL_RUNNER" in finding.message
    return None


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", TABLE)
def test_methods_of_each_runner(name: str, runner: str, shelf: Checkpoints) -> None:
    check_runner(TABLE[name], runner, LACKING.get(runner, {}).get(name), shelf)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_each_runner(option: str, runner: str, shelf: Checkpoints) -> None:
    without, name, value = OPTIONS[option]
    row = with_options(TABLE[name], **{option: value})
    check_runner(row, runner, option if runner == without else None, shelf)


@pytest.mark.parametrize("runner", ["embedded", "v2"])
@pytest.mark.parametrize("name", ["dflash", "dspark"])
def test_blocks_are_drafted_in_parallel_everywhere(name: str, runner: str, shelf: Checkpoints) -> None:
    plan = plan_of(with_options(TABLE[name], parallel_drafting=True), shelf, 3, runner=runner)
    assert plan.config.parallel_drafting


def test_what_is_lacking_is_named_as_it_was_given(shelf: Checkpoints) -> None:
    """A checkpoint where the method alone says nothing, and a registered method by its own name."""
    with pytest.raises(ConfigError, match=f"'model' was given as '{shelf['xpress']}', which vLLM's V1"):
        plan_of(TABLE["xpress"], shelf, 3, runner="v1")
    with pytest.raises(ConfigError, match="'method' was given as 'dspark', which vLLM's V1"):
        planned({"model": shelf["dspark"]}, shelf.target(runner="v1"))

    class Meadow(SpeculatorConfig):
        method = "meadow"

    given = {"method": "meadow", "num_speculative_tokens": 2}
    with restored_registry():
        register_speculative_method("meadow", Meadow)
        assert planned(given, shelf.target(runner="v1")).method == "custom_class"
        with pytest.raises(ConfigError, match="'method' was given as 'meadow', which vLLM's V2"):
            planned(given, shelf.target(runner="v2"))


# ---- K by batch size
def check_changing_k(name: str, runner: str, shelf: Checkpoints) -> None:
    row = with_options(TABLE[name], **{FIELD: [[1, 2, 1]]})
    plan = check_runner(row, runner, LACKING.get(runner, {}).get(name), shelf)
    if plan is None:
        return
    if runner != "v1" or plan.method in V1_DYNAMIC:
        assert plan.num_speculative_tokens_for(1) == 1
        assert FIELD not in warned(plan)
        return
    assert plan.num_speculative_tokens_by_batch_size is None
    assert plan.num_speculative_tokens_for(1) == 3
    assert f"vLLM's V1 runner cannot change K for method '{plan.name}'" in warned(plan)[FIELD]


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", TABLE)
def test_changing_k_under_each_runner(name: str, runner: str, shelf: Checkpoints) -> None:
    check_changing_k(name, runner, shelf)


def test_some_methods_of_the_first_runner_keep_their_k(shelf: Checkpoints) -> None:
    """So that the warning above is not only for what the runner does not have at all."""
    keeping = set()
    for name in TABLE.keys() - LACKING["v1"].keys():
        plan = plan_of(with_options(TABLE[name], **{FIELD: [[1, 2, 1]]}), shelf, 3, runner="v1")
        if plan.num_speculative_tokens_by_batch_size is None:
            keeping.add(plan.method)
    assert keeping == set(BUILT_IN) - V1_DYNAMIC - {"dspark"}


# ---- every check above can fail
@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_a_runner_that_nobody_checks_is_seen(
    runner: str, shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "check_runner", lambda speculator, runner: iter(()))
    for name, field in LACKING[runner].items():
        with pytest.raises(pytest.fail.Exception):
            check_runner(TABLE[name], runner, field, shelf)
    for option, (without, _, _) in OPTIONS.items():
        if without == runner:
            with pytest.raises(pytest.fail.Exception):
                test_options_of_each_runner(option, runner, shelf)


@pytest.mark.parametrize(
    ("mutant", "name"),
    [(set(BUILT_IN), "suffix"), (V1_DYNAMIC | {"ngram_gpu"}, "ngram_gpu"), (V1_DYNAMIC - {"mtp"}, "mtp")],
)
def test_a_wrong_list_of_methods_is_seen(
    mutant: set[str], name: str, shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "V1_DYNAMIC", mutant)
    with pytest.raises((AssertionError, KeyError)):
        check_changing_k(name, "v1", shelf)
