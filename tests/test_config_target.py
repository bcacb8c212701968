"""Facts of the target: which values are none, how it is spread over ranks, and sizes that are very large."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from config_fixtures import MIXTRAL, Checkpoints, Values, planned

from ascend_spec.config import ConfigError, TargetConfig, all_buckets, choose_bucket, parallel, target
from ascend_spec.config.schedule import Range, dense_lookup

NGRAM: Values = {"method": "ngram", "num_speculative_tokens": 3}


@pytest.fixture
def shelf(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


# ---- values that are none
@pytest.mark.parametrize("name", target.SIZES)
@pytest.mark.parametrize("value", [-1, True, 2.0, "8", 2**63])
def test_sizes_are_numbers_in_their_bounds(name: str, value: Any, shelf: Checkpoints) -> None:
    check_size(name, value, shelf)


def check_size(name: str, value: Any, shelf: Checkpoints) -> None:
    least, most = target.SIZES[name]
    with pytest.raises(ValueError, match=f"{name}=.* was given; choose an integer from {least} to {most}"):
        replace(shelf.target(), **{name: value})


@pytest.mark.parametrize("name", target.SIZES)
def test_bounds_are_sizes(name: str, shelf: Checkpoints) -> None:
    for value in target.SIZES[name]:
        assert getattr(replace(shelf.target(), **{name: value}), name) == value


@pytest.mark.parametrize("name", target.SIZES)
def test_which_sizes_may_be_none(name: str, shelf: Checkpoints) -> None:
    if getattr(shelf.target(), name) is None:
        assert name in target.OPEN
        return
    if name not in target.OPEN:
        check_size(name, None, shelf)


def test_every_number_of_a_target_is_checked() -> None:
    numbers = {
        name for name, kind in TargetConfig.__annotations__.items() if kind in ("int", "int | None") and name != "seed"
    }  # fmt: skip
    assert numbers - {"max_logprobs"} == set(target.SIZES)  # vLLM's -1 is no limit


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [("runner", "V2", '"embedded", "v1", "v2"'), ("graph_mode", "FULL", '"none", "piecewise", "full"')],
)
def test_words_are_known(name: str, value: str, allowed: str, shelf: Checkpoints) -> None:
    with pytest.raises(ValueError, match=f"{name}='{value}' was given; choose one of {allowed}"):
        shelf.target(**{name: value})


# ---- ranks
@pytest.mark.parametrize("given", [None, NGRAM])
@pytest.mark.parametrize(("ranks", "fits"), [(1, True), (8, True), (3, False), (16, False)])
def test_the_targets_heads_are_divided(
    given: Values | None, ranks: int, fits: bool, shelf: Checkpoints
) -> None:
    facts = shelf.target(tensor_parallel_size=ranks)
    if fits:
        assert planned(given, facts).target is facts
        return
    with pytest.raises(ConfigError, match="the target's 8 attention heads cannot be divided"):
        planned(given, facts)


@pytest.mark.parametrize(
    ("changes", "has_experts"),
    [({}, True), ({"num_local_experts": 1}, True), ({"num_local_experts": 0}, False),
     ({"num_local_experts": None}, False),
     ({"num_local_experts": None, "block_configs": [{"block_type": "moe", "n_routed_experts": 8}]}, True)],
)  # fmt: skip
def test_expert_parallelism_needs_experts(changes: Values, has_experts: bool, shelf: Checkpoints) -> None:
    path = shelf.like("mixtral", "of-experts", **changes)
    facts = TargetConfig.from_directory(path, enable_expert_parallel=True)
    if has_experts:
        assert planned(NGRAM, facts).target is facts
        return
    with pytest.raises(ConfigError, match="the target has no experts"):
        planned(NGRAM, facts)
    assert MIXTRAL["num_local_experts"] == 4


# ---- large sizes
def test_buckets_are_those_that_steps_choose() -> None:
    check_buckets(all_buckets)


def check_buckets(listed: Any) -> None:
    for seqs, drafts in product((1, 2, 3, 4, 5, 8, 9, 31, 33), (0, 1, 2, 3, 4, 7, 9)):
        chosen = {
            choose_bucket(requests, k, seqs, drafts)
            for requests in range(1, seqs + 1)
            for k in range(drafts + 1)
        }
        assert listed(seqs, drafts) == sorted(chosen)


RANGES: list[list[Range]] = [
    [(1, 4, 3), (8, 16, 2), (64, 512, 0)],
    [(9, 16, 1), (1, 8, 9)],
    [(1, 10**9, 2)],
    [(1, 1, 0), (10**12, 10**13, 3)],
]


@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("max_num_seqs", [1, 5, 8, 9, 100])
def test_k_by_batch_size_is_that_of_its_range(ranges: list[Range], max_num_seqs: int) -> None:
    """Each batch size inherits from the last range that begins at it or below it."""
    table = dense_lookup(ranges, 3, max_num_seqs)
    assert len(table) == max_num_seqs + 1
    assert table[0] == 0
    for size in range(1, max_num_seqs + 1):
        _, last = max((first, k) for first, _, k in ranges if first <= size)
        assert table[size] == min(last, 3)


def test_the_largest_batches_are_planned(shelf: Checkpoints) -> None:
    """Buckets by requests times drafts would be 60 million."""
    ranges = [[1 + 2 * i, 2 + 2 * i, i % 4] for i in range(500)]
    facts = shelf.target(max_num_seqs=target.MOST_SEQS, max_num_batched_tokens=2**30, graph_mode="full")
    plan = planned(
        {**NGRAM, "num_speculative_tokens": 60, "num_speculative_tokens_per_batch_size": ranges}, facts
    )
    assert len(plan.graph_buckets) < 300
    assert plan.num_speculative_tokens_for(target.MOST_SEQS) == 499 % 4


# ---- every check above can fail
def test_unchecked_values_are_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TargetConfig, "__post_init__", lambda facts: None)
    with pytest.raises(pytest.fail.Exception):
        check_size("max_num_seqs", 0, shelf)
    with pytest.raises(pytest.fail.Exception):
        test_words_are_known("runner", "V2", "", shelf)


def test_a_bucket_too_few_is_seen() -> None:
    with pytest.raises(AssertionError):
        check_buckets(lambda seqs, drafts: all_buckets(seqs, drafts)[:-1])


def test_ranks_that_nobody_checks_are_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_undivided_heads", lambda model, ranks: None)
    with pytest.raises(pytest.fail.Exception):
        test_the_targets_heads_are_divided(NGRAM, 3, False, shelf)


def test_experts_that_nobody_counts_are_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_spec.config.resolution.check_parallel", lambda facts: iter(()))
    with pytest.raises(pytest.fail.Exception):
        test_expert_parallelism_needs_experts({"num_local_experts": None}, False, shelf)
