"""The plan: K by batch size, graphs, budgets, prefix-cache hashes, and the worked example value by value."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from config_fixtures import Checkpoints, Values, planned, warned

from ascend_spec.config import BUILT_IN, ConfigError, TargetConfig, all_buckets, schedule
from ascend_spec.config.methods.eagle import Eagle3Config
from ascend_spec.config.plan import PROCESSORS

FIELD = "num_speculative_tokens_per_batch_size"
NGRAM = {"method": "ngram", "num_speculative_tokens": 4}


@pytest.fixture
def shelf(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def refused(given: Values, target: TargetConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        planned(given, target)
    assert {finding.field for finding in caught.value.findings} == {"num_speculative_tokens"}
    return str(caught.value)


# ---- K by batch size
def obvious_lookup(ranges: Sequence[Sequence[int]], most: int, max_num_seqs: int) -> tuple[int, ...]:
    """K of each batch size: of the range that holds it, else of the nearest range below."""
    table = [0]
    for batch_size in range(1, max_num_seqs + 1):
        holding = [entry for entry in ranges if entry[0] <= batch_size <= entry[1]]
        below = [entry for entry in ranges if entry[1] < batch_size]
        _, _, num_tokens = holding[0] if holding else max(below, key=lambda entry: entry[1])
        table.append(min(num_tokens, most))
    return tuple(table)


def random_ranges(rng: random.Random) -> list[list[int]]:
    """Ranges from 1 up, with gaps, in any order; K from 0 to beyond what is allowed."""
    ranges, first = [], 1
    for _ in range(rng.randint(1, 5)):
        last = first + rng.choice([0, 0, 1, 5, 20])
        ranges.append([first, last, rng.randint(0, 8)])
        first = last + rng.choice([1, 1, 2, 7])
    rng.shuffle(ranges)
    return ranges


def check_lookup(shelf: Checkpoints, trials: int = 200) -> None:
    rng = random.Random(7)
    for _ in range(trials):
        ranges, most, max_num_seqs = random_ranges(rng), rng.randint(1, 6), rng.randint(1, 40)
        config = {"method": "ngram", "num_speculative_tokens": most, FIELD: ranges}
        plan = planned(config, shelf.target(max_num_seqs=max_num_seqs))
        expected = obvious_lookup(ranges, most, max_num_seqs)
        assert plan.num_speculative_tokens_by_batch_size == expected
        for batch_size in range(max_num_seqs + 1):
            assert plan.num_speculative_tokens_for(batch_size) == expected[batch_size]


def test_lookup_against_the_obvious_one(shelf: Checkpoints) -> None:
    check_lookup(shelf)


@pytest.mark.parametrize(
    ("ranges", "table"),
    [
        ([[1, 2, 4], [5, 6, 1]], (0, 4, 4, 4, 4, 1, 1, 1, 1)),  # a gap, a tail
        ([[5, 6, 1], [1, 2, 4]], (0, 4, 4, 4, 4, 1, 1, 1, 1)),  # in any order
        ([[1, 1, 9]], (0, 4, 4, 4, 4, 4, 4, 4, 4)),  # no more than K
        ([[1, 4, 3], [5, 8, 0]], (0, 3, 3, 3, 3, 0, 0, 0, 0)),  # off for large batches
        ([[1, 100, 2], [101, 200, 1]], (0, 2, 2, 2, 2, 2, 2, 2, 2)),  # beyond max_num_seqs
    ],
)
def test_lookup_by_hand(ranges: list[list[int]], table: tuple[int, ...], shelf: Checkpoints) -> None:
    plan = planned({**NGRAM, FIELD: ranges}, shelf.target(max_num_seqs=8))
    assert plan.num_speculative_tokens_by_batch_size == table
    assert plan.num_speculative_tokens == 4


def test_without_ranges_every_batch_gets_all_drafts(shelf: Checkpoints) -> None:
    plan = planned(NGRAM, shelf.target())
    assert plan.num_speculative_tokens_by_batch_size is None
    assert plan.num_speculative_tokens_for(1) == plan.num_speculative_tokens_for(10**6) == 4


def given_for(name: str, shelf: Checkpoints) -> Values:
    """A valid configuration of a method, with ranges."""
    checkpoints = {"draft_model": "draft", "mlp_speculator": "mlp", "mtp": "nextn"}
    model: Values = {"model": "pkg.Drafter"} if name == "custom_class" else {}
    if BUILT_IN[name].model != "none":
        model = {"model": shelf[checkpoints.get(name, name)]}
    return {"ascend_spec": {"method": name}, "num_speculative_tokens": 4, **model, FIELD: [[1, 2, 3]]}


@pytest.mark.parametrize("name", BUILT_IN)
def test_ranks_that_share_no_schedule_keep_k(name: str, shelf: Checkpoints) -> None:
    plan = planned(given_for(name, shelf), shelf.target(data_parallel_size=2))
    assert plan.num_speculative_tokens_by_batch_size is None
    assert plan.num_speculative_tokens_for(1) == 4
    assert "is turned off: with data parallelism" in warned(plan)[FIELD]
    assert "K is 4" in warned(plan)[FIELD]


# ---- graphs
@pytest.mark.parametrize("runner", ["embedded", "v1", "v2"])
@pytest.mark.parametrize("mode", ["none", "piecewise", "full"])
@pytest.mark.parametrize("changing", [False, True])
def test_graphs(changing: bool, mode: Any, runner: Any, shelf: Checkpoints) -> None:
    ranges = {FIELD: [[1, 2, 3]]} if changing else {}
    plan = planned({**NGRAM, **ranges}, shelf.target(runner=runner, graph_mode=mode))
    falls = changing and mode == "full" and runner == "v1"
    assert plan.graph_mode == ("piecewise" if falls else mode)
    assert ("decode graphs are piecewise" in warned(plan).get(FIELD, "").lower()) is falls
    assert plan.graph_buckets == (() if mode == "none" else tuple(all_buckets(8, 4)))


def test_a_schedule_that_is_off_keeps_full_graphs(shelf: Checkpoints) -> None:
    target = shelf.target(runner="v1", graph_mode="full", data_parallel_size=2)
    assert planned({**NGRAM, FIELD: [[1, 2, 3]]}, target).graph_mode == "full"


def test_eager_mode_has_no_graphs(shelf: Checkpoints) -> None:
    plan = planned(NGRAM, shelf.target(graph_mode="full", enforce_eager=True))
    assert (plan.graph_mode, plan.graph_buckets) == ("none", ())


# ---- budgets, on both sides of each bound
BOUNDS: dict[str, tuple[Values, Values, str]] = {
    "length": (NGRAM, {"max_model_len": 5}, "max_model_len"),
    "batch": (NGRAM, {"max_num_batched_tokens": 5}, "max_num_batched_tokens"),
    "query": (NGRAM, {"max_query_len": 5}, "limit of query rows a request"),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_drafts_fit_or_not(bound: str, shelf: Checkpoints) -> None:
    given, facts, what = BOUNDS[bound]
    planned(given, shelf.target(**facts))
    message = refused({**given, "num_speculative_tokens": 5}, shelf.target(**facts))
    assert f"given as 5, which takes 6 tokens a request; {what}" in message.replace("the device's ", "")
    assert "is 5." in message
    assert "Lower 'num_speculative_tokens' to 4" in message


@pytest.mark.parametrize(
    ("checkpoint", "extra"), [("eagle", 1), ("dspark", 1), ("dflash", 2), ("dspark-bonus", 2)]
)
def test_lookahead_fits_into_a_batch(checkpoint: str, extra: int, shelf: Checkpoints) -> None:
    """vLLM: more tokens in a batch than slots of lookahead."""
    given = {"model": shelf[checkpoint], "num_speculative_tokens": 4}
    planned(given, shelf.target(max_num_batched_tokens=4 + extra))
    message = refused(given, shelf.target(max_num_batched_tokens=3 + extra))
    assert f"takes {4 + extra} tokens a request" in message
    assert "Lower 'num_speculative_tokens' to 3" in message


def test_drafting_slots_leave_room_to_schedule(shelf: Checkpoints) -> None:
    """16 drafts, 256 requests, 2048 tokens: the error names the three knobs, and no negative number."""
    given = {"method": "draft_model", "model": shelf["draft"], "parallel_drafting": True}
    big: Any = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "runner": "v1"}
    message = refused({**given, "num_speculative_tokens": 16}, shelf.target(**big))
    for knob in ("num_speculative_tokens", "max_num_seqs", "max_num_batched_tokens"):
        assert knob in message
    assert "-" not in message
    planned({**given, "num_speculative_tokens": 7}, shelf.target(**big))
    refused({**given, "num_speculative_tokens": 8}, shelf.target(**big))


def test_a_method_that_takes_no_slots_demands_none(shelf: Checkpoints) -> None:
    tight: Any = {"max_num_batched_tokens": 5, "max_num_seqs": 256, "runner": "v2"}
    planned(NGRAM, shelf.target(**tight))
    planned(None, shelf.target(**{**tight, "max_num_batched_tokens": 1}))


def test_requests_that_fit_into_a_draft_pass(shelf: Checkpoints) -> None:
    given = {"model": shelf["dflash"], "num_speculative_tokens": 3}  # four slots of lookahead
    seqs = [
        planned(given, shelf.target(max_num_batched_tokens=n)).max_num_draft_seqs for n in (7, 8, 31, 32, 512)
    ]
    assert seqs == [1, 2, 7, 8, 8]


def test_drafts_take_nothing_from_the_longest_request(shelf: Checkpoints) -> None:
    plan = planned(NGRAM, shelf.target(max_model_len=32))
    assert plan.kv.tokens_per_request == 36
    assert plan.speculator.max_model_len == 32


# ---- prefix-cache hashes
@pytest.mark.parametrize(
    "checkpoint", ["eagle", "eagle3", "peagle", "deepseek-3", "dflash", "dspark", "draft"]
)
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("connector", [True, False])
@pytest.mark.parametrize("off", [None, "disable_eagle_block_drop", "disable_lookahead_block_hashes"])
def test_tokens_that_a_hash_looks_ahead(
    off: str | None, connector: bool, caching: bool, checkpoint: str, shelf: Checkpoints
) -> None:
    given = {"model": shelf[checkpoint], "num_speculative_tokens": 3} | ({off: True} if off else {})
    plan = planned(given, shelf.target(enable_prefix_caching=caching, has_kv_connector=connector))
    drops = checkpoint in ("eagle", "eagle3", "peagle", "deepseek-3")
    assert plan.use_eagle_block_drop is (drops and off != "disable_eagle_block_drop")
    ahead = 3 if checkpoint == "deepseek-3" else 1
    assert plan.num_hash_lookahead_tokens == (ahead if drops and caching and not connector and not off else 0)


@pytest.mark.parametrize("name", ["ngram", "dflash", "draft_model"])
def test_a_block_that_is_never_dropped_is_said(name: str, shelf: Checkpoints) -> None:
    given = {key: value for key, value in given_for(name, shelf).items() if key != FIELD}
    assert (
        "has no effect"
        in warned(planned({**given, "disable_eagle_block_drop": True}, shelf.target()))[
            "disable_eagle_block_drop"
        ]
    )


# ---- rules
def test_rules_are_resolved(shelf: Checkpoints) -> None:
    synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}
    plan = planned({**NGRAM, **synthetic}, shelf.target())
    assert plan.synthetic_acceptance_rates == (1.0, 0.5, 0.0, 0.0)
    assert plan.fly_window_size is None
    for drafts, window in ((2, 1), (7, 6), (20, 6)):
        fly = planned({"method": "ngram", "num_speculative_tokens": drafts, "rejection_sample_method": "fly"},
                      shelf.target())  # fmt: skip
        assert fly.fly_window_size == window
        assert fly.synthetic_acceptance_rates is None


@pytest.mark.parametrize("rule", ["synthetic", "fly"])
def test_lossy_rules_are_asked_for_and_said(rule: str, shelf: Checkpoints) -> None:
    own = {"synthetic_acceptance_length": 2.0} if rule == "synthetic" else {}
    plan = planned({**NGRAM, "rejection_sample_method": rule, **own}, shelf.target())
    assert not plan.rule.lossless
    assert "lossy" in warned(plan)["rejection_sample_method"]
    assert planned(NGRAM, shelf.target()).rule.lossless


# ---- the worked example
def test_worked_example(shelf: Checkpoints) -> None:
    given = {
        "method": "eagle3",
        "model": shelf.like("eagle3", "eagle3-draft-head"),
        "num_speculative_tokens": 4,
        FIELD: [[1, 8, 4], [9, 32, 3], [33, 128, 2]],
        "draft_lm_head_quantization": "fp8",
        "draft_tensor_parallel_size": 1,
        "disable_eagle_block_drop": False,
    }
    target = shelf.target(
        max_num_seqs=160, tensor_parallel_size=2, enable_prefix_caching=True, runner="v2", dtype="bfloat16"
    )
    plan = planned(given, target)
    assert (plan.method, plan.name) == ("eagle3", "eagle3")
    assert type(plan.speculator) is Eagle3Config
    assert plan.why == ("'method' was given as 'eagle3'",)
    assert plan.warnings == ()
    assert (plan.num_speculative_tokens, plan.uniform_decode_query_len) == (4, 5)
    assert plan.num_speculative_tokens_by_batch_size == (0, *[4] * 8, *[3] * 24, *[2] * 128)
    assert (plan.num_lookahead_tokens, plan.num_prefill_lookahead_tokens) == (4, 1)
    assert (plan.max_num_new_slots_for_drafting, plan.max_num_draft_seqs) == (0, 160)
    assert plan.speculator.uses_target_hidden_states
    assert plan.speculator.uses_aux_hidden_states
    assert plan.use_eagle_block_drop
    assert plan.num_hash_lookahead_tokens == 1
    assert plan.config.draft_lm_head_quantization == "fp8"
    assert (plan.rule.name, plan.speculator.draft_distribution) == ("standard", "one-hot")
    assert plan.draft_model is not None
    assert plan.draft_model.model == given["model"]
    assert (plan.draft_model.tensor_parallel_size, plan.draft_model.dtype) == (1, "bfloat16")
    assert not plan.draft_model.enable_expert_parallel
    assert plan.draft_model.max_model_len == 64
    assert (
        plan.kv.target_bytes_per_token == 4 * 2 * 1 * 8 * 2
    )  # layers, K and V, heads of a rank, size, bfloat16
    assert plan.kv.draft_bytes_per_token == 1 * 2 * 2 * 8 * 2
    assert (plan.kv.tokens_per_request, plan.kv.blocks_per_request) == (68, 5)


def test_a_plan_does_not_change(shelf: Checkpoints) -> None:
    plan = planned(NGRAM, shelf.target())
    with pytest.raises(FrozenInstanceError):
        plan.graph_mode = "full"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        plan.speculator.config = plan.config  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        plan.config.num_speculative_tokens = 9


@pytest.mark.parametrize(("threads", "ranks", "each"), [(8, 1, 8), (8, 2, 4), (8, 3, 2), (1, 4, 1)])
def test_ranks_share_a_machines_threads(threads: int, ranks: int, each: int, shelf: Checkpoints) -> None:
    path = shelf.like("llama", "24-heads", num_attention_heads=24)
    target = TargetConfig.from_directory(path, num_threads=threads, tensor_parallel_size=ranks)
    assert planned(NGRAM, target).num_threads == each


def test_what_is_compiled_at_start(shelf: Checkpoints) -> None:
    assert planned(NGRAM, shelf.target()).warm_up == ("verify:standard", *PROCESSORS, "ngram_match")
    assert planned(None, shelf.target()).warm_up == ("verify:standard", *PROCESSORS)
    block = planned({**NGRAM, "rejection_sample_method": "block"}, shelf.target())
    assert block.warm_up == ("verify:block", *PROCESSORS, "ngram_match")


# ---- every check above can fail
def tail_of_zeros(ranges: Any, most: int, max_num_seqs: int) -> tuple[int, ...]:
    table = [0] * (max_num_seqs + 1)
    for first, last, num_tokens in ranges:
        for batch_size in range(first, min(last, max_num_seqs) + 1):
            table[batch_size] = min(num_tokens, most)
    return tuple(table)


def uncapped(ranges: Any, most: int, max_num_seqs: int) -> tuple[int, ...]:
    return obvious_lookup(ranges, 10**6, max_num_seqs)


def unsorted(ranges: Any, most: int, max_num_seqs: int) -> tuple[int, ...]:
    table = [0] * (max_num_seqs + 1)
    for first, _, num_tokens in ranges:
        table[first:] = [min(num_tokens, most)] * (max_num_seqs + 1 - first)
    return tuple(table)


@pytest.mark.parametrize("mutant", [tail_of_zeros, uncapped, unsorted])
def test_wrong_lookups_are_seen(mutant: Any, shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "dense_lookup", mutant)
    with pytest.raises(AssertionError):
        check_lookup(shelf)


def test_changing_k_that_nobody_stops_is_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_spec.config.checks.dynamic_k_refusal", lambda speculator, target: None)
    with pytest.raises(AssertionError):
        test_ranks_that_share_no_schedule_keep_k("ngram", shelf)


@pytest.mark.parametrize("bound", BOUNDS)
def test_budgets_that_nobody_checks_are_seen(
    bound: str, shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ascend_spec.config.checks.check_rows", lambda speculator, target: iter(()))
    with pytest.raises(pytest.fail.Exception):
        test_drafts_fit_or_not(bound, shelf)


def test_a_block_drop_of_the_wrong_method_is_seen(
    shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BUILT_IN["dflash"], "needs_eagle_block_drop", True)
    with pytest.raises(AssertionError):
        test_tokens_that_a_hash_looks_ahead(None, False, True, "dflash", shelf)


def test_a_table_that_asks_for_too_much_is_told(shelf: Checkpoints) -> None:
    table = {
        **NGRAM,
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 32, 5]],
    }
    told = warned(planned(table, shelf.target()))
    assert "asks for 5 drafts from batch size 9 to 32" in told["num_speculative_tokens_per_batch_size"]
    table["num_speculative_tokens_per_batch_size"] = [[1, 8, 4], [9, 32, 3]]
    assert "num_speculative_tokens_per_batch_size" not in warned(planned(table, shelf.target()))
