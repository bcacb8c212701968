"""Counters of speculative decoding, under the names vLLM gives them in Prometheus."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

#: this project's own; vLLM has no word for them. Prometheus puts ``_total`` behind the counters
RULE_INFO = "ascend_spec:rule_info"
STEPS_WITHOUT_DRAFTS = "ascend_spec:steps_without_drafts"
FALLBACKS = "ascend_spec:fallbacks"
NON_FINITE_LOGITS = "ascend_spec:non_finite_logits"


@dataclass
class SpecDecodeMetrics:
    """Counters only grow. A draft is one request's proposal in one step; empty proposals are not counted."""

    rule: str
    """The acceptance rule."""
    is_lossless: bool
    """It keeps the target's distribution."""
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    """Accepted draft tokens; the token drawn from the target after them is not among them."""
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    num_zero_draft_steps: int = 0
    """Requests' decode steps that had no draft to judge."""
    num_non_finite_logits: int = 0
    """Requests that ended because nothing could be drawn: their logits were not finite, or parameters had made them
    all -inf."""
    num_preemptions: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Reason -> how often a slower exact way was taken."""

    def observe(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one request's decode step."""
        if num_draft_tokens == 0:
            self.num_zero_draft_steps += 1
            return
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        missing = num_draft_tokens - len(self.num_accepted_tokens_per_pos)
        self.num_accepted_tokens_per_pos.extend([0] * missing)
        for position in range(num_accepted_tokens):
            self.num_accepted_tokens_per_pos[position] += 1

    @property
    def acceptance_rate(self) -> float:
        """Accepted of proposed draft tokens; 0 when none was proposed."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per draft, the one drawn from the target included: vLLM's definition."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0

    def prometheus(self) -> dict[str, int]:
        """Sample name (labels included) -> value."""
        samples = {
            "vllm:spec_decode_num_drafts": self.num_drafts,
            "vllm:spec_decode_num_draft_tokens": self.num_draft_tokens,
            "vllm:spec_decode_num_accepted_tokens": self.num_accepted_tokens,
            STEPS_WITHOUT_DRAFTS: self.num_zero_draft_steps,
            NON_FINITE_LOGITS: self.num_non_finite_logits,
            "vllm:num_preemptions": self.num_preemptions,
            f'{RULE_INFO}{{lossless="{str(self.is_lossless).lower()}",rule="{self.rule}"}}': 1,
        }
        for position, count in enumerate(self.num_accepted_tokens_per_pos):
            samples[f'vllm:spec_decode_num_accepted_tokens_per_pos{{position="{position}"}}'] = count
        for reason, count in self.fallbacks.items():
            samples[f'{FALLBACKS}{{reason="{reason}"}}'] = count
        return samples
