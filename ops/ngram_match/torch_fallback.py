"""Prompt lookup in whole-tensor operations, for devices without Triton: ``max_n`` passes over all of the history.

Shapes are static and nothing is read on the host, as in the kernels; memory is 9 bytes a place of the history.
"""

from __future__ import annotations

import torch


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
    num_rows, width = token_ids.shape
    if width == 0:
        return token_ids.new_full((num_rows, max_drafts), -1)
    n = num_tokens.clamp(0, width).unsqueeze(1)
    length, end = _longest(token_ids, n, max_n, match)
    slot = torch.arange(max_drafts, dtype=torch.int32, device=token_ids.device)
    count = torch.minimum(num_drafts.unsqueeze(1), n - 1 - end)
    wanted = (slot < count) & (length >= min_n)
    drafts = token_ids.gather(1, (end + 1 + slot).clamp(0, width - 1).to(torch.int64))
    fits = wanted & (drafts >= 0) & (drafts < vocab_size)
    return drafts.masked_fill(~fits.cummin(1).values, -1) if max_drafts else drafts


def _longest(
    token_ids: torch.Tensor, n: torch.Tensor, max_n: int, match: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """``[S, 1]`` int32 each: length of the longest match, at most ``max_n``, and its last position."""
    width = token_ids.shape[1]
    end = torch.arange(width, dtype=torch.int32, device=token_ids.device)
    agrees = end < n - 1
    lengths = torch.zeros_like(token_ids, memory_format=torch.contiguous_format)
    for back in range(min(max_n, width)):
        suffix = token_ids.gather(1, (n - 1 - back).clamp(min=0).to(torch.int64))
        agrees = agrees[:, 1:] if back else agrees  # the first end has no token so far back
        agrees = agrees & (token_ids[:, : width - back] == suffix)
        lengths[:, back:] += agrees
    longest = lengths.amax(1, keepdim=True)
    is_longest = lengths == longest
    if match == "recent":
        return longest, torch.where(is_longest, end, -1).amax(1, keepdim=True)
    return longest, torch.where(is_longest, end, width).amin(1, keepdim=True)
