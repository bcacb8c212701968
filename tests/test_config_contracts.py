"""What each method declares of itself, against the table of vLLM's design and the figures of release 0.33."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from config_fixtures import Checkpoints, Values, planned, restored_registry

from ascend_spec.config import (
    BUILT_IN,
    RULES,
    ConfigError,
    Plan,
    SpeculatorConfig,
    TargetConfig,
    register_speculative_method,
)
from ascend_spec.config.checks import METHOD_OPTIONS
from ascend_spec.config.embedded import VLLM_ONLY
from ascend_spec.config.methods import OURS
from ascend_spec.config.methods.dflash import DFlashConfig
from ascend_spec.config.methods.draft_model import PardConfig
from ascend_spec.config.methods.eagle import Eagle3Config
from ascend_spec.config.methods.mtp import MTPConfig, MultiModuleMTPConfig


@dataclass(frozen=True)
class Row:
    """One line of the table. Numbers of slots are written with K, as in the table."""

    config: Values
    contract: str
    """The class that is meant after specialisation."""
    draft: str | None = None
    target: str = "llama"
    hidden: bool = False
    aux: bool = False
    lookahead: str = "0"
    new_slots: str = "0"
    prefill: str = "0"
    own_vocab: bool = False
    pcp: bool = False
    lane: bool = False
    watermarking: bool = False
    block_drop: bool = False
    draft_kv: bool = False
    history: bool = False
    proposes: bool = True
    sampled: bool = False
    own_confidence: bool = False
    options: frozenset[str] = field(default=frozenset())
    """Of those that only some methods support."""


QUANTIZED_HEAD = frozenset({"draft_lm_head_quantization"})
SHARED_INDICES = frozenset({"index_share_for_mtp_iteration"})
HEAD: dict[str, Any] = {"hidden": True, "lookahead": "K", "prefill": "1", "draft_kv": True, "sampled": True}
EAGLE = {**HEAD, "watermarking": True, "block_drop": True, "options": QUANTIZED_HEAD}
MTP = {**EAGLE, "target": "deepseek", "pcp": True, "options": QUANTIZED_HEAD | SHARED_INDICES}
DFLASH = {**HEAD, "aux": True, "lookahead": "K+1", "watermarking": True}
DSPARK = {
    **HEAD, "aux": True, "pcp": True, "lane": True, "watermarking": True, "own_confidence": True,
    "options": frozenset({"dspark_draft_topk"}),
}  # fmt: skip
MODEL: dict[str, Any] = {"lookahead": "K", "own_vocab": True, "draft_kv": True, "sampled": True}
TABLE = {
    "ngram": Row({"method": "ngram"}, "NgramConfig", history=True),
    "ngram_gpu": Row({"method": "ngram_gpu"}, "NgramGPUConfig", history=True),
    "suffix": Row({"method": "suffix"}, "SuffixConfig", history=True),
    "draft_model": Row(
        {"method": "draft_model"}, "DraftModelSpeculatorConfig", "draft", new_slots="1", **MODEL
    ),
    "PARD": Row(
        {"method": "draft_model", "parallel_drafting": True}, "PardConfig", "draft", new_slots="K", **MODEL
    ),
    "eagle": Row({"method": "eagle"}, "EagleConfig", "eagle", **EAGLE),
    "eagle3": Row({"method": "eagle3"}, "Eagle3Config", "eagle3", aux=True, **EAGLE),
    "P-EAGLE": Row(
        {"method": "eagle3", "parallel_drafting": True}, "PEagleConfig", "eagle3", aux=True, new_slots="K-1",
        **{**EAGLE, "watermarking": False},
    ),
    "P-EAGLE of speculators": Row(
        {}, "PEagleConfig", "peagle", aux=True, new_slots="K-1", **{**EAGLE, "watermarking": False}
    ),
    "mtp": Row({"method": "mtp"}, "MTPConfig", **MTP),
    "mtp of several modules": Row(
        {"method": "mtp"}, "MultiModuleMTPConfig", **{**MTP, "target": "deepseek-K", "prefill": "K", "pcp": False}
    ),
    "mtp of Gemma 4": Row(
        {"method": "mtp"}, "Gemma4MTPConfig", "gemma4", **{**MTP, "target": "llama", "options": SHARED_INDICES}
    ),
    "dflash": Row({"method": "dflash"}, "DFlashConfig", "dflash", **DFLASH),
    "xpress": Row(
        {"method": "dflash"}, "XPressConfig", "xpress", options=frozenset({"xpress_topc"}), **DFLASH
    ),
    "dspark": Row({"method": "dspark"}, "DSparkConfig", "dspark", **DSPARK),
    "dspark without an anchor": Row(
        {"method": "dspark"}, "DSparkConfig", "dspark-bonus", **{**DSPARK, "lookahead": "K+1"}
    ),
    "dspark of speculators": Row({}, "DSparkConfig", "dspark-speculators", **{**DSPARK, "lookahead": "K+1"}),
    "medusa": Row({"ascend_spec": {"method": "medusa"}}, "MedusaConfig", "medusa", hidden=True, prefill="1"),
    "mlp_speculator": Row(
        {"ascend_spec": {"method": "mlp_speculator"}}, "MLPSpeculatorConfig", "mlp", hidden=True, prefill="1"
    ),
    "extract_hidden_states": Row(
        {"method": "extract_hidden_states"}, "ExtractHiddenStatesConfig", hidden=True, aux=True,
        proposes=False, draft_kv=True, options=frozenset({"draft_model_config"}),
    ),
    "self_speculative": Row(
        {"ascend_spec": {"method": "self_speculative"}}, "SelfSpeculativeConfig", lookahead="K", sampled=True
    ),
    "custom_class": Row(
        {"model": "my_package.drafting.MyDrafter"}, "CustomClassConfig", sampled=True,
        options=frozenset({"speculator_options"}),
    ),
}  # fmt: skip
#: max_num_new_slots_for_drafting of 0.33's own docstring, by method and number of drafts
SLOTS_OF_033 = {
    "eagle3": lambda k: 0,
    "P-EAGLE": lambda k: k - 1,
    "dflash": lambda k: 0,
    "dspark": lambda k: 0,
    "mtp": lambda k: 0,
    "ngram": lambda k: 0,
    "draft_model": lambda k: 1,
    "PARD": lambda k: k,
}


#: a value of each option that not every method or engine has
SET: Values = {
    "revision": "main", "code_revision": "main", "draft_tensor_parallel_size": 1,
    "draft_parallel_config": {"seed": 1}, "draft_load_config": {"format": "auto"},
    "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}},
    "disable_padded_drafter_batch": True, "quantization": "awq", "moe_backend": "triton",
    "attention_backend": "FLASHINFER", "kv_cache_dtype": "fp8", "draft_lm_head_quantization": "fp8",
    "use_local_argmax_reduction": True, "enable_adaptive_verification": True, "disable_eagle_block_drop": True,
    "disable_lookahead_block_hashes": True, "index_share_for_mtp_iteration": True, "dspark_draft_topk": 4,
    "xpress_topc": 4, "speculator_options": {"depth": 3},
}  # fmt: skip


@pytest.fixture
def shelf(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def target_of(row: Row, shelf: Checkpoints, num_drafts: int, **facts: Any) -> TargetConfig:
    if row.target == "deepseek-K":
        modules = {"num_nextn_predict_layers": max(2, num_drafts)}
        path = shelf.like("deepseek", "deepseek-K", **modules)
        return TargetConfig.from_directory(path, **facts)
    return shelf.target(row.target, **facts)


def plan_of(row: Row, shelf: Checkpoints, num_drafts: int, /, **facts: Any) -> Plan:
    given = {"num_speculative_tokens": num_drafts, **row.config}
    if row.draft is not None:
        given["model"] = shelf[row.draft]
    return planned(given, target_of(row, shelf, num_drafts, **facts))


def number(symbolic: str, num_drafts: int) -> int:
    return {"0": 0, "1": 1, "K-1": num_drafts - 1, "K": num_drafts, "K+1": num_drafts + 1}[symbolic]


def check_row(row: Row, shelf: Checkpoints, num_drafts: int) -> None:
    plan = plan_of(row, shelf, num_drafts)
    contract = plan.speculator
    several = row.contract == "MultiModuleMTPConfig" and num_drafts > 1
    if row.contract == "MultiModuleMTPConfig" and not several:
        row = TABLE["mtp"]  # one draft needs one module, however many there are
    assert type(contract).__name__ == row.contract
    assert plan.num_lookahead_tokens == number(row.lookahead, num_drafts)
    assert plan.max_num_new_slots_for_drafting == number(row.new_slots, num_drafts)
    assert plan.num_prefill_lookahead_tokens == number(row.prefill, num_drafts)
    assert plan.uniform_decode_query_len == num_drafts + 1
    assert plan.use_eagle_block_drop is row.block_drop
    assert flags(contract) == {
        "uses_target_hidden_states": row.hidden,
        "uses_aux_hidden_states": row.aux,
        "draft_has_own_vocab": row.own_vocab,
        "supports_pcp": row.pcp,
        "uses_separate_workspace_lane": row.lane,
        "supports_watermarking": row.watermarking,
        "uses_draft_kv_cache": row.draft_kv,
        "prefer_dense_token_history": row.history,
        "proposes_draft_tokens": row.proposes,
        "proposes_tree": False,
        "adaptive_verification_uses_draft_logits": not row.own_confidence,
    }
    assert ("sampled" in contract.draft_distributions) is row.sampled
    assert contract.supported_options.intersection(METHOD_OPTIONS) == row.options


def flags(contract: SpeculatorConfig) -> dict[str, bool]:
    names = (
        "uses_target_hidden_states", "uses_aux_hidden_states", "draft_has_own_vocab", "supports_pcp",
        "uses_separate_workspace_lane", "supports_watermarking", "uses_draft_kv_cache",
        "prefer_dense_token_history", "proposes_draft_tokens", "proposes_tree",
        "adaptive_verification_uses_draft_logits",
    )  # fmt: skip
    return {name: getattr(contract, name) for name in names}


@pytest.mark.parametrize("num_drafts", [1, 2, 5])
@pytest.mark.parametrize("name", TABLE)
def test_contract(name: str, num_drafts: int, shelf: Checkpoints) -> None:
    check_row(TABLE[name], shelf, num_drafts)


def test_table_names_every_method(shelf: Checkpoints) -> None:
    assert {plan_of(row, shelf, 2).method for row in TABLE.values()} == set(BUILT_IN)


@pytest.mark.parametrize("num_drafts", [1, 2, 5])
@pytest.mark.parametrize("name", SLOTS_OF_033)
def test_drafting_slots_of_vllm(name: str, num_drafts: int, shelf: Checkpoints) -> None:
    plan = plan_of(TABLE[name], shelf, num_drafts)
    assert plan.max_num_new_slots_for_drafting == SLOTS_OF_033[name](num_drafts)


@pytest.mark.parametrize("num_drafts", [1, 2, 5])
@pytest.mark.parametrize("name", TABLE)
def test_drafting_slots_in_parallel(name: str, num_drafts: int, shelf: Checkpoints) -> None:
    """vLLM: all but the first draft of a request need a slot, of whatever method; PARD's first one too."""
    row = TABLE[name]
    parallel = Row(**{**vars(row), "config": {**row.config, "parallel_drafting": True}})
    plan = plan_of(parallel, shelf, num_drafts)
    own = {"dflash": 0, "dspark": 0, "draft_model": num_drafts}
    assert plan.max_num_new_slots_for_drafting == own.get(plan.method, num_drafts - 1)


