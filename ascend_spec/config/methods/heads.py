"""Heads that predict several tokens from one hidden state, and have no K/V: Medusa, MLPSpeculator.

vLLM dropped both after 0.26; here they are kept, as ``ascend_spec.method``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ascend_spec.config.checkpoint import ModelFacts
from ascend_spec.config.errors import Finding
from ascend_spec.config.speculative import SpeculativeConfig
from ascend_spec.config.speculator import SpeculatorConfig, filled


class HeadsConfig(SpeculatorConfig):
    """One head a position: no more drafts than heads."""

    num_heads_key: str
    """Where the checkpoint says how many there are."""
    model = "required"
    default_drafts_from = "the checkpoint's number of heads"
    uses_target_hidden_states = True
    shares_target_positions = True

    @classmethod
    def configure(cls, config: SpeculativeConfig, draft: ModelFacts | None) -> SpeculativeConfig:
        return filled(config, num_speculative_tokens=draft.get(cls.num_heads_key)) if draft else config

    def check(self) -> Iterator[Finding]:
        heads = self.draft.get(self.num_heads_key) if self.draft else None
        if heads is not None and self.num_speculative_tokens > heads:
            yield Finding(
                "num_speculative_tokens",
                f"'num_speculative_tokens' was given as {self.num_speculative_tokens}; this checkpoint has "
                f"{heads} heads, one a token, so it must be at most {heads}. Lower it.",
            )


class MedusaConfig(HeadsConfig):
    method = "medusa"
    num_heads_key = "medusa_num_heads"

    @classmethod
    def matches(cls, draft: ModelFacts) -> str | None:
        if draft.model_type == "medusa":
            return "its model_type is medusa"
        return "its config has medusa_num_heads" if draft.get(cls.num_heads_key) else None


class MLPSpeculatorConfig(HeadsConfig):
    method = "mlp_speculator"
    num_heads_key = "n_predict"

    @classmethod
    def matches(cls, draft: ModelFacts) -> str | None:
        return "its model_type is mlp_speculator" if draft.model_type == "mlp_speculator" else None
