"""Suffix decoding in Numba: from where a context's last tokens are in the tree, to the best continuation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, prange

from ascend_spec_ops.suffix_match.cpu_nodes import (
    AT,
    CHILD,
    DEPTH,
    LENGTH,
    MAX_DEPTH,
    NEXT,
    NUM_INSIDE,
    NUM_TOKENS,
    REF,
    ROOT,
    TOTAL,
    best_child,
    comes_before,
    find,
    jit,
    nodes_of,
    num_shorter,
    open_tree,
    sequences_of,
    state_of,
    suffixes_of,
    tokens_of,
)
from ascend_spec_ops.suffix_match.cpu_tree import standing_suffix

NOWHERE = np.int32(-1)


class Limits(NamedTuple):
    num_drafts: int
    factor: float
    offset: float
    min_prob: float
    tree: bool


class Candidate(NamedTuple):
    """Of one request."""

    tokens: np.ndarray
    """``[K]`` int32; -1 after the last."""
    parents: np.ndarray
    """``[K]`` int32"""
    probs: np.ndarray
    """``[K]`` float64"""
    score: np.ndarray
    """``[1]`` float64"""
    match_len: np.ndarray
    """``[1]`` int32"""


class Work(NamedTuple):
    at: np.ndarray
    counts: np.ndarray
    candidate: Candidate


@jit
def _count(f, v, length):
    """How often the substring occurs that ends in the edge of ``v`` after ``length`` tokens."""
    if nodes_of(f)[v, NUM_INSIDE] == 0:
        return nodes_of(f)[v, TOTAL]
    return nodes_of(f)[v, TOTAL] - num_shorter(f, v, length)


@jit
def _continues(f, v, length):
    if length == nodes_of(f)[v, DEPTH]:
        return nodes_of(f)[v, CHILD] >= 0
    return suffixes_of(f)[nodes_of(f)[v, REF], LENGTH] > length


@jit
def _locate(f, context, begin):
    """The node in whose edge ``context[begin:]`` ends; NOWHERE: it does not occur."""
    v, length = np.int32(ROOT), 0
    while begin + length < context.size:
        token = context[begin + length]
        if length == nodes_of(f)[v, DEPTH]:
            v = find(f, v, token)
            if v < 0:
                return NOWHERE
        else:
            ref = nodes_of(f)[v, REF]
            if suffixes_of(f)[ref, LENGTH] <= length or tokens_of(f)[ref + length] != token:
                return NOWHERE
        length += 1
    return v


@jit
def _locate_all(f, sequence, context, at, counts):
    """Node and count of the context's last 1, 2, .. tokens; returns how many of them are followed by something."""
    own = sequences_of(f)[sequence, NUM_TOKENS] if sequence >= 0 else 0
    longest = min(context.size, state_of(f)[MAX_DEPTH]) - 1
    for length in range(1, longest + 1):
        if length <= own:
            v = suffixes_of(f)[standing_suffix(f, sequence, length), AT]
        else:
            v = _locate(f, context, context.size - length)
        if v < 0 or not _continues(f, v, length):
            return length - 1
        at[length] = v
        counts[length] = _count(f, v, length)
    return max(longest, 0)


@jit
def _token(f, v, length):
    """The last of the first ``length`` tokens of node ``v``."""
    return tokens_of(f)[nodes_of(f)[v, REF] + length - 1]


@jit
def _path(f, v, length, budget, min_prob, candidate):
    """The most frequent continuation; returns its length and score."""
    count = _count(f, v, length)
    n, score = 0, 0.0
    while n < budget and _continues(f, v, length):
        if length == nodes_of(f)[v, DEPTH]:
            v = best_child(f, v)
        length += 1
        prob = _count(f, v, length) / count
        token = _token(f, v, length)
        if prob < min_prob or token < 0:
            break
        candidate.tokens[n], candidate.parents[n], candidate.probs[n] = token, n - 1, prob
        score += prob
        n += 1
    return n, score


@jit
def _copy(frontier, origin, place):
    for column in range(4):
        frontier[place, column] = frontier[origin, column]


@jit
def _insert(f, frontier, size, room, item):
    """Into the list of what may come next, of which ``room`` are kept: the frequent first, siblings in their order,
    else what came earlier. Items are node, length, count, parent."""
    i = size
    while i > 0:
        other = frontier[i - 1]
        siblings = other[3] == item[3] and comes_before(f, item[0], other[0])
        if item[2] < other[2] or (item[2] == other[2] and not siblings):
            break
        i -= 1
    if i >= room:
        return size
    size = min(size + 1, room)
    for j in range(size - 1, i, -1):
        _copy(frontier, j - 1, j)
    frontier[i, 0], frontier[i, 1], frontier[i, 2], frontier[i, 3] = item
    return size


@jit
def _expand(f, v, length, parent, frontier, size, room):
    """What follows the first ``length`` tokens of node ``v`` goes into the frontier; ids below 0 do not."""
    if length < nodes_of(f)[v, DEPTH]:
        if _continues(f, v, length) and _token(f, v, length + 1) >= 0:
            size = _insert(f, frontier, size, room, (v, length + 1, _count(f, v, length + 1), parent))
        return size
    c = nodes_of(f)[v, CHILD]
    while c >= 0:
        if _token(f, c, length + 1) >= 0:
            size = _insert(f, frontier, size, room, (c, length + 1, nodes_of(f)[c, TOTAL], parent))
        c = nodes_of(f)[c, NEXT]
    return size


