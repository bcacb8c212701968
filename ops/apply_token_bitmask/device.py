"""The bitmask in torch, for CUDA and Ascend: fixed shapes, nothing read on the host."""

from __future__ import annotations

from functools import cache

import torch

MINUS_INF = float("-inf")


@cache
def _bits(device: torch.device) -> torch.Tensor:
    """Powers of two to "and" with, since not every device shifts by a tensor; the last is the sign bit. Made
    once a device: the copy from the host waits for the device."""
    return torch.tensor([1 << i for i in range(31)] + [-(1 << 31)], dtype=torch.int32, device=device)


def apply_token_bitmask(logits: torch.Tensor, bitmask: torch.Tensor) -> None:
    forbidden = ((bitmask.unsqueeze(2) & _bits(bitmask.device)) == 0).flatten(1)[:, : logits.shape[1]]
    logits[:, : forbidden.shape[1]].masked_fill_(forbidden, MINUS_INF)
    logits[:, forbidden.shape[1] :].fill_(MINUS_INF)
