"""What a request's parameters do to its logits, row by row as if tokens were decoded one at a time: row ``j`` of
a request sees the drafts before ``j`` and not draft ``j``.

The order is vLLM's: what the grammar and ``allowed_token_ids`` allow, bad words, the user's own processors,
min_tokens and logit_bias, penalties; then, on probabilities at the row's temperature, min-p, top-k, top-p.
"""

from __future__ import annotations

import torch

import ascend_spec_ops
from ascend_spec.types import BadWords, LogitsProcessing, MinTokens, StepPlan


def process_logits(logits: torch.Tensor, plan: StepPlan, token_ids: torch.Tensor) -> torch.Tensor | None:
    """
    Args:
        logits: ``[N + B, V]``, changed in place.
        token_ids: ``[S, L]`` int32, committed tokens by slot.

    Returns:
        ``[B]`` int32, how many tokens each request may be given: those before the first row, but its row 0, in which
        parameters leave nothing to draw. None: as many as there are.
    """
    todo, spec = plan.processing, plan.spec
    if todo is None:
        return None
    if todo.bitmask is not None:
        ascend_spec_ops.apply_token_bitmask(logits, todo.bitmask)
    if todo.bad_words is not None:
        _ban_words(logits, plan, todo, todo.bad_words, token_ids)
    for row, processor in todo.callbacks:
        logits[row] = processor(logits[row].clone())
    owner = todo.row_requests
    if todo.bias is not None:
        logits.scatter_add_(1, todo.bias.token_ids[owner], todo.bias.values.to(logits.dtype)[owner])
    if todo.min_tokens is not None:
        _ban_first_rows(logits, todo, todo.min_tokens)
    forbids = todo.bitmask is not None or todo.bad_words is not None or todo.callbacks
    limits = _limits(logits, plan, todo) if forbids else None
    if todo.penalties is not None:
        penalties = todo.penalties
        ascend_spec_ops.apply_penalties(
            logits, token_ids, plan.slots, penalties.num_prompt_tokens, plan.sample_positions.to(torch.int32),
            spec.draft_token_ids, spec.cu_num_draft_tokens, penalties.repetition, penalties.presence,
            penalties.frequency,
        )  # fmt: skip
    if todo.cuts is not None:
        temperature = plan.temperature[owner]
        ascend_spec_ops.filter_logits(logits, temperature, todo.cuts.top_k, todo.cuts.top_p, todo.cuts.min_p)
    return limits


def _ban_first_rows(logits: torch.Tensor, todo: LogitsProcessing, min_tokens: MinTokens) -> None:
    owner = todo.row_requests
    token_ids = min_tokens.token_ids[owner]
    banned = torch.where(todo.row_offsets < min_tokens.num_rows[owner], float("-inf"), 0.0).to(logits.dtype)
    logits.scatter_add_(1, token_ids, banned[:, None].expand(token_ids.shape))


def _limits(logits: torch.Tensor, plan: StepPlan, todo: LogitsProcessing) -> torch.Tensor:
    """See :func:`process_logits`. A row without a token would cost its request the tokens before it, so it is given
    one, which the limit keeps out. The drafts stay as they are, since to cut them by what they are would bias the
    tokens before; and no lossless rule's law of the first tokens depends on a row behind them. In row 0 there is
    nothing to be saved."""
    num_requests, most = len(plan.spec.num_draft_tokens), plan.spec.max_spec_len + 1
    empty = (logits.amax(1) == float("-inf")) & (todo.row_offsets > 0)
    logits[:, 0] = torch.where(empty, 0.0, logits[:, 0])
    limits = torch.where(empty, todo.row_offsets, most).to(torch.int32)
    own = todo.row_requests == torch.arange(num_requests, device=logits.device)[:, None]
    return torch.where(own, limits, most).amin(1)


def _ban_words(
    logits: torch.Tensor,
    plan: StepPlan,
    todo: LogitsProcessing,
    bad_words: BadWords,
    token_ids: torch.Tensor,
) -> None:
    """-inf for the last token of each bad word whose others are the end of the output; the prompt doesn't
    count, as in vLLM."""
    owner, words = todo.row_requests, bad_words.token_ids
    before, position = _tokens_before(plan, todo, token_ids, words.shape[0] - 1)
    before = torch.where(position >= bad_words.num_prompt_tokens[owner, None], before, -2).to(torch.int32)
    last = words[0, owner]  # [N + B, W]
    matches = last >= 0
    for distance in range(1, words.shape[0]):
        tokens = words[distance, owner]
        matches &= (tokens == before[:, -distance, None]) | (tokens < 0)
    bias = torch.where(matches, float("-inf"), 0.0).to(logits.dtype)
    logits.scatter_add_(1, last.clamp(min=0).long(), bias)


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
