"""With ``--json`` stdout holds JSON whatever happens, and stderr nothing of what is wrong."""

from __future__ import annotations

import json

import pytest
from config_fixtures import Checkpoints
from test_cli_config import NGRAM, checked, errors, run

from ascend_spec.cli import errors as cli_errors
from ascend_spec.config import opaque

CHECK = ("check-config",)
GENERATE = ("generate", "--model", "nowhere", "--prompt", "x")
OWN = "method: custom_class\nmodel: my_module.MyDrafter\nnum_speculative_tokens: 2\n"


@pytest.fixture
def shelf(tmp_path):
    return Checkpoints(tmp_path)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "no config was given"),
        ((NGRAM, "-tp", "2"), "add --model"),
        ((NGRAM, "--model", "x", "--embedded", "--runner", "v1"), "exclude each other"),
        ((NGRAM, "-tp", "0"), "'0' was given"),
        ((NGRAM, "--no-such-option"), "--no-such-option"),
    ],
)
def test_wrong_usage_of_check_config_is_json(capsys, argv, says):
    code, out, err = run(capsys, *CHECK, *argv, "--json")
    assert (code, err) == (2, "")
    refusal = json.loads(out)
    assert refusal["ok"] is False
    (found,) = refusal["errors"]
    assert found["field"] == ""
    assert says in found["message"]


@pytest.mark.parametrize(
    "argv", [("doctor", "--no"), ("methods", "--markdown", "x"), ("demo", "--max-tokens", "0"), GENERATE]
)
def test_so_it_is_with_every_command(capsys, argv):
    code, out, err = run(capsys, *argv, "--json")
    assert (code, err) == (2, "")
    assert set(json.loads(out)) == {"ok", "errors"}


def check_fields_are_named(capsys):
    config = '{"method": "ngram", "num_speculative_tokens": 0, "colour": 1}'
    code, out, _ = run(capsys, *GENERATE, "--speculative-config", config, "--json")
    assert code == 2
    found = json.loads(out)["errors"]
    assert [each["field"] for each in found] == ["colour", "num_speculative_tokens"]
    assert all(each["message"].startswith("speculative config: '") for each in found)


def test_fields_are_named(capsys):
    check_fields_are_named(capsys)


def test_without_json_errors_are_lines(capsys):
    code, out, err = run(capsys, *CHECK)
    assert (code, out) == (2, "")
    assert err.startswith("ascend-spec: error: no config was given")


def check_values_of_yaml_are_printed_as_json(capsys):
    """Of what JSON has no word for, the key is named."""
    found = checked(capsys, OWN + "speculator_options: {x: 2020-01-01, y: .nan, z: [1, {a: null}]}")
    assert found["config"]["speculator_options"] == {"x": "2020-01-01", "y": ".nan", "z": [1, {"a": None}]}
    (found,) = errors(capsys, OWN + 'speculator_options: {"x": {1: 2}}')
    assert found["field"] == "speculator_options.x"
    (found,) = errors(
        capsys,
        json.dumps(
            {"method": "ngram", "num_speculative_tokens": 2, "draft_load_config": {"x": float("inf")}}
        ),
    )
    assert found["field"] == "draft_load_config.x"
    (found,) = errors(capsys, OWN + "speculator_options: {x: !!binary aGk=}")
    assert "binary" in found["message"]


def test_values_of_yaml_are_printed_as_json(capsys):
    check_values_of_yaml_are_printed_as_json(capsys)


# ---- what the report says of the embedded engine
def check_the_target_counts_too(capsys, shelf):
    target = ("--model", shelf["mixtral"])
    options = (
        "-tp",
        "2",
        "-pp",
        "2",
        "-dp",
        "2",
        "-ep",
        "-q",
        "fp8",
        "--enable-prefix-caching",
        "--kv-connector",
        "x",
    )
    report = checked(capsys, NGRAM, *target, *options, "--graph-mode", "piecewise")
    assert report["embedded_engine"]["ok"] is False
    assert [each["field"] for each in report["embedded_engine"]["errors"]] == [
        "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel",
        "quantization", "enable_prefix_caching", "has_kv_connector", "graph_mode",
    ]  # fmt: skip
    assert errors(capsys, NGRAM, *target, "-pp", "2", "--embedded")[0]["field"] == "pipeline_parallel_size"
    assert (
        checked(capsys, NGRAM, *target, "--graph-mode", "full", "--embedded")["embedded_engine"]["ok"] is True
    )


def test_the_target_counts_too(capsys, shelf):
    check_the_target_counts_too(capsys, shelf)


def test_eager_by_the_config_turns_graphs_off(capsys, shelf):
    config = json.dumps({**json.loads(NGRAM), "enforce_eager": True})
    graphs = checked(capsys, config, "--model", shelf["llama"], "--graph-mode", "full")["start"]
    assert (graphs["graph_mode"], graphs["graph_buckets"]) == ("none", [])


def test_a_model_that_cannot_be_a_path(capsys):
    (found,) = errors(capsys, NGRAM, "--model", "x\0y")
    assert found["message"] == r"'x\x00y' cannot be a path (embedded null byte): correct the path"


# ---- every check above can fail
def _fields_are_lost(monkeypatch):
    monkeypatch.setattr(
        cli_errors.CommandError, "of", classmethod(lambda cls, found, _: cls(*(f.message for f in found)))
    )


def _anything_is_json(monkeypatch):
    monkeypatch.setattr(opaque, "_is_plain", lambda value: True)


def _any_key_is_a_name(monkeypatch):
    monkeypatch.setattr(opaque, "_bad_key", lambda path, key: None)


def _the_target_does_not_count(monkeypatch):
    monkeypatch.setattr("ascend_spec.config.resolution.refused_target", lambda target: ())


@pytest.mark.parametrize(
    ("mutate", "check"),
    [
        (_fields_are_lost, check_fields_are_named),
        (_anything_is_json, check_values_of_yaml_are_printed_as_json),
        (_any_key_is_a_name, check_values_of_yaml_are_printed_as_json),
    ],
)
def test_mutants_are_found(capsys, monkeypatch, mutate, check):
    check(capsys)
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        check(capsys)


def test_a_target_that_does_not_count_is_found(capsys, monkeypatch, shelf):
    _the_target_does_not_count(monkeypatch)
    with pytest.raises(AssertionError):
        check_the_target_counts_too(capsys, shelf)
