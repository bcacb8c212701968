"""What is said of a configuration: all of it at once, and the user's values as the user gave them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from config_fixtures import Checkpoints, Values, planned, warned

from ascend_spec.config import (
    ConfigError,
    SpeculatorConfig,
    TargetConfig,
    load_speculative_config,
    resolution,
)

LONG = {"num_speculative_tokens": 9000}


@pytest.fixture
def shelf(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def refused(given: Values, target: TargetConfig) -> dict[str, list[str]]:
    """Messages by field."""
    with pytest.raises(ConfigError) as caught:
        load_speculative_config(given, target=target)
    found: dict[str, list[str]] = {}
    for finding in caught.value.findings:
        found.setdefault(finding.field, []).append(finding.message)
    return found


# ---- all at once, even without a draft model or a method
def check_without_a_draft_model(shelf: Checkpoints) -> None:
    given = {"method": "eagle3", **LONG, "xpress_topc": 3, "use_heterogeneous_vocab": True, "quantization": "foo",
             "draft_tensor_parallel_size": 3}  # fmt: skip
    found = refused(given, shelf.target())
    assert found.keys() == given.keys() - {"method"} | {"model"}
    assert len(found["num_speculative_tokens"]) == 2  # of the model's length and of the batch


def test_without_a_draft_model(shelf: Checkpoints) -> None:
    check_without_a_draft_model(shelf)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"method": "ngrm"}, "method"),
        ({"method": 3}, "method"),
        ({"ascend_spec": {"method": "medusaa"}}, "ascend_spec.method"),
        ({"custom_method": "nobody's"}, "custom_method"),
        ({}, "model"),
        ({"model": "./missing"}, "model"),
    ],
)
def test_without_a_method(given: Values, field: str, shelf: Checkpoints) -> None:
    assert refused({**given, **LONG}, shelf.target()).keys() == {field, "num_speculative_tokens"}


@pytest.mark.parametrize("given", [{"method": "ngrm"}, {"model": "./missing"}, {}])
def test_nothing_is_said_of_a_method_that_is_not_known(given: Values, shelf: Checkpoints) -> None:
    options = {"num_speculative_tokens": 3, "dspark_draft_topk": 4, "xpress_topc": 4, "quantization": "foo"}
    assert len(refused({**given, **options}, shelf.target(watermarking=True))) == 1


@pytest.mark.parametrize("given", [{"method": "dflash"}, {"method": "dflash", "model": "org/head"}])
def test_an_unread_checkpoint_may_know_the_option(given: Values, shelf: Checkpoints) -> None:
    given = {**given, "num_speculative_tokens": 3, "xpress_topc": 4}
    if "model" in given:
        assert planned(given, shelf.target()).config.xpress_topc == 4
    else:
        assert refused(given, shelf.target(runner="v1")).keys() == {"model"}


# ---- values that the user never gave
def test_a_depth_is_not_called_a_number_of_drafts(shelf: Checkpoints) -> None:
    check_depth(shelf)


def check_depth(shelf: Checkpoints) -> None:
    messages = refused({"method": "suffix", "suffix_decoding_max_tree_depth": 5000}, shelf.target())[
        "num_speculative_tokens"
    ]
    for message in messages:
        assert "comes to 5000 (from 'suffix_decoding_max_tree_depth')" in message
        assert "given as" not in message
        assert "Set 'num_speculative_tokens' to" in message


@pytest.mark.parametrize(
    ("given", "checkpoint", "source"),
    [
        ({"method": "eagle"}, {"name": "eagle", "n_predict": 99}, "the checkpoint's n_predict"),
        ({"method": "mtp"}, {"name": "nextn", "num_nextn_predict_layers": 99}, "the checkpoint's MTP layers"),
        ({"method": "dspark"}, {"name": "dspark", "block_size": 99}, "the checkpoint's block size"),
        ({}, {"name": "medusa", "medusa_num_heads": 99}, "the checkpoint's number of heads"),
    ],
)
def test_where_a_number_of_drafts_comes_from(
    given: Values, checkpoint: Values, source: str, shelf: Checkpoints
) -> None:
    path = shelf.like(checkpoint.pop("name"), "head", **checkpoint)
    for message in refused({**given, "model": path}, shelf.target())["num_speculative_tokens"]:
        assert f"'num_speculative_tokens' comes to 99 (from {source})" in message
    for message in refused({**given, "model": path, **LONG}, shelf.target())["num_speculative_tokens"]:
        assert "given as 9000" in message


def test_one_draft_of_a_depth_of_one(shelf: Checkpoints) -> None:
    given = {"method": "suffix", "suffix_decoding_max_tree_depth": 1, "rejection_sample_method": "fly"}
    [message] = refused(given, shelf.target())["num_speculative_tokens"]
    assert message.startswith("'num_speculative_tokens' is 1; it must be at least 2")


def test_a_checkpoint_that_drafts_in_parallel(shelf: Checkpoints) -> None:
    given = {"model": shelf["peagle"], "num_speculative_tokens": 3}
    [message] = refused(given, shelf.target(runner="v2"))["parallel_drafting"]
    assert message.startswith("'parallel_drafting' comes to True (from the checkpoint), which vLLM's V2")
    [message] = refused({**given, "parallel_drafting": True}, shelf.target(runner="v2"))["parallel_drafting"]
    assert message.startswith("'parallel_drafting' was given as True, which vLLM's V2")


# ---- what the user gave and does not get
@pytest.mark.parametrize("checkpoint", ["dflash", "dspark", "peagle"])
def test_drafting_one_by_one_that_is_overruled(checkpoint: str, shelf: Checkpoints) -> None:
    given = {"model": shelf[checkpoint], "num_speculative_tokens": 3}
    plan = planned({**given, "parallel_drafting": False}, shelf.target())
    assert plan.config.parallel_drafting
    assert "was given as False" in warned(plan)["parallel_drafting"]
    for extra in ({}, {"parallel_drafting": True}):
        assert "parallel_drafting" not in warned(planned({**given, **extra}, shelf.target()))


@pytest.mark.parametrize(("limit", "warns"), [(8, False), (9, True)])
def test_a_limit_that_no_batch_reaches(limit: int, warns: bool, shelf: Checkpoints) -> None:
    given = {"method": "ngram", "num_speculative_tokens": 3, "ascend_spec": {"disable_by_batch_size": limit}}
    warnings = warned(planned(given, shelf.target(max_num_seqs=8)))
    assert ("ascend_spec.disable_by_batch_size" in warnings) is warns


@pytest.mark.parametrize(("length", "advised"), [(None, False), (63, True)])
def test_no_length_beyond_the_models_is_advised(
    length: int | None, advised: bool, shelf: Checkpoints
) -> None:
    found = refused({"method": "ngram", **LONG}, shelf.target(max_model_len=length))
    [message] = [each for each in found["num_speculative_tokens"] if "max_model_len is" in each]
    assert ("raise max_model_len" in message) is advised


# ---- what is allowed, and no more
def check_allowed_alone(shelf: Checkpoints) -> None:
    given = {
        "method": "ngram",
        "num_speculative_tokens": 0,
        "ascend_spec": {"on_error": "stop", "mqa_attention": 1},
    }
    found = refused(given, shelf.target())
    assert found["num_speculative_tokens"][0].endswith("must be an integer from 1 to 1048576. Change it.")
    assert found["ascend_spec.on_error"] == [
        '\'ascend_spec.on_error\' was given as \'stop\'; it must be "continue", "raise" or "disable". Change it.'
    ]
    assert found["ascend_spec.mqa_attention"][0].endswith("it must be true or false. Change it.")


def test_what_a_field_means_is_not_quoted(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    check_allowed_alone(shelf)
    monkeypatch.setattr("ascend_spec.config.errors.allowed", str)
    with pytest.raises(AssertionError):
        check_allowed_alone(shelf)


# ---- every check above can fail
def nothing(*_: Any) -> Iterator[Any]:
    return iter(())


@pytest.mark.parametrize("place", ["check_contract", "check_target"])
def test_checks_that_wait_for_a_draft_model_are_seen(
    place: str, shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"ascend_spec.config.checks.{place}", nothing)
    with pytest.raises(AssertionError):
        check_without_a_draft_model(shelf)


def test_checks_that_wait_for_a_method_are_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_spec.config.checks.check_rows", nothing)
    with pytest.raises(AssertionError):
        test_without_a_method({"method": "ngrm"}, "method", shelf)


def test_a_forgotten_source_is_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    original = resolution._specialized

    def forgetful(speculator: SpeculatorConfig, verdict: Any) -> SpeculatorConfig:
        return original(replace(speculator, derived=frozenset()), verdict)

    monkeypatch.setattr(resolution, "_specialized", forgetful)
    with pytest.raises(AssertionError):
        check_depth(shelf)


def test_a_silent_overruling_is_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_spec.config.resolution._overruled", nothing)
    with pytest.raises(KeyError):
        test_drafting_one_by_one_that_is_overruled("dflash", shelf)
