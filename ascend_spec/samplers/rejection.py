"""The sampler of a step: an acceptance rule where there are drafts, an ordinary draw where there are none."""

from __future__ import annotations

import torch

import ascend_spec_ops
from ascend_spec.types import SpecDecodeMetadata


class RejectionSampler:
    """Judge drafts by one of the rules of :func:`ascend_spec_ops.verify`.

    Requests without drafts get an ordinary draw from the same noise, so that this is the only sampler.

    Args:
        rule: its name.
        rule_options: its numbers; see :func:`ascend_spec_ops.verify`.
    """

    def __init__(self, rule: str = "standard", rule_options: tuple[float, ...] = ()) -> None:
        self.rule, self.rule_options = rule, rule_options

    def __call__(
        self,
        logits: torch.Tensor,
        metadata: SpecDecodeMetadata,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        """Judge the drafts of a step.

        Args:
            logits: ``[N + B, V]``, the rows ``metadata.logits_indices`` names, after every mask.
            temperature: ``[B]`` float32; 0 is greedy.
            seeds: ``[B]`` int64.
            positions: ``[B]`` int64, absolute position of the first token each request draws.

        Returns:
            ``[B, K + 2]`` int32: how many tokens are emitted (0: the request's logits are not finite), the
            tokens, then -1. See :func:`ascend_spec_ops.verify`.
        """
        return ascend_spec_ops.verify(
            logits,
            metadata.draft_token_ids,
            metadata.cu_num_draft_tokens,
            temperature,
            seeds,
            positions,
            metadata.max_spec_len,
            metadata.draft_logits,
            metadata.draft_temperature,
            rule=self.rule,
            rule_options=self.rule_options,
        )
