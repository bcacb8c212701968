"""Verification on the CPU, in Numba: one streaming pass over the rows for block statistics, then per request
the accept walk and a draw that reads only the row it draws from."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange, uint32

from ascend_spec_ops.numba_math import exp_f32, jit_threads, log_f32, maximum
from ascend_spec_ops.uniforms.cpu import HALF, exponential_f32, gumbel_f32, split_seed, threefry2x32, word
from ascend_spec_ops.verify import VOCAB_BLOCK, check_arguments

F = np.float32
STREAM_ACCEPT, STREAM_BLOCK, STREAM_LANE = 0, 1, 2
MINUS_INF = F(-np.inf)
#: below this a mass is rounding noise of the subtraction p - q, and its logarithm would not be normal
SMALLEST_MASS = F(1e-37)


@njit
def _largest(x):
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
def _residual_mass(p, p_scale, p_lse, q, q_scale, q_lse):
    s = F(0.0)
    for i in range(p.shape[0]):
        d = exp_f32(p[i] * p_scale - p_lse) - exp_f32(q[i] * q_scale - q_lse)
        s += d if d > F(0.0) else F(0.0)
    return s


@njit
def _log_or_minus_inf(mass):
    return log_f32(mass) if mass > SMALLEST_MASS else MINUS_INF


@njit
def _log_sum_exp(x, scale):
    """Of one block, of ``x * scale``; -inf for a block of nothing but -inf, NaN if any element is."""
    m = _largest(x)
    if m == MINUS_INF:
        return m
    return m * scale + log_f32(_sum_exp(x, m, scale))


@njit
def _combine(block_lse):
    """log-sum-exp of log masses."""
    m = _largest(block_lse)
    if not np.isfinite(m):
        return m
    return m + log_f32(_sum_exp(block_lse, m, F(1.0)))


@njit
def _block(flat, row, stride, vocab_size, b):
    start = row * stride
    return flat[start + b * VOCAB_BLOCK : start + min(vocab_size, (b + 1) * VOCAB_BLOCK)]


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
    return _first_index(log_weights, _largest(log_weights))


@njit
def _pick_block(block_lse, k0, k1, position):
    best, choice = MINUS_INF, 0
    for b in range(block_lse.shape[0]):
        score = block_lse[b] + gumbel_f32(word(k0, k1, position, STREAM_BLOCK, b))
        if score > best:
            best, choice = score, b
    return choice


@njit
def _draw(p, row, p_stride, vocab_size, scale, block_lse, k0, k1, position):
    """Draw from softmax(row * scale), given its blocks' log masses."""
    b = _pick_block(block_lse, k0, k1, position)
    weights = _block(p, row, p_stride, vocab_size, b) * scale
    return b * VOCAB_BLOCK + _gumbel_argmax(weights, k0, k1, position)


@njit
def _draw_without(p, row, p_stride, vocab_size, scale, block_lse, excluded, k0, k1, position):
    """Draw from p with one token taken out: the residual of a one-hot draft."""
    b = excluded // VOCAB_BLOCK
    rest = _block(p, row, p_stride, vocab_size, b).copy()
    rest[excluded - b * VOCAB_BLOCK] = MINUS_INF
    mass = block_lse.copy()
    mass[b] = _log_sum_exp(rest, scale)
    if _largest(mass) == MINUS_INF:
        return _draw(p, row, p_stride, vocab_size, scale, block_lse, k0, k1, position)
    choice = _pick_block(mass, k0, k1, position)
    weights = rest if choice == b else _block(p, row, p_stride, vocab_size, choice)
    return choice * VOCAB_BLOCK + _gumbel_argmax(weights * scale, k0, k1, position)


