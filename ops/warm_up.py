"""Compile operators before they are needed, on dummy inputs: the first request must not wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from ascend_spec_ops.ngram_match import ngram_match
from ascend_spec_ops.verify import verify


def warm_up(operators: Iterable[str], device: torch.device) -> None:
    """Run each of the named operators once on ``device``, in every form that it is compiled for.

    Raises:
        KeyError: an operator that has no dummy call here.
    """
    for operator in operators:
        DUMMY_CALLS[operator](device)


def _verify(device: torch.device) -> None:
    """One request with a draft and one without; then the same with a draft that was sampled."""
    logits = torch.zeros(3, 2, device=device)
    drafts = torch.zeros(1, dtype=torch.int32, device=device)
    counts = torch.tensor([1, 1], dtype=torch.int32, device=device)
    temperature = torch.tensor([0.0, 1.0], device=device)
    seeds, positions = torch.zeros(2, 2, dtype=torch.int64, device=device)
    verify(logits, drafts, counts, temperature, seeds, positions, 1)
    verify(logits, drafts, counts, temperature, seeds, positions, 1, logits[:1], temperature)


def _ngram_match(device: torch.device) -> None:
    history = torch.zeros(1, 4, dtype=torch.int32, device=device)
    one = torch.ones(1, dtype=torch.int32, device=device)
    ngram_match(history, 4 * one, 1, 1, one, 1)


DUMMY_CALLS: dict[str, Callable[[torch.device], None]] = {"verify": _verify, "ngram_match": _ngram_match}
