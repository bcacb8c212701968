"""Launcher of the Triton kernels; the tensors may be on CUDA, an NPU, or the CPU (interpreter)."""

from __future__ import annotations

import torch

from ascend_spec_ops import targets
from ascend_spec_ops.ngram_match.kernel import ngram_copy_kernel, ngram_scan_kernel

BLOCK = 1024


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def ngram_match(
    token_ids: torch.Tensor,
    num_tokens: torch.Tensor,
    min_n: int,
    max_n: int,
    num_drafts: torch.Tensor,
    max_drafts: int,
    match: str,
    vocab_size: int,
) -> torch.Tensor:
    num_rows, max_len = token_ids.shape
    device = token_ids.device
    # few rows: split each, so that every core works. A power of two, so that few variants are compiled.
    programs = targets.grid(num_rows * -(-max_len // BLOCK), device)[0]
    splits = _power_of_two(-(-programs // max(num_rows, 1)))
    lengths = torch.empty((num_rows, splits), dtype=torch.float32, device=device)
    ends = torch.empty_like(lengths)
    out = torch.empty((num_rows, max_drafts), dtype=torch.int32, device=device)
    row_stride = token_ids.stride(0)
    recent = match == "recent"
    ngram_scan_kernel[targets.grid(num_rows * splits, device)](
        token_ids,
        num_tokens,
        lengths,
        ends,
        num_rows,
        row_stride,
        max_len,
        max_n,
        RECENT=recent,
        SPLITS=splits,
        BLOCK=BLOCK,
    )
    ngram_copy_kernel[targets.grid(num_rows, device)](
        token_ids,
        num_tokens,
        num_drafts,
        lengths,
        ends,
        out,
        num_rows,
        row_stride,
        max_len,
        min_n,
        max_drafts,
        vocab_size,
        RECENT=recent,
        SPLITS=splits,
        DRAFTS_BLOCK=_power_of_two(max_drafts),
    )
    return out
