"""Verification on the CPU, in Numba: one streaming pass over the rows for block statistics, then per request the
accept walk of the rule and a draw that reads only the row it draws from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numba import njit, prange

from ascend_spec_ops.numba_math import jit_threads
from ascend_spec_ops.uniforms.cpu import split_seed
from ascend_spec_ops.verify import RULES, RULES_WITHOUT_Q, VOCAB_BLOCK, check_arguments, cpu_walks
from ascend_spec_ops.verify.cpu_draw import (
    Request,
    Rows,
    block_statistics,
    draw,
    draw_residual,
    draw_without,
    entropy_of,
    is_valid,
    log_probability,
    residual_mass_of,
    residual_totals,
    row_argmax,
)

F = np.float32
STANDARD, BLOCK, TYPICAL, SYNTHETIC, FLY, COUPLED = range(6)


class Batch(NamedTuple):
    """The requests of a step, beside their rows."""

    drafts: np.ndarray
    ends: np.ndarray
    seeds: np.ndarray
    positions: np.ndarray
    p_scales: np.ndarray
    """1 / temperature of every row of p; 0: greedy"""
    q_scales: np.ndarray
    """1 / temperature of every row of q; -1: nobody looks at the row"""


@njit
def _scales(ends, temperature, q_temperature):
    num_requests = ends.shape[0]
    num_drafts = ends[-1] if num_requests else 0
    p_scales = np.empty(num_requests + num_drafts, F)
    q_scales = np.empty(num_drafts if q_temperature.shape[0] else 0, F)
    start = 0
    for b in range(num_requests):
        scale = F(1.0) / temperature[b] if temperature[b] > F(0.0) else F(0.0)
        p_scales[start + b : ends[b] + b + 1] = scale
        if q_temperature.shape[0]:
            # a greedy request never looks at q
            looks = q_temperature[b] > F(0.0) and scale > F(0.0)
            q_scales[start : ends[b]] = F(1.0) / q_temperature[b] if looks else F(-1.0)
        start = ends[b]
    return p_scales, q_scales


@njit
def _statistics(flat, stride, vocab_size, scales):
    shape = (scales.shape[0], (vocab_size + VOCAB_BLOCK - 1) // VOCAB_BLOCK)
    rows = Rows(flat, stride, vocab_size, np.empty(shape, F), np.empty(shape, F))
    block_statistics(flat, stride, vocab_size, scales, rows.maxima, rows.log_masses)
    return rows


@njit
def _prepare(
    p, p_stride, q, q_stride, vocab_size, drafts, ends, temperature, q_temperature, seeds, positions
):
    """Rows of p and q with their statistics, and what else is known of the requests."""
    p_scales, q_scales = _scales(ends, temperature, q_temperature)
    batch = Batch(drafts, ends, seeds, positions, p_scales, q_scales)
    p_rows = _statistics(p, p_stride, vocab_size, p_scales)
    return p_rows, _statistics(q, q_stride, vocab_size, q_scales), batch


@njit
def _request(b, p, q, batch):
    slot, last = 0 if b == 0 else batch.ends[b - 1], batch.ends[b]
    scale, q_scale = batch.p_scales[slot + b], F(0.0)
    if batch.q_scales.shape[0] and slot < last:
        q_scale = max(batch.q_scales[slot], F(0.0))
    end = slot
    while end < last and batch.drafts[end] >= 0 and (q_scale == F(0.0) or is_valid(q, end)):
        end += 1
    k0, k1 = split_seed(batch.seeds[b])
    drafts = batch.drafts[slot:end]
    return Request(p, q, slot + b, slot, drafts, scale, q_scale, k0, k1, batch.positions[b])


@njit
def _last_token(r, walk, masses):
    j = walk.num_accepted
    if r.scale == F(0.0) or walk.last == cpu_walks.ARGMAX:
        return row_argmax(r.p, r.row + j)
    if walk.last == cpu_walks.FROM_P:
        return draw(r, j)
    if walk.last == cpu_walks.GIVEN:
        return walk.token
    if r.q_scale == F(0.0):
        return draw_without(r, j, r.drafts[j])
    if walk.last == cpu_walks.FROM_MEASURED_RESIDUAL:
        return draw_residual(r, j, walk.log_scale, masses[j])
    p_total, q_total = residual_totals(r, j, walk.log_scale)
    measured = np.empty(r.p.maxima.shape[1], F)
    for b in range(measured.shape[0]):
        measured[b] = residual_mass_of(r, j, b, p_total, q_total)
    return draw_residual(r, j, walk.log_scale, measured)


@njit
def _finish(r, walk, masses, out):
    if walk.last == cpu_walks.INVALID or not is_valid(r.p, r.row + walk.num_accepted):
        out[1:] = -1
        out[0] = 0
        return
    for j in range(walk.num_accepted):
        out[1 + j] = r.drafts[j]
    out[walk.num_accepted + 1] = _last_token(r, walk, masses)
    out[0] = walk.num_accepted + 1
    out[walk.num_accepted + 2 :] = -1


@njit(parallel=True)
def _standard(p, q, batch, out):
    for b in prange(out.shape[0]):
        r = _request(b, p, q, batch)
        _finish(r, cpu_walks.standard(r), p.maxima, out[b])


@njit(cache=True)
def _verify(inputs, out):
    p, q, batch = _prepare(*inputs)
    _standard(p, q, batch, out)


# The rules below are compiled apart from the standard one, which would else take twice as long to compile.


@njit(parallel=True)
def _second_pass(rule, options, p, q, batch, log_ratio, tiles):
    """What ``block`` and ``typical`` want to know of whole rows, tile by tile."""
    owner = np.empty(tiles.shape[0], np.int64)
    for b in range(batch.ends.shape[0]):
        r = _request(b, p, q, batch)
        owner[r.slot : batch.ends[b]] = b
        if rule == BLOCK and r.scale > F(0.0):
            cpu_walks.running_ratio(r, log_ratio[r.slot : batch.ends[b]])
    num_blocks = tiles.shape[1]
    for tile in prange(tiles.size):
        slot = tile // num_blocks
        r = _request(owner[slot], p, q, batch)
        j, b = slot - r.slot, tile - slot * num_blocks
        if r.scale > F(0.0) and j < r.drafts.shape[0]:
            if rule == TYPICAL:
                if log_probability(r.p, r.row + j, r.scale, r.drafts[j]) <= options[0]:
                    tiles[slot, b] = entropy_of(r, j, b)
            elif r.q_scale > F(0.0) and j > 0 and log_ratio[slot - 1] > F(-np.inf):
                p_total, q_total = residual_totals(r, j, log_ratio[slot - 1])
                tiles[slot, b] = residual_mass_of(r, j, b, p_total, q_total)


@njit
def _walk(rule, options, r, log_ratio, tiles):
    if r.scale == F(0.0) and rule != SYNTHETIC and rule != FLY:
        return cpu_walks.standard(r)
    if rule == BLOCK:
        return cpu_walks.block_rule(r, log_ratio, tiles)
    if rule == TYPICAL:
        return cpu_walks.typical(r, options[0], options[1], tiles)
    if rule == SYNTHETIC:
        return cpu_walks.synthetic(r, options)
    if rule == FLY:
        return cpu_walks.fly(r, int(options[0]), options[1], int(options[2]))
    return cpu_walks.coupled(r)


@njit(parallel=True)
def _by_rule(rule, options, p, q, batch, log_ratio, tiles, out):
    for b in prange(out.shape[0]):
        r = _request(b, p, q, batch)
        first, end = (r.slot, batch.ends[b]) if tiles.shape[0] else (0, 0)
        walk = _walk(rule, options, r, log_ratio[first:end], tiles[first:end])
        _finish(r, walk, tiles[first:end], out[b])


@njit(cache=True)
def _verify_by_rule(rule, options, inputs, out):
    p, q, batch = _prepare(*inputs)
    num_tiled = batch.drafts.shape[0] if rule in (BLOCK, TYPICAL) else 0
    log_ratio = np.empty(num_tiled, F)
    tiles = np.empty((num_tiled, p.maxima.shape[1]), F)
    if num_tiled:
        _second_pass(rule, options, p, q, batch, log_ratio, tiles)
    _by_rule(rule, options, p, q, batch, log_ratio, tiles, out)


def _flat(x: torch.Tensor) -> tuple[np.ndarray, int]:
    """The rows in one flat float32 vector and the distance between them: strided rows need no copy, and the
    inner loops see contiguous memory."""
    x = x.float()
    rows, columns = x.shape
    length = (rows - 1) * x.stride(0) + columns if rows else 0
    return x.as_strided((length,), (1,)).numpy(), x.stride(0)


_NO_ROWS = np.empty(0, F)


def _options(rule: str, options: Sequence[float]) -> np.ndarray:
    """As the walk of the rule reads them: rates as logarithms."""
    with np.errstate(divide="ignore"):
        values = np.array(options, np.float64)
        return (np.log(values) if rule in ("typical", "synthetic") else values).astype(F)


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
    rule: str = "standard",
    rule_options: Sequence[float] = (),
) -> torch.Tensor:
    check_arguments(
        logits, draft_token_ids, cu_num_draft_tokens, temperature, seeds, positions, max_spec_len,
        draft_logits, draft_temperature, rule, rule_options,
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
    if draft_logits is not None and draft_temperature is not None and rule not in RULES_WITHOUT_Q:
        q, q_stride = _flat(draft_logits)
        q_temperature = draft_temperature.numpy()
    inputs = (
        p, p_stride, q, q_stride, logits.shape[1], draft_token_ids.numpy(), ends,
        temperature.numpy(), q_temperature, seeds.numpy(), positions.numpy(),
    )  # fmt: skip
    with jit_threads():
        if rule == "standard":
            _verify(inputs, out.numpy())
        else:
            _verify_by_rule(list(RULES).index(rule), _options(rule, rule_options), inputs, out.numpy())
    return out
