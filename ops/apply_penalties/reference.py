"""The penalties in float64, one row and one token at a time: the definition of right."""

from __future__ import annotations

import torch


def penalise(
    row: torch.Tensor,
    prompt: list[int],
    output: list[int],
    repetition: float,
    presence: float,
    frequency: float,
) -> torch.Tensor:
    """One row in float64."""
    row = row.clone()
    for token in {*prompt, *output} & set(range(len(row))):
        row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
        count = output.count(token)
        row[token] -= frequency * count
        if count:
            row[token] -= presence
    return row


def visible_drafts(drafts: list[int], row: int) -> list[int]:
    """The drafts that row ``row`` of a request sees."""
    before = drafts[:row]
    return next((before[:i] for i, draft in enumerate(before) if draft < 0), before)


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
    """The operator. Copies to the host."""
    penalties = torch.stack([repetition_penalty, presence_penalty, frequency_penalty], 1).tolist()
    start = 0
    for b, end in enumerate(cu_num_draft_tokens.tolist()):
        if slots[b] >= 0:
            prompt_end = max(0, int(num_prompt_tokens[b]))
            history = token_ids[slots[b], : max(0, int(num_tokens[b]))].tolist()
            drafts = draft_token_ids[start:end].tolist()
            for j in range(len(drafts) + 1):
                row = logits[start + b + j]
                output = history[prompt_end:] + visible_drafts(drafts, j)
                row.copy_(penalise(row.double(), history[:prompt_end], output, *penalties[b]))
        start = end
