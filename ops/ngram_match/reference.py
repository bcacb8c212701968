"""Prompt lookup by brute force: every length, longest first, at every start, earliest first."""

from __future__ import annotations

import torch


def match(tokens: list[int], min_n: int, max_n: int, num_drafts: int) -> list[int]:
    """The draft that continues ``tokens``; empty where no n-gram matches."""
    n = len(tokens)
    for m in range(min(max_n, n - 1), min_n - 1, -1):
        for start in range(n - m):
            if tokens[start : start + m] == tokens[n - m :]:
                return tokens[start + m : start + m + num_drafts]
    return []


def ngram_match(
    token_ids: torch.Tensor,
    num_tokens: torch.Tensor,
    min_n: int,
    max_n: int,
    num_drafts: torch.Tensor,
    max_drafts: int,
) -> torch.Tensor:
    """The operator. Copies to the host."""
    rows = []
    for row, n, k in zip(token_ids.tolist(), num_tokens.tolist(), num_drafts.tolist(), strict=True):
        draft = match(row[: max(n, 0)], min_n, max_n, max(0, min(k, max_drafts)))
        rows.append(draft + [-1] * (max_drafts - len(draft)))
    return torch.tensor(rows, dtype=torch.int32, device=token_ids.device).reshape(len(rows), max_drafts)
