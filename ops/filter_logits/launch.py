"""Launcher of the Triton kernel; the tensors may be on CUDA, an NPU, or the CPU (interpreter)."""

from __future__ import annotations

import torch

from ascend_spec_ops import targets
from ascend_spec_ops.filter_logits.kernel import filter_logits_kernel

#: at 4096 the passes of one row would fill Ascend's unified buffer to 96 %
BLOCK = 2048


def filter_logits(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> None:
    num_rows, vocab_size = logits.shape
    if num_rows:
        filter_logits_kernel[targets.grid(num_rows, logits.device)](
            logits, temperature, top_k, top_p, min_p, num_rows, vocab_size, logits.stride(0), BLOCK=BLOCK,
            num_warps=8,
        )  # fmt: skip
