"""The accept walks in Numba, one a rule: how many drafts of a request are kept, and what follows them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from ascend_spec_ops.uniforms.cpu import exponential_f32
from ascend_spec_ops.verify.cpu_draw import (
    MINUS_INF,
    SMALLEST_MASS,
    draw,
    entropy_of_largest,
    is_valid,
    log_probability,
    random_word,
    row_argmax,
)

F = np.float32
STREAM_ACCEPT, STREAM_ROUND = 0, 5

#: where the last token comes from; that of a greedy request is the argmax whatever the walk says
FROM_P, FROM_RESIDUAL, FROM_MEASURED_RESIDUAL, ARGMAX, GIVEN, INVALID = 0, 1, 2, 3, 4, 5


class Walk(NamedTuple):
    num_accepted: int
    """drafts; the last token comes from this row"""
    last: int
    log_scale: np.float32
    """of p in the residual"""
    token: int
    """of a walk that has drawn the last token itself"""


@njit
def variate(r, position, stream, lane):
    """The standard exponential of an accept test."""
    return exponential_f32(random_word(r.k0, r.k1, position, stream, lane))


@njit
def ends(num_accepted, last):
    return Walk(num_accepted, last, F(0.0), 0)


@njit
def log_rates(r, j):
    """Log-probabilities of draft j under p and q."""
    draft = r.drafts[j]
    log_q = F(0.0)
    if r.q_scale > F(0.0):
        log_q = log_probability(r.q, r.slot + j, r.q_scale, draft)
    return log_probability(r.p, r.row + j, r.scale, draft), log_q


@njit
def accepts(threshold, log_p, log_q):
    return log_q > MINUS_INF and threshold > log_q - log_p


@njit
def accepts_draft(r, j, position, stream, lane):
    """The ordinary test: the argmax of a greedy request, else u < p / q."""
    if r.scale == F(0.0):
        return row_argmax(r.p, r.row + j) == r.drafts[j]
    log_p, log_q = log_rates(r, j)
    return accepts(variate(r, position, stream, lane), log_p, log_q)


@njit
def standard(r):
    for j in range(r.drafts.shape[0]):
        if not is_valid(r.p, r.row + j):
            return ends(j, INVALID)
        if not accepts_draft(r, j, r.position + j, STREAM_ACCEPT, 0):
            return ends(j, FROM_RESIDUAL)
    return ends(r.drafts.shape[0], FROM_P)


@njit
def running_ratio(r, log_ratio):
    """``log p_i`` for i from 1 on; -inf from a draft of no probability on, and NaN from a row that is not valid."""
    log_p_i = F(0.0)
    for j in range(r.drafts.shape[0]):
        if log_p_i > MINUS_INF:
            if is_valid(r.p, r.row + j):
                log_p, log_q = log_rates(r, j)
                possible = log_p > MINUS_INF and log_q > MINUS_INF
                log_p_i = min(F(0.0), log_p_i + log_p - log_q) if possible else MINUS_INF
            else:
                log_p_i = F(np.nan)
        log_ratio[j] = log_p_i


@njit
def log_block_rate(log_p_i, mass):
    """``log h_i``, with ``h_i = mass / (mass + 1 - p_i)`` and 0 / 0 = 1."""
    rest = -np.expm1(log_p_i)
    if rest == F(0.0):
        return F(0.0)
    return -np.log1p(rest / mass) if mass > SMALLEST_MASS else MINUS_INF


@njit
def block_rule(r, log_ratio, masses):
    """``masses[j]``: of the blocks of ``max(p_j p - q, 0)`` over row j, where q is given."""
    n = r.drafts.shape[0]
    kept = ends(0, FROM_RESIDUAL if n else FROM_P)
    for i in range(1, n + 1):
        log_p_i = log_ratio[i - 1]
        if np.isnan(log_p_i):
            return ends(0, INVALID)
        if log_p_i == MINUS_INF:
            break
        log_h = log_p_i
        if i < n:
            if not is_valid(r.p, r.row + i):
                return ends(0, INVALID)
            if r.q_scale > F(0.0):
                mass = masses[i].sum()
            else:
                mass = -np.exp(log_p_i) * np.expm1(log_probability(r.p, r.row + i, r.scale, r.drafts[i]))
            log_h = log_block_rate(log_p_i, mass)
        if accepts(variate(r, r.position, STREAM_ROUND, i - 1), log_h, F(0.0)):
            kept = Walk(i, FROM_MEASURED_RESIDUAL if i < n else FROM_P, log_p_i, 0)
    return kept


@njit
def typical(r, log_epsilon, log_delta, entropies):
    """``entropies[j]``: of the blocks of row j, where the draft is not likelier than epsilon."""
    for j in range(r.drafts.shape[0]):
        if not is_valid(r.p, r.row + j):
            return ends(j, INVALID)
        log_p = log_probability(r.p, r.row + j, r.scale, r.drafts[j])
        if not (log_p > log_epsilon or log_p > log_delta - entropies[j].sum()):
            return ends(j, ARGMAX)
    return ends(r.drafts.shape[0], FROM_P)


@njit
def synthetic(r, log_rates_given):
    for j in range(r.drafts.shape[0]):
        if not is_valid(r.p, r.row + j):
            return ends(j, INVALID)
        threshold = variate(r, r.position + j, STREAM_ACCEPT, 0)
        if not is_possible(r, j) or not accepts(threshold, log_rates_given[j], F(0.0)):
            return ends(j, FROM_RESIDUAL)
    return ends(r.drafts.shape[0], FROM_P)


@njit
def fly(r, window, entropy_threshold, top_k):
    n, deferred = r.drafts.shape[0], -1
    for j in range(n):
        if not is_valid(r.p, r.row + j):
            return ends(0, INVALID)
        if accepts_draft(r, j, r.position, STREAM_ROUND, j):
            if deferred >= 0 and j == deferred + window:
                deferred = -1
        elif deferred >= 0:
            return ends(deferred, FROM_RESIDUAL)
        elif j + window < n and is_possible(r, j) and entropy_of_largest(r, j, top_k) >= entropy_threshold:
            deferred = j
        else:
            return ends(j, FROM_RESIDUAL)
    return ends(n, FROM_P)


@njit
def is_possible(r, j):
    """Whether draft j has probability under p and q; greedy requests too have a p here."""
    draft = r.drafts[j]
    if draft >= r.p.vocab_size or r.p.flat[(r.row + j) * r.p.stride + draft] == MINUS_INF:
        return False
    return r.q_scale == F(0.0) or r.q.flat[(r.slot + j) * r.q.stride + draft] > MINUS_INF


@njit
def coupled(r):
    for j in range(r.drafts.shape[0]):
        if not is_valid(r.p, r.row + j):
            return ends(j, INVALID)
        token = draw(r, j)
        if token != r.drafts[j]:
            return Walk(j, GIVEN, F(0.0), token)
    return ends(r.drafts.shape[0], FROM_P)
