"""Random inputs of ``verify`` over ugly shapes, and the comparison with the reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ascend_spec_ops.verify import reference

#: decisions closer than this may fall either way in float32
NEAR = 1e-4


@dataclass
class Case:
    logits: torch.Tensor
    draft_token_ids: torch.Tensor
    cu_num_draft_tokens: torch.Tensor
    temperature: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor
    max_spec_len: int
    draft_logits: torch.Tensor | None = None
    draft_temperature: torch.Tensor | None = None
    rule: str = "standard"
    rule_options: tuple[float, ...] = ()

    def arguments(self) -> tuple:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)


def rule_options(rule: str, max_spec_len: int) -> tuple[float, ...]:
    """Options under which the random cases see every branch of the rule."""
    return {
        "typical": (0.09, 0.3),
        "synthetic": tuple([1.0, 0.7, 0.8, 0.0][j % 4] for j in range(max_spec_len)),
        "fly": (1.0, 0.05, 3.0),
    }.get(rule, ())


def make_case(
    num_requests: int,
    max_spec_len: int,
    vocab_size: int,
    *,
    rule: str = "standard",
    sampled: bool = False,
    mixed: bool = True,
    placeholders: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Case:
    """``mixed``: K differs, some rows are greedy, one has deterministic drafts. Half of the drafts are the
    target's argmax, so that accepted and rejected ones both occur; ids at both edges occur."""
    g = torch.Generator().manual_seed(seed)
    counts = torch.full((num_requests,), max_spec_len)
    temperature = torch.rand(num_requests, generator=g) + 0.3
    if mixed:
        counts = torch.randint(0, max_spec_len + 1, (num_requests,), generator=g)
        temperature[torch.rand(num_requests, generator=g) < 0.3] = 0.0
    cu = counts.cumsum(0).int()
    num_drafts = int(counts.sum())
    rows = torch.arange(num_drafts) + torch.repeat_interleave(torch.arange(num_requests), counts)
    logits = (2 * torch.randn(num_drafts + num_requests, vocab_size, generator=g)).to(dtype)
    drafts = torch.randint(0, vocab_size, (num_drafts,), generator=g).int()
    edge = torch.rand(num_drafts, generator=g)
    drafts[edge < 0.1] = 0
    drafts[edge > 0.9] = vocab_size - 1
    best = torch.rand(num_drafts, generator=g) < 0.5
    drafts[best] = logits[rows[best]].float().argmax(1).int()
    if placeholders:
        drafts[torch.rand(num_drafts, generator=g) < 0.15] = -1
    case = Case(
        logits,
        drafts,
        cu,
        temperature,
        torch.randint(-(2**62), 2**62, (num_requests,), generator=g),
        torch.randint(0, 100_000, (num_requests,), generator=g),
        max_spec_len,
        rule=rule,
        rule_options=rule_options(rule, max_spec_len),
    )
    if sampled:
        noise = torch.randn(num_drafts, vocab_size, generator=g)
        case.draft_logits = (logits[rows].float() + noise).to(dtype)
        case.draft_temperature = torch.full((num_requests,), 0.8)
        if mixed and num_requests > 1:
            case.draft_temperature[0] = 0.0
    return case


def assert_equals_reference(case: Case, out: torch.Tensor) -> int:
    """Equal token for token, except for requests of which a decision was nearer than :data:`NEAR`; returns
    how many of those differ."""
    expected, margins = reference.verify_with_margins(*case.arguments())
    assert out.dtype == torch.int32
    assert out.shape == expected.shape
    near = 0
    for b, margin in enumerate(margins):
        if not torch.equal(out[b], expected[b]):
            assert margin < NEAR, (
                f"request {b}: {out[b].tolist()} for {expected[b].tolist()}, margin {margin}"
            )
            near += 1
    assert near <= 1 + len(margins) // 50
    return near
