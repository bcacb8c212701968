"""The key of compiled graphs: what must change it, what need not, and that nothing else does."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from config_fixtures import CHECKPOINTS, Checkpoints, Values, planned, restored_registry, write

from ascend_spec.config import (
    BUILT_IN,
    AscendSpecConfig,
    DraftModelConfig,
    Plan,
    SpeculativeConfig,
    SpeculatorConfig,
    TargetConfig,
    register_speculative_method,
)
from ascend_spec.config.methods.eagle import Eagle3Config

K = {"num_speculative_tokens": 3}
NGRAM = {"method": "ngram", **K}
#: a directory that declares no method, so that any may be given
EAGLE = {"method": "eagle", "model": "draft", **K}
SYNTHETIC = {**NGRAM, "rejection_sample_method": "synthetic"}
FLY = {**NGRAM, "rejection_sample_method": "fly"}
SUFFIX = {"method": "suffix"}
EXTRACT = {"method": "extract_hidden_states", **K}

#: every field of a configuration: where it may stand, and what it is changed to
CHANGES: dict[str, tuple[Values, Any]] = {
    "model": (EAGLE, "eagle"),
    "method": (EAGLE, "eagle3"),
    "custom_method": ({"method": "eagle3", "model": "draft", **K}, "own"),
    "revision": (EAGLE, "v2"),
    "code_revision": (EAGLE, "v2"),
    "draft_tensor_parallel_size": (EAGLE, 1),
    "draft_parallel_config": (EAGLE, {"seed": 1}),
    "draft_model_config": (EXTRACT, {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}),
    "draft_load_config": (EAGLE, {"load_format": "dummy"}),
    "num_speculative_tokens": (EAGLE, 5),
    "num_speculative_tokens_per_batch_size": (EAGLE, [[1, 4, 2]]),
    "parallel_drafting": ({"method": "eagle3", "model": "eagle3", **K}, True),
    "disable_padded_drafter_batch": (EAGLE, True),
    "quantization": (EAGLE, "awq"),
    "moe_backend": (EAGLE, "triton"),
    "attention_backend": (EAGLE, "FLASHINFER"),
    "kv_cache_dtype": (EAGLE, "fp8"),
    "draft_lm_head_quantization": (EAGLE, "fp8"),
    "use_local_argmax_reduction": (EAGLE, True),
    "max_model_len": (EAGLE, 32),
    "enforce_eager": (EAGLE, True),
    "draft_sample_method": (EAGLE, "probabilistic"),
    "rejection_sample_method": (EAGLE, "block"),
    "synthetic_acceptance_rates": ({**SYNTHETIC, "synthetic_acceptance_rates": [1.0, 0.5, 0.0]}, [1.0, 0.6, 0.0]),
    "synthetic_acceptance_length": ({**SYNTHETIC, "synthetic_acceptance_length": 2.0}, 3.0),
    "fly_window_size": (FLY, 1),
    "fly_entropy_threshold": (FLY, 0.5),
    "fly_entropy_top_k": (FLY, 5),
    "enable_adaptive_verification": ({"model": "dspark", **K}, True),
    "prompt_lookup_min": (NGRAM, 2),
    "prompt_lookup_max": (NGRAM, 7),
    "suffix_decoding_max_tree_depth": (SUFFIX, 9),
    "suffix_decoding_max_cached_requests": (SUFFIX, 9),
    "suffix_decoding_max_spec_factor": (SUFFIX, 2.0),
    "suffix_decoding_min_token_prob": (SUFFIX, 0.5),
    "use_heterogeneous_vocab": ({"method": "draft_model", "model": "draft", **K}, True),
    "disable_eagle_block_drop": (EAGLE, True),
    "disable_lookahead_block_hashes": (EAGLE, True),
    "index_share_for_mtp_iteration": ({"model": "nextn", **K}, True),
    "dspark_draft_topk": ({"model": "dspark", "draft_tensor_parallel_size": 1, **K}, 4),
    "xpress_topc": ({"model": "xpress", **K}, 4),
    "speculator_options": ({"model": "pkg.Drafter", **K}, {"depth": 3}),
    "ascend_spec": (EAGLE, {"method": "eagle3"}),
    "ascend_spec.method": (EAGLE, "eagle3"),
    "ascend_spec.rejection_sample_method": (EAGLE, "coupled"),
    "ascend_spec.posterior_threshold": (EAGLE, 0.2),
    "ascend_spec.posterior_alpha": (EAGLE, 0.2),
    "ascend_spec.disable_by_batch_size": (EAGLE, 4),
    "ascend_spec.match": (NGRAM, "recent"),
    "ascend_spec.suffix_memory_path": (SUFFIX, "memory.bin"),
    "ascend_spec.heterogeneous_vocab_method": (
        {"method": "draft_model", "model": "draft", "use_heterogeneous_vocab": True, **K}, "slem",
    ),
    "ascend_spec.on_error": (EAGLE, "raise"),
    "ascend_spec.mqa_attention": (EAGLE, True),
}  # fmt: skip

ROWS = "how many rows there are: graphs are kept by shape"
VERIFICATION = "behind the hidden states: how drafts are judged"
DRAWN = "behind the hidden states: how a draft is drawn from them"
NO_GRAPH = "decides without a graph of its own"
BLOCKS = "which cached blocks are used again"
LOADING = "where weights come from, or on which ranks: not what is computed with them"
TEXT = "about text or requests, not tensors"
NOT_STRUCTURAL: dict[str, str] = {
    "draft_parallel_config": LOADING,
    "draft_load_config": LOADING,
    "num_speculative_tokens": ROWS,
    "num_speculative_tokens_per_batch_size": ROWS,
    "disable_padded_drafter_batch": ROWS,
    "draft_lm_head_quantization": DRAWN,
    "use_local_argmax_reduction": DRAWN,
    "enforce_eager": "whether graphs are compiled, not which",
    "draft_sample_method": DRAWN,
    "rejection_sample_method": VERIFICATION,
    "synthetic_acceptance_rates": VERIFICATION,
    "synthetic_acceptance_length": VERIFICATION,
    "fly_window_size": VERIFICATION,
    "fly_entropy_threshold": VERIFICATION,
    "fly_entropy_top_k": VERIFICATION,
    "prompt_lookup_min": NO_GRAPH,
    "prompt_lookup_max": NO_GRAPH,
    "suffix_decoding_max_tree_depth": NO_GRAPH,
    "suffix_decoding_max_cached_requests": NO_GRAPH,
    "suffix_decoding_max_spec_factor": NO_GRAPH,
    "suffix_decoding_min_token_prob": NO_GRAPH,
    "use_heterogeneous_vocab": DRAWN,
    "disable_eagle_block_drop": BLOCKS,
    "disable_lookahead_block_hashes": BLOCKS,
    "ascend_spec.rejection_sample_method": VERIFICATION,
    "ascend_spec.posterior_threshold": VERIFICATION,
    "ascend_spec.posterior_alpha": VERIFICATION,
    "ascend_spec.disable_by_batch_size": ROWS,
    "ascend_spec.match": NO_GRAPH,
    "ascend_spec.suffix_memory_path": NO_GRAPH,
    "ascend_spec.heterogeneous_vocab_method": DRAWN,
    "ascend_spec.on_error": TEXT,
}

#: every field of the draft model's configuration, and what it is changed to
DRAFT_CHANGES: dict[str, Any] = {
    "model": "elsewhere", "tokenizer": "elsewhere", "tokenizer_mode": "slow", "dtype": "float16", "seed": 5,
    "trust_remote_code": True, "enforce_eager": True, "max_logprobs": 3, "config_format": "hf", "revision": "v2",
    "code_revision": "v2", "quantization": "awq", "hf_overrides": dict, "max_model_len": 33,
    "max_position_embeddings": 33, "tensor_parallel_size": 1, "enable_expert_parallel": True,
    "moe_backend": "triton", "attention_backend": "FLASHINFER", "kv_cache_dtype": "fp8",
}  # fmt: skip
DRAFT_NOT_STRUCTURAL: dict[str, str] = {
    "tokenizer": TEXT,
    "tokenizer_mode": TEXT,
    "seed": DRAWN,
    "trust_remote_code": LOADING,
    "enforce_eager": "whether graphs are compiled, not which",
    "max_logprobs": DRAWN,
    "config_format": LOADING,
    "hf_overrides": "a function has no value; what it makes of a config is known where models are loaded",
}


@pytest.fixture
def shelf(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def target_of(shelf: Checkpoints) -> TargetConfig:
    return shelf.target("deepseek", tensor_parallel_size=2)


def plan_of(given: Values, shelf: Checkpoints) -> Plan:
    located = dict(given)
    if located.get("model") in CHECKPOINTS:
        located["model"] = shelf[located["model"]]
    return planned(located, target_of(shelf))


class Own(Eagle3Config):
    """Registered by the tests."""

    base_method = "eagle3"


def changed(given: Values, name: str, value: Any) -> Values:
    outer, _, inner = name.partition(".")
    return {**given, outer: {inner: value} if inner else value}


def changes_hash(name: str, shelf: Checkpoints) -> bool:
    given, value = CHANGES[name]
    with restored_registry():
        register_speculative_method("own", Own)
        before, after = plan_of(given, shelf), plan_of(changed(given, name, value), shelf)
    return before.compute_hash() != after.compute_hash()


def check_field(name: str, shelf: Checkpoints) -> None:
    assert changes_hash(name, shelf) is (name not in NOT_STRUCTURAL)


@pytest.mark.parametrize("name", CHANGES)
def test_a_field_changes_the_hash_or_has_a_reason_not_to(name: str, shelf: Checkpoints) -> None:
    check_field(name, shelf)


def test_no_field_is_forgotten() -> None:
    inner = {f"ascend_spec.{name}" for name in AscendSpecConfig.model_fields}
    assert set(CHANGES) == {*SpeculativeConfig.model_fields, *inner}
    assert set(NOT_STRUCTURAL) < set(CHANGES)
    drafts = {field.name for field in fields(DraftModelConfig)}
    assert {*DRAFT_CHANGES, "facts"} == drafts
    assert set(DRAFT_NOT_STRUCTURAL) < drafts


def test_a_new_field_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    known = dict(SpeculativeConfig.model_fields)
    monkeypatch.setattr(SpeculativeConfig, "__pydantic_fields__", {**known, "invented": known["model"]})
    assert "invented" in SpeculativeConfig.model_fields
    with pytest.raises(AssertionError):
        test_no_field_is_forgotten()


@pytest.mark.parametrize("name", DRAFT_CHANGES)
def test_the_draft_models_configuration(name: str, shelf: Checkpoints) -> None:
    plan = plan_of(EAGLE, shelf)
    assert plan.draft_model is not None
    assert getattr(plan.draft_model, name) != DRAFT_CHANGES[name]
    other = replace(plan, draft_model=replace(plan.draft_model, **{name: DRAFT_CHANGES[name]}))
    assert (other.compute_hash() != plan.compute_hash()) is (name not in DRAFT_NOT_STRUCTURAL)


FACTS: Values = {"hidden_size": 32, "num_hidden_layers": 3, "architectures": ["Other"], "torch_dtype": "float16",
                 "rope_parameters": {"rope_type": "linear", "factor": 2.0},
                 "eagle_aux_hidden_state_layer_ids": [0, 2, 3]}  # fmt: skip


@pytest.mark.parametrize("name", FACTS)
def test_the_draft_models_facts(name: str, shelf: Checkpoints) -> None:
    assert plan_of(EAGLE, shelf).compute_hash() != facts_changed({name: FACTS[name]}, shelf).compute_hash()


def test_the_facts_deep_inside(shelf: Checkpoints) -> None:
    hashes = {
        facts_changed({"rope_parameters": {"rope_type": "linear", "factor": factor}}, shelf).compute_hash()
        for factor in (2.0, 3.0)
    }
    assert len(hashes) == 2


def facts_changed(values: Values, shelf: Checkpoints) -> Plan:
    """The plan of the same directory with another config.json."""
    path = shelf.like("draft", "draft", **values)
    return planned({**EAGLE, "model": path}, target_of(shelf))


def test_auxiliary_layers_and_their_absence(shelf: Checkpoints) -> None:
    """Two heads of one directory, so that only the layers differ."""
    given = {"method": "eagle3", **K}
    hashes = set()
    for layers in ([0, 2, 3], [1, 2, 3], None):
        path = shelf.like("eagle3", "head", eagle_aux_hidden_state_layer_ids=layers)
        hashes.add(planned({**given, "model": path}, target_of(shelf)).compute_hash())
    assert len(hashes) == 3


def test_index_sharing_of_the_checkpoint_and_of_the_user(shelf: Checkpoints) -> None:
    path = shelf.like("nextn", "sharing", index_share_for_mtp_iteration=True)
    given = {"model": path, **K}
    own, same, other = (
        planned({**given, **extra}, target_of(shelf)).compute_hash()
        for extra in ({}, {"index_share_for_mtp_iteration": True}, {"index_share_for_mtp_iteration": False})
    )
    assert own == same != other


# ---- methods have graphs of their own
#: "deepseek" is a language model with MTP layers: every method takes it
ON_ONE_DIRECTORY: dict[str, Values] = {
    "draft_model": {"method": "draft_model"},
    "PARD": {"method": "draft_model", "parallel_drafting": True},
    "eagle": {"method": "eagle"},
    "eagle3": {"method": "eagle3"},
    "P-EAGLE": {"method": "eagle3", "parallel_drafting": True},
    "dflash": {"method": "dflash"},
    "dspark": {"method": "dspark"},
    "mtp": {"method": "mtp"},
    "medusa": {"ascend_spec": {"method": "medusa"}},
    "mlp_speculator": {"ascend_spec": {"method": "mlp_speculator"}},
    "own": {"custom_method": "own"},
}
#: what they change of the target's graph, they say themselves
WITHOUT_DRAFT: dict[str, Values] = {
    "ngram": {"method": "ngram"},
    "extract_hidden_states": {"method": "extract_hidden_states"},
    "own": {"custom_method": "plain"},
}


class Plain(SpeculatorConfig):
    """Registered by the tests: without a draft model."""


def check_pairs(methods: dict[str, Values], shelf: Checkpoints) -> None:
    """No two of ``methods`` have the same hash."""
    directory = {} if methods is WITHOUT_DRAFT else {"model": shelf["deepseek"]}
    seen: dict[str, str] = {}
    with restored_registry():
        register_speculative_method("own", Own)
        register_speculative_method("plain", Plain)
        for name, given in methods.items():
            key = planned({**K, **directory, **given}, target_of(shelf)).compute_hash()
            assert key not in seen, f"{name} and {seen[key]}"
            seen[key] = name


@pytest.mark.parametrize(
    "methods", [ON_ONE_DIRECTORY, WITHOUT_DRAFT], ids=["one directory", "no draft model"]
)
def test_methods_have_graphs_of_their_own(methods: dict[str, Values], shelf: Checkpoints) -> None:
    check_pairs(methods, shelf)


# ---- the same configuration, the same hash
OPTIONS: Values = {"depth": 3, "inner": {"b": [1, {"y": 2, "x": 1}], "a": None}}


def shuffled(value: Any, rng: random.Random) -> Any:
    """``value`` with the keys of every dictionary in another order."""
    if isinstance(value, list):
        return [shuffled(item, rng) for item in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    rng.shuffle(keys)
    return {key: shuffled(value[key], rng) for key in keys}


def check_order_of_keys(shelf: Checkpoints) -> None:
    rng = random.Random(0)
    values = {
        **CHECKPOINTS["draft"],
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
    }
    heads, customs = set(), set()
    for _ in range(8):
        path = write(shelf.root / "head", shuffled(values, rng))
        heads.add(planned(shuffled({**EAGLE, "model": path}, rng), target_of(shelf)).compute_hash())
        custom = {"model": "pkg.Drafter", **K, "speculator_options": OPTIONS}
        customs.add(planned(shuffled(custom, rng), target_of(shelf)).compute_hash())
    assert (len(heads), len(customs)) == (1, 1)


def test_order_of_keys_does_not_matter(shelf: Checkpoints) -> None:
    check_order_of_keys(shelf)


SCRIPT = """
import json, sys
from ascend_spec.config import TargetConfig, load_speculative_config, resolve
target, *given = json.loads(sys.argv[1])
for config in given:
    print(resolve(load_speculative_config(config), TargetConfig.from_directory(target)).compute_hash())
