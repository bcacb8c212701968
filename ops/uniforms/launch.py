"""Launcher of the Triton kernel; the tensors may be on CUDA, on an NPU, or on the CPU under the interpreter."""

from __future__ import annotations

import torch

from ascend_spec_ops import targets
from ascend_spec_ops.uniforms.kernel import random_bits_kernel

HALF = 2048


def as_words(values: torch.Tensor) -> torch.Tensor:
    """An int64 vector seen as pairs of int32, low word first, without a copy."""
    return values.contiguous().view(torch.int32)


def random_bits(seeds: torch.Tensor, positions: torch.Tensor, stream: int, num_lanes: int) -> torch.Tensor:
    num_rows = seeds.shape[0]
    out = torch.empty((num_rows, num_lanes), dtype=torch.int32, device=seeds.device)
    groups = -(-num_lanes // (2 * HALF))
    random_bits_kernel[targets.grid(num_rows * groups, seeds.device)](
        as_words(seeds), as_words(positions), out, num_rows, num_lanes, stream, HALF=HALF
    )
    return out