def test_no_speculation_has_a_contract_too(shelf: Checkpoints) -> None:
    plan = planned(None, shelf.target())
    assert (plan.num_speculative_tokens, plan.num_lookahead_tokens, plan.num_prefill_lookahead_tokens) == (
        0,
        0,
        0,
    )
    assert (plan.uniform_decode_query_len, plan.kv.draft_bytes_per_token) == (1, 0)
    assert not plan.speculator.proposes_draft_tokens


def test_a_fixed_number_of_modules_is_never_several(shelf: Checkpoints) -> None:
    """MiMo-V2 is run with its first MTP layer, whatever the checkpoint counts."""
    path = shelf.like("llama", "mimo", architectures=["MiMoV2FlashForCausalLM"], num_nextn_predict_layers=3)
    plan = planned({"method": "mtp", "num_speculative_tokens": 3}, TargetConfig.from_directory(path))
    assert type(plan.speculator) is MTPConfig
    assert plan.num_prefill_lookahead_tokens == 1


def test_modules_that_are_counted_elsewhere(shelf: Checkpoints) -> None:
    path = shelf.like(
        "llama", "inkling", model_type="inkling_model", mtp_config={"num_nextn_predict_layers": 2}
    )
    plan = planned({"method": "mtp"}, TargetConfig.from_directory(path))
    assert (plan.num_speculative_tokens, type(plan.speculator)) == (2, MultiModuleMTPConfig)


