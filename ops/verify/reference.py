"""Verification in float64, one request at a time: the definition of right."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ascend_spec_ops.verify import RULES_WITHOUT_Q
from ascend_spec_ops.verify.reference_draw import Outcome, argmax, draw, is_valid, residual
from ascend_spec_ops.verify.reference_rules import WALKS, Last, Request


def verify_one(
    logits: torch.Tensor,
    drafts: list[int],
    temperature: float,
    seed: int,
    position: int,
    draft_logits: torch.Tensor | None = None,
    draft_temperature: float = 0.0,
    rule: str = "standard",
    rule_options: Sequence[float] = (),
) -> Outcome:
    """One request: ``logits`` ``[len(drafts) + 1, V]`` float64; no tokens if a deciding row is not valid."""
    outcome = Outcome()
    if temperature <= 0 or draft_temperature <= 0 or rule in RULES_WITHOUT_Q:
        draft_logits = None
    counted = 0
    while counted < len(drafts) and drafts[counted] >= 0:
        if draft_logits is not None and not is_valid(draft_logits[counted]):
            break
        counted += 1
    request = Request(
        logits, drafts[:counted], temperature, seed, position, draft_logits, draft_temperature, outcome
    )
    walk = WALKS[rule](request, *rule_options)
    if walk.last == Last.NOTHING or not request.is_valid(walk.count):
        return Outcome()
    outcome.tokens = [*drafts[: walk.count], _last_token(request, walk.count, walk.last, walk.log_scale)]
    return outcome


def _last_token(request: Request, row: int, last: Last, log_scale: float) -> int:
    if request.temperature <= 0 or last == Last.ARGMAX:
        return argmax(request.rows[row])
    weights = request.log_p(row)
    if last == Last.RESIDUAL:
        weights = residual(weights, request.log_q(row), request.drafts[row], log_scale)
    return draw(weights, request.seed, request.position + row, request.outcome)


def verify_with_margins(
    logits, draft_token_ids, cu_num_draft_tokens, temperature, seeds, positions, max_spec_len,
    draft_logits=None, draft_temperature=None, rule="standard", rule_options=(),
) -> tuple[torch.Tensor, list[float]]:  # fmt: skip
    """The operator's result, and for each request the margin of its closest decision."""
    ends = cu_num_draft_tokens.tolist()
    out = torch.full((len(ends), max_spec_len + 2), -1, dtype=torch.int32)
    margins = []
    for b, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        outcome = verify_one(
            logits[start + b : end + b + 1].double(),
            draft_token_ids[start:end].tolist(),
            float(temperature[b]),
            int(seeds[b]),
            int(positions[b]),
            None if draft_logits is None else draft_logits[start:end].double(),
            0.0 if draft_temperature is None else float(draft_temperature[b]),
            rule,
            rule_options,
        )
        out[b, 0] = len(outcome.tokens)
        out[b, 1 : 1 + len(outcome.tokens)] = torch.tensor(outcome.tokens, dtype=torch.int32)
        margins.append(outcome.margin)
    return out, margins


def verify(*args, **kwargs) -> torch.Tensor:
    """The operator."""
    return verify_with_margins(*args, **kwargs)[0]
