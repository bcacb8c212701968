"""What has no effect is said, what the embedded engine cannot do is refused, and its own graphs can be turned off."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from config_fixtures import Checkpoints, planned, restored_registry, warned
from test_config_wrong import TODO

from ascend_spec.config import (
    ConfigError,
    SpeculatorConfig,
    TargetConfig,
    checks,
    embedded,
    load_speculative_config,
    opaque,
    plan,
    register_speculative_method,
    resolve,
)
from ascend_spec.config.methods.ngram import NgramConfig

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
OF_A_DRAFT: dict[str, Any] = {
    "model": "/no/such/directory",
    "revision": "main",
    "code_revision": "main",
    "draft_tensor_parallel_size": 1,
    "draft_parallel_config": {},
    "draft_load_config": {},
    "parallel_drafting": True,
    "disable_padded_drafter_batch": True,
    "quantization": "fp8",
    "moe_backend": "triton",
    "attention_backend": "FLASH_ATTN",
    "kv_cache_dtype": "fp8",
    "use_local_argmax_reduction": True,
    "max_model_len": 10,
    "enforce_eager": True,
}


@pytest.fixture
def shelf(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def check_options_of_a_draft_are_said_to_be_idle(shelf: Checkpoints) -> None:
    assert set(OF_A_DRAFT) == set(checks.DRAFT_OPTIONS)
    for method in ("ngram", "ngram_gpu", "suffix"):
        found = warned(planned({**NGRAM, "method": method, **OF_A_DRAFT}, shelf.target(runner="v1")))
        for option in OF_A_DRAFT:
            words = f"'{option}' has no effect with method {method!r}, which has no draft model."
            assert found[option] == words
    ours = {"max_model_len": 10, "enforce_eager": True, "parallel_drafting": True}
    assert set(warned(planned({**NGRAM, **ours}, shelf.target(), embedded=True))) == {
        "max_model_len",
        "parallel_drafting",
    }
    with_draft = {**NGRAM, "method": "draft_model", "model": shelf["draft"], **ours, "max_model_len": 64}
    assert warned(planned(with_draft, shelf.target(runner="v1"))) == {}


def test_options_of_a_draft_are_said_to_be_idle(shelf: Checkpoints) -> None:
    check_options_of_a_draft_are_said_to_be_idle(shelf)


def check_names_of_methods_are_no_models(shelf: Checkpoints) -> None:
    for given in (
        NGRAM,
        {**NGRAM, "model": "ngram"},
        {"model": "[ngram]", "num_speculative_tokens": 4},
        {"method": "suffix"},
        {"method": "self_speculative", "num_speculative_tokens": 4},
        {"method": "extract_hidden_states", "num_speculative_tokens": 4},
        {
            "model": "my_module.MyDrafter",
            "num_speculative_tokens": 4,
            "quantization": "fp8",
        },  # reads what it likes
    ):
        assert warned(planned(given, shelf.target(runner="v1"))) == {}, given


def test_names_of_methods_are_no_models(shelf: Checkpoints) -> None:
    check_names_of_methods_are_no_models(shelf)


def test_a_registered_method_may_have_a_model_of_its_own(shelf: Checkpoints) -> None:
    class Mine(SpeculatorConfig):
        method = "mine"

    class Lookup(NgramConfig):
        method = "lookup"
        base_method = "ngram"

    with restored_registry():
        register_speculative_method("mine", Mine)
        register_speculative_method("lookup", Lookup)
        assert warned(planned({**NGRAM, "method": "mine", "model": "x"}, shelf.target())) == {}
        assert warned(planned({**NGRAM, "method": "lookup"}, shelf.target())) == {}
        assert set(warned(planned({**NGRAM, "method": "lookup", "model": "x"}, shelf.target()))) == {"model"}


# ---- graphs
def check_enforce_eager_turns_the_engines_graphs_off(shelf: Checkpoints) -> None:
    target = shelf.target(graph_mode="full")
    for given, mode in ((True, "none"), (False, "full"), (None, "full")):
        made = planned({**NGRAM, "enforce_eager": given}, target, embedded=True)
        assert made.graph_mode == mode
        assert bool(made.graph_buckets) is (mode == "full")
    # in vLLM the field is the draft's; the target's graphs are not its concern
    assert (
        planned({**NGRAM, "enforce_eager": True}, shelf.target(graph_mode="full", runner="v2")).graph_mode
        == "full"
    )


def test_enforce_eager_turns_the_engines_graphs_off(shelf: Checkpoints) -> None:
    check_enforce_eager_turns_the_engines_graphs_off(shelf)


# ---- targets
CANNOT: dict[str, Any] = {
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "data_parallel_size": 2,
    "prefill_context_parallel_size": 2,
    "enable_expert_parallel": True,
    "quantization": "fp8",
    "kv_cache_dtype": "fp8",
    "enable_prefix_caching": True,
    "has_kv_connector": True,
    "watermarking": True,
    "graph_mode": "piecewise",
}


def refused(given: dict[str, Any] | None, target: TargetConfig) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        resolve(load_speculative_config(given), target, embedded=True)
    return {finding.field: finding.message for finding in caught.value.findings}


def check_all_that_the_engine_cannot_do_is_refused(shelf: Checkpoints) -> None:
    target = shelf.target("mixtral", **CANNOT)
    misspelt = {**NGRAM, "method": "ngrm"}
    for found in (refused(NGRAM, target), refused(None, target), refused_at_once(misspelt, target)):
        assert set(CANNOT) <= set(found)
        for name in CANNOT:
            assert "embedded engine" in found[name]
            assert any(todo in found[name] for todo in TODO)
    for name, asked in CANNOT.items():
        assert name in refused(NGRAM, shelf.target("mixtral", **{name: asked}))
    assert set(embedded.TARGETS) == set(CANNOT)
    able = {
        "max_num_seqs": 3,
        "graph_mode": "full",
        "enforce_eager": True,
        "dtype": "bfloat16",
        "num_threads": 2,
    }
    assert warned(planned(NGRAM, shelf.target(**able), embedded=True)) == {}


def refused_at_once(given: dict[str, Any], target: TargetConfig) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load_speculative_config(given, target=target, embedded=True)
    return {finding.field: finding.message for finding in caught.value.findings}


def test_all_that_the_engine_cannot_do_is_refused(shelf: Checkpoints) -> None:
    check_all_that_the_engine_cannot_do_is_refused(shelf)


def test_vllm_may_have_all_of_it(shelf: Checkpoints) -> None:
    able = {**CANNOT, "prefill_context_parallel_size": 1, "watermarking": False}
    assert planned(NGRAM, shelf.target("mixtral", runner="v1", **able)).target.graph_mode == "piecewise"


def test_every_fact_of_a_target_has_a_verdict() -> None:
    """A new field of the target is either looked at here, or the engine knows what to do with it."""
    harmless = {
        "model", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "num_kv_blocks",
        "kv_cache_bytes", "kv_bytes_per_token", "max_query_len", "attention_takes_trees", "runner",
        "enforce_eager", "dtype", "tokenizer", "tokenizer_mode", "seed", "trust_remote_code", "max_logprobs",
        "config_format", "hf_overrides", "model_weights", "device", "num_threads",
    }  # fmt: skip
    assert {field.name for field in dataclasses.fields(TargetConfig)} == harmless | set(embedded.TARGETS)


# ---- dictionaries that are handed on
def doubled(levels: int) -> list[Any]:
    """A few lists, and 2**levels values."""
    value: list[Any] = ["ha"]
    for _ in range(levels):
        value = [value, value]
    return value


def check_a_small_dictionary_with_endless_values_is_refused() -> None:
    given = {"method": "custom_class", "model": "my_module.MyDrafter", "num_speculative_tokens": 1}
    with pytest.raises(
        ConfigError, match=r"'speculator_options.x' was given with more than 1048576 values\."
    ):
        load_speculative_config({**given, "speculator_options": {"x": doubled(24)}})
    assert load_speculative_config({**given, "speculator_options": {"x": doubled(10)}}) is not None


def test_a_small_dictionary_with_endless_values_is_refused() -> None:
    check_a_small_dictionary_with_endless_values_is_refused()


def check_hashes_of_deep_dictionaries_are_short() -> None:
    deep: dict[str, Any] = {}
    for _ in range(12):
        deep = {"a": deep}
    assert len(repr(plan.canonical(deep))) < 300


def test_hashes_of_deep_dictionaries_are_short() -> None:
    check_hashes_of_deep_dictionaries_are_short()


# ---- every check above can fail
Mutant = Callable[[pytest.MonkeyPatch], None]


def nothing_is_idle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checks, "_is_idle", lambda speculator, option: False)


def eager_is_idle_everywhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checks, "_is_idle", lambda speculator, option: checks.given(speculator.config, option))


def only_the_targets_eager_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checks, "graph_mode", lambda speculator, target: (target.graph_mode, None))


def eager_counts_in_vllm_too(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        checks,
        "graph_mode",
        lambda speculator, target: ("none" if speculator.config.enforce_eager else target.graph_mode, None),
    )


def one_fact_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.delitem(embedded.TARGETS, "kv_cache_dtype")


def ten_levels_are_too_many(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opaque, "MOST_VALUES", 2**11)


def quotes_are_quoted(patch: pytest.MonkeyPatch) -> None:
    canonical = plan.canonical
    patch.setattr(plan, "canonical", lambda value: repr(canonical(value)))


MUTANTS: list[tuple[Mutant, Callable[..., None]]] = [
    (nothing_is_idle, check_options_of_a_draft_are_said_to_be_idle),
    (eager_is_idle_everywhere, check_options_of_a_draft_are_said_to_be_idle),
    (eager_is_idle_everywhere, check_names_of_methods_are_no_models),
    (only_the_targets_eager_counts, check_enforce_eager_turns_the_engines_graphs_off),
    (eager_counts_in_vllm_too, check_enforce_eager_turns_the_engines_graphs_off),
    (one_fact_is_forgotten, check_all_that_the_engine_cannot_do_is_refused),
    (ten_levels_are_too_many, check_a_small_dictionary_with_endless_values_is_refused),
    (quotes_are_quoted, check_hashes_of_deep_dictionaries_are_short),
]


@pytest.mark.parametrize(("mutant", "check"), MUTANTS, ids=lambda each: each.__name__)
def test_mutants_are_found(
    mutant: Mutant, check: Callable[..., None], shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (shelf,) if "shelf" in check.__annotations__ else ()
    check(*given)
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, ValueError, pytest.fail.Exception)):
        check(*given)


@pytest.mark.parametrize("flag", embedded.UNGIVEN)
def test_a_drafter_is_not_started_without_what_it_needs(flag: str, tmp_path: Path) -> None:
    contract = type("Needy", (SpeculatorConfig,), {"speculator_class": "somewhere:Drafter", flag: True})
    with restored_registry():
        register_speculative_method("needy", contract)
        with pytest.raises(ConfigError, match=f"'needy' needs {embedded.UNGIVEN[flag]}"):
            planned(
                {"method": "needy", "num_speculative_tokens": 2},
                Checkpoints(tmp_path).target(),
                embedded=True,
            )


def test_the_attention_that_is_used_anyway_may_be_asked_for(shelf: Checkpoints) -> None:
    """The embedded engine has no other, so that nothing is said."""
    asked = {**NGRAM, "ascend_spec": {"mqa_attention": True}}
    resolved = resolve(load_speculative_config(asked, embedded=True), shelf.target(), embedded=True)
    assert resolved.config.ascend_spec.mqa_attention
    assert resolved.warnings == ()
