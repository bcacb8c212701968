"""Drafters: the table, and n-gram drafting through the operator."""

from __future__ import annotations

import doctest

import pytest
import torch

from ascend_spec.config import SPECULATORS, load_speculative_config
from ascend_spec.drafters import DRAFTERS, NgramDrafter, create_drafter
from ascend_spec.drafters import ngram as ngram_module
from ascend_spec.types import DraftBatch


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def batch(rows, num_tokens, wanted):
    return DraftBatch(
        token_ids=int32(rows), num_tokens=int32(num_tokens), num_speculative_tokens=int32(wanted)
    )


def test_every_method_has_a_drafter():
    assert DRAFTERS.keys() == SPECULATORS.keys()


def test_ngram_from_config():
    config = load_speculative_config(
        {"num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 3}
    )
    assert create_drafter(config) == NgramDrafter(2, 3, 4)


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
