"""The bitmask, one token at a time."""

from __future__ import annotations

import torch


def is_allowed(words: list[int], token: int) -> bool:
    """The token's bit; Python's integers shift the sign in, so that negative words need no care."""
    return token < 32 * len(words) and bool(words[token // 32] >> token % 32 & 1)


def apply_token_bitmask(logits: torch.Tensor, bitmask: torch.Tensor) -> None:
    """The operator. Copies to the host."""
    for row, words in zip(logits, bitmask.tolist(), strict=True):
        for token in range(len(row)):
            if not is_allowed(words, token):
                row[token] = float("-inf")
