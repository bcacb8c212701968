"""The command ``check-config`` against its target: what a runner, a KV pool or a model's length rules out."""

from __future__ import annotations

import json

import pytest
from config_fixtures import Checkpoints
from test_cli_config import NGRAM, OPTIONS, RANGES, checked, errors, run

from ascend_spec.config import checks


@pytest.fixture
def shelf(tmp_path):
    return Checkpoints(tmp_path)


def check_the_first_runner(capsys, shelf):
    """It has no quantised heads, and falls back to piecewise graphs where K changes."""
    config = {
        "method": "eagle3",
        "model": shelf["eagle3"],
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": RANGES,
    }
    plain, quantised = json.dumps(config), json.dumps({**config, "draft_lm_head_quantization": "fp8"})
    target = shelf["llama"]
    options = [*OPTIONS, "--runner", "v1"]
    (refused,) = errors(capsys, quantised, "--model", target, *options)
    assert refused["field"] == "draft_lm_head_quantization"
    assert "its V2 runner does" in refused["message"]
    found = checked(capsys, plain, "--model", target, *options)
    assert found["start"]["graph_mode"] == "piecewise"
    (warning,) = found["warnings"]
    assert warning["field"] == "num_speculative_tokens_per_batch_size"
    code, out, _ = run(capsys, "check-config", plain, "--model", target, *options)
    assert code == 0
    warnings = " ".join(out.partition("\nwarnings\n")[2].split())
    assert warning["message"] in warnings


def test_the_first_runner(capsys, shelf):
    check_the_first_runner(capsys, shelf)


def check_the_pool_is_large_enough(capsys, shelf):
    """One token a block: 64 of the longest request and one that the drafter writes beyond it."""
    config = json.dumps({"method": "eagle", "model": shelf["eagle"], "num_speculative_tokens": 1})
    argv = [config, "--model", shelf["llama"], "--block-size", "1", "--num-kv-blocks"]
    assert checked(capsys, *argv, "65")["kv"]["num_blocks"] == 65
    (found,) = errors(capsys, *argv, "64")
    assert found["field"] == "num_kv_blocks"
    assert "cannot hold one request of max_model_len=64 and 1 tokens of lookahead" in found["message"]


def test_the_pool_is_large_enough(capsys, shelf):
    check_the_pool_is_large_enough(capsys, shelf)


def test_the_longest_sequence_is_the_models(capsys, shelf):
    path = shelf.like(
        "llama", "longrope", rope_scaling={"rope_type": "longrope"}, original_max_position_embeddings=16
    )
    assert checked(capsys, NGRAM, "--model", path)["target"]["max_model_len"] == 16
    assert checked(capsys, NGRAM, "--model", path, "--max-model-len", "64")["target"]["max_model_len"] == 64
    (found,) = errors(capsys, NGRAM, "--model", path, "--max-model-len", "65")
    assert found["field"] == "--model"
    assert "max_model_len=65 was given; this model allows 2 to 64" in found["message"]


# ---- every check above can fail
def _every_runner_has_all(monkeypatch):
    monkeypatch.setattr(checks, "check_runner", lambda speculator, runner: iter(()))


def _any_pool_will_do(monkeypatch):
    monkeypatch.setattr(checks, "pool_shortfall", lambda num_blocks, target, num_lookahead_tokens: None)


def _full_graphs_always(monkeypatch):
    monkeypatch.setattr(checks, "graph_mode", lambda speculator, target: (target.graph_mode, None))


@pytest.mark.parametrize(
    ("mutate", "check"),
    [
        (_every_runner_has_all, check_the_first_runner),
        (_full_graphs_always, check_the_first_runner),
        (_any_pool_will_do, check_the_pool_is_large_enough),
    ],
)
def test_mutants_are_found(capsys, monkeypatch, shelf, mutate, check):
    check(capsys, shelf)
    mutate(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        check(capsys, shelf)
