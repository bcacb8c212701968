"""The longest sequence of a model: what a checkpoint is served with, and what may be asked of it.

The figures are vLLM 0.33's for the same values; ``ladder/test_vllm_config.py`` asks vLLM itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from config_fixtures import LLAMA, Checkpoints, Values, planned, write

from ascend_spec.config import (
    ConfigError,
    TargetConfig,
    check_max_model_len,
    checkpoint,
    read_model_facts,
    target,
)
from ascend_spec.config.checkpoint import ModelFacts

DRAFT = {"method": "draft_model", "num_speculative_tokens": 3}


def rope(rope_type: str, **more: Any) -> Values:
    return {"rope_scaling": {"rope_type": rope_type, **more}}


GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0},
    "sliding_attention": {"rope_type": "default"},
}
#: changes of a checkpoint of 64 tokens, its length if none is given, and the longest that may be given
LENGTHS: dict[str, tuple[Values, int, int]] = {
    "plain": ({}, 64, 64),
    "linear": (rope("linear", factor=4.0), 256, 256),
    "linear, older key": ({"rope_scaling": {"type": "linear", "factor": 4}}, 256, 256),
    "dynamic": (rope("dynamic", factor=2.0), 128, 128),
    "without a factor": (rope("linear"), 64, 64),
    "a half": (rope("linear", factor=1.5), 96, 96),
    "llama3 counts its factor": (rope("llama3", factor=8.0, original_max_position_embeddings=16), 64, 64),
    "yarn counts its factor": (rope("yarn", factor=4.0, original_max_position_embeddings=16), 64, 64),
    "longrope": ({**rope("longrope"), "original_max_position_embeddings": 16}, 16, 64),
    "longrope, a factor": ({**rope("longrope", factor=4.0), "original_max_position_embeddings": 16}, 16, 64),
    "longrope, original length inside": (rope("longrope", original_max_position_embeddings=16), 64, 64),
    "longrope, both": (
        {**rope("longrope", original_max_position_embeddings=8), "original_max_position_embeddings": 16}, 16, 64,
    ),
    "longrope, older name": ({"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 16}, 16, 64),
    "an original length of another rope": ({"original_max_position_embeddings": 16}, 64, 64),
    "by kind of layer": (
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0}, "sliding_attention": {}}},
        256, 256,
    ),
    "gemma3 counts its factor": ({"model_type": "gemma3_text", "rope_parameters": GEMMA_ROPE}, 64, 64),
    "gemma3 of several modalities": (
        {"model_type": "gemma3", "max_position_embeddings": None,
         "text_config": {**LLAMA, "model_type": "gemma3_text", "rope_parameters": GEMMA_ROPE}}, 64, 64,
    ),
    "model_max_length above": ({"model_max_length": 256}, 256, 256),
    "model_max_length below": ({"model_max_length": 32}, 32, 32),
}  # fmt: skip


@pytest.fixture
def shelf(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def check_lengths(name: str, shelf: Checkpoints) -> None:
    """Of a target: the default, and both sides of what is allowed."""
    changes, default, most = LENGTHS[name]
    path = shelf.like("llama", "some", **changes)
    assert TargetConfig.from_directory(path).max_model_len == default
    assert TargetConfig.from_directory(path, max_model_len=None).max_model_len == default
    for given in (2, default, most):
        assert TargetConfig.from_directory(path, max_model_len=given).max_model_len == given
    for given in (0, 1, -5, most + 1):
        with pytest.raises(
            ValueError, match=f"max_model_len={given} was given; this model allows 2 to {most}$"
        ):
            TargetConfig.from_directory(path, max_model_len=given)


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_of_a_target(name: str, shelf: Checkpoints) -> None:
    check_lengths(name, shelf)


def test_a_target_that_does_not_say(shelf: Checkpoints) -> None:
    path = shelf.like("llama", "silent", max_position_embeddings=None)
    facts = read_model_facts(path)
    assert facts.max_model_len is facts.derived_max_model_len is None
    with pytest.raises(ValueError, match="has no max_position_embeddings: give max_model_len"):
        TargetConfig.from_directory(path)
    assert TargetConfig.from_directory(path, max_model_len=10**6).max_model_len == 10**6


def test_the_check_alone() -> None:
    assert check_max_model_len(None, 64) == 64
    assert check_max_model_len(2, 64) == 2
    assert check_max_model_len(64, 64) == 64
    with pytest.raises(ValueError, match="max_model_len=65 was given; this model allows 2 to 64"):
        check_max_model_len(65, 64)


@pytest.mark.parametrize("value", ["64", 0, -1, 1.5, True, [64]])
@pytest.mark.parametrize("key", ["model_max_length", "original_max_position_embeddings"])
def test_lengths_are_numbers(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"has '{key}' as .*; it must be a whole number above 0"):
        read_model_facts(write(tmp_path / "odd", {**LLAMA, key: value}))


# ---- the same of a draft model
def check_draft_lengths(name: str, shelf: Checkpoints) -> None:
    """The default of the checkpoint, at most the target's; and both sides of what may be given."""
    changes, default, most = LENGTHS[name]
    config = {**DRAFT, "model": shelf.like("draft", "some-draft", **changes)}
    for of_target in (1024, 48):
        path = shelf.like("llama", f"of-{of_target}", max_position_embeddings=of_target)
        run = TargetConfig.from_directory(path)

        def length(run: TargetConfig = run, **given: int) -> int:
            draft = planned({**config, **given}, run).draft_model
            assert draft is not None
            return draft.max_model_len

        assert length() == min(default, of_target)
        supported = min(most, of_target)
        assert length(max_model_len=supported) == supported
        with pytest.raises(ConfigError, match=f"given as {supported + 1}; it must be at most {supported}, "):
            length(max_model_len=supported + 1)


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_of_a_draft_model(name: str, shelf: Checkpoints) -> None:
    check_draft_lengths(name, shelf)


