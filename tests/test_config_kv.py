"""The KV plan in bytes, against what one gets by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from config_fixtures import Checkpoints, Values, planned

from ascend_spec.config import BUILT_IN, ConfigError, SpeculatorConfig, TargetConfig, checks, kv

DRAFT = {"method": "draft_model", "num_speculative_tokens": 3}
KEYS_AND_VALUES = 2


@pytest.fixture
def shelf(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def bytes_of(given: Values | None, target: TargetConfig) -> tuple[int | None, int | None]:
    """A token's, of target and draft."""
    plan = planned(given, target)
    return plan.kv.target_bytes_per_token, plan.kv.draft_bytes_per_token


@pytest.mark.parametrize(
    ("dtype", "width"),
    [("float32", 4), ("bfloat16", 2), ("float16", 2), ("half", 2), ("float", 4), ("float64", 8)],
)
def test_grouped_heads(dtype: str, width: int, shelf: Checkpoints) -> None:
    found = bytes_of({**DRAFT, "model": shelf["draft"]}, shelf.target(dtype=dtype))
    assert found == (4 * KEYS_AND_VALUES * 2 * 8 * width, 2 * KEYS_AND_VALUES * 2 * 8 * width)


def test_heads_without_groups_and_of_a_size_of_their_own(shelf: Checkpoints) -> None:
    path = shelf.like("draft", "odd", num_key_value_heads=None, head_dim=16)
    assert bytes_of({**DRAFT, "model": path}, shelf.target())[1] == 2 * KEYS_AND_VALUES * 8 * 16 * 4


@pytest.mark.parametrize(
    ("dtype", "width"), [("fp8", 1), ("fp8_e4m3", 1), ("fp8_e5m2", 1), ("bfloat16", 2), ("auto", 4)]
)
def test_kv_dtype_of_the_draft(dtype: str, width: int, shelf: Checkpoints) -> None:
    """The draft's alone changes; "auto" is the model's own dtype."""
    given = {**DRAFT, "model": shelf["draft"], "kv_cache_dtype": dtype}
    assert bytes_of(given, shelf.target()) == (512, 2 * KEYS_AND_VALUES * 2 * 8 * width)


@pytest.mark.parametrize(
    ("of_target", "of_draft", "widths"),
    [
        ("auto", None, (4, 4)),
        ("fp8", None, (1, 1)),  # a draft for which nothing else is said
        ("fp8", "auto", (1, 4)),
        ("fp8", "bfloat16", (1, 2)),
        ("auto", "fp8", (4, 1)),
        ("float16", None, (2, 2)),
        ("int8", None, (1, 1)),
    ],
)
def test_kv_dtype_of_the_target(
    of_target: str, of_draft: str | None, widths: tuple[int, int], shelf: Checkpoints
) -> None:
    given = {**DRAFT, "model": shelf["draft"], "kv_cache_dtype": of_draft}
    found = bytes_of(given, shelf.target(kv_cache_dtype=of_target))
    assert found == (4 * KEYS_AND_VALUES * 2 * 8 * widths[0], 2 * KEYS_AND_VALUES * 2 * 8 * widths[1])
    assert bytes_of(None, shelf.target(kv_cache_dtype=of_target, kv_bytes_per_token=777)) == (777, 0)


@pytest.mark.parametrize(("ranks", "target_heads", "of_draft", "draft_heads"), [
    (1, 2, None, 2), (2, 1, None, 1), (2, 1, 1, 2), (4, 1, None, 1), (4, 1, 1, 2), (8, 1, 8, 1),
])  # fmt: skip
def test_ranks_divide_heads_or_repeat_one(
    ranks: int, target_heads: int, of_draft: int | None, draft_heads: int, shelf: Checkpoints
) -> None:
    given = {**DRAFT, "model": shelf["draft"]}
    given |= {} if of_draft is None else {"draft_tensor_parallel_size": of_draft}
    found = bytes_of(given, shelf.target(tensor_parallel_size=ranks))
    assert found == (4 * KEYS_AND_VALUES * target_heads * 8 * 4, 2 * KEYS_AND_VALUES * draft_heads * 8 * 4)


