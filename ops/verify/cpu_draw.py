"""What the CPU path makes of rows of logits, in Numba: statistics of blocks, residuals, the draw."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, prange, uint32

from ascend_spec_ops.numba_math import exp_f32, log_f32, maximum
from ascend_spec_ops.uniforms.cpu import HALF, gumbel_f32, threefry2x32, word
from ascend_spec_ops.verify import VOCAB_BLOCK

F = np.float32
STREAM_BLOCK, STREAM_LANE = 1, 2
MINUS_INF = F(-np.inf)
#: below this a mass is rounding noise of the subtraction p - q, and its logarithm would not be normal
SMALLEST_MASS = F(1e-37)


class Rows(NamedTuple):
    """Rows of logits in one flat vector, with the statistics of their blocks."""

    flat: np.ndarray
    stride: int
    vocab_size: int
    maxima: np.ndarray
    """``[rows, blocks]``"""
    log_masses: np.ndarray
    """``[rows, blocks]``, of the logits over the temperature; not there for greedy rows"""


class Request(NamedTuple):
    """One request, as the walks and the draw read it."""

    p: Rows
    q: Rows
    row: int
    """the first row of p"""
    slot: int
    """the first row of q"""
    drafts: np.ndarray
    """those before the first that does not count"""
    scale: np.float32
    """1 / temperature; 0: greedy"""
    q_scale: np.float32
    """1 / temperature of the draft; 0: the drafts are deterministic"""
    k0: np.uint32
    k1: np.uint32
    position: int


@njit
def random_word(k0, k1, position, stream, lane):
    """:func:`word`, compiled once."""
    return word(k0, k1, position, stream, lane)


@njit
def largest(x):
    """NaN if any element is."""
    m = MINUS_INF
    for i in range(x.shape[0]):
        m = maximum(x[i], m)
    return m


@njit
def _first_index(x, value):
    for i in range(x.shape[0]):
        if x[i] == value:
            return i
    return 0


@njit(fastmath={"reassoc", "contract"})
def _sum_exp(x, m, scale):
    s = F(0.0)
    for i in range(x.shape[0]):
        s += exp_f32((x[i] - m) * scale)
    return s


@njit(fastmath={"reassoc", "contract"})
def _residual_mass(p, p_scale, p_total, q, q_scale, q_total):
    s = F(0.0)
    for i in range(p.shape[0]):
        d = exp_f32(p[i] * p_scale - p_total) - exp_f32(q[i] * q_scale - q_total)
        s += d if d > F(0.0) else F(0.0)
    return s


@njit(fastmath={"reassoc", "contract"})
def _entropy(p, scale, total):
    s = F(0.0)
    for i in range(p.shape[0]):
        x = exp_f32(p[i] * scale - total)
        s -= x * log_f32(x + F(1e-5))
    return s


@njit
def _log_or_minus_inf(mass):
    return log_f32(mass) if mass > SMALLEST_MASS else MINUS_INF


@njit
def log_sum_exp(x, scale):
    """Of one block, of ``x * scale``; -inf for a block of nothing but -inf, NaN if any element is."""
    m = largest(x)
    if m == MINUS_INF:
        return m
    return m * scale + log_f32(_sum_exp(x, m, scale))


@njit
def combine(log_masses):
    """log-sum-exp of log masses."""
    m = largest(log_masses)
    if not np.isfinite(m):
        return m
    return m + log_f32(_sum_exp(log_masses, m, F(1.0)))


@njit
def block_of(flat, row, stride, vocab_size, b):
    start = row * stride
    return flat[start + b * VOCAB_BLOCK : start + min(vocab_size, (b + 1) * VOCAB_BLOCK)]


@njit
def block(rows, row, b):
    return block_of(rows.flat, row, rows.stride, rows.vocab_size, b)


@njit(parallel=True)
def block_statistics(flat, stride, vocab_size, scales, block_max, block_lse):
    """Pass one. ``scales[row]``: 1 / temperature; 0: greedy, whose masses nobody reads; -1: skip the row."""
    num_rows, num_blocks = block_max.shape
    for tile in prange(num_rows * num_blocks):
        row = tile // num_blocks
        b = tile - row * num_blocks
        scale = scales[row]
        if scale >= F(0.0):
            x = block_of(flat, row, stride, vocab_size, b)
            m = largest(x)
            block_max[row, b] = m
            if scale > F(0.0):
                block_lse[row, b] = m if m == MINUS_INF else m * scale + log_f32(_sum_exp(x, m, scale))


@njit
def is_valid(rows, row):
    return np.isfinite(largest(rows.maxima[row]))


@njit
def row_argmax(rows, row):
    m = largest(rows.maxima[row])
    b = _first_index(rows.maxima[row], m)
    return b * VOCAB_BLOCK + _first_index(block(rows, row, b), m)


@njit
def log_probability(rows, row, scale, token):
    """-inf for a token outside the vocabulary."""
    if token >= rows.vocab_size:
        return MINUS_INF
    return rows.flat[row * rows.stride + token] * scale - combine(rows.log_masses[row])


@njit
def _gumbel_argmax(log_weights, k0, k1, position):
    """The lane with the largest log-weight plus noise; overwrites ``log_weights``."""
    n = log_weights.shape[0]
    c0 = uint32(position & 0xFFFFFFFF)
    for i in range(min(n, HALF)):
        x0, x1 = threefry2x32(k0, k1, c0, uint32((STREAM_LANE << 24) | i))
        log_weights[i] += gumbel_f32(x0)
        if i + HALF < n:
            log_weights[i + HALF] += gumbel_f32(x1)
    return _first_index(log_weights, largest(log_weights))


@njit
def _pick_block(log_masses, k0, k1, position):
    best, choice = MINUS_INF, 0
    for b in range(log_masses.shape[0]):
        score = log_masses[b] + gumbel_f32(random_word(k0, k1, position, STREAM_BLOCK, b))
        if score > best:
            best, choice = score, b
    return choice


@njit
def draw(r, j):
    """Draw from p of row j."""
    at = r.position + j
    b = _pick_block(r.p.log_masses[r.row + j], r.k0, r.k1, at)
    return b * VOCAB_BLOCK + _gumbel_argmax(block(r.p, r.row + j, b) * r.scale, r.k0, r.k1, at)


@njit
def draw_without(r, j, excluded):
    """Draw from p of row j with one token taken out: the residual of a one-hot draft."""
    if excluded >= r.p.vocab_size:
        return draw(r, j)
    b = excluded // VOCAB_BLOCK
    rest = block(r.p, r.row + j, b).copy()
    rest[excluded - b * VOCAB_BLOCK] = MINUS_INF
    log_masses = r.p.log_masses[r.row + j].copy()
    log_masses[b] = log_sum_exp(rest, r.scale)
    if largest(log_masses) == MINUS_INF:
        return draw(r, j)
    at = r.position + j
    choice = _pick_block(log_masses, r.k0, r.k1, at)
    weights = rest if choice == b else block(r.p, r.row + j, choice)
    return choice * VOCAB_BLOCK + _gumbel_argmax(weights * r.scale, r.k0, r.k1, at)


@njit
def residual_totals(r, j, log_scale):
    """log-sum-exps of row j: that of p less the logarithm of its scale in the residual, and that of q."""
    return combine(r.p.log_masses[r.row + j]) - log_scale, combine(r.q.log_masses[r.slot + j])


@njit
def residual_mass_of(r, j, b, p_total, q_total):
    """Mass of block b in ``max(scale * p - q, 0)`` of row j, q being given."""
    x, y = block(r.p, r.row + j, b), block(r.q, r.slot + j, b)
    return _residual_mass(x, r.scale, p_total, y, r.q_scale, q_total)


@njit
def draw_residual(r, j, log_scale, masses):
    """Draw from ``norm(max(scale * p - q, 0))`` of row j, given the masses of its blocks."""
    log_masses = np.empty_like(masses)
    for b in range(masses.shape[0]):
        log_masses[b] = _log_or_minus_inf(masses[b])
    if largest(log_masses) == MINUS_INF:
        return draw(r, j)
    at = r.position + j
    b = _pick_block(log_masses, r.k0, r.k1, at)
    p_total, q_total = residual_totals(r, j, log_scale)
    x, y = block(r.p, r.row + j, b), block(r.q, r.slot + j, b)
    weights = np.empty_like(x)
    for i in range(x.shape[0]):
        weights[i] = _log_or_minus_inf(
            exp_f32(x[i] * r.scale - p_total) - exp_f32(y[i] * r.q_scale - q_total)
        )
    return b * VOCAB_BLOCK + _gumbel_argmax(weights, r.k0, r.k1, at)


@njit
def entropy_of(r, j, b):
    """What block b adds to ``-sum p log(p + 1e-5)`` of row j."""
    return _entropy(block(r.p, r.row + j, b), r.scale, combine(r.p.log_masses[r.row + j]))


@njit
def entropy_of_largest(r, j, top_k):
    """``-sum p log p`` over the k largest probabilities of row j; of a greedy request at temperature 1."""
    row, scale = r.row + j, r.scale
    num_blocks = r.p.maxima.shape[1]
    top = np.full(top_k, MINUS_INF, F)  # falling
    for b in range(num_blocks):
        if r.p.maxima[row, b] > top[top_k - 1]:
            x = block(r.p, row, b)
            for i in range(x.shape[0]):
                if x[i] > top[top_k - 1]:
                    place = top_k - 1
                    while place > 0 and top[place - 1] < x[i]:
                        top[place] = top[place - 1]
                        place -= 1
                    top[place] = x[i]
    if scale > F(0.0):
        total = combine(r.p.log_masses[row])
    else:
        scale = F(1.0)
        log_masses = np.empty(num_blocks, F)
        for b in range(num_blocks):
            log_masses[b] = log_sum_exp(block(r.p, row, b), scale)
        total = combine(log_masses)
    entropy = F(0.0)
    for i in range(top_k):
        log_p = top[i] * scale - total
        if log_p > MINUS_INF:
            entropy -= exp_f32(log_p) * log_p
    return entropy
