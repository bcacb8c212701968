"""Prompt lookup by brute force: every length, longest first, at every start in the order of preference."""

from __future__ import annotations

import torch


def draft(
    tokens: list[int],
    min_n: int,
    max_n: int,
    num_drafts: int,
    match: str = "earliest",
    vocab_size: int = 2**31 - 1,
) -> list[int]:
    """The draft that continues ``tokens``; empty where no n-gram matches."""
    n = len(tokens)
    for m in range(min(max_n, n - 1), min_n - 1, -1):
        starts = range(n - m)
        for start in reversed(starts) if match == "recent" else starts:
            if tokens[start : start + m] == tokens[n - m :]:
                found = tokens[start + m : start + m + num_drafts]
                unusable = [i for i, token in enumerate(found) if not 0 <= token < vocab_size]
                return found[: unusable[0]] if unusable else found
    return []


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
    """The operator. Copies to the host."""
    rows = []
    for row, n, k in zip(token_ids.tolist(), num_tokens.tolist(), num_drafts.tolist(), strict=True):
        found = draft(row[: max(n, 0)], min_n, max_n, max(0, min(k, max_drafts)), match, vocab_size)
        rows.append(found + [-1] * (max_drafts - len(found)))
    return torch.tensor(rows, dtype=torch.int32, device=token_ids.device).reshape(len(rows), max_drafts)
