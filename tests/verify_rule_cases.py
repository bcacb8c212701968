"""Inputs of ``verify`` under which the walks of all rules stop everywhere: few tokens, drafts drawn from q."""

from __future__ import annotations

import torch
from verify_cases import Case, make_case

#: the tokens that have probability: in both blocks and at their edges, and some that share a Threefry call
IDS = (0, 5, 2047, 2048, 2053, 4095, 4096, 4100, 4150, 4199)
VOCAB_SIZE = 4200


def peaked_case(rule: str, num_requests: int, max_spec_len: int, *, sampled: bool, seed: int = 0) -> Case:
    """Ten tokens have probability, the drafts are drawn from q (deterministic ones: from p), and a few slots are
    empty, one id is outside the vocabulary."""
    case = make_case(
        num_requests, max_spec_len, VOCAB_SIZE, rule=rule, sampled=sampled, mixed=False, seed=seed
    )
    g = torch.Generator().manual_seed(seed)
    nowhere = torch.ones(VOCAB_SIZE, dtype=torch.bool)
    nowhere[list(IDS)] = False
    case.logits[:, nowhere] = -torch.inf
    case.temperature[:: max(num_requests, 6) // 6 + 1] = 0.0
    rows = torch.arange(num_requests * max_spec_len)
    q = case.logits[rows + rows // max(max_spec_len, 1)]
    if case.draft_logits is not None and case.draft_temperature is not None:
        case.draft_logits[:, nowhere] = -torch.inf
        case.draft_temperature[1::5] = 0.0
        q = case.draft_logits / 0.8
    drafts = torch.multinomial(q.softmax(1), 1, generator=g)[:, 0].int()
    greedy = torch.rand(len(rows), generator=g) < 0.4
    drafts[greedy] = q[greedy].argmax(1).int()
    if len(drafts) > 12:
        drafts[torch.rand(len(drafts), generator=g) < 0.05] = -1
        drafts[9] = VOCAB_SIZE
    case.draft_token_ids = drafts
    return case
