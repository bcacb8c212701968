"""Log-probabilities of emitted tokens and of the likeliest ones in their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Logprob:
    """Of one token in one place. Names are vLLM's."""

    logprob: float
    rank: int
    """1 is the likeliest. Of tokens that tie, the emitted one has the largest rank."""


@dataclass(frozen=True)
class LogprobRows:
    """Rows of a step that log-probabilities are wanted of, and what was drawn from them."""

    logits: torch.Tensor
    """``[R, V]``"""
    token_ids: torch.Tensor
    """``[R]`` int64; -1: nothing was emitted there."""


#: by token: the emitted one and the likeliest
TokenLogprobs = dict[int, Logprob]


def read_logprobs(rows: LogprobRows, num_logprobs: Sequence[int]) -> list[TokenLogprobs]:
    """For each row, on the host: the emitted token's and those of as many of the likeliest as are wanted there.

    Computed from ``softmax(logits)``, whatever the temperature, as vLLM's ``raw_logprobs``.
    """
    logprobs = rows.logits.float().log_softmax(-1)
    emitted = rows.token_ids.clamp(min=0)[:, None]
    own = logprobs.gather(1, emitted)
    ranks = (logprobs >= own).sum(1)
    values, ids = logprobs.topk(min(max(num_logprobs), logprobs.shape[1]), dim=1)
    found = []
    for row, token in enumerate(rows.token_ids.tolist()):
        entry = {} if token < 0 else {token: Logprob(float(own[row, 0]), int(ranks[row]))}
        likeliest = zip(
            ids[row].tolist(), values[row].tolist(), range(1, num_logprobs[row] + 1), strict=False
        )
        for other, value, rank in likeliest:
            entry.setdefault(other, Logprob(value, rank))
        found.append(entry)
    return found
