"""Request by request with torch: gather the blocks, one scaled dot-product attention.

Runs on any device torch knows, and is the last resort of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention

from ascend_spec_ops.mqa_attention import host_lengths


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
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    block_size = key_cache.shape[1]
    capacity = block_table.shape[1] * block_size
    starts, lengths = host_lengths(query, capacity, query_start_loc, seq_lens, query_lens_cpu, seq_lens_cpu)
    for b, seq_len in enumerate(lengths):
        rows = slice(starts[b], starts[b + 1])
        query_len = rows.stop - rows.start
        if query_len == 0 or seq_len == 0:
            continue
        past = seq_len - query_len
        # blocks before every row's window are not read: the cache may have given them away
        first = max(0, past - sliding_window + 1) // block_size if sliding_window else 0
        blocks = block_table[b, first : -(-seq_len // block_size)]
        positions = torch.arange(first * block_size, seq_len, device=query.device)
        keys = key_cache.index_select(0, blocks).flatten(0, 1)[: len(positions)]
        values = value_cache.index_select(0, blocks).flatten(0, 1)[: len(positions)]
        visible = visibility(
            positions, past, query_len, None if mask is None else mask[rows, :query_len], sliding_window
        )
        if sliding_window:
            unseen = ~visible.any(0)  # inside the first block, before the window: may hold anything
            values = values.masked_fill(unseen[:, None, None], 0.0)
            keys = keys.masked_fill(unseen[:, None, None], 0.0)
        out[rows] = attend(query[rows], keys, values, visible, scale, soft_cap)
    return out


def visibility(
    positions: torch.Tensor, past: int, query_len: int, mask: torch.Tensor | None, sliding_window: int
) -> torch.Tensor:
    """``[query_len, len(positions)]`` bool: which rows of a request see which KV positions."""
    row = torch.arange(past, past + query_len, device=positions.device)[:, None]
    if mask is None:
        visible = positions <= row
    else:
        row = past - 1 + mask.sum(1, keepdim=True)
        new = (positions - past).clamp(0, query_len - 1)
        visible = (positions < past) | mask[:, new]
    if sliding_window:
        visible = visible & (positions > row - sliding_window)
    return visible


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    soft_cap: float,
) -> torch.Tensor:
    """``query`` ``[R, Hq, D]`` over ``keys`` and ``values`` ``[L, Hkv, D]``, zero where nothing is seen."""
    q, k, v = query.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1)
    if soft_cap == 0:
        out = scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=visible, scale=scale, enable_gqa=True
        )[0]
        return out.transpose(0, 1)
    group = q.shape[0] // k.shape[0]
    q = q.unflatten(0, (k.shape[0], group)).flatten(1, 2)  # [Hkv, group * R, D]
    score = soft_cap * torch.tanh(torch.bmm(q, k.transpose(1, 2)).float() * (scale / soft_cap))
    score = score.unflatten(1, (group, -1)).masked_fill(~visible, float("-inf")).flatten(1, 2)
    weight = torch.softmax(score, -1).nan_to_num(0.0).to(values.dtype)
    return torch.bmm(weight, v).unflatten(1, (group, -1)).flatten(0, 1).transpose(0, 1)
