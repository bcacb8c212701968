"""EAGLE heads: one or a few layers that continue from the target's hidden states."""

from __future__ import annotations

from typing import ClassVar

from ascend_spec.config.checkpoint import ModelFacts
from ascend_spec.config.speculative import SpeculativeConfig
from ascend_spec.config.speculator import DraftModel, SpeculatorConfig


class HiddenStateConfig(SpeculatorConfig):
    """What the methods that continue the target's hidden states have in common."""

    model: ClassVar[DraftModel] = "required"
    draft_distributions = ("one-hot", "sampled")
    shares_target_noise = True
    uses_target_hidden_states = True
    uses_draft_kv_cache = True
    shares_target_positions = True

    @property
    def num_lookahead_tokens(self) -> int:
        return self.num_speculative_tokens


class EagleConfig(HiddenStateConfig):
    method = "eagle"
    supported_options = frozenset({"draft_lm_head_quantization"})
    needs_eagle_block_drop = True
    supports_watermarking = True

    @classmethod
    def matches(cls, draft: ModelFacts) -> str | None:
        if draft.speculators_type == "eagle" or draft.model_type == "eagle":
            return "its config says eagle"
        named = [name for name in draft.architectures if name.startswith("Eagle") or name.endswith("Eagle")]
        return f"its architecture is {named[0]}" if named else None

    @classmethod
    def path_hint(cls) -> str | None:
        return "eagle-"


class Eagle3Config(EagleConfig):
    method = "eagle3"
    uses_aux_hidden_states = True

    @classmethod
    def matches(cls, draft: ModelFacts) -> str | None:
        if draft.speculators_type in ("eagle3", "peagle"):
            return f"its speculators_model_type is {draft.speculators_type}"
        named = [name for name in draft.architectures if "Eagle3" in name or "Peagle" in name]
        return f"its architecture is {named[0]}" if named else None

    @classmethod
    def path_hint(cls) -> str | None:
        return "eagle3"

    @classmethod
    def configure(cls, config: SpeculativeConfig, draft: ModelFacts | None) -> SpeculativeConfig:
        config = super().configure(config, draft)
        if draft is not None and draft.speculators_type == "peagle":
            return config.model_copy(update={"parallel_drafting": True})
        return config

    def specialize(self) -> type[SpeculatorConfig]:
        return PEagleConfig if self.config.parallel_drafting else type(self)

    def hash_factors(self) -> tuple:
        layers = self.draft.get("eagle_aux_hidden_state_layer_ids") if self.draft else None
        return tuple(layers or ())


class PEagleConfig(Eagle3Config):
    """All drafts in one pass: a mask token stands for each but the first."""

    supports_watermarking = False