@njit(cache=True)
def _tree(f, v, length, budget, min_prob, candidate):
    """The most frequent continuations, best first; returns how many and their score."""
    count = _count(f, v, length)
    frontier = np.empty((max(budget, 1), 4), np.int64)
    size = _expand(f, v, length, -1, frontier, 0, budget)
    n, score = 0, 0.0
    while n < budget and size > 0:
        u, reached = frontier[0, 0], frontier[0, 1]
        prob = frontier[0, 2] / count
        if prob < min_prob:
            break
        candidate.tokens[n], candidate.parents[n], candidate.probs[n] = (
            _token(f, u, reached),
            frontier[0, 3],
            prob,
        )
        score += prob
        n += 1
        size -= 1
        for j in range(size):
            _copy(frontier, j + 1, j)
        size = _expand(f, u, reached, n - 1, frontier, min(size, budget - n), budget - n)
    return n, score


@jit
def _reach(f, length, limits):
    """How many drafts a match of this length may have."""
    allowed = np.floor(limits.factor * length + limits.offset + 1e-6)
    if not limits.tree:  # a path ends where the tree does
        allowed = min(allowed, state_of(f)[MAX_DEPTH] - length)
    return int(max(0.0, min(allowed, limits.num_drafts)))


@njit(cache=True)
def _improve(f, sequence, context, limits, work, best):
    """Better ``best`` by the candidates of one tree: of equal scores the longest match, and what was there before
    the call. Returns whether it did.

    Match lengths of the same count end at the same places, and are continued alike, as far as the depth of the tree
    lets each look: of those one path is followed, the one that may go farthest.
    """
    longest = _locate_all(f, sequence, context, work.at, work.counts)
    other = work.candidate
    score_to_beat, improved = best.score[0], False
    first = 1
    while first <= longest:
        last = first
        while not limits.tree and last < longest and work.counts[last + 1] == work.counts[first]:
            last += 1
        match = first
        for length in range(first, last + 1):
            if _reach(f, length, limits) >= _reach(f, match, limits):
                match = length
        reach = _reach(f, match, limits)
        if limits.tree:
            n, score = _tree(f, work.at[match], match, reach, limits.min_prob, other)
        else:
            n, score = _path(f, work.at[match], match, reach, limits.min_prob, other)
        if n > 0 and score >= best.score[0] and score > score_to_beat:
            for length in range(match + 1, last + 1):
                if _reach(f, length, limits) >= n:
                    match = length
            best.tokens[:n], best.parents[:n], best.probs[:n] = (
                other.tokens[:n],
                other.parents[:n],
                other.probs[:n],
            )
            best.tokens[n:] = -1
            best.score[0], best.match_len[0] = score, match
            improved = True
        first = last + 1
    return improved


@njit(cache=True)
def _match_rows(
    first, last, addresses, trees, shared, sequences, history, num_tokens, num_drafts, limits, out
):
    """``out`` is integers ``[B, 2 K + 1]``, tokens, parents and length of the match, and floats ``[B, K + 1]``,
    probabilities and score."""
    ints, floats = out
    width = limits.num_drafts
    depth = _deepest(first, last, addresses, trees, shared)
    room = max(1, width)
    other = Candidate(
        np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room), np.zeros(1), np.zeros(1, np.int32)
    )
    work = Work(np.empty(depth + 1, np.int32), np.empty(depth + 1, np.int32), other)
    for i in range(first, last):
        best = Candidate(
            ints[i, :width],
            ints[i, width : 2 * width],
            floats[i, :width],
            floats[i, width:],
            ints[i, 2 * width :],
        )
        best.tokens[:] = -1
        best.score[0], best.match_len[0] = 0.0, 0
        n = min(num_tokens[i], history.shape[1])
        most = min(num_drafts[i], width)
        if n < 2 or most < 1:
            continue
        context = history[i, max(0, n - depth) : n]
        mine = Limits(np.int64(most), limits.factor, limits.offset, limits.min_prob, limits.tree)
        if trees[i] >= 0:
            _improve(open_tree(addresses[trees[i]]), 0, context, mine, work, best)
        if shared != 0:
            _improve(open_tree(shared), sequences[i], context, mine, work, best)


@jit
def _deepest(first, last, addresses, trees, shared):
    depth = state_of(open_tree(shared))[MAX_DEPTH] if shared != 0 else 0
    for i in range(first, last):
        if trees[i] >= 0:
            depth = max(depth, state_of(open_tree(addresses[trees[i]]))[MAX_DEPTH])
    return depth


@njit(cache=True)
def match_serial(
    addresses, trees, shared, sequences, history, num_tokens, num_drafts,
    max_drafts, factor, offset, min_prob, tree, ints, floats,
):  # fmt: skip
    limits = Limits(max_drafts, factor, offset, min_prob, tree)
    _match_rows(
        0,
        trees.size,
        addresses,
        trees,
        shared,
        sequences,
        history,
        num_tokens,
        num_drafts,
        limits,
        (ints, floats),
    )


@njit(parallel=True, cache=True)
def match_parallel(
    addresses, trees, shared, sequences, history, num_tokens, num_drafts,
    max_drafts, factor, offset, min_prob, tree, ints, floats, chunk,
):  # fmt: skip
    rows = trees.size
    for c in prange((rows + chunk - 1) // chunk):
        first = c * chunk
        last = min(rows, first + chunk)
        limits = Limits(max_drafts, factor, offset, min_prob, tree)
        _match_rows(
            first,
            last,
            addresses,
            trees,
            shared,
            sequences,
            history,
            num_tokens,
            num_drafts,
            limits,
            (ints, floats),
        )