@pytest.mark.parametrize(("layers", "modules"), [(1, 1), (3, 3)])
@pytest.mark.parametrize("ranks", [1, 2])
def test_latent_attention_and_mtp_layers(ranks: int, layers: int, modules: int, shelf: Checkpoints) -> None:
    """One shared vector a token, on every rank; a draft in the target's checkpoint is not all of its layers."""
    check_latent(ranks, layers, modules, shelf)


def check_latent(ranks: int, layers: int, modules: int, shelf: Checkpoints) -> None:
    path = shelf.like("deepseek", f"deepseek-{layers}", num_nextn_predict_layers=layers)
    target = TargetConfig.from_directory(path, dtype="bfloat16", tensor_parallel_size=ranks)
    assert bytes_of({"method": "mtp"}, target) == (4 * (32 + 8) * 2, modules * (32 + 8) * 2)


def test_mtp_layers_of_a_family_that_counts_them_elsewhere(shelf: Checkpoints) -> None:
    path = shelf.like("llama", "qwen", model_type="qwen3_5", mtp_num_hidden_layers=1)
    given = {"method": "mtp", "num_speculative_tokens": 1}
    assert bytes_of(given, TargetConfig.from_directory(path)) == (512, 128)


@pytest.mark.parametrize("name", [name for name, kind in BUILT_IN.items() if not kind.uses_draft_kv_cache])
def test_methods_without_kv_of_their_own(name: str, shelf: Checkpoints) -> None:
    checkpoints = {"medusa": "medusa", "mlp_speculator": "mlp"}
    model = {"model": shelf[checkpoints[name]]} if name in checkpoints else {}
    if name == "custom_class":
        model = {"model": "pkg.Drafter"}
    given = {"ascend_spec": {"method": name}, "num_speculative_tokens": 3, **model}
    assert bytes_of(given, shelf.target()) == (512, 0)


@pytest.mark.parametrize(
    "given",
    [{**DRAFT, "model": "org/unknown"}, {"method": "extract_hidden_states", "num_speculative_tokens": 1}],
)
def test_what_no_config_says_is_unknown(given: Values, shelf: Checkpoints) -> None:
    plan = planned(given, shelf.target())
    assert plan.kv.draft_bytes_per_token is None
    assert plan.kv.bytes_per_token is plan.kv.bytes_per_request is plan.kv.total_bytes is None
    assert plan.kv.num_blocks == plan.kv.blocks_per_request * 8


def test_what_was_measured_wins(shelf: Checkpoints) -> None:
    assert bytes_of(None, shelf.target(kv_bytes_per_token=777)) == (777, 0)


# ---- blocks
@pytest.mark.parametrize(
    ("checkpoint", "drafts", "beyond"), [("draft", 3, 3), ("dflash", 3, 4), ("medusa", 3, 3), (None, 0, 0)]
)
def test_a_request_with_what_drafting_takes_beyond_it(
    checkpoint: str | None, drafts: int, beyond: int, shelf: Checkpoints
) -> None:
    given = {"model": shelf[checkpoint], "num_speculative_tokens": drafts} if checkpoint else None
    plan = planned(given, shelf.target(max_model_len=60, block_size=4, max_num_seqs=3))
    assert plan.kv.tokens_per_request == 60 + beyond
    assert plan.kv.blocks_per_request == 15 + (beyond > 0)
    assert plan.kv.num_blocks == 3 * plan.kv.blocks_per_request


def test_bytes_of_requests_and_of_all(shelf: Checkpoints) -> None:
    plan = planned(
        {**DRAFT, "model": shelf["draft"]}, shelf.target(max_model_len=60, block_size=8, max_num_seqs=3)
    )
    assert plan.kv.bytes_per_token == 512 + 256
    assert plan.kv.bytes_per_request == 768 * 8 * 8  # 63 tokens are 8 blocks
    assert plan.kv.total_bytes == 3 * 768 * 8 * 8


@pytest.mark.parametrize(
    ("memory", "blocks"), [(10**9, 24), (768 * 8 * 24, 24), (768 * 8 * 24 - 1, 23), (768 * 8, 1)]
)
def test_target_and_draft_get_as_many_blocks_as_fit_together(
    memory: int, blocks: int, shelf: Checkpoints
) -> None:
    target = shelf.target(max_model_len=60, block_size=8, max_num_seqs=3, kv_cache_bytes=memory)
    plan = planned({**DRAFT, "model": shelf["draft"]}, target)
    assert plan.kv.num_blocks == blocks
    assert plan.kv.total_bytes is not None
    assert plan.kv.total_bytes <= memory
    of_target, of_draft = (
        each * plan.kv.block_size * blocks
        for each in (plan.kv.target_bytes_per_token or 0, plan.kv.draft_bytes_per_token or 0)
    )
    assert of_target + of_draft == plan.kv.total_bytes


