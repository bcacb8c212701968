"""The definition, one row and one head after the other, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def visible_positions(
    row: int, past: int, query_len: int, seq_len: int, mask: torch.Tensor | None, sliding_window: int
) -> list[int]:
    """The KV positions that new row ``row`` of a request sees; ``mask`` is its row of the tree mask."""
    if mask is None:
        depth = row
        new = list(range(row + 1))
    else:
        new = [i for i in range(query_len) if mask[i]]
        depth = len(new) - 1
    seen = [*range(past), *(past + i for i in new)]
    first = past + depth - sliding_window + 1 if sliding_window else 0
    return [p for p in seen if max(first, 0) <= p < seq_len]


def mqa_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    max_query_len: int,
    scale: float,
    *,
    mask: torch.Tensor | None = None,
    sliding_window: int = 0,
    soft_cap: float = 0.0,
    query_lens_cpu: Sequence[int] | None = None,
    seq_lens_cpu: Sequence[int] | None = None,
) -> torch.Tensor:
    """Returns float64 whatever the input's dtype; the host lengths are not looked at."""
    out = torch.zeros(query.shape, dtype=torch.float64)
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = query.shape[1] // num_kv_heads
    starts = query_start_loc.tolist()
    for b, seq_len in enumerate(seq_lens.tolist()):
        query_len = starts[b + 1] - starts[b]
        for row in range(query_len):
            t = starts[b] + row
            row_mask = None if mask is None else mask[t]
            seen = visible_positions(row, seq_len - query_len, query_len, seq_len, row_mask, sliding_window)
            if not seen:
                continue
            blocks = block_table[b, [p // block_size for p in seen]].long()
            offsets = torch.tensor([p % block_size for p in seen])
            for head in range(query.shape[1]):
                k = key_cache[blocks, offsets, head // group].double()
                v = value_cache[blocks, offsets, head // group].double()
                score = k @ query[t, head].double() * scale
                if soft_cap:
                    score = soft_cap * torch.tanh(score / soft_cap)
                weight = torch.exp(score - score.max())
                out[t, head] = (weight / math.fsum(weight.tolist())) @ v
    return out
