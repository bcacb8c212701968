"""Launcher of the Triton kernel, for CUDA, NPU, and CPU tensors under the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton

from ascend_spec_ops import targets
from ascend_spec_ops.mqa_attention.kernel import mqa_attention_kernel


@dataclass(frozen=True)
class Tiles:
    """Upper bounds of a tile: ``rows`` (query rows times heads of a group) by positions of KV, fewer where
    the positions are gathered from several small pages."""

    rows: int
    positions: int
    gathered: int


MIN_DOT = 16  # the smallest side of a matrix product


def tiles(device_type: str, dtype: torch.dtype, head_dim: int) -> Tiles:
    """Chosen by compiling every flag: no spills on sm_90, under 90 % of each on-chip memory on Ascend 910B,
    where the 64-bit addresses of a gather take as much of the unified buffer as the scores."""
    wide = head_dim > 128
    if device_type == "npu":
        return Tiles(rows=16 if wide else 32, positions=64, gathered=16)
    if dtype == torch.float32:  # exact products run on the plain cores, from registers
        return Tiles(rows=16, positions=16, gathered=16)
    return Tiles(rows=32, positions=32, gathered=32) if wide else Tiles(rows=32, positions=64, gathered=64)


def pieces(block_size: int, limits: Tiles) -> tuple[int, int]:
    """(positions of a piece, pieces of a tile): part of a page, one page, or several small pages."""
    piece = block_size & -block_size  # the largest power of two that divides a page
    if piece == block_size and piece < limits.gathered:
        return piece, limits.gathered // piece
    return min(piece, limits.positions), 1


def supports(query: torch.Tensor, key_cache: torch.Tensor) -> str | None:
    """None, or why the kernel cannot run."""
    block_size, head_dim = key_cache.shape[1], query.shape[2]
    if block_size % MIN_DOT and block_size not in (1, 2, 4, 8):
        return f"block size {block_size} is neither 1, 2, 4, 8 nor a multiple of {MIN_DOT}"
    if head_dim > 256:
        return f"head size {head_dim} is above 256"
    if head_dim > 128 and query.dtype == torch.float32 and block_size < MIN_DOT:
        return f"float32 with head size {head_dim} needs pages of at least {MIN_DOT}, not {block_size}"
    return None


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
    num_requests, (block_size, num_kv_heads, head_dim) = seq_lens.shape[0], key_cache.shape[1:]
    group = query.shape[1] // num_kv_heads
    limits = tiles(query.device.type, query.dtype, head_dim)
    block_g = triton.next_power_of_2(group)
    most_rows = max(MIN_DOT, triton.next_power_of_2(max(max_query_len, 1) * block_g))
    block_q = max(1, min(limits.rows, most_rows) // block_g)
    piece, num_pieces = pieces(block_size, limits)
    query_tiles = -(-max_query_len // block_q)
    unread = seq_lens  # stands for a pointer that the flags switch off
    depth = (mask.sum(1, dtype=torch.int32) - 1) if mask is not None and sliding_window else unread
    mqa_attention_kernel[targets.grid(num_requests * num_kv_heads * query_tiles, query.device)](
        out,
        query,
        key_cache,
        value_cache,
        block_table,
        query_start_loc,
        seq_lens,
        unread if mask is None else mask.contiguous().view(torch.int8),
        depth,
        num_requests,
        num_kv_heads,
        query_tiles,
        block_size // piece,
        max_query_len,
        scale,
        sliding_window,
        soft_cap,
        *query.stride()[:2],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        block_table.stride(0),
        MASK=mask is not None,
        WINDOW=sliding_window > 0,
        SOFT_CAP=soft_cap > 0,
        GROUP=group,
        D=head_dim,
        BLOCK_G=block_g,
        BLOCK_D=max(MIN_DOT, triton.next_power_of_2(head_dim)),
        BLOCK_Q=block_q,
        PIECE=piece,
        PIECES=num_pieces,
        num_warps=8,
    )
    return out