# ---- what follows from a flag
@pytest.mark.parametrize("name", TABLE)
def test_prefill_context_parallelism(name: str, shelf: Checkpoints) -> None:
    row = TABLE[name]
    if row.pcp:
        plan_of(row, shelf, 2, prefill_context_parallel_size=2)
        return
    with pytest.raises(ConfigError, match=r"prefill context parallelism, which was given as 2"):
        plan_of(row, shelf, 2, prefill_context_parallel_size=2)


@pytest.mark.parametrize("name", TABLE)
def test_watermarking(name: str, shelf: Checkpoints) -> None:
    """vLLM 0.33: dflash, dspark, eagle, eagle3 and mtp, none of them drafting in parallel but the first two."""
    row = TABLE[name]
    sampled = {**row.config, "draft_sample_method": "probabilistic"} if row.sampled else row.config
    marked = Row(**{**vars(row), "config": sampled})
    if row.watermarking:
        plan_of(marked, shelf, 2, watermarking=True)
        return
    with pytest.raises(ConfigError, match="does not support watermarking"):
        plan_of(marked, shelf, 2, watermarking=True)


def test_watermarking_needs_sampled_drafts_and_the_standard_rule(shelf: Checkpoints) -> None:
    eagle = {"method": "eagle", "model": shelf["eagle"], "num_speculative_tokens": 2}
    target = shelf.target(watermarking=True)
    with pytest.raises(ConfigError) as caught:
        planned({**eagle, "rejection_sample_method": "block"}, target)
    assert [finding.field for finding in caught.value.findings] == [
        "draft_sample_method",
        "rejection_sample_method",
    ]


