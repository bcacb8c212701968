"""No speculation: the target's hidden states are written out, to train a head on."""

from __future__ import annotations

from ascend_spec.config.speculator import SpeculatorConfig


class ExtractHiddenStatesConfig(SpeculatorConfig):
    method = "extract_hidden_states"
    supported_options = frozenset({"draft_model_config"})
    uses_target_hidden_states = True
    uses_aux_hidden_states = True
    proposes_draft_tokens = False
    uses_draft_kv_cache = True

    @classmethod
    def default_model(cls, config, target):
        return cls.method

    @property
    def num_prefill_lookahead_tokens(self) -> int:
        return 0  # it reads no token beyond the hidden states it stores
