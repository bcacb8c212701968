"""The standard rule: greedy match, or rejection sampling. Lossless."""

from __future__ import annotations

import torch

import ascend_spec_ops
from ascend_spec.types import SpecDecodeMetadata


class RejectionSampler:
    """Rejection sampling of Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318).

    Requests without drafts get an ordinary draw from the same noise, so that this is the only sampler.
    """

    name = "standard"
    lossless = True

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
        )