@pytest.mark.parametrize("option", METHOD_OPTIONS)
@pytest.mark.parametrize("name", TABLE)
def test_options_of_single_methods(name: str, option: str, shelf: Checkpoints) -> None:
    row = TABLE[name]
    given = Row(**{**vars(row), "config": {**row.config, option: SET[option]}})
    if option in row.options:
        plan_of(given, shelf, 2)
        return
    with pytest.raises(ConfigError, match=f"'{option}' was given, but method") as caught:
        plan_of(given, shelf, 2)
    assert [finding.field for finding in caught.value.findings] == [option]


@pytest.mark.parametrize("name", TABLE)
def test_only_an_own_vocabulary_may_differ(name: str, shelf: Checkpoints) -> None:
    row = TABLE[name]
    given = Row(**{**vars(row), "config": {**row.config, "use_heterogeneous_vocab": True}})
    if row.own_vocab:
        plan_of(given, shelf, 2)
        return
    with pytest.raises(ConfigError, match="drafts in the target's vocabulary"):
        plan_of(given, shelf, 2)


@pytest.mark.parametrize("name", TABLE)
def test_adaptive_verification_without_draft_logits(name: str, shelf: Checkpoints) -> None:
    row = TABLE[name]
    wanted = {**row.config, "enable_adaptive_verification": True, "use_local_argmax_reduction": True}
    given = Row(**{**vars(row), "config": wanted})
    if row.own_confidence:
        plan_of(given, shelf, 2)
        return
    with pytest.raises(ConfigError, match="it needs the draft logits"):
        plan_of(given, shelf, 2)


# ---- trees
class Forest(SpeculatorConfig):
    """Registered by the tests: a method that proposes trees."""

    method = "forest"
    proposes_tree = True


@pytest.mark.parametrize("rule", RULES)
def test_trees_and_rules(rule: str, shelf: Checkpoints) -> None:
    own = {
        "synthetic": {"synthetic_acceptance_length": 2.0},
        "typical": {"ascend_spec": {"rejection_sample_method": "typical"}},
        "coupled": {"ascend_spec": {"rejection_sample_method": "coupled"}},
    }.get(rule, {})
    given = {"method": "forest", "num_speculative_tokens": 3, **own}
    if "ascend_spec" not in own:
        given["rejection_sample_method"] = rule
    with restored_registry():
        register_speculative_method("forest", Forest)
        if rule in ("standard", "typical"):
            assert planned(given, shelf.target()).rule.takes_trees
            return
        with pytest.raises(ConfigError, match=f"rule '{rule}' judges chains, but method 'forest'") as caught:
            planned(given, shelf.target())
    assert '"standard", "typical"' in str(caught.value)


@pytest.mark.parametrize("takes_trees", [True, False])
def test_trees_and_attention(takes_trees: bool, shelf: Checkpoints) -> None:
    given = {"method": "forest", "num_speculative_tokens": 3}
    with restored_registry():
        register_speculative_method("forest", Forest)
        target = shelf.target(attention_takes_trees=takes_trees)
        if takes_trees:
            assert planned(given, target).speculator.proposes_tree
            return
        with pytest.raises(ConfigError, match="takes chains only"):
            planned(given, target)


def test_chains_need_no_tree_attention(shelf: Checkpoints) -> None:
    for row in TABLE.values():
        plan_of(row, shelf, 2, attention_takes_trees=False)


