"""Suffix decoding: matches in the request's own history and in a memory of earlier outputs."""

from __future__ import annotations

from ascend_spec.config.checkpoint import ModelFacts
from ascend_spec.config.speculative import SpeculativeConfig
from ascend_spec.config.speculator import SpeculatorConfig, filled


class SuffixConfig(SpeculatorConfig):
    method = "suffix"
    speculator_class = "ascend_spec.drafters.suffix:SuffixDrafter"
    default_drafts_from = "'suffix_decoding_max_tree_depth'"
    supported_options = frozenset(
        {
            "suffix_decoding_max_tree_depth",
            "suffix_decoding_max_cached_requests",
            "suffix_decoding_max_spec_factor",
            "suffix_decoding_min_token_prob",
            "ascend_spec.suffix_memory_path",
        }
    )
    prefer_dense_token_history = True
    needs_host_tokens = True
    warm_up = ("suffix_match",)

    @classmethod
    def default_model(cls, config, target):
        return cls.method

    @classmethod
    def configure(cls, config: SpeculativeConfig, draft: ModelFacts | None) -> SpeculativeConfig:
        # how many drafts there are is decided by the match, each time; this is only their limit
        return filled(config, num_speculative_tokens=config.suffix_decoding_max_tree_depth)
