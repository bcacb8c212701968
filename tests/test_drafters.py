"""Drafters: the table, and n-gram drafting through the operator."""

from __future__ import annotations

import doctest

import pytest
import torch

from ascend_spec.config import (
    BUILT_IN,
    ModelFacts,
    SpeculatorConfig,
    TargetConfig,
    load_speculative_config,
    register_speculative_method,
    resolve,
)
from ascend_spec.drafters import NgramDrafter, create_drafter
from ascend_spec.drafters import ngram as ngram_module
from ascend_spec.types import DraftBatch


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def batch(rows, num_tokens, wanted):
    return DraftBatch(
        token_ids=int32(rows), num_tokens=int32(num_tokens), num_speculative_tokens=int32(wanted)
    )


def plan(**config):
    target = TargetConfig(ModelFacts("target"), max_model_len=64)
    return resolve(load_speculative_config({"num_speculative_tokens": 4, **config}), target)


def test_every_drafter_that_a_contract_names_can_be_made():
    built = [name for name, contract in BUILT_IN.items() if contract.speculator_class is not None]
    assert "ngram" in built
    for name in built:
        assert hasattr(create_drafter(plan(method=name)), "propose")


def test_ngram_from_plan():
    drafter = create_drafter(plan(method="ngram", prompt_lookup_min=2, prompt_lookup_max=3))
    assert drafter == NgramDrafter(2, 3, 4)


def test_no_speculation_needs_no_drafter():
    assert create_drafter(resolve(None, TargetConfig(ModelFacts("target"), max_model_len=64))) is None


@pytest.mark.parametrize("name", ["no_such_module:Drafter", "ascend_spec.drafters:NoSuchClass"])
def test_a_contract_that_names_no_class_is_an_error(name, monkeypatch):
    monkeypatch.setattr("ascend_spec.config.registry._registered", {})
    register_speculative_method("mine", type("Mine", (SpeculatorConfig,), {"speculator_class": name}))
    with pytest.raises(ValueError, match=f"'mine' names '{name}' as its drafter, which cannot be imported"):
        create_drafter(plan(method="mine"))


def test_docstring_example():
    result = doctest.testmod(ngram_module)
    assert result.attempted > 0
    assert result.failed == 0


def test_ngram_proposes_for_every_slot():
    drafter = NgramDrafter(prompt_lookup_min=2, prompt_lookup_max=3, num_speculative_tokens=3)
    history = [
        [1, 2, 3, 4, 1, 2, 3, 0, 0, 0],
        [1, 2, 3, 4, 1, 2, 3, 0, 0, 0],  # wants one
        [1, 2, 3, 4, 1, 2, 3, 0, 0, 0],  # wants none
        [1, 2, 3, 4, 1, 2, 3, 0, 0, 0],  # an empty slot
        [1, 2, 3, 4, 5, 6, 7, 0, 0, 0],  # nothing repeats
    ]
    draft = drafter.propose(batch(history, [7, 7, 7, 0, 7], [3, 1, 0, 3, 3]))
    assert draft.token_ids.tolist() == [[4, 1, 2], [4, -1, -1], [-1] * 3, [-1] * 3, [-1] * 3]
    assert draft.token_ids.dtype == torch.int32
    assert draft.logits is None
    assert draft.tree is None


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(7, [4, 1, 2]), (8, [1, 2, -1]), (9, [2, -1, -1]), (10, [-1] * 3)]
)
def test_ngram_stops_at_the_model_length(num_tokens, expected):
    drafter = NgramDrafter(prompt_lookup_min=1, prompt_lookup_max=3, num_speculative_tokens=3)
    draft = drafter.propose(batch([[1, 2, 3, 4, 1, 2, 3, 4, 1, 2]], [num_tokens], [3]))
    assert draft.token_ids.tolist() == [expected]


def test_ngram_forgets_what_was_in_the_slot():
    """A shorter request in the slot of a longer one is drafted from its own tokens only."""
    drafter = NgramDrafter(prompt_lookup_min=1, prompt_lookup_max=3, num_speculative_tokens=2)
    token_ids = int32([[1, 2, 3, 4, 1, 2, 3, 4]])
    token_ids[0, :2] = int32([9, 4])
    draft = drafter.propose(DraftBatch(token_ids, num_tokens=int32([2]), num_speculative_tokens=int32([2])))
    assert draft.token_ids.tolist() == [[-1, -1]]