# ---- the embedded engine
def fields_refused(given: Values, shelf: Checkpoints) -> set[str]:
    """By the embedded engine alone."""
    try:
        planned(given, shelf.target(), embedded=True)
    except ConfigError as error:
        return {finding.field for finding in error.findings}
    return set()


@pytest.mark.parametrize("option", VLLM_ONLY)
def test_embedded_engine_refuses_what_is_for_vllm(option: str, shelf: Checkpoints) -> None:
    assert fields_refused({"method": "ngram", "num_speculative_tokens": 3, option: SET[option]}, shelf) == {
        option
    }


@pytest.mark.parametrize("name", BUILT_IN)
def test_embedded_engine_refuses_methods_without_a_drafter(name: str, shelf: Checkpoints) -> None:
    row = next(row for row in TABLE.values() if BUILT_IN[name].__name__ == row.contract)
    given = {"num_speculative_tokens": 3, **row.config}
    if row.draft:
        given["model"] = shelf[row.draft]
    built = BUILT_IN[name].speculator_class is not None
    target = target_of(row, shelf, 3)
    if built:
        assert planned(given, target, embedded=True).name == name
        return
    with pytest.raises(
        ConfigError, match=f"ethod '{name}' is known, but its drafter is not built yet"
    ) as caught:
        planned(given, target, embedded=True)
    assert [finding.field for finding in caught.value.findings] == ["method"]
    assert '"ngram"' in str(caught.value)


def test_methods_of_ours_are_no_words_of_vllm() -> None:
    assert set(OURS) == {"medusa", "mlp_speculator", "self_speculative"}
    assert set(OURS) < set(BUILT_IN)


# ---- every check above can fail
@pytest.mark.parametrize(
    ("owner", "attribute", "mutant", "seen_in"),
    [
        (MultiModuleMTPConfig, "num_prefill_lookahead_tokens", 1, "mtp of several modules"),
        (PardConfig, "max_num_new_slots_for_drafting", 1, "PARD"),
        (Eagle3Config, "specialize", lambda self: type(self), "P-EAGLE"),
        (BUILT_IN["dflash"], "num_lookahead_tokens", property(lambda self: self.num_speculative_tokens), "dflash"),
        (BUILT_IN["dspark"], "num_lookahead_tokens", property(lambda self: self.num_speculative_tokens),
         "dspark without an anchor"),
        (BUILT_IN["dspark"], "num_lookahead_tokens", property(lambda self: self.num_speculative_tokens),
         "dspark of speculators"),
        (BUILT_IN["dspark"], "uses_separate_workspace_lane", False, "dspark"),
        (BUILT_IN["ngram"], "prefer_dense_token_history", False, "ngram"),
        (MultiModuleMTPConfig, "supports_pcp", True, "mtp of several modules"),
        (MTPConfig, "supports_watermarking", False, "mtp"),
        (SpeculatorConfig, "num_prefill_lookahead_tokens", 0, "eagle"),
        (SpeculatorConfig, "proposes_draft_tokens", False, "suffix"),
    ],
)  # fmt: skip
def test_mutants_of_contracts_are_seen(
    owner: type,
    attribute: str,
    mutant: Any,
    seen_in: str,
    shelf: Checkpoints,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_row(TABLE[seen_in], shelf, 5)
    monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises(AssertionError):
        check_row(TABLE[seen_in], shelf, 5)


@pytest.mark.parametrize(
    ("owner", "mutant", "seen_in"),
    [
        (SpeculatorConfig, lambda self: 0, "ngram"),
        (SpeculatorConfig, lambda self: self.num_speculative_tokens, "mtp"),
        (DFlashConfig, SpeculatorConfig.max_num_new_slots_for_drafting.fget, "dflash"),
    ],
)
def test_wrong_slots_in_parallel_are_seen(
    owner: type, mutant: Any, seen_in: str, shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "max_num_new_slots_for_drafting", property(mutant))
    with pytest.raises(AssertionError):
        test_drafting_slots_in_parallel(seen_in, 5, shelf)


def test_a_tree_check_that_is_dropped_is_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_spec.config.checks._check_rule_fits", lambda speculator: iter(()))
    with pytest.raises(pytest.fail.Exception):
        test_trees_and_rules("block", shelf)


def test_unused_options_of_embedded_are_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_spec.config.embedded.VLLM_ONLY", VLLM_ONLY[1:])
    with pytest.raises(AssertionError):
        test_embedded_engine_refuses_what_is_for_vllm(VLLM_ONLY[0], shelf)