# ---- every check above can fail
def the_default_is_the_most(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelFacts, "max_model_len", property(lambda self: self.derived_max_model_len))


def the_most_is_the_default(patch: pytest.MonkeyPatch) -> None:
    """Short of what vLLM takes of longrope."""
    patch.setattr(ModelFacts, "derived_max_model_len", property(lambda self: self.max_model_len))
    patch.setattr(
        ModelFacts,
        "max_model_len",
        property(lambda self: self.get("original_max_position_embeddings") or self.max_position_embeddings),
    )


def yarn_is_stretched(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint, "COUNTED_ROPE_TYPES", checkpoint.COUNTED_ROPE_TYPES - {"yarn"})


def linear_is_not_stretched(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint, "COUNTED_ROPE_TYPES", checkpoint.COUNTED_ROPE_TYPES | {"linear"})


def older_names_are_unknown(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint, "OLDER_ROPE_TYPES", {})


def model_max_length_is_not_read(patch: pytest.MonkeyPatch) -> None:
    get = ModelFacts.get
    patch.setattr(
        ModelFacts, "get", lambda self, name: None if name == "model_max_length" else get(self, name)
    )


def any_length_is_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(target, "check_max_model_len", lambda given, supported: given)


MUTANTS = {
    the_default_is_the_most: "longrope",
    the_most_is_the_default: "longrope",
    yarn_is_stretched: "yarn counts its factor",
    linear_is_not_stretched: "linear",
    older_names_are_unknown: "longrope, older name",
    model_max_length_is_not_read: "model_max_length below",
    any_length_is_taken: "plain",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutants_are_seen(mutant: Any, shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    check_lengths(MUTANTS[mutant], shelf)
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        check_lengths(MUTANTS[mutant], shelf)


def test_a_draft_model_of_any_length_is_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_spec.config.draft_model._shorter", lambda length, target: length)
    with pytest.raises(AssertionError):
        check_draft_lengths("plain", shelf)
    monkeypatch.setattr(
        "ascend_spec.config.draft_model._shorter", lambda length, target: target.max_model_len
    )
    with pytest.raises(AssertionError):
        check_draft_lengths("plain", shelf)
