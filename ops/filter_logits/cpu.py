"""The cuts on the CPU, in Numba: block maxima, then a search among the few tokens that can be the threshold."""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit, prange

from ascend_spec_ops.numba_math import exp_f32, float_as_int, jit_threads, maximum

F = np.float32
MINUS_INF = F(-np.inf)
#: tokens of a block: with its maximum known, a block below a bound is not looked at again
BLOCK = 64
#: tokens that one thread takes at a time, a multiple of the block
TILE = 256 * BLOCK
#: bins of one round of the search; a round divides the range of candidates by as many
BINS_LOG2 = 11


@njit
def _key(x):
    """Integers in the order of the floats; one for both zeros."""
    bits = np.int64(float_as_int(x))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF)


@njit
def _largest(x):
    """NaN if any element is."""
    m = MINUS_INF
    for i in range(x.shape[0]):
        m = maximum(x[i], m)
    return m


@njit
def _key_range(x):
    low = high = x[0]
    for i in range(x.shape[0]):
        low = min(low, x[i])
        high = max(high, x[i])
    return _key(low), _key(high)


@njit
def _search(values, weights, target):
    """The largest value for which the weights of all values from it on reach ``target``; the smallest if none
    does. Radix search: each round keeps the bin that holds it. Overwrites both arrays."""
    bins = np.empty(1 << BINS_LOG2, np.float64)
    n = values.shape[0]
    low, high = _key_range(values)
    while low < high:
        shift = 0
        while (high - low) >> shift >= 1 << BINS_LOG2:
            shift += 1
        chosen = (high - low) >> shift
        bins[: chosen + 1] = 0.0
        for i in range(n):
            bins[(_key(values[i]) - low) >> shift] += weights[i]
        while chosen > 0 and bins[chosen] < target:
            target -= bins[chosen]
            chosen -= 1
        kept = 0
        for i in range(n):
            value, weight = values[i], weights[i]
            values[kept], weights[kept] = value, weight
            kept += (_key(value) - low) >> shift == chosen
        n = kept
        low, high = _key_range(values[:n])
    return values[0]


@njit
def _gather(x, block_max, bound, out):
    """The logits from ``bound`` on; how many there are."""
    n = 0
    for b in range(block_max.shape[0]):
        if block_max[b] >= bound:
            for i in range(b * BLOCK, min(x.shape[0], (b + 1) * BLOCK)):
                out[n] = x[i]
                n += x[i] >= bound
    return n


@njit(fastmath={"reassoc", "contract"})
def _block_mass(x, m, scale, bound):
    s = F(0.0)
    for i in range(x.shape[0]):
        w = exp_f32((x[i] - m) * scale)
        s += w if x[i] >= bound else F(0.0)
    return s


@njit
def _mass(x, block_max, m, scale, bound):
    """Sum of ``exp((x - m) * scale)`` over the logits from ``bound`` on."""
    total = 0.0
    for b in range(block_max.shape[0]):
        if block_max[b] >= bound:
            total += _block_mass(x[b * BLOCK : min(x.shape[0], (b + 1) * BLOCK)], m, scale, bound)
    return total


@njit
def _threshold_top_k(x, block_max, cut, top_k, values, weights):
    """The ``top_k``-th largest logit, or ``cut`` where no more are left. Every one of the ``top_k`` blocks
    with the largest maxima holds a logit at least as large as the least of these maxima."""
    bound = cut
    if top_k <= block_max.shape[0]:
        n = block_max.shape[0]
        values[:n], weights[:n] = block_max, F(1.0)
        bound = max(cut, _search(values[:n], weights[:n], float(top_k)))
    n = _gather(x, block_max, bound, values)
    if n < top_k:
        return cut
    weights[:n] = F(1.0)
    return _search(values[:n], weights[:n], float(top_k))


@njit
def _threshold_top_p(x, block_max, m, temperature, cut, top_p, values, weights):
    """The largest logit from which on the logits hold ``top_p`` of the mass from ``cut`` on. The tail that V
    tokens of one weight could not lift to ``1 - top_p`` is not looked at."""
    scale = F(min(1.0 / temperature, 3e38))
    mass = _mass(x, block_max, m, scale, cut)
    tail = 0.999 * (1.0 - top_p) * mass / x.shape[0]
    bound = max(cut, F(m + temperature * math.log(tail)))
    n = _gather(x, block_max, bound, values)
    for i in range(n):
        weights[i] = exp_f32((values[i] - m) * scale)
    return _search(values[:n], weights[:n], top_p * mass)


@njit
def _threshold(x, block_max, temperature, top_k, top_p, min_p):
    """The least logit that stays; -inf: nothing is cut."""
    m = _largest(block_max)
    if not np.isfinite(m):
        return MINUS_INF
    cut = MINUS_INF
    if min_p > 0.0:
        cut = min(m, F(m + temperature * math.log(min_p)))
    by_k, by_p = 0 < top_k < x.shape[0], top_p < 1.0
    if by_k or by_p:
        values = np.empty(x.shape[0] + 1, F)
        weights = np.empty(x.shape[0] + 1, F)
        if by_k:
            cut = _threshold_top_k(x, block_max, cut, top_k, values, weights)
        if by_p:
            cut = _threshold_top_p(x, block_max, m, temperature, cut, top_p, values, weights)
    return cut


@njit(parallel=True, cache=True)
def _filter(flat, stride, vocab_size, temperature, top_k, top_p, min_p):
    num_rows = temperature.shape[0]
    num_tiles = (vocab_size + TILE - 1) // TILE
    block_max = np.empty((num_rows, (vocab_size + BLOCK - 1) // BLOCK), F)
    cuts = np.full(num_rows, MINUS_INF)
    active = np.empty(num_rows, np.bool_)
    for row in range(num_rows):
        cuts_some = 0 < top_k[row] < vocab_size or top_p[row] < F(1.0) or min_p[row] > F(0.0)
        active[row] = temperature[row] > F(0.0) and cuts_some

    for work in prange(num_rows * num_tiles):
        row = work // num_tiles
        if active[row]:
            first = (work - row * num_tiles) * TILE
            for b in range(first // BLOCK, min(first + TILE, vocab_size + BLOCK - 1) // BLOCK):
                start = row * stride
                block_max[row, b] = _largest(
                    flat[start + b * BLOCK : start + min(vocab_size, (b + 1) * BLOCK)]
                )

    for row in prange(num_rows):
        if active[row]:
            cuts[row] = _threshold(
                flat[row * stride : row * stride + vocab_size], block_max[row], float(temperature[row]),
                top_k[row], float(top_p[row]), float(min_p[row]),
            )  # fmt: skip

    for work in prange(num_rows * num_tiles):
        row = work // num_tiles
        cut = cuts[row]
        if cut > MINUS_INF:
            first = (work - row * num_tiles) * TILE
            start = row * stride
            x = flat[start + first : start + min(vocab_size, first + TILE)]
            for i in range(x.shape[0]):
                x[i] = x[i] if x[i] >= cut else MINUS_INF


def filter_logits(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> None:
    rows, columns = logits.shape
    if not rows or not columns:
        return
    x = logits.float()
    # one flat vector and the distance between rows: strided rows need no copy, inner loops see contiguous memory
    flat = x.as_strided(((rows - 1) * x.stride(0) + columns,), (1,)).numpy()
    with jit_threads():
        _filter(flat, x.stride(0), columns, temperature.numpy(), top_k.numpy(), top_p.numpy(), min_p.numpy())
    if x is not logits:
        logits.masked_fill_(x == -math.inf, -math.inf)
