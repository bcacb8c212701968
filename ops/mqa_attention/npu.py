"""CANN's FusedInferAttentionScore through torch_npu: TND queries, paged keys, lengths from the host.

``sparse_mode`` 3 is causal with the last rows at the end of each request's keys, 4 the same within a band;
both want one fixed 2048 x 2048 mask whatever the lengths (constraints: torch_npu's operator documentation).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from operator import lt

import torch

CAUSAL, BAND = 3, 4
NO_LIMIT = 2147483647
MASK_SIZE = 2048
#: Most rows of one TND batch row where CANN's short-query path is the only one: MLA's head size of 512.
SHORT_QUERY_ROWS = 16


@cache
def causal_mask(device: torch.device) -> torch.Tensor:
    """``[2048, 2048]`` int8, 1 above the diagonal (hidden)."""
    return torch.ones((MASK_SIZE, MASK_SIZE), dtype=torch.int8).triu_(1).to(device)


def row_limit(head_dim: int) -> int | None:
    """The most query rows a TND batch row may have, None without limit."""
    return SHORT_QUERY_ROWS if head_dim == 512 else None


def split_rows(query_lens: Sequence[int], seq_lens: Sequence[int], limit: int) -> list[tuple[int, int, int]]:
    """Cut requests into batch rows of at most ``limit`` query rows: (request, query rows, KV length).

    The pieces of a request share its block table; each sees the keys up to its own last row, which are all
    in the cache before attention runs, so causal attention over the pieces equals that over the request.
    """
    parts = []
    for request, (rows, length) in enumerate(zip(query_lens, seq_lens, strict=True)):
        for first in range(0, rows, limit):
            last = min(first + limit, rows)
            parts.append((request, last - first, length - rows + last))
    return parts


def supports(
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
) -> str | None:
    """None, or why the Triton kernel has to run."""
    block_size, num_kv_heads, head_dim = key_cache.shape[1:]
    num_heads = query.shape[1]
    if not hasattr(torch.ops.npu, "npu_fused_infer_attention_score"):
        return "this torch_npu has no npu_fused_infer_attention_score"
    if mask is not None:
        return "a tree mask is not passed to the fused operator"
    if soft_cap:
        return "the fused operator has no soft cap"
    if query_lens_cpu is None or seq_lens_cpu is None:
        return "the fused operator takes lengths from the host, and none were given"
    if query.dtype not in (torch.float16, torch.bfloat16):
        return f"the fused operator takes float16 and bfloat16, not {query.dtype}"
    if head_dim not in (64, 128, 512) and (head_dim % 16 or head_dim > 256 or num_heads == num_kv_heads):
        return f"head size {head_dim} with {num_heads} query and {num_kv_heads} kv heads"
    if block_size % 16 or block_size > 512:
        return f"block size {block_size} is not a multiple of 16 up to 512"
    if num_kv_heads * head_dim > 65535:
        return f"a cache row of {num_kv_heads} x {head_dim} exceeds 65535"
    if num_heads > 64 * num_kv_heads or num_heads > 256:
        return f"{num_heads} query heads over {num_kv_heads} exceed 64 a group or 256 in all"
    if not (key_cache.is_contiguous() and value_cache.is_contiguous()) or key_cache.numel() >= 2**31:
        return "the fused operator reads contiguous caches of fewer than 2**31 elements only"
    num_live = live_requests(query_lens_cpu, seq_lens_cpu)
    if any(map(lt, seq_lens_cpu[:num_live], query_lens_cpu[:num_live])):
        return "a request before the last has more rows than tokens (padding)"
    single_rows = (length for rows, length in zip(query_lens_cpu, seq_lens_cpu, strict=True) if rows == 1)
    if sliding_window and max(single_rows, default=0) > sliding_window:
        return "the fused operator's documentation says that it ignores a band for single rows"
    return None


def live_requests(query_lens: Sequence[int], seq_lens: Sequence[int]) -> int:
    """How many requests are left when those without rows or without tokens are cut from the end."""
    count = len(query_lens)
    while count and not (query_lens[count - 1] and seq_lens[count - 1]):
        count -= 1
    return count


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
    assert query_lens_cpu is not None
    assert seq_lens_cpu is not None
    count = live_requests(query_lens_cpu, seq_lens_cpu)
    rows, lengths, table = list(query_lens_cpu[:count]), list(seq_lens_cpu[:count]), block_table[:count]
    limit = row_limit(query.shape[2])
    if limit or 0 in rows:  # the batch rows are no longer the requests, and need block tables of their own
        parts = split_rows(rows, lengths, limit or max_query_len)
        table = table.index_select(0, torch.tensor([request for request, _, _ in parts], device=table.device))
        rows, lengths = [part[1] for part in parts], [part[2] for part in parts]
    num_rows = sum(rows)
    if num_rows == 0:
        return torch.zeros_like(query)
    block_size, num_kv_heads, head_dim = key_cache.shape[1:]
    attended, _ = torch.ops.npu.npu_fused_infer_attention_score(
        query[:num_rows].contiguous(),
        key_cache.view(-1, block_size, num_kv_heads * head_dim),
        value_cache.view(-1, block_size, num_kv_heads * head_dim),
        atten_mask=causal_mask(query.device),
        actual_seq_lengths=list(accumulate(rows)),
        actual_seq_lengths_kv=lengths,
        block_table=table,
        num_heads=query.shape[1],
        num_key_value_heads=num_kv_heads,
        scale=scale,
        input_layout="TND",
        block_size=block_size,
        sparse_mode=BAND if sliding_window else CAUSAL,
        # a band counts the tokens before the row, the window counts the row too
        pre_tokens=sliding_window - 1 if sliding_window else NO_LIMIT,
        next_tokens=0 if sliding_window else NO_LIMIT,
    )
    if num_rows == query.shape[0]:
        return attended
    out = torch.zeros_like(query)
    out[:num_rows] = attended
    return out
