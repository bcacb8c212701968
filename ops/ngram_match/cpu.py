"""Prompt lookup in Numba: one pass over each row, as in Knuth, Morris and Pratt's string matching."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange

from ascend_spec_ops.numba_math import jit_threads

#: committed tokens in a batch from which starting threads costs less than it saves
PARALLEL_TOKENS = 16384


@njit(cache=True)
def _find(tokens, max_n, border):
    """``(length, end)`` of the longest earlier match of the row's suffix, at most ``max_n``; first of equals.

    The row is read backwards, so that its suffix becomes a prefix and the matches of length ``m`` are the
    places where the prefix function is ``m``. It is capped at ``max_n``, hence ``border`` holds the prefix
    function of the last ``max_n`` tokens only. Later in the reversed row is earlier in the row.
    """
    last = tokens.size - 1
    best = 0
    end = 0
    length = 0
    border[0] = 0
    for i in range(1, tokens.size):
        token = tokens[last - i]
        while length > 0 and token != tokens[last - length]:
            length = border[length - 1]
        if token == tokens[last - length]:
            length += 1
        if i < max_n:
            border[i] = length
        if length >= best:
            best = length
            end = last - i + length
        if length == max_n:
            length = border[length - 1]
    return best, end


@njit(cache=True)
def _draft(tokens, min_n, max_n, num_drafts, out):
    out[:] = -1
    if tokens.size <= min_n or num_drafts <= 0:
        return
    length, end = _find(tokens, max_n, np.empty(max_n, np.int32))
    if length >= min_n:
        count = min(num_drafts, out.size, tokens.size - end)
        out[:count] = tokens[end : end + count]


@njit(cache=True)
def _serial(token_ids, num_tokens, min_n, max_n, num_drafts, out):
    for s in range(out.shape[0]):
        _draft(token_ids[s, : max(num_tokens[s], 0)], min_n, max_n, num_drafts[s], out[s])


@njit(parallel=True, cache=True)
def _parallel(token_ids, num_tokens, min_n, max_n, num_drafts, out):
    for s in prange(out.shape[0]):
        _draft(token_ids[s, : max(num_tokens[s], 0)], min_n, max_n, num_drafts[s], out[s])


def ngram_match(
    token_ids: torch.Tensor,
    num_tokens: torch.Tensor,
    min_n: int,
    max_n: int,
    num_drafts: torch.Tensor,
    max_drafts: int,
) -> torch.Tensor:
    out = torch.empty((token_ids.shape[0], max_drafts), dtype=torch.int32)
    lengths = num_tokens.numpy()
    max_n = min(max_n, token_ids.shape[1] + 1)  # a huge one would only cost memory
    args = (token_ids.numpy(), lengths, min_n, max_n, num_drafts.numpy(), out.numpy())
    if lengths.size > 1 and lengths.sum() >= PARALLEL_TOKENS:
        with jit_threads():
            _parallel(*args)
    else:
        _serial(*args)
    return out
