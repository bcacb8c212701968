"""Threefry-2x32-20 in Python integers and in torch int64, and the exponential transform in float64."""

from __future__ import annotations

import math

import torch

MASK = 0xFFFFFFFF
PARITY = 0x1BD11BDA
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry2x32(k0, k1, c0, c1):
    """Twenty rounds on words held in Python ints or in int64 tensors (values 0 to 2**32 - 1)."""
    keys = (k0, k1, k0 ^ k1 ^ PARITY)
    x0, x1 = (c0 + k0) & MASK, (c1 + k1) & MASK
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x0 = (x0 + x1) & MASK
            x1 = ((x1 << rotation) | (x1 >> (32 - rotation))) & MASK
            x1 = x1 ^ x0
        x0 = (x0 + keys[(group + 1) % 3]) & MASK
        x1 = (x1 + keys[(group + 2) % 3] + group + 1) & MASK
    return x0, x1


def word(seed: int, position: int, stream: int, lane: int) -> int:
    """The 32 random bits of one lane, as an unsigned Python int."""
    call = (lane >> 12) << 11 | (lane & 2047)
    words = threefry2x32(seed & MASK, (seed >> 32) & MASK, position & MASK, stream << 24 | call)
    return words[(lane >> 11) & 1]


def exponential(bits: int) -> float:
    """A standard exponential variate from 32 random bits; 1.2e-10 to 22.9."""
    return -math.log1p(-(bits + 0.5) / 2.0**32)


def exponential_of(bits: torch.Tensor) -> torch.Tensor:
    """:func:`exponential` on an int32 tensor of raw bits, float64."""
    return -torch.log1p(-((bits.to(torch.int64) & MASK).double() + 0.5) / 2.0**32)


def gumbel_of(bits: torch.Tensor) -> torch.Tensor:
    """A standard Gumbel variate from int32 raw bits, float64."""
    return -torch.log(exponential_of(bits))


def random_bits(seeds: torch.Tensor, positions: torch.Tensor, stream: int, num_lanes: int) -> torch.Tensor:
    """The operator, on any device that has int64 arithmetic."""
    lane = torch.arange(num_lanes, device=seeds.device)
    call = (lane >> 12 << 11) | (lane & 2047)
    words = threefry2x32(
        (seeds & MASK)[:, None],
        (seeds >> 32 & MASK)[:, None],
        (positions & MASK)[:, None],
        call + (stream << 24),
    )
    bits = torch.where((lane >> 11 & 1).bool(), words[1], words[0])
    return torch.where(bits > 0x7FFFFFFF, bits - (1 << 32), bits).to(torch.int32)
