"""The scorer for attention that takes one query a request: every row becomes a batch row of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ascend_spec.config import Bucket
from ascend_spec.scorer.mqa import MQAScorer
from ascend_spec.types import AttentionMetadata, Draft, ScheduledRequest, StepPlan


@dataclass(frozen=True)
class BatchExpansionScorer(MQAScorer):
    """Same rows, same logits, attention of query length 1: the KV cache is read once a row and not once a
    request. Exact, because a layer writes the K/V of all rows before any row attends."""

    def pack(
        self,
        requests: Sequence[ScheduledRequest],
        token_ids: torch.Tensor,
        block_table: torch.Tensor,
        draft: Draft | None = None,
        bucket: Bucket | None = None,
    ) -> StepPlan:
        """See :meth:`MQAScorer.pack`."""
        plan = super().pack(requests, token_ids, block_table, draft, bucket)
        return replace(plan, attention=expand(plan.attention))


def expand(attention: AttentionMetadata) -> AttentionMetadata:
    """Every row of ``attention`` as a request of query length 1 whose KV ends at that row.

    Raises:
        ValueError: drafts that branch: a row's K/V would not be the prefix before it.
    """
    if attention.mask is not None:
        raise ValueError("batch expansion was given a tree mask; it scores chains: use MQAScorer for trees")
    assert attention.seq_lens_cpu is not None, "a step of the target knows its lengths"
    lens = list(zip(attention.query_lens_cpu, attention.seq_lens_cpu, strict=True))
    seq_lens = [max(seq - query + 1 + row, 0) if seq else 0 for query, seq in lens for row in range(query)]
    owners = [request for request, (query, _) in enumerate(lens) for _ in range(query)]
    device = attention.block_table.device
    rows, owner = len(owners), torch.tensor(owners, device=device)
    return replace(
        attention,
        block_table=attention.block_table[owner],
        num_tokens=None if attention.num_tokens is None else attention.num_tokens[owner],
        query_start_loc=torch.arange(rows + 1, dtype=torch.int32, device=device),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=device),
        query_lens_cpu=(1,) * rows,
        seq_lens_cpu=tuple(seq_lens),
        max_query_len=1,
    )
