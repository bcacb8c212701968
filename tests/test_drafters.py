"""Drafters: the table, and n-gram drafting through the operator."""

from __future__ import annotations

import doctest
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine_fixtures import tiny_llama

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
from ascend_spec.vllm.metrics import Metrics
from ascend_spec.vllm.on_error import OnError
from ascend_spec.vllm.v1_drafters import V1NgramProposer

NGRAM = {"method": "ngram", "prompt_lookup_max": 2}


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def batch(rows, num_tokens, wanted):
    return DraftBatch(
        token_ids=int32(rows), num_tokens=int32(num_tokens), num_speculative_tokens=int32(wanted)
    )


def plan(**config):
    target = TargetConfig(ModelFacts("target"), max_model_len=64)
    return resolve(load_speculative_config({"num_speculative_tokens": 4, **config}), target)


def test_every_drafter_that_a_contract_names_can_be_made(tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    built = [name for name, contract in BUILT_IN.items() if contract.speculator_class is not None]
    assert "ngram" in built
    for name in built:
        model = {"model": str(tmp_path)} if BUILT_IN[name].model != "none" else {}
        if name == "custom_class":
            model = {
                "model": "ascend_spec.drafters.NgramDrafter",
                "prompt_lookup_min": 1,
                "prompt_lookup_max": 2,
            }
        assert hasattr(create_drafter(plan(method=name, **model)), "propose")


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


EARLIEST_OR_RECENT = [1, 2, 9, 1, 2, 7, 1, 2]


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu"])
@pytest.mark.parametrize(("match", "expected"), [("earliest", [9, 1, 2]), ("recent", [7, 1, 2])])
def test_ngram_takes_the_match_that_is_asked_for(method, match, expected):
    drafter = create_drafter(plan(method=method, prompt_lookup_max=2, ascend_spec={"match": match}))
    history = [EARLIEST_OR_RECENT + [0] * 8]
    assert drafter.propose(batch(history, [8], [3])).token_ids.tolist() == [[*expected, -1]]
    counts = [np.array([n], np.int32) for n in (8, 3)]
    assert drafter.propose_on_host(np.array(history, np.int32), *counts).tolist() == [[*expected, -1]]


def test_ngram_drafts_nothing_that_the_target_cannot_read(tmp_path):
    """Its vocabulary is in the plan. An id below 0 ends a draft too: vLLM marks with it what it has not seen yet."""
    target = TargetConfig(ModelFacts("target", {"vocab_size": 9}), max_model_len=64)
    drafter = create_drafter(resolve(load_speculative_config({**NGRAM, "num_speculative_tokens": 4}), target))
    histories = [[1, 2, 8, 9, 1, 2], [1, 2, 9, 8, 1, 2], [1, 2, 8, -1, 1, 2]]
    draft = drafter.propose(batch([row + [0] * 8 for row in histories], [6] * 3, [4] * 3))
    assert draft.token_ids.tolist() == [[8, -1, -1, -1], [-1] * 4, [8, -1, -1, -1]]


def test_ngram_on_the_host_is_the_same():
    """Also for rows of a wider array, as those of vLLM's batch may be."""
    drafter = NgramDrafter(prompt_lookup_min=1, prompt_lookup_max=3, num_speculative_tokens=3)
    wide = np.random.default_rng(0).integers(0, 3, (9, 40), np.int32)
    for token_ids in (wide, wide[:, :21], wide[:4], np.zeros((0, 8), np.int32)):
        num_tokens = np.arange(len(token_ids), dtype=np.int32) * 3
        wanted = np.full(len(token_ids), 3, np.int32)
        drafts = (
            drafter.propose(batch(token_ids.tolist(), num_tokens.tolist(), wanted.tolist()))
            if len(wanted)
            else None
        )
        expected = drafts.token_ids.tolist() if drafts else []
        assert drafter.propose_on_host(token_ids, num_tokens, wanted).tolist() == expected


def test_ngram_keeps_nothing_of_a_request():
    """A request that is preempted, comes back in another slot, or leaves: each call is as a fresh drafter's."""
    used = NgramDrafter(prompt_lookup_min=1, prompt_lookup_max=3, num_speculative_tokens=3)
    rng = np.random.default_rng(1)
    for _ in range(50):
        rows = rng.integers(0, 4, (3, 30)).tolist()
        given = batch(rows, rng.integers(0, 30, 3).tolist(), [3] * 3)
        fresh = NgramDrafter(prompt_lookup_min=1, prompt_lookup_max=3, num_speculative_tokens=3)
        assert torch.equal(used.propose(given).token_ids, fresh.propose(given).token_ids)


@pytest.mark.parametrize("match", ["earliest", "recent"])
def test_v1_proposer_takes_the_match_that_is_asked_for(match):
    """What stands in for vLLM's proposer: drafts of requests that have sampled, as lists."""
    given = plan(method="ngram", prompt_lookup_max=2, ascend_spec={"match": match})
    stock = SimpleNamespace(propose=lambda num_speculative_tokens, sampled, num_tokens, token_ids: None)
    proposer = V1NgramProposer(stock, given, OnError(given, Metrics(given.rule, is_published=False)))
    token_ids = np.array([EARLIEST_OR_RECENT + [0] * 80] * 3, np.int32)
    num_tokens = np.array([8, 8, 2], np.int32)
    expected = {"earliest": [9, 1], "recent": [7, 1]}[match]
    assert proposer(2, [[2], [], [2]], num_tokens, token_ids) == [expected, [], []]


def test_ngram_forgets_what_was_in_the_slot():
    """A shorter request in the slot of a longer one is drafted from its own tokens only."""
    drafter = NgramDrafter(prompt_lookup_min=1, prompt_lookup_max=3, num_speculative_tokens=2)
    token_ids = int32([[1, 2, 3, 4, 1, 2, 3, 4]])
    token_ids[0, :2] = int32([9, 4])
    draft = drafter.propose(DraftBatch(token_ids, num_tokens=int32([2]), num_speculative_tokens=int32([2])))
    assert draft.token_ids.tolist() == [[-1, -1]]
