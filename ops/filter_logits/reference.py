"""The cuts in float64, one row and one parameter at a time: the definition of right."""

from __future__ import annotations

import math

import torch


def is_valid(row: torch.Tensor) -> bool:
    """No NaN, no +inf, at least one finite logit."""
    return bool(torch.isfinite(row.max()))


def cut_min_p(row: torch.Tensor, temperature: float, min_p: float) -> torch.Tensor:
    """``row`` with -inf for tokens less likely than ``min_p`` times the likeliest."""
    log_ratio = (row - row.max()) / temperature
    return row.masked_fill(log_ratio < min(math.log(min_p), 0.0), -math.inf) if min_p > 0 else row


def cut_top_k(row: torch.Tensor, top_k: int) -> torch.Tensor:
    """``row`` with -inf below its ``top_k``-th largest value."""
    return row.masked_fill(row < row.topk(top_k).values[-1], -math.inf) if 0 < top_k < len(row) else row


def cut_top_p(row: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    """``row`` with -inf for tokens with probability ``top_p`` or more above them."""
    if top_p >= 1:
        return row
    values, group = torch.unique(row, return_inverse=True)
    mass = torch.zeros(len(values), dtype=torch.float64).index_add_(
        0, group, torch.softmax(row / temperature, 0)
    )
    above = mass.flip(0).cumsum(0).flip(0) - mass
    return row.masked_fill((above >= top_p)[group] & (row < row.max()), -math.inf)


def filter_row(row: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """One row in float64."""
    if temperature <= 0 or not is_valid(row):
        return row
    # float64 has room for the logits over the smallest temperature, float32 has not
    row = cut_min_p(row, temperature, min_p)
    return cut_top_p(cut_top_k(row, top_k), temperature, top_p)


def filter_logits(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> None:
    """The operator."""
    parameters = zip(temperature.tolist(), top_k.tolist(), top_p.tolist(), min_p.tolist(), strict=True)
    for row, (t, k, p, m) in zip(logits, parameters, strict=True):
        kept = filter_row(row.double(), t, k, p, m)
        row.masked_fill_(kept == -math.inf, -math.inf)
