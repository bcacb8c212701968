"""A few rows a request, in Numba: a task for each (request, kv head) reads its keys and values once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numba import njit, prange

from ascend_spec_ops.mqa_attention import host_lengths
from ascend_spec_ops.numba_math import exp_f32, jit_threads

F = np.float32
# sums may be reordered into vector registers; infinities and NaN keep their meaning
FAST = {"reassoc", "contract", "nsz"}
NO_MASK = np.zeros((0, 0), np.bool_)


@njit(inline="always")
def _depth(mask, t, row):
    """Distance of a new row from the last past token, less one."""
    return mask[t].sum() - 1 if mask.shape[0] else row


@njit(inline="always")
def _sees(mask, t, row, position, p, past, window):
    """Whether row ``t`` of the batch, ``row`` of its request, at ``position``, sees position ``p``."""
    if window and p <= position - window:
        return False
    if p < past:
        return True
    return mask[t, p - past] if mask.shape[0] else p - past <= row


@njit(fastmath=FAST)
def _scores(
    query, keys, base, block_table, block_size, first, rows, head, group, past, start, mask, window, scale
):
    """``[rows * group, length - start]`` scaled scores, -inf where a row does not see a position."""
    length = past + rows
    scores = np.full((rows * group, max(length - start, 0)), F(-np.inf), np.float32)
    positions = np.empty(rows, np.int64)
    for r in range(rows):
        positions[r] = past + _depth(mask, first + r, r)
    for p in range(start, length):
        at = base[0] * block_table[p // block_size] + base[1] * (p % block_size) + base[2] * head
        key = keys[at : at + query.shape[2]]
        for r in range(rows):
            if _sees(mask, first + r, r, positions[r], p, past, window):
                for g in range(group):
                    q = query[first + r, head * group + g]
                    dot = F(0.0)
                    for d in range(q.shape[0]):
                        dot += q[d] * key[d]
                    scores[r * group + g, p - start] = dot * scale
    return scores


@njit(fastmath=FAST)
def _softmax(scores, soft_cap):
    """In place, row by row; a row of -inf becomes zeros."""
    for i in range(scores.shape[0]):
        row = scores[i]
        if soft_cap > 0:
            for j in range(row.shape[0]):
                row[j] = soft_cap * np.tanh(row[j] / soft_cap) if row[j] > F(-np.inf) else row[j]
        largest = F(-3e38)
        for j in range(row.shape[0]):
            largest = max(largest, row[j])
        total = F(0.0)
        for j in range(row.shape[0]):
            row[j] = exp_f32(row[j] - largest)
            total += row[j]
        inverse = F(1.0) / total if total > 0 else F(0.0)
        for j in range(row.shape[0]):
            row[j] *= inverse


@njit(parallel=True, cache=True, fastmath=FAST)
def _attend(
    query, keys, key_base, values, value_base, block_size, num_kv_heads, block_table, starts, lengths, mask,
    window, scale, soft_cap, out,
):  # fmt: skip
    group = query.shape[1] // num_kv_heads
    for work in prange(lengths.shape[0] * num_kv_heads):
        b = work // num_kv_heads
        head = work - b * num_kv_heads
        first, rows = starts[b], starts[b + 1] - starts[b]
        if rows == 0 or lengths[b] == 0:
            continue
        past = lengths[b] - rows
        start = max(past - window + 1, 0) if window else 0
        weights = _scores(
            query, keys, key_base, block_table[b], block_size, first, rows, head, group, past, start, mask,
            window, scale,
        )  # fmt: skip
        _softmax(weights, soft_cap)
        for p in range(start, lengths[b]):
            block = block_table[b, p // block_size]
            at = value_base[0] * block + value_base[1] * (p % block_size) + value_base[2] * head
            value = values[at : at + query.shape[2]]
            for r in range(rows):
                for g in range(group):
                    weight = weights[r * group + g, p - start]
                    if weight != 0:
                        o = out[first + r, head * group + g]
                        for d in range(o.shape[0]):
                            o[d] += weight * value[d]


def flat(cache: torch.Tensor) -> np.ndarray:
    """The memory a strided view reaches, as one contiguous vector: offsets are sums of index * stride."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(cache.shape, cache.stride(), strict=True))
    return cache.as_strided((extent,), (1,)).numpy()


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
    block_size, num_kv_heads = key_cache.shape[1:3]
    capacity = block_table.shape[1] * block_size
    starts, lengths = host_lengths(query, capacity, query_start_loc, seq_lens, query_lens_cpu, seq_lens_cpu)
    with jit_threads():
        _attend(
            query.contiguous().numpy(), flat(key_cache), key_cache.stride()[:3], flat(value_cache),
            value_cache.stride()[:3], block_size, num_kv_heads, block_table.contiguous().numpy(),
            np.array(starts), np.array(lengths), NO_MASK if mask is None else mask.contiguous().numpy(),
            sliding_window, F(scale), F(soft_cap), out.numpy(),
        )  # fmt: skip
    return out
