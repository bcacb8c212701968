"""What a request's parameters do to its logits, row by row as if tokens were decoded one at a time: row ``j`` of
a request sees the drafts before ``j`` and not draft ``j``.

The order is vLLM's: what the grammar and ``allowed_token_ids`` allow, bad words, the user's own processors,
min_tokens and logit_bias, penalties; then, on probabilities at the row's temperature, min-p, top-k, top-p.
"""

from __future__ import annotations

import torch

import ascend_spec_ops
from ascend_spec.types import BadWords, LogitsProcessing, StepPlan


def process_logits(logits: torch.Tensor, plan: StepPlan, token_ids: torch.Tensor) -> None:
    """
    Args:
        logits: ``[N + B, V]``, changed in place.
        token_ids: ``[S, L]`` int32, committed tokens by slot.
    """
    todo, spec = plan.processing, plan.spec
    if todo is None:
        return
    if todo.bitmask is not None:
        ascend_spec_ops.apply_token_bitmask(logits, todo.bitmask)
    if todo.bad_words is not None:
        _ban_words(logits, plan, todo, todo.bad_words, token_ids)
    for row, processor in todo.callbacks:
        logits[row] = processor(logits[row].clone())
    if todo.bias is not None:
        logits.scatter_add_(1, todo.bias.token_ids, todo.bias.values.to(logits.dtype))
    if todo.penalties is not None:
        penalties = todo.penalties
        ascend_spec_ops.apply_penalties(
            logits, token_ids, plan.slots, penalties.num_prompt_tokens, plan.sample_positions.to(torch.int32),
            spec.draft_token_ids, spec.cu_num_draft_tokens, penalties.repetition, penalties.presence,
            penalties.frequency,
        )  # fmt: skip
    if todo.cuts is not None:
        temperature = plan.temperature[todo.row_requests]
        ascend_spec_ops.filter_logits(logits, temperature, todo.cuts.top_k, todo.cuts.top_p, todo.cuts.min_p)


def _ban_words(
    logits: torch.Tensor,
    plan: StepPlan,
    todo: LogitsProcessing,
    bad_words: BadWords,
    token_ids: torch.Tensor,
) -> None:
    """-inf for the last token of each bad word whose others are the end of the output; the prompt doesn't
    count, as in vLLM."""
    owner = todo.row_requests
    words = bad_words.token_ids[owner]  # [N + B, W, L]
    before, position = _tokens_before(plan, todo, token_ids, words.shape[2] - 1)
    before = torch.where(position >= bad_words.num_prompt_tokens[owner, None], before, -2)
    matches = ((words[:, :, :-1] == before[:, None]) | (words[:, :, :-1] < 0)).all(2) & (words[:, :, -1] >= 0)
    bias = torch.zeros_like(matches, dtype=logits.dtype).masked_fill_(matches, float("-inf"))
    logits.scatter_add_(1, words[:, :, -1].clamp(min=0), bias)


def _tokens_before(
    plan: StepPlan, todo: LogitsProcessing, token_ids: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``count`` tokens before each row's own, drafts included, and where they stand: ``[N + B, count]`` int64
    each. What stands before the beginning is anything."""
    owner, device = todo.row_requests, token_ids.device
    committed = plan.sample_positions[owner, None]
    position = committed + todo.row_offsets[:, None] - torch.arange(count, 0, -1, device=device)
    tokens = token_ids[plan.slots[owner, None], position.clamp(0, token_ids.shape[1] - 1)].long()
    drafts = plan.spec.draft_token_ids
    if drafts.shape[0]:
        ends = plan.spec.cu_num_draft_tokens.long()
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])[owner, None]
        index = (starts + position - committed).clamp(0, drafts.shape[0] - 1)
        tokens = torch.where(position < committed, tokens, drafts[index].long())
    return tokens, position
