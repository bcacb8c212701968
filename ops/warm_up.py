"""Compile operators before they are needed, on dummy inputs: the first request must not wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from ascend_spec_ops.apply_penalties import apply_penalties
from ascend_spec_ops.apply_token_bitmask import apply_token_bitmask
from ascend_spec_ops.draft_inputs import draft_inputs
from ascend_spec_ops.filter_logits import filter_logits
from ascend_spec_ops.ngram_match import MATCHES, ngram_match
from ascend_spec_ops.suffix_match import (
    PARALLEL_REQUESTS,
    PARALLEL_TOKENS,
    SuffixForest,
    SuffixTree,
    suffix_extend,
    suffix_match,
)
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
    """With either choice among matches, which are kernels of their own. On the CPU also as many tokens as are spread
    over threads: all alike, so that the first match ends the search."""
    one = torch.ones(2, dtype=torch.int32, device=device)
    lengths = [4]
    if device.type == "cpu":
        from ascend_spec_ops.ngram_match.cpu import PARALLEL_TOKENS

        lengths.append(PARALLEL_TOKENS // 2)
    for length, match in product(lengths, MATCHES):
        history = torch.zeros(2, length, dtype=torch.int32, device=device)
        ngram_match(history, length * one, 1, 1, one, 1, match)


def _suffix_match(device: torch.device) -> None:
    """On the CPU, whatever the device: one request through its life, with few tokens and with enough for threads."""
    tree, forest = SuffixTree(max_depth=2), SuffixForest(max_depth=2)
    for size in (1, PARALLEL_REQUESTS):
        requests = np.ones(size, np.int32)
        trees = np.array([forest.plant() for _ in range(size)], np.int32)
        sequences = np.array([tree.start() for _ in range(size)], np.int32)
        text = np.ones((size, 2 if size == 1 else -(-PARALLEL_TOKENS // size)), np.int32)
        lengths = requests * text.shape[1]
        trees_of: dict[str, Any] = {
            "local": forest,
            "local_trees": trees,
            "shared": tree,
            "shared_sequences": sequences,
        }
        suffix_extend(text, 0 * lengths, lengths, **trees_of, shared_begins=0 * lengths)
        forest.ends_as(trees, text, lengths)
        suffix_match(text, lengths, requests, 1, **trees_of)
    tree.extend(sequences, text, 0 * lengths, lengths)
    tree.token_ids(0)
    tree.end(0)
    tree.remove(0)


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


def _draft_inputs(device: torch.device) -> None:
    one, none = (torch.ones(n, dtype=torch.int32, device=device) for n in (1, 0))
    draft_inputs(one, none, 0 * one, one, one.view(1, 1), 1, 1)


DUMMY_CALLS: dict[str, Callable[[torch.device], None]] = {
    **{f"verify:{rule}": partial(_verify, rule) for rule in RULES},
    "ngram_match": _ngram_match,
    "suffix_match": _suffix_match,
    "draft_inputs": _draft_inputs,
    "filter_logits": _filter_logits,
    "apply_penalties": _apply_penalties,
    "apply_token_bitmask": _apply_token_bitmask,
}
