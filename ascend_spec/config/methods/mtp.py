"""Multi-token prediction: layers that a target was trained with to predict further ahead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ascend_spec.config.checkpoint import ModelFacts
from ascend_spec.config.errors import Finding
from ascend_spec.config.methods.eagle import HiddenStateConfig
from ascend_spec.config.speculator import SpeculatorConfig


class Family(NamedTuple):
    """How one family of targets writes its MTP layers down."""

    model_type: str
    """What the draft's model_type becomes."""
    targets: tuple[str, ...]
    """The targets' model_types or architectures."""
    key: str = "num_nextn_predict_layers"
    """The key that says how many there are."""
    default: int | None = None
    """How many there are if the key is missing; None: then it is unknown."""
    fixed: int | None = None
    """How many are used, whatever the checkpoint has."""


FAMILIES = (
    Family("deepseek_mtp", ("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "deepseek_v4", "deepseek_v41")),
    Family("dots3_note_mtp", ("dots3_note",), default=1),
    Family("pangu_ultra_moe_mtp", ("pangu_ultra_moe",)),
    Family("kimi_k3_mtp", ("kimi_k3",)),
    Family("mimo_mtp", ("MiMoForCausalLM",)),
    Family("mimo_v2_mtp", ("MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM", "MiMoV2FlashForCausalLM"), fixed=1),
    Family("glm4_moe_mtp", ("Glm4MoeForCausalLM",)),
    Family("glm4_moe_lite_mtp", ("Glm4MoeLiteForCausalLM",)),
    Family("glm_ocr_mtp", ("GlmOcrForConditionalGeneration",)),
    Family("glm5_next_mtp", ("glm5_next",)),
    Family("ernie_mtp", ("ernie4_5_moe",)),
    Family("nemotron_h_mtp", ("nemotron_h", "nemotron_h_puzzle"), default=1),
    Family("qwen3_next_mtp", ("qwen3_next",)),
    Family("qwen4_exp_mtp", ("qwen4_exp", "qwen4_exp_text"), "mtp_num_hidden_layers"),
    Family(
        "qwen3_5_mtp",
        (
            "qwen3_5",
            "qwen3_5_moe",
            "qwen3_5_text",
            "qwen3_5_moe_text",
            "intern_s2_preview",
            "interns2_mobius",
        ),
        "mtp_num_hidden_layers",
    ),
    Family("bailing_hybrid_v3_mtp", ("BailingMoeV3ForCausalLM", "BailingMoeV3VLForConditionalGeneration")),
    Family("bailing_hybrid_mtp", ("bailing_hybrid", "BailingMoeV2_5ForCausalLM")),
    Family("exaone_moe_mtp", ("exaone_moe",)),
    Family("exaone4_5_mtp", ("exaone4_5",)),
    Family("longcat_flash_mtp", ("longcat_flash",), default=1),
    Family(
        "step3p5_mtp",
        ("step3p5", "step3p7", "Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"),
        default=1,
    ),
    Family(
        "step5_mtp", ("step5", "step5_vl", "Step5ForCausalLM", "Step5ForConditionalGeneration"), default=1
    ),
    Family("hy_v3_mtp", ("hy_v3",)),
    Family("hy_v4_mtp", ("hy_v4",)),
    Family("inkling_mtp", ("inkling_mm_model", "inkling_model")),
    Family("gemma4_mtp", ("gemma4_assistant", "gemma4_unified_assistant"), fixed=1),
    Family(
        "minimax_m3_mtp",
        ("minimax_m3_vl", "MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3MTP"),
        "num_mtp_modules",
        default=1,
    ),
)
#: names that checkpoints and older versions use for what is now one method
LEGACY_NAMES = tuple(family.model_type for family in FAMILIES)


def family_of(facts: ModelFacts) -> Family | None:
    """The family whose MTP layers a checkpoint has, as a target or as a draft of its own."""
    names = {facts.model_type, *facts.architectures}
    for family in FAMILIES:
        if facts.model_type == family.model_type or names.intersection(family.targets):
            if family.model_type == "nemotron_h_mtp" and not facts.get(family.key):
                return None  # most of that family have none
            return family
    return None


def is_whole_model(facts: ModelFacts) -> bool:
    """Whether a checkpoint of a family says to be a language model with MTP layers, not those layers alone."""
    layers_alone = any("MTP" in name or "NextN" in name for name in facts.architectures)
    return not layers_alone and not facts.model_type.endswith(("_mtp", "_assistant"))


def num_modules(facts: ModelFacts, family: Family) -> int | None:
    """How many MTP layers a checkpoint of ``family`` has."""
    if family.fixed is not None:
        return family.fixed
    nested = facts.values.get("mtp_config") or {}
    return (
        facts.get(family.key)
        or facts.get("num_nextn_predict_layers")
        or nested.get(family.key)
        or family.default
    )


class MTPConfig(HiddenStateConfig):
    method = "mtp"
    model = "target"
    default_drafts_from = "the checkpoint's MTP layers"
    supported_options = frozenset({"draft_lm_head_quantization", "index_share_for_mtp_iteration"})
    needs_eagle_block_drop = True
    supports_watermarking = True
    supports_pcp = True

    @classmethod
    def matches(cls, draft: ModelFacts) -> str | None:
        family = family_of(draft)
        return f"its model_type is {draft.model_type}" if family else None

    @classmethod
    def adapt_draft_model_config(cls, draft: ModelFacts) -> ModelFacts:
        family = family_of(draft)
        if family is None:
            return draft
        modules = num_modules(draft, family)
        known = {"model_type": family.model_type, "n_predict": modules}
        if modules is not None and family.key == "num_nextn_predict_layers":
            known["num_nextn_predict_layers"] = modules
        if family.model_type != "gemma4_mtp":
            known["num_hidden_layers"] = modules or 1  # the config counts the target's, which aren't theirs
        return replace(draft, values={**draft.values, **known})

    def specialize(self) -> type[SpeculatorConfig]:
        if self.draft is None:
            return type(self)
        if self.draft.model_type == "gemma4_mtp":
            return Gemma4MTPConfig
        modules = self.draft.get("num_nextn_predict_layers", 1)
        return MultiModuleMTPConfig if min(modules, self.num_speculative_tokens) > 1 else type(self)

    def check(self) -> Iterator[Finding]:
        if self.draft is not None and self.draft.known and family_of(self.draft) is None:
            yield Finding(
                "method",
                f"'method' was given as \"mtp\", but {self.draft.path!r} has no MTP layers, or none of a known kind "
                f"(its model_type is {self.draft.model_type!r}). Choose another method, or name their checkpoint in "
                "'model'.",
            )
        yield from super().check()

    def hash_factors(self) -> tuple:
        shared = self.config.index_share_for_mtp_iteration
        if shared is None and self.draft is not None:
            shared = self.draft.get("index_share_for_mtp_iteration", False)
        return (bool(shared),)


class MultiModuleMTPConfig(MTPConfig):
    """Each module reads one token further ahead than the one before it."""

    supports_pcp = False

    @property
    def num_prefill_lookahead_tokens(self) -> int:
        return self.num_speculative_tokens


class Gemma4MTPConfig(MTPConfig):
    """It scores the tied embedding rows itself: there is no head to share, or to quantise."""

    supported_options = frozenset({"index_share_for_mtp_iteration"})
