"""Threefry and its exponential in Triton, for CUDA and Ascend. Imports triton alone."""

import triton
import triton.language as tl


@triton.jit
def _rotate_add(x0, x1, R: tl.constexpr):
    x0 = x0 + x1
    x1 = (x1 << R) | (x1 >> (32 - R))
    return x0, x1 ^ x0


@triton.jit
def _four_a(x0, x1):
    x0, x1 = _rotate_add(x0, x1, 13)
    x0, x1 = _rotate_add(x0, x1, 15)
    x0, x1 = _rotate_add(x0, x1, 26)
    return _rotate_add(x0, x1, 6)


@triton.jit
def _four_b(x0, x1):
    x0, x1 = _rotate_add(x0, x1, 17)
    x0, x1 = _rotate_add(x0, x1, 29)
    x0, x1 = _rotate_add(x0, x1, 16)
    return _rotate_add(x0, x1, 24)


@triton.jit
def threefry2x32(k0, k1, c0, c1):
    """Twenty rounds. All arguments are uint32, scalars or blocks; returns two uint32 words."""
    k2 = k0 ^ k1 ^ 0x1BD11BDA
    x0 = c0 + k0
    x1 = c1 + k1
    x0, x1 = _four_a(x0, x1)
    x0 = x0 + k1
    x1 = x1 + (k2 + 1)
    x0, x1 = _four_b(x0, x1)
    x0 = x0 + k2
    x1 = x1 + (k0 + 2)
    x0, x1 = _four_a(x0, x1)
    x0 = x0 + k0
    x1 = x1 + (k1 + 3)
    x0, x1 = _four_b(x0, x1)
    x0 = x0 + k1
    x1 = x1 + (k2 + 4)
    x0, x1 = _four_a(x0, x1)
    return x0 + k2, x1 + (k0 + 5)


@triton.jit
def exponential(bits):
    """-log1p(-(bits + 1/2) / 2**32), right in both tails; see ``exponential_f32`` in cpu.py.

    ``s >> 31`` is 0 or -1: the mirror needs neither an unsigned conversion nor an integer comparison, both
    of which run element by element on Ascend's scalar unit.
    """
    s = bits.to(tl.int32, bitcast=True)
    sign = s >> 31
    small = ((s ^ sign).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    high = sign.to(tl.float32)
    w = tl.where(high < 0.0, small, 1.0 - small)
    log_w = tl.log(w)
    rounded = w - 1.0
    corrected = tl.where(rounded == 0.0, small, log_w * small / tl.where(rounded == 0.0, 1.0, rounded))
    return tl.where(high < 0.0, -log_w, corrected)


@triton.jit
def gumbel(bits):
    """A standard Gumbel variate from 32 random bits."""
    return -tl.log(exponential(bits))


@triton.jit
def load_key(seeds_ptr, b):
    """The two key words of request ``b``; ``seeds_ptr`` is the int64 seeds seen as pairs of int32."""
    k0 = tl.load(seeds_ptr + 2 * b).to(tl.uint32, bitcast=True)
    k1 = tl.load(seeds_ptr + 2 * b + 1).to(tl.uint32, bitcast=True)
    return k0, k1


@triton.jit
def random_bits_kernel(
    seeds_ptr,  # [B, 2] int32: the int64 seeds, low word first
    positions_ptr,  # [B, 2] int32: the int64 positions, low word first
    out_ptr,  # [B, num_lanes] int32
    num_rows,
    num_lanes,
    stream,
    HALF: tl.constexpr,  # 2048
):
    """One program a 4096-lane group of a row, grid-stride."""
    groups = (num_lanes + 2 * HALF - 1) // (2 * HALF)
    lane = tl.arange(0, HALF)
    for work in range(tl.program_id(0), num_rows * groups, tl.num_programs(0)):
        b = work // groups
        group = work - b * groups
        k0, k1 = load_key(seeds_ptr, b)
        c0 = tl.load(positions_ptr + 2 * b).to(tl.uint32, bitcast=True)
        c1 = (lane + group * HALF + (stream << 24)).to(tl.uint32, bitcast=True)
        x0, x1 = threefry2x32(k0, k1, c0, c1)
        first = group * 2 * HALF
        out = out_ptr + b.to(tl.int64) * num_lanes + first
        tl.store(out + lane, x0.to(tl.int32, bitcast=True), mask=lane < num_lanes - first)
        tl.store(out + HALF + lane, x1.to(tl.int32, bitcast=True), mask=lane < num_lanes - first - HALF)