"""


def test_processes_agree(shelf: Checkpoints) -> None:
    configs = [
        {**EAGLE, "model": shelf["draft"]},
        {"model": "pkg.Drafter", **K, "speculator_options": OPTIONS},
        {"model": shelf["dspark"], **K},
    ]
    target = shelf.target()
    expected = [planned(config, target).compute_hash() for config in configs]
    work = json.dumps([target.model.path, *configs])
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, work],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == expected


# ---- every check above can fail
def without(*indices: int) -> Any:
    original = Plan.hash_factors

    def hash_factors(self: Plan) -> tuple[Any, ...]:
        return tuple(factor for i, factor in enumerate(original(self)) if i not in indices)

    return hash_factors


@pytest.mark.parametrize(
    ("indices", "seen_in"),
    [((0, 2), "method"), ((1, 2), "custom_method"), ((2,), "parallel_drafting"), ((3,), "speculator_options"),
     ((3,), "draft_model_config"), ((4,), "enable_adaptive_verification"),
     ((4,), "index_share_for_mtp_iteration"), ((5,), "quantization"), ((5,), "model")],
)  # fmt: skip
def test_a_factor_left_out_is_seen(
    indices: tuple[int, ...], seen_in: str, shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, "hash_factors", without(*indices))
    with pytest.raises(AssertionError):
        check_field(seen_in, shelf)


@pytest.mark.parametrize(
    ("index", "seen_in"), [(2, ON_ONE_DIRECTORY), (0, WITHOUT_DRAFT), (1, WITHOUT_DRAFT)]
)
def test_methods_that_share_a_graph_are_seen(
    index: int, seen_in: dict[str, Values], shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, "hash_factors", without(index))
    with pytest.raises(AssertionError):
        check_pairs(seen_in, shelf)


def test_a_factor_too_many_is_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Plan.hash_factors
    monkeypatch.setattr(Plan, "hash_factors", lambda self: (*original(self), self.num_speculative_tokens))
    with pytest.raises(AssertionError):
        check_field("num_speculative_tokens", shelf)


def test_an_order_that_matters_is_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_spec.config.plan.canonical", repr)
    with pytest.raises(AssertionError):
        check_order_of_keys(shelf)


def test_method_without_factors_is_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BUILT_IN["dspark"], "hash_factors", SpeculatorConfig.hash_factors)
    with pytest.raises(AssertionError):
        check_field("dspark_draft_topk", shelf)
