"""Compile operators before they are needed, on dummy inputs: the first request must not wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch

from ascend_spec_ops.apply_penalties import apply_penalties
from ascend_spec_ops.apply_token_bitmask import apply_token_bitmask
from ascend_spec_ops.filter_logits import filter_logits
from ascend_spec_ops.ngram_match import ngram_match
from ascend_spec_ops.verify import RULES, verify


def warm_up(operators: Iterable[str], device: torch.device) -> None:
    """Run each of the named operators once on ``device``, in every form that it is compiled for.

    Raises:
        KeyError: an operator that has no dummy call here; ``verify`` has one for each rule.
    """
    for operator in operators:
        DUMMY_CALLS[operator](device)


def _verify(rule: str, device: torch.device) -> None:
    """One request with a draft and one without; then the same with a draft that was sampled."""
    logits = torch.zeros(3, 2, device=device)
    drafts = torch.zeros(1, dtype=torch.int32, device=device)
    counts = torch.tensor([1, 1], dtype=torch.int32, device=device)
    temperature = torch.tensor([0.0, 1.0], device=device)
    seeds, positions = torch.zeros(2, 2, dtype=torch.int64, device=device)
    options = [1.0] * len(RULES[rule])
    for q, q_temperature in ((None, None), (logits[:1], temperature)):
        verify(logits, drafts, counts, temperature, seeds, positions, 1, q, q_temperature, rule, options)


def _ngram_match(device: torch.device) -> None:
    history = torch.zeros(1, 4, dtype=torch.int32, device=device)
    one = torch.ones(1, dtype=torch.int32, device=device)
    ngram_match(history, 4 * one, 1, 1, one, 1)


def _filter_logits(device: torch.device) -> None:
    """In float32; on the CPU other logits are widened, elsewhere they compile when they come."""
    top_k = torch.ones(1, dtype=torch.int32, device=device)
    half = torch.full((1,), 0.5, device=device)
    filter_logits(torch.zeros(1, 2, device=device), half, top_k, half, half)


def _apply_penalties(device: torch.device) -> None:
    one = torch.ones(1, dtype=torch.int32, device=device)
    penalty = torch.ones(1, device=device)
    slots = torch.zeros(1, dtype=torch.int64, device=device)
    logits = torch.zeros(2, 2, device=device)
    apply_penalties(logits, one.view(1, 1), slots, one, one, one, one, penalty, penalty, penalty)


def _apply_token_bitmask(device: torch.device) -> None:
    """On the CPU compiled by the size of a logit."""
    bitmask = torch.ones(1, 1, dtype=torch.int32, device=device)
    for dtype in (torch.float32, torch.bfloat16):
        apply_token_bitmask(torch.zeros(1, 2, dtype=dtype, device=device), bitmask)


DUMMY_CALLS: dict[str, Callable[[torch.device], None]] = {
    **{f"verify:{rule}": partial(_verify, rule) for rule in RULES},
    "ngram_match": _ngram_match,
    "filter_logits": _filter_logits,
    "apply_penalties": _apply_penalties,
    "apply_token_bitmask": _apply_token_bitmask,
}
