"""New tokens of many requests into their own trees and a shared one."""

from __future__ import annotations

import numpy as np

from ascend_spec_ops.suffix_match.tree import SuffixForest, SuffixTree

#: new tokens of a batch from which threads are used; as for :data:`~ascend_spec_ops.suffix_match.PARALLEL_REQUESTS`
PARALLEL_TOKENS = 512


def suffix_extend(
    token_ids: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    *,
    local: SuffixForest,
    local_trees: np.ndarray,
    shared: SuffixTree | None = None,
    shared_sequences: np.ndarray | None = None,
    shared_begins: np.ndarray | None = None,
) -> None:
    """Append ``token_ids[i, begins[i] : ends[i]]`` to the tree of request ``i``, and from ``shared_begins[i]`` on to
    its sequence in the shared tree. With many tokens the trees are shared out among threads.

    Args:
        token_ids: ``[B, L]`` int32, rows contiguous, any values.
        begins, ends: ``[B]`` int32; nothing is appended where the first is not below the second.
        local_trees: ``[B]`` int32, in ``local``, all different.
        shared_sequences, shared_begins: ``[B]`` int32; needed where ``shared`` is given.
    """
    from ascend_spec_ops.suffix_match import cpu_tree

    if not len(local_trees):
        return
    address = shared.address if shared is not None else 0
    if shared_sequences is None or shared_begins is None:
        assert shared is None
        shared_sequences, shared_begins = local_trees, begins  # not looked at
    short = np.empty(len(local_trees) + 1, bool)
    num_tokens, num_short = cpu_tree.short_of_memory(
        local.addresses, local_trees, address, begins, ends, short
    )
    if num_short:
        for i in np.flatnonzero(short[:-1]):
            local[int(local_trees[i])].reserve(int(ends[i] - begins[i]), 1)
        if shared is not None:
            shared.reserve(num_tokens, len(local_trees))
    args = (
        local.addresses, local_trees, address, shared_sequences, token_ids, begins, shared_begins, ends,
    )  # fmt: skip
    if num_tokens >= PARALLEL_TOKENS:
        import numba

        from ascend_spec_ops.numba_math import jit_threads

        with jit_threads():
            if numba.get_num_threads() > 1:
                cpu_tree.extend_parallel(*args, numba.get_num_threads())
                return
    cpu_tree.extend_serial(*args)