def test_a_number_of_blocks_that_was_given_is_kept(shelf: Checkpoints) -> None:
    target = shelf.target(num_kv_blocks=5, kv_cache_bytes=1)
    assert planned({**DRAFT, "model": shelf["draft"]}, target).kv.num_blocks == 5
    assert planned(None, replace(target, num_kv_blocks=None, kv_cache_bytes=10**9)).kv.num_blocks == 32


# ---- a pool that one request fits into
def check_pool(given: Values | None, lookahead: int, shelf: Checkpoints) -> None:
    """Four blocks of 16 hold 64 tokens: the longest request and what the drafter writes beyond it."""
    exact = {"num_kv_blocks": 4, "max_model_len": 64 - lookahead}
    planned(given, shelf.target(**exact))
    for facts in ({**exact, "num_kv_blocks": 3}, {"num_kv_blocks": 4, "max_model_len": 65 - lookahead}):
        with pytest.raises(ConfigError) as caught:
            planned(given, replace(shelf.target(), **facts))
        [finding] = caught.value.findings
        assert finding.field == "num_kv_blocks"
        assert finding.message.startswith(f"A KV pool of {facts['num_kv_blocks']} blocks of 16 tokens")
        assert f"max_model_len={facts['max_model_len']}" in finding.message
        assert (f" and {lookahead} tokens of lookahead" in finding.message) is (lookahead > 0)
        assert finding.message.endswith("raise num_kv_blocks or lower max_model_len.")


@pytest.mark.parametrize(
    ("checkpoint", "lookahead"), [("draft", 3), ("dflash", 4), ("dspark", 3), ("medusa", 0), (None, 0)]
)
def test_a_pool_holds_the_longest_request(checkpoint: str | None, lookahead: int, shelf: Checkpoints) -> None:
    given: Values = {"method": "ngram"} if checkpoint is None else {"model": shelf[checkpoint]}
    check_pool({**given, "num_speculative_tokens": 3}, lookahead, shelf)


def test_a_pool_that_is_sized_here_needs_no_check(shelf: Checkpoints) -> None:
    assert planned({**DRAFT, "model": shelf["draft"]}, shelf.target(num_kv_blocks=None)).kv.num_blocks == 40


# ---- every check above can fail
def test_a_pool_that_nobody_checks_is_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {**DRAFT, "model": shelf["draft"]}
    shortfall = checks.pool_shortfall
    for careless in (lambda *_: None, lambda blocks, target, ahead: shortfall(blocks, target, 0)):
        monkeypatch.setattr(checks, "pool_shortfall", careless)
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            check_pool(given, 3, shelf)


def test_a_draft_that_ignores_the_targets_kv_dtype_is_seen(
    shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    width = kv._width
    monkeypatch.setattr(kv, "_width", lambda dtype, model: width("auto" if dtype == "fp8" else dtype, model))
    with pytest.raises(AssertionError):
        test_kv_dtype_of_the_target("fp8", None, (1, 1), shelf)


def test_all_layers_of_the_target_as_the_drafts_are_seen(
    shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        BUILT_IN["mtp"], "adapt_draft_model_config", SpeculatorConfig.adapt_draft_model_config
    )
    with pytest.raises(AssertionError):
        test_mtp_layers_of_a_family_that_counts_them_elsewhere(shelf)


def test_memory_for_the_target_alone_is_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    count = kv._num_blocks

    def careless(target: Any, tokens: int, target_bytes: int | None, draft_bytes: int | None) -> int:
        return count(target, tokens, target_bytes, 0)

    monkeypatch.setattr(kv, "_num_blocks", careless)
    with pytest.raises(AssertionError):
        test_target_and_draft_get_as_many_blocks_as_fit_together(768 * 8 * 24 - 1, 23, shelf)


def test_a_draft_that_ignores_its_kv_dtype_is_seen(
    shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv, "_width", lambda dtype, model_dtype: 4)
    with pytest.raises(AssertionError):
        test_kv_dtype_of_the_draft("fp8", 1, shelf)
