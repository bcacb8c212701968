"""The penalties in Numba: the distinct tokens of a request once, then only these logits of each of its rows."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange

from ascend_spec_ops.numba_math import jit_threads

F = np.float32


@njit
def _add(token, times, place, distinct, counts, n):
    """Add a token to the ``n`` distinct ones; how many there are then. ``place[token]`` is where it stands."""
    if token < 0 or token >= place.shape[0]:
        return n
    i = place[token]
    if i < 0:
        place[token] = i = n
        distinct[i] = token
        counts[i] = 0
        n += 1
    counts[i] += times
    return n


@njit
def _penalise(x, distinct, counts, repetition, presence, frequency):
    """``counts``: how often each token is in the output; 0 for those of the prompt alone."""
    for i in range(distinct.shape[0]):
        value = x[distinct[i]]
        value = value / repetition if value > F(0.0) else value * repetition
        if counts[i] > 0:
            value = value - frequency * F(counts[i]) - presence
        x[distinct[i]] = value


@njit
def _penalise_request(
    flat, stride, vocab_size, first_row, history, num_prompt_tokens, drafts, repetition, presence, frequency
):
    place = np.full(vocab_size, -1, np.int32)
    distinct = np.empty(history.shape[0] + drafts.shape[0], np.int32)
    counts = np.empty_like(distinct)
    n = 0
    for i in range(history.shape[0]):
        n = _add(history[i], 1 if i >= num_prompt_tokens else 0, place, distinct, counts, n)
    ended = False
    for j in range(drafts.shape[0] + 1):
        start = (first_row + j) * stride
        x = flat[start : start + vocab_size]
        _penalise(x, distinct[:n], counts[:n], repetition, presence, frequency)
        if j < drafts.shape[0]:
            ended = ended or drafts[j] < 0
            if not ended:
                n = _add(drafts[j], 1, place, distinct, counts, n)


@njit(parallel=True, cache=True)
def _apply(
    flat, stride, vocab_size, token_ids, slots, num_prompt_tokens, num_tokens, drafts, ends, repetition, presence,
    frequency,
):  # fmt: skip
    for b in prange(ends.shape[0]):
        neutral = repetition[b] == F(1.0) and presence[b] == F(0.0) and frequency[b] == F(0.0)
        if slots[b] >= 0 and not neutral:
            start = 0 if b == 0 else ends[b - 1]
            _penalise_request(
                flat, stride, vocab_size, start + b, token_ids[slots[b], : max(num_tokens[b], 0)],
                num_prompt_tokens[b], drafts[start : ends[b]], repetition[b], presence[b], frequency[b],
            )  # fmt: skip


def apply_penalties(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    slots: torch.Tensor,
    num_prompt_tokens: torch.Tensor,
    num_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    repetition_penalty: torch.Tensor,
    presence_penalty: torch.Tensor,
    frequency_penalty: torch.Tensor,
) -> None:
    rows, columns = logits.shape
    if not rows or not columns:
        return
    ends = cu_num_draft_tokens.numpy()
    if np.diff(ends, prepend=0).min() < 0 or ends[-1] != len(draft_token_ids):
        raise RuntimeError(
            f"cu_num_draft_tokens must not fall and must end at the number of drafts ({len(draft_token_ids)}): "
            f"{ends.tolist()}"
        )
    if slots.max() >= len(token_ids):
        raise RuntimeError(f"slots must be below {len(token_ids)}, the rows of token_ids: {slots.tolist()}")
    x = logits.float()
    # one flat vector and the distance between rows: strided rows need no copy
    flat = x.as_strided(((rows - 1) * x.stride(0) + columns,), (1,)).numpy()
    with jit_threads():
        _apply(
            flat, x.stride(0), columns, token_ids.numpy(), slots.long().numpy(), num_prompt_tokens.numpy(),
            num_tokens.numpy(), draft_token_ids.numpy(), ends, repetition_penalty.numpy(),
            presence_penalty.numpy(), frequency_penalty.numpy(),
        )  # fmt: skip
    if x is not logits:
        logits.copy_(x)