@njit
def _draw_residual(
    p, row, p_stride, scale, block_lse, q, q_row, q_stride, q_scale, q_lse, vocab_size, k0, k1, position
):
    """Draw from norm(max(p - q, 0))."""
    p_lse = _combine(block_lse)
    mass = np.empty_like(block_lse)
    for b in range(mass.shape[0]):
        x = _block(p, row, p_stride, vocab_size, b)
        y = _block(q, q_row, q_stride, vocab_size, b)
        mass[b] = _log_or_minus_inf(_residual_mass(x, scale, p_lse, y, q_scale, q_lse))
    if _largest(mass) == MINUS_INF:
        return _draw(p, row, p_stride, vocab_size, scale, block_lse, k0, k1, position)
    b = _pick_block(mass, k0, k1, position)
    x = _block(p, row, p_stride, vocab_size, b)
    y = _block(q, q_row, q_stride, vocab_size, b)
    weights = np.empty_like(x)
    for i in range(x.shape[0]):
        weights[i] = _log_or_minus_inf(exp_f32(x[i] * scale - p_lse) - exp_f32(y[i] * q_scale - q_lse))
    return b * VOCAB_BLOCK + _gumbel_argmax(weights, k0, k1, position)


@njit(parallel=True)
def _block_statistics(flat, stride, vocab_size, scales, block_max, block_lse):
    """Pass one. ``scales[row]``: 1 / temperature; 0: greedy, whose masses nobody reads; -1: skip the row."""
    num_rows, num_blocks = block_max.shape
    for tile in prange(num_rows * num_blocks):
        row = tile // num_blocks
        b = tile - row * num_blocks
        scale = scales[row]
        if scale >= F(0.0):
            x = _block(flat, row, stride, vocab_size, b)
            m = _largest(x)
            block_max[row, b] = m
            if scale > F(0.0):
                block_lse[row, b] = m if m == MINUS_INF else m * scale + log_f32(_sum_exp(x, m, scale))


@njit
def _row_argmax(flat, row, stride, vocab_size, block_max, m):
    b = _first_index(block_max, m)
    return b * VOCAB_BLOCK + _first_index(_block(flat, row, stride, vocab_size, b), m)


@njit
def _accepts(threshold, log_p, log_q):
    return log_q > MINUS_INF and threshold > log_q - log_p


@njit
def _verify_request(
    b, start, end, p, p_stride, p_max, p_lse, drafts, scale, seed, position, q, q_stride, q_max, q_lse, q_scale,
    vocab_size, out,
):  # fmt: skip
    """The accept walk of request ``b``, then its last token."""
    k0, k1 = split_seed(seed)
    count = 0
    while True:
        row, slot = start + b + count, start + count
        m = _largest(p_max[row])
        if not np.isfinite(m):
            out[1:] = -1
            out[0] = 0
            return
        draft = drafts[slot] if slot < end else -1
        sampled = q_scale > F(0.0) and draft >= 0
        if sampled and not np.isfinite(_largest(q_max[slot])):
            draft, sampled = -1, False
        if scale == F(0.0):
            token = _row_argmax(p, row, p_stride, vocab_size, p_max[row], m)
            if token != draft:
                break
        else:
            at = position + count
            if draft < 0:
                token = _draw(p, row, p_stride, vocab_size, scale, p_lse[row], k0, k1, at)
                break
            log_p, log_q, q_total = MINUS_INF, F(0.0), F(0.0)
            if draft < vocab_size:
                log_p = p[row * p_stride + draft] * scale - _combine(p_lse[row])
            if sampled:
                q_total = _combine(q_lse[slot])
                log_q = q[slot * q_stride + draft] * q_scale - q_total if draft < vocab_size else MINUS_INF
            if not _accepts(exponential_f32(word(k0, k1, at, STREAM_ACCEPT, 0)), log_p, log_q):
                if sampled:
                    token = _draw_residual(
                        p, row, p_stride, scale, p_lse[row], q, slot, q_stride, q_scale, q_total, vocab_size, k0, k1, at
                    )  # fmt: skip
                elif draft < vocab_size:
                    token = _draw_without(p, row, p_stride, vocab_size, scale, p_lse[row], draft, k0, k1, at)
                else:
                    token = _draw(p, row, p_stride, vocab_size, scale, p_lse[row], k0, k1, at)
                break
            token = draft
        count += 1
        out[count] = token
    out[count + 1] = token
    out[0] = count + 1
    out[count + 2 :] = -1


