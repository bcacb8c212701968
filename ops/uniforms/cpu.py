"""Threefry in Numba. ``threefry2x32`` and ``threefry_exponential`` are inlined by the other CPU kernels."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange, uint32

from ascend_spec_ops.numba_math import jit_threads, log_f32

HALF = 2048


@njit(inline="always")
def _round(x0, x1, r):
    x0 = uint32(x0 + x1)
    x1 = uint32((x1 << uint32(r)) | (x1 >> uint32(32 - r)))
    return x0, uint32(x1 ^ x0)


@njit(inline="always")
def _inject(x0, x1, a, b, n):
    return uint32(x0 + a), uint32(x1 + b + uint32(n))


@njit(inline="always")
def _four(x0, x1, r0, r1, r2, r3):
    x0, x1 = _round(x0, x1, r0)
    x0, x1 = _round(x0, x1, r1)
    x0, x1 = _round(x0, x1, r2)
    return _round(x0, x1, r3)


@njit(inline="always")
def threefry2x32(k0, k1, c0, c1):
    """Two uint32 words from a uint32 key and counter."""
    k2 = uint32(k0 ^ k1 ^ uint32(0x1BD11BDA))
    x0, x1 = uint32(c0 + k0), uint32(c1 + k1)
    x0, x1 = _four(x0, x1, 13, 15, 26, 6)
    x0, x1 = _inject(x0, x1, k1, k2, 1)
    x0, x1 = _four(x0, x1, 17, 29, 16, 24)
    x0, x1 = _inject(x0, x1, k2, k0, 2)
    x0, x1 = _four(x0, x1, 13, 15, 26, 6)
    x0, x1 = _inject(x0, x1, k0, k1, 3)
    x0, x1 = _four(x0, x1, 17, 29, 16, 24)
    x0, x1 = _inject(x0, x1, k1, k2, 4)
    x0, x1 = _four(x0, x1, 13, 15, 26, 6)
    return _inject(x0, x1, k2, k0, 5)


@njit(inline="always")
def split_seed(seed):
    """The two key words of a 64-bit seed, low word first."""
    return uint32(seed & 0xFFFFFFFF), uint32((seed >> 32) & 0xFFFFFFFF)


@njit(inline="always")
def exponential_f32(bits):
    """-log1p(-(bits + 1/2) / 2**32) in float32, right in both tails.

    ``bits`` above 2**31 are mirrored, so that the small one of u and 1 - u is the one held in full
    precision; for small u the product log(w) * u / (1 - w) is log1p by Kahan's correction.
    """
    low = bits < uint32(0x80000000)
    small = np.float32(bits if low else ~bits)
    small = (small + np.float32(0.5)) * np.float32(2.0**-32)
    w = np.float32(1.0) - small if low else small
    log_w = log_f32(w)
    rounded = w - np.float32(1.0)
    corrected = small if rounded == np.float32(0.0) else log_w * small / rounded
    return corrected if low else -log_w


@njit(inline="always")
def gumbel_f32(bits):
    """A standard Gumbel variate from 32 random bits, float32."""
    return -log_f32(exponential_f32(bits))


@njit(inline="always")
def word(k0, k1, position, stream, lane):
    """The random bits of one lane, uint32."""
    call = (lane >> 12) << 11 | (lane & 2047)
    x0, x1 = threefry2x32(k0, k1, uint32(position & 0xFFFFFFFF), uint32((stream << 24) | call))
    return x1 if (lane >> 11) & 1 else x0


@njit(parallel=True, cache=True)
def _fill(seeds, positions, stream, out):
    for b in prange(out.shape[0]):
        k0, k1 = split_seed(seeds[b])
        for lane in range(out.shape[1]):
            out[b, lane] = word(k0, k1, positions[b], stream, lane)


def random_bits(seeds: torch.Tensor, positions: torch.Tensor, stream: int, num_lanes: int) -> torch.Tensor:
    out = torch.empty((seeds.shape[0], num_lanes), dtype=torch.int32)
    with jit_threads():
        _fill(seeds.numpy(), positions.numpy(), stream, out.numpy().view(np.uint32))
    return out
