"""Prompt lookup: the request's own history continues as it did before."""

from __future__ import annotations

from collections.abc import Iterator

from ascend_spec.config.checkpoint import ModelFacts
from ascend_spec.config.errors import Finding
from ascend_spec.config.speculative import SpeculativeConfig
from ascend_spec.config.speculator import SpeculatorConfig, filled

#: vLLM's value of both bounds when neither is given
DEFAULT_PROMPT_LOOKUP = 5


class NgramConfig(SpeculatorConfig):
    method = "ngram"
    speculator_class = "ascend_spec.drafters.ngram:NgramDrafter"
    supported_options = frozenset({"prompt_lookup_min", "prompt_lookup_max", "ascend_spec.match"})
    prefer_dense_token_history = True
    # on the CPU too: it reads the history where the engine keeps it, before the host has looked at the step, and it
    # has no index of its own that would have to be told of the step's tokens
    needs_host_tokens = False
    warm_up = ("ngram_match",)

    @classmethod
    def default_model(cls, config, target):
        return cls.method

    @classmethod
    def configure(cls, config: SpeculativeConfig, draft: ModelFacts | None) -> SpeculativeConfig:
        low, high = config.prompt_lookup_min, config.prompt_lookup_max
        either = low or high or DEFAULT_PROMPT_LOOKUP
        return filled(config, prompt_lookup_min=either, prompt_lookup_max=either)

    def check(self) -> Iterator[Finding]:
        low, high = self.config.prompt_lookup_min, self.config.prompt_lookup_max
        if low is not None and high is not None and low > high:
            yield Finding(
                "prompt_lookup_min",
                f"'prompt_lookup_min' was given as {low} and 'prompt_lookup_max' as {high}; the first must "
                "not be larger. Lower it, or raise the second.",
            )


class NgramGPUConfig(NgramConfig):
    """vLLM's word for the execution on the device. Here the device always decides, and ``match`` which occurrence
    is taken: for vLLM both words mean the earliest in its V1 runner, and the most recent in V2."""

    method = "ngram_gpu"
