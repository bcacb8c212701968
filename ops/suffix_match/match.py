"""The best continuation of each request, from its own tree and from a shared one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ascend_spec_ops.suffix_match.tree import SuffixForest, SuffixTree

#: requests in a batch from which threads are used: about half a millisecond of work. Where cores are busy with other
#: programs, waiting for a thread can cost thirty times that, so that less is not worth the risk
PARALLEL_REQUESTS = 256


class SuffixDrafts(NamedTuple):
    """A row for each of ``B`` requests. Its parts are views, made when they are asked for."""

    ints: np.ndarray
    """``[B, 2 K + 1]`` int32: tokens, parents, length of the match."""
    floats: np.ndarray
    """``[B, K + 1]`` float64: probabilities, score."""

    @property
    def token_ids(self) -> np.ndarray:
        """``[B, K]`` int32; -1 after a row's drafts."""
        return self.ints[:, : self.ints.shape[1] // 2]

    @property
    def parents(self) -> np.ndarray:
        """``[B, K]`` int32, which draft each one continues; -1: the last token of the context. Undefined after a row's
        drafts, as ``probs``."""
        return self.ints[:, self.ints.shape[1] // 2 : -1]

    @property
    def probs(self) -> np.ndarray:
        """``[B, K]`` float64, of each draft together with those it continues."""
        return self.floats[:, :-1]

    @property
    def scores(self) -> np.ndarray:
        """``[B]`` float64"""
        return self.floats[:, -1]

    @property
    def match_lens(self) -> np.ndarray:
        """``[B]`` int32, in tokens; 0 where there are no drafts."""
        return self.ints[:, -1]


def suffix_match(
    token_ids: np.ndarray,
    num_tokens: np.ndarray,
    num_drafts: np.ndarray,
    max_drafts: int,
    *,
    local: SuffixForest,
    local_trees: np.ndarray,
    shared: SuffixTree | None = None,
    shared_sequences: np.ndarray | None = None,
    max_spec_factor: float = 1.0,
    max_spec_offset: float = 0.0,
    min_token_prob: float = 0.1,
    tree: bool = False,
) -> SuffixDrafts:
    """Drafts for each request: the better candidate of its own tree and the shared one, its own of equal ones.

    A request's tree, and its sequence in the shared one where it has one, must end as its context does; then nothing
    is looked up as far as that reaches back.

    Args:
        token_ids: ``[B, L]`` int32, contexts; of ``[:num_tokens]`` the last ``max_depth`` are read.
        num_tokens: ``[B]`` int32; more than ``L`` counts as ``L``.
        num_drafts: ``[B]`` int32; below 0 counts as 0, above ``max_drafts`` as ``max_drafts``.
        max_drafts: ``K``, the width of the result.
        local_trees: ``[B]`` int32, in ``local``; -1: the request has no tree of its own.
        shared_sequences: ``[B]`` int32, in ``shared``; -1: its context is looked up there. None: all.
        tree: whether drafts branch.
    """
    from ascend_spec_ops.suffix_match import cpu_match

    size = len(num_tokens)
    drafts = SuffixDrafts(np.empty((size, 2 * max_drafts + 1), np.int32), np.empty((size, max_drafts + 1)))
    if shared_sequences is None:
        shared_sequences = np.full(size, -1, np.int32)
    args = (
        local.addresses, local_trees, shared.address if shared is not None else 0, shared_sequences,
        token_ids, num_tokens, num_drafts,
        max_drafts, float(max_spec_factor), float(max_spec_offset), float(min_token_prob), tree, *drafts,
    )  # fmt: skip
    if size >= PARALLEL_REQUESTS:
        import numba

        from ascend_spec_ops.numba_math import jit_threads

        with jit_threads():
            cpu_match.match_parallel(*args, -(-size // (4 * numba.get_num_threads())))
    else:
        cpu_match.match_serial(*args)
    return drafts
