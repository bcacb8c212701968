"""Prompt lookup in Numba: a filter that the compiler vectorises, and a pass that is linear whatever the row is.

There is no index of a row's n-grams. One was measured: at 32768 tokens a look-up saves some 2 us of the scan's 3,
and building it costs 600 (one length of n-gram) to 6000 us (five), at 4096 tokens the scan is the faster one. A step
of the target reads thousands of bytes of K/V for each token of which the scan reads four.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange

from ascend_spec_ops.numba_math import jit_threads

#: committed tokens in a batch from which threads are worth it: below, the scan takes a quarter of a millisecond at
#: most, and on a busy machine threads wait longer for each other
PARALLEL_TOKENS = 1 << 21
#: positions that are looked at together
BLOCK = 64
#: comparisons a token of a row, beyond the filter, after which the row is one for the linear pass
PATIENCE = 4


@njit(cache=True)
def _has_candidate(tokens, first, back):
    """Whether the row's last two tokens and the one ``back`` before its last agree with some end in one block."""
    near = min(back, 1)
    last = tokens.size - 1
    token, token_before, other = tokens[last], tokens[last - near], tokens[last - back]
    ends = tokens[first : first + BLOCK]
    before = tokens[first - near : first - near + BLOCK]
    others = tokens[first - back : first - back + BLOCK]
    found = np.int32(0)
    for i in range(BLOCK):  # no way out of the loop: it becomes vector instructions
        agrees = np.int32(ends[i] == token) & np.int32(before[i] == token_before)
        found |= agrees & np.int32(others[i] == other)
    return found != 0


@njit(cache=True)
def _common(tokens, end, most):
    """How many tokens up to and including ``end`` agree with the row's suffix, at most ``most``."""
    last = tokens.size - 1
    length = 0
    while length < most and tokens[end - length] == tokens[last - length]:
        length += 1
    return length


@njit(cache=True)
def _scan(tokens, min_n, max_n, recent):
    """``(length, end)`` of the match, ``length`` below ``min_n`` where there is none, below 0 out of patience.

    Ends are tried in the order of preference, and only a longer match replaces one that was found: it agrees with the
    suffix in the last token and in the one just beyond the length to beat, which the filter asks. It also asks the
    token before the last, since a single one, such as a space, is often everywhere.
    """
    n = tokens.size
    length = min_n - 1
    best = -1
    patience = PATIENCE * n
    left = 0
    right = n - 1  # ends not tried yet: left .. right - 1
    while length < max_n:
        left = max(left, length)  # before it no longer match has room
        width = min(BLOCK, right - left)
        if width <= 0:
            break
        if recent:
            right -= width
            first = right
        else:
            first = left
            left += width
        if width == BLOCK and not _has_candidate(tokens, first, length):
            continue
        for i in range(width):
            end = first + (width - 1 - i if recent else i)
            if end < length or tokens[end] != tokens[n - 1] or tokens[end - length] != tokens[n - 1 - length]:
                continue
            common = _common(tokens, end, min(max_n, end + 1))
            patience -= common
            if common > length:
                length = common
                best = end
                if length == max_n:
                    break
        if patience < 0:
            return -1, -1
    return length, best


@njit(cache=True)
def _by_borders(tokens, max_n, recent):
    """``(length, end)`` of the longest match, at most ``max_n``: one pass, as in Knuth, Morris and Pratt's search.

    The row is read backwards, so that its suffix becomes a prefix and the matches of length ``m`` are the
    places where the prefix function is ``m``. It is capped at ``max_n``, hence ``border`` holds the prefix
    function of the last ``max_n`` tokens only. Later in the reversed row is earlier in the row.
    """
    border = np.empty(max_n, np.int32)
    border[0] = 0
    last = tokens.size - 1
    best = 0
    end = -1
    length = 0
    for i in range(1, tokens.size):
        token = tokens[last - i]
        while length > 0 and token != tokens[last - length]:
            length = border[length - 1]
        if token == tokens[last - length]:
            length += 1
        if i < max_n:
            border[i] = length
        if length > best or (length == best and not recent):
            best = length
            end = last - i + length - 1
        if length == max_n:
            length = border[length - 1]
    return best, end


@njit(cache=True)
def _draft(tokens, min_n, max_n, num_drafts, recent, vocab_size, out):
    out[:] = -1
    n = tokens.size
    max_n = min(max_n, n - 1)
    if max_n < min_n or num_drafts <= 0:
        return
    length, end = _scan(tokens, min_n, max_n, recent)
    if length < 0:
        length, end = _by_borders(tokens, max_n, recent)
    if length < min_n:
        return
    for i in range(min(num_drafts, out.size, n - 1 - end)):
        token = tokens[end + 1 + i]
        if token < 0 or token >= vocab_size:
            break
        out[i] = token


@njit(cache=True)
def _row(token_ids, stride, width, num_tokens, s):
    return token_ids[s * stride : s * stride + min(max(num_tokens[s], 0), width)]


@njit(cache=True)
def _serial(token_ids, stride, width, num_tokens, min_n, max_n, num_drafts, recent, vocab_size, out):
    for s in range(out.shape[0]):
        row = _row(token_ids, stride, width, num_tokens, s)
        _draft(row, min_n, max_n, num_drafts[s], recent, vocab_size, out[s])


@njit(parallel=True, cache=True)
def _parallel(token_ids, stride, width, num_tokens, min_n, max_n, num_drafts, recent, vocab_size, out):
    for s in prange(out.shape[0]):
        row = _row(token_ids, stride, width, num_tokens, s)
        _draft(row, min_n, max_n, num_drafts[s], recent, vocab_size, out[s])


def match_rows(
    token_ids: np.ndarray,
    num_tokens: np.ndarray,
    min_n: int,
    max_n: int,
    num_drafts: np.ndarray,
    max_drafts: int,
    match: str,
    vocab_size: int,
) -> np.ndarray:
    """The operator on arrays, for callers whose history is one already: ``[S, max_drafts]`` int32.

    Args are those of :func:`ascend_spec_ops.ngram_match`, as int32 arrays, and are not checked. ``token_ids`` is
    C-contiguous or the rows of such an array.
    """
    num_rows, width = token_ids.shape
    if token_ids.size == 0:
        return np.full((num_rows, max_drafts), -1, np.int32)
    out = np.empty((num_rows, max_drafts), np.int32)
    stride = token_ids.strides[0] // token_ids.itemsize
    if token_ids.flags.c_contiguous:
        flat = token_ids.reshape(-1)
    else:  # rows of a two-dimensional array with strides would not be vectorised
        flat = np.lib.stride_tricks.as_strided(
            token_ids, ((num_rows - 1) * stride + width,), (token_ids.itemsize,)
        )
    is_recent = match == "recent"
    args = (flat, stride, width, num_tokens, min_n, max_n, num_drafts, is_recent, vocab_size, out)
    if num_rows > 1 and num_tokens.sum() >= PARALLEL_TOKENS:
        with jit_threads():
            _parallel(*args)
    else:
        _serial(*args)
    return out


def ngram_match(
    token_ids: torch.Tensor,
    num_tokens: torch.Tensor,
    min_n: int,
    max_n: int,
    num_drafts: torch.Tensor,
    max_drafts: int,
    match: str,
    vocab_size: int,
) -> torch.Tensor:
    histories = (token_ids.numpy(), num_tokens.numpy(), min_n, max_n, num_drafts.numpy())
    return torch.from_numpy(match_rows(*histories, max_drafts, match, vocab_size))
