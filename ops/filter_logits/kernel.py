"""The cuts in Triton, for CUDA and Ascend: one row a program, a search by passes. Imports triton alone."""

import triton
import triton.language as tl

#: what a row is cut at when nothing is cut: everything finite stays
LOWEST = tl.constexpr(-3.4028234663852886e38)
#: the integers of two floats are at most 2**32 apart, and a round halves that
ROUNDS = tl.constexpr(33)


@triton.jit
def _key(x):
    """Integers in the order of the floats; one for both zeros. Of a scalar."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _middle(low, high):
    """The float half-way between two in the order of the floats, rounded up: above ``low``, at most ``high``.
    Halves of a sum would overflow."""
    a = _key(low)
    b = _key(high)
    middle = (a | b) - ((a ^ b) >> 1)
    return (middle ^ ((middle >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _weigh(row, vocab_size, pivot, largest, scale, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """One pass. The weight of the logits from ``pivot`` on (their number, or their mass), the least of them, and
    the largest below it."""
    lane = tl.arange(0, BLOCK)
    weight = 0.0
    least = float("inf")
    below = float("-inf")
    for first in range(0, vocab_size, BLOCK):
        x = tl.load(row + first + lane, mask=lane < vocab_size - first, other=float("-inf")).to(tl.float32)
        if BY_MASS:
            weight += tl.sum(tl.where(x >= pivot, tl.exp((x - largest) * scale), 0.0), axis=0)
        else:
            weight += tl.sum(tl.where(x >= pivot, 1.0, 0.0), axis=0)
        least = tl.minimum(least, tl.min(tl.where(x >= pivot, x, float("inf")), axis=0))
        below = tl.maximum(below, tl.max(tl.where(x >= pivot, float("-inf"), x), axis=0))
    return weight, least, below


@triton.jit
def _search(row, vocab_size, cut, largest, scale, target, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest logit for which the logits from it on reach the target: a number, or a share of the mass of
    those from ``cut`` on. Both ends of the search are always logits of the row, so that it ends as soon as one
    is left between them."""
    weight, low, high = _weigh(row, vocab_size, cut, largest, scale, BY_MASS, BLOCK)
    high = largest
    if BY_MASS:
        target = target * weight
    elif weight <= target:
        high = low
    for _ in range(ROUNDS):
        if low < high:
            weight, least, below = _weigh(row, vocab_size, _middle(low, high), largest, scale, BY_MASS, BLOCK)
            if weight >= target:
                low = least
                if weight == target:
                    high = low
            else:
                high = below
    return low


@triton.jit(do_not_specialize=["num_rows"])
def filter_logits_kernel(
    logits_ptr,  # [R, V]
    temperature_ptr,  # [R] fp32
    top_k_ptr,  # [R] int32
    top_p_ptr,  # [R] fp32
    min_p_ptr,  # [R] fp32
    num_rows,
    vocab_size,  # below 2**24: counts are fp32
    stride,
    BLOCK: tl.constexpr,
):
    """One row a program, grid-stride. A row that nothing cuts is not read."""
    lane = tl.arange(0, BLOCK)
    for r in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        temperature = tl.load(temperature_ptr + r)
        top_k = tl.load(top_k_ptr + r)
        top_p = tl.load(top_p_ptr + r)
        min_p = tl.load(min_p_ptr + r)
        by_k = (top_k > 0) & (top_k < vocab_size)
        if (temperature > 0.0) & (by_k | (top_p < 1.0) | (min_p > 0.0)):
            row = logits_ptr + tl.cast(r, tl.int64) * stride
            largest = float("-inf")
            not_valid = 0.0
            for first in range(0, vocab_size, BLOCK):
                x = tl.load(row + first + lane, mask=lane < vocab_size - first, other=float("-inf"))
                x = x.to(tl.float32)
                largest = tl.maximum(largest, tl.max(x, axis=0))
                # a NaN is not below infinity either
                not_valid += tl.sum(tl.where(x < float("inf"), 0.0, 1.0), axis=0)
            if (not_valid == 0.0) & (largest > float("-inf")):
                scale = tl.minimum(1.0 / temperature, 3e38)
                cut = LOWEST + 0.0
                if min_p > 0.0:
                    cut = tl.minimum(tl.maximum(largest + temperature * tl.log(min_p), LOWEST), largest)
                if by_k:
                    cut = _search(row, vocab_size, cut, largest, scale, top_k.to(tl.float32), False, BLOCK)
                if top_p < 1.0:
                    cut = _search(row, vocab_size, cut, largest, scale, top_p, True, BLOCK)
                for first in range(0, vocab_size, BLOCK):
                    inside = lane < vocab_size - first
                    x = tl.load(row + first + lane, mask=inside, other=float("-inf")).to(tl.float32)
                    kept = tl.where(x >= cut, x, float("-inf"))
                    tl.store(row + first + lane, kept.to(logits_ptr.dtype.element_ty), mask=inside)