@njit(parallel=True, cache=True)
def _verify(
    p, p_stride, vocab_size, drafts, ends, temperature, seeds, positions, q, q_stride, q_temperature, out
):  # fmt: skip
    num_requests, num_drafts = ends.shape[0], drafts.shape[0]
    num_blocks = (vocab_size + VOCAB_BLOCK - 1) // VOCAB_BLOCK
    scales = np.empty(num_requests, F)
    q_scales = np.zeros(num_requests, F)
    row_scales = np.empty(num_requests + num_drafts, F)
    q_row_scales = np.empty(num_drafts if q.shape[0] else 0, F)
    start = 0
    for b in range(num_requests):
        scales[b] = F(1.0) / temperature[b] if temperature[b] > F(0.0) else F(0.0)
        row_scales[start + b : ends[b] + b + 1] = scales[b]
        if q.shape[0]:
            # a greedy request never looks at q
            if q_temperature[b] > F(0.0) and scales[b] > F(0.0):
                q_scales[b] = F(1.0) / q_temperature[b]
            q_row_scales[start : ends[b]] = q_scales[b] if q_scales[b] > F(0.0) else F(-1.0)
        start = ends[b]

    p_max = np.empty((num_requests + num_drafts, num_blocks), F)
    p_lse = np.empty((num_requests + num_drafts, num_blocks), F)
    _block_statistics(p, p_stride, vocab_size, row_scales, p_max, p_lse)
    q_max = np.empty((q_row_scales.shape[0], num_blocks), F)
    q_lse = np.empty((q_row_scales.shape[0], num_blocks), F)
    _block_statistics(q, q_stride, vocab_size, q_row_scales, q_max, q_lse)

    for b in prange(num_requests):
        _verify_request(
            b, 0 if b == 0 else ends[b - 1], ends[b], p, p_stride, p_max, p_lse, drafts, scales[b], seeds[b],
            positions[b], q, q_stride, q_max, q_lse, q_scales[b], vocab_size, out[b],
        )  # fmt: skip


def _flat(x: torch.Tensor) -> tuple[np.ndarray, int]:
    """The rows in one flat float32 vector and the distance between them: strided rows need no copy, and the
    inner loops see contiguous memory."""
    x = x.float()
    rows, columns = x.shape
    length = (rows - 1) * x.stride(0) + columns if rows else 0
    return x.as_strided((length,), (1,)).numpy(), x.stride(0)


_NO_ROWS = np.empty(0, F)


def verify(
    logits: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    max_spec_len: int,
    draft_logits: torch.Tensor | None = None,
    draft_temperature: torch.Tensor | None = None,
) -> torch.Tensor:
    check_arguments(
        logits, draft_token_ids, cu_num_draft_tokens, temperature, seeds, positions, max_spec_len,
        draft_logits, draft_temperature,
    )  # fmt: skip
    ends = cu_num_draft_tokens.numpy()
    counts = np.diff(ends, prepend=0)
    if len(ends) and (counts.min() < 0 or counts.max() > max_spec_len or ends[-1] != len(draft_token_ids)):
        raise RuntimeError(
            f"cu_num_draft_tokens must rise by 0 to max_spec_len={max_spec_len} and end at the number of "
            f"drafts ({len(draft_token_ids)}): {ends.tolist()}"
        )
    out = torch.empty((len(seeds), max_spec_len + 2), dtype=torch.int32)
    p, p_stride = _flat(logits)
    q, q_stride, q_temperature = _NO_ROWS, 0, _NO_ROWS
    if draft_logits is not None and draft_temperature is not None and len(draft_token_ids):
        q, q_stride = _flat(draft_logits)
        q_temperature = draft_temperature.numpy()
    with jit_threads():
        _verify(
            p, p_stride, logits.shape[1], draft_token_ids.numpy(), ends,
            temperature.numpy(), seeds.numpy(), positions.numpy(), q, q_stride, q_temperature, out.numpy(),
        )  # fmt: skip
    return out
