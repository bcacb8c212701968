"""Prompt lookup: what followed the last n-gram of a request when it occurred before.

Source: the n-gram drafters of vLLM (V1 on the CPU: the earliest match; V2: the most recent one), after "Prompt Lookup
Decoding" (A. Saxena, 2023). The longest match comes first in both; it may overlap the suffix it matches.
"""

from functools import cache
from importlib.util import find_spec

import torch

from ascend_spec_ops import selection
from ascend_spec_ops.selection import Implementation

MATCHES = ("earliest", "recent")
#: as ``vocab_size``: any id that is not negative, and below 2**31 - 128
NO_BOUND = 2**31 - 1


def ngram_match(
    token_ids: torch.Tensor,
    num_tokens: torch.Tensor,
    min_n: int,
    max_n: int,
    num_drafts: torch.Tensor,
    max_drafts: int,
    match: str = "earliest",
    vocab_size: int = NO_BOUND,
) -> torch.Tensor:
    """Draft tokens by looking the end of each row up in the row itself.

    With ``t = token_ids[s, :n]``, ``n = num_tokens[s]``: take the largest ``m`` in ``min_n .. max_n`` for
    which the last ``m`` tokens also start at some ``i < n - m``, and the smallest such ``i`` ("earliest") or the
    largest ("recent"). The draft is ``t[i + m : i + m + num_drafts[s]]``. It may run into the suffix, and ends
    where the row ends or before an id that is no token, so it may be shorter than asked for, and is not padded
    with tokens; it is empty where nothing matches (always so if ``n <= min_n``).

    Args:
        token_ids: ``[S, L]`` int32, rows contiguous, ``L`` below 2**24; anything from ``num_tokens`` on.
        num_tokens: ``[S]`` int32, in tokens; more than ``L`` counts as ``L``.
        min_n: shortest n-gram, in tokens, at least 1.
        max_n: longest n-gram, in tokens, at least ``min_n``.
        num_drafts: ``[S]`` int32, in tokens; below 0 counts as 0, above ``max_drafts`` as ``max_drafts``.
        max_drafts: width of the result, at least 0.
        match: "earliest" or "recent", of the longest matches.
        vocab_size: ids from it on are matched like others and never drafted, nor are those below 0; 1 to 2**24,
            or left out: no bound.

    Returns:
        ``[S, max_drafts]`` int32; -1 in the slots after a row's drafts.

    Raises:
        ValueError: ``min_n``, ``max_n``, ``max_drafts``, ``match`` or ``vocab_size`` out of range.
        RuntimeError: wrong shapes, dtypes or strides.
    """
    _check(token_ids, num_tokens, min_n, max_n, num_drafts, max_drafts, match, vocab_size)
    return torch.ops.ascend_spec.ngram_match(
        token_ids, num_tokens, min_n, max_n, num_drafts, max_drafts, match, vocab_size
    )


def _check(
    token_ids: torch.Tensor,
    num_tokens: torch.Tensor,
    min_n: int,
    max_n: int,
    num_drafts: torch.Tensor,
    max_drafts: int,
    match: str,
    vocab_size: int,
) -> None:
    torch._check_value(
        1 <= min_n <= max_n,
        lambda: f"ngram_match: min_n={min_n}, max_n={max_n}; choose 1 <= min_n <= max_n",
    )
    torch._check_value(max_drafts >= 0, lambda: f"ngram_match: max_drafts={max_drafts}; choose 0 or more")
    torch._check_value(match in MATCHES, lambda: f"ngram_match: match={match!r}; choose one of {MATCHES}")
    torch._check_value(
        1 <= vocab_size <= 1 << 24 or vocab_size == NO_BOUND,
        lambda: f"ngram_match: vocab_size={vocab_size}; choose 1 to 2**24, or leave it out",
    )
    torch._check(
        token_ids.dim() == 2 and token_ids.dtype == torch.int32 and token_ids.shape[1] < 1 << 24,
        lambda: (
            f"ngram_match: token_ids is {list(token_ids.shape)} {token_ids.dtype}; pass [S, L < 2**24] int32"
        ),
    )
    torch._check(
        token_ids.shape[1] < 2 or token_ids.stride(1) == 1,
        lambda: f"ngram_match: token_ids has stride {token_ids.stride(1)} in a row; make rows contiguous",
    )
    for name, value in (("num_tokens", num_tokens), ("num_drafts", num_drafts)):
        torch._check(
            value.shape == token_ids.shape[:1] and value.dtype == torch.int32 and value.is_contiguous(),
            lambda name=name, value=value: (
                f"ngram_match: {name} is {list(value.shape)} {value.dtype}; pass [{token_ids.shape[0]}] "
                "int32, contiguous, one entry a row of token_ids"
            ),
        )


def _fake(
    token_ids: torch.Tensor,
    num_tokens: torch.Tensor,
    min_n: int,
    max_n: int,
    num_drafts: torch.Tensor,
    max_drafts: int,
    match: str,
    vocab_size: int,
) -> torch.Tensor:
    _check(token_ids, num_tokens, min_n, max_n, num_drafts, max_drafts, match, vocab_size)
    return token_ids.new_empty((token_ids.shape[0], max_drafts))


@cache
def _lacks_triton() -> str | None:
    return None if find_spec("triton") else "triton is not installed"


selection.define(
    "ngram_match(Tensor token_ids, Tensor num_tokens, int min_n, int max_n, Tensor num_drafts,"
    " int max_drafts, str match, int vocab_size) -> Tensor",
    _fake,
)
selection.implement(
    "ngram_match", "cpu", Implementation("numba", "ascend_spec_ops.ngram_match.cpu:ngram_match")
)
for _device in ("cuda", "npu"):
    selection.implement(
        "ngram_match",
        _device,
        Implementation(
            "triton", "ascend_spec_ops.ngram_match.launch:ngram_match", lambda *_: _lacks_triton()
        ),
        Implementation("torch", "ascend_spec_ops.ngram_match.torch_fallback:ngram_match"),
    )
