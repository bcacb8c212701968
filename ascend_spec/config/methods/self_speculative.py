"""Self-speculation: the target drafts with a part of itself (fewer layers, or sparse attention)."""

from __future__ import annotations

from ascend_spec.config.speculator import SpeculatorConfig


class SelfSpeculativeConfig(SpeculatorConfig):
    method = "self_speculative"
    draft_distributions = ("one-hot", "sampled")
    shares_target_noise = True

    @classmethod
    def default_model(cls, config, target):
        return cls.method

    @property
    def num_lookahead_tokens(self) -> int:
        # drafts write into the target's own cache, where verification overwrites them
        return self.num_speculative_tokens
