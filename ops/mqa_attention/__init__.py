"""Multi-query attention over a paged KV cache: several new rows a request judged in one pass.

A request ``b`` brings ``query_len[b]`` rows, whose keys and values already stand in the cache, and has
``seq_lens[b]`` tokens in all, the new ones included. Row ``i`` stands at position
``seq_lens[b] - query_len[b] + i`` and sees every position up to its own (causal), or, with a tree mask,
everything before the new rows and those new rows the mask names. Query lengths may be mixed freely in a
batch: prefill chunks, the K+1 rows of a verification, single rows, none.

The paging scheme is that of Kwon et al., "Efficient memory management for large language model serving with
PagedAttention" (SOSP 2023); names and layouts are vLLM's. Sums are accumulated in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from ascend_spec_ops import selection
from ascend_spec_ops.selection import Implementation

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def mqa_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    max_query_len: int,
    scale: float,
    *,
    mask: torch.Tensor | None = None,
    sliding_window: int = 0,
    soft_cap: float = 0.0,
    query_lens_cpu: Sequence[int] | None = None,
    seq_lens_cpu: Sequence[int] | None = None,
) -> torch.Tensor:
    """Attention of packed query rows over each request's own keys and values.

    Args:
        query: ``[T, Hq, D]`` float32, float16 or bfloat16; the last dimension is contiguous.
        key_cache, value_cache: ``[num_blocks, block_size, Hkv, D]`` of the same dtype, ``Hq`` a multiple of
            ``Hkv``; any strided views. The last dimension of ``value_cache`` is contiguous, that of
            ``key_cache`` need not be: vLLM's CPU backend keeps the keys of a block as ``[D, block_size]``.
        block_table: ``[B, M]`` int32, the blocks of each request in order; entries that no row sees are
            never followed.
        query_start_loc: ``[B + 1]`` int32, cumulative query lengths.
        seq_lens: ``[B]`` int32. 0 is allowed: such a request has rows of padding, or none.
        max_query_len: at least the longest query length of the batch.
        scale: factor of the scores, usually ``D ** -0.5``.
        mask: ``[T, max_query_len]`` bool, which of its request's new rows each row sees (itself included);
            False in columns that are no row of its request. None: causal.
        sliding_window: a row at position ``p`` sees ``p - sliding_window + 1`` to ``p``; 0: no limit. With a
            mask, the position of a row is that of its depth, ``past + mask[row].sum() - 1``.
        soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; 0: none.
        query_lens_cpu, seq_lens_cpu: ``B`` host integers with the same lengths as the tensors. Paths that
            work from the host (CPU, Ascend's fused operator) read these instead of copying the tensors.

    Returns:
        ``[T, Hq, D]`` of ``query``'s dtype. Rows that see nothing (padding) and rows beyond the last request
        are zero.

    Raises:
        RuntimeError: wrong shapes, dtypes, strides or options.
    """
    options: dict[str, Any] = {
        "mask": mask,
        "sliding_window": sliding_window,
        "soft_cap": soft_cap,
        "query_lens_cpu": query_lens_cpu,
        "seq_lens_cpu": seq_lens_cpu,
    }
    args = (query, key_cache, value_cache, block_table, query_start_loc, seq_lens, max_query_len, scale)
    check(*args, **options)
    return torch.ops.ascend_spec.mqa_attention(*args, **options)


def check(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    max_query_len: int,
    scale: float,
    *,
    mask: torch.Tensor | None = None,
    sliding_window: int = 0,
    soft_cap: float = 0.0,
    query_lens_cpu: Sequence[int] | None = None,
    seq_lens_cpu: Sequence[int] | None = None,
) -> None:
    """The contract, as far as shapes, strides, dtypes and host values show it."""
    torch._check(
        query.dim() == 3 and key_cache.dim() == 4 and value_cache.shape == key_cache.shape,
        lambda: (
            "query must be [T, Hq, D], key_cache and value_cache [num_blocks, block_size, Hkv, D]; got "
            f"{list(query.shape)}, {list(key_cache.shape)} and {list(value_cache.shape)}"
        ),
    )
    torch._check(
        query.dtype in FLOATS and query.dtype == key_cache.dtype == value_cache.dtype,
        lambda: (
            "query and caches must share one dtype of float32, float16, bfloat16; got "
            f"{query.dtype}, {key_cache.dtype} and {value_cache.dtype}"
        ),
    )
    torch._check(
        query.shape[2] == key_cache.shape[3] and query.shape[1] % key_cache.shape[2] == 0,
        lambda: (
            f"the caches' head size must be the query's and their heads divide the query's; got query "
            f"{list(query.shape)}, key_cache {list(key_cache.shape)}"
        ),
    )
    torch._check(
        query.stride(-1) == value_cache.stride(-1) == 1,
        lambda: "the last dimension (head size) of query and value_cache must be contiguous",
    )
    lengths = (block_table, query_start_loc, seq_lens)
    batch = seq_lens.shape[0]
    torch._check(
        all(tensor.dtype == torch.int32 for tensor in lengths)
        and block_table.dim() == 2
        and block_table.shape[0] == batch
        and query_start_loc.shape == (batch + 1,),
        lambda: (
            "block_table must be [B, M], query_start_loc [B + 1] and seq_lens [B], all int32; got "
            + ", ".join(f"{list(tensor.shape)} {tensor.dtype}" for tensor in lengths)
        ),
    )
    if mask is not None:
        shape, dtype = mask.shape, mask.dtype
        torch._check(
            dtype == torch.bool and shape == (query.shape[0], max_query_len),
            lambda: f"mask must be [{query.shape[0]}, {max_query_len}] bool, got {list(shape)} {dtype}",
        )
    torch._check(
        sliding_window >= 0 and soft_cap >= 0,
        lambda: f"sliding_window and soft_cap must be 0 (off) or positive, got {sliding_window}, {soft_cap}",
    )
    torch._check(
        mask is None or sliding_window == 0 or sliding_window >= max_query_len,
        lambda: (
            f"with a mask the sliding window ({sliding_window}) must not be shorter than the new rows "
            f"({max_query_len}): the mask alone decides among them"
        ),
    )
    for name, host in (("query_lens_cpu", query_lens_cpu), ("seq_lens_cpu", seq_lens_cpu)):
        torch._check(
            host is None or len(host) == batch,
            lambda name=name, host=host: f"{name} must have {batch} entries, as seq_lens; got {len(host)}",
        )


def host_lengths(
    query: torch.Tensor,
    capacity: int,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    query_lens_cpu: Sequence[int] | None,
    seq_lens_cpu: Sequence[int] | None,
) -> tuple[list[int], list[int]]:
    """Cumulative query starts (``B + 1``) and KV lengths (``B``) on the host; a copy only if not given.

    Raises:
        RuntimeError: they lead beyond ``query`` or the ``capacity`` (positions) of a row of the block table.
    """
    starts = query_start_loc.tolist() if query_lens_cpu is None else [0, *accumulate(query_lens_cpu)]
    lengths = seq_lens.tolist() if seq_lens_cpu is None else list(seq_lens_cpu)
    if starts[-1] > query.shape[0] or max(lengths, default=0) > capacity:
        raise RuntimeError(
            f"query lengths add up to {starts[-1]}, with {query.shape[0]} rows of query, or one of "
            f"seq_lens {lengths} exceeds the {capacity} positions that a row of the block table holds"
        )
    return starts, lengths


def _fake(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    check(query, *args, **kwargs)
    return torch.empty_like(query, memory_format=torch.contiguous_format)


#: Above this many rows a request, matrix products beat a loop over keys (measured: 2 cores, 300 tokens).
MAX_NUMBA_ROWS = 4
SCATTERED_KEYS = "the head dimension of the keys is not contiguous"


def _numba_supports(query: torch.Tensor, key_cache: torch.Tensor, *args: Any, **kwargs: Any) -> str | None:
    max_query_len = args[4]
    if query.dtype != torch.float32:
        return "Numba has float32 only among the model dtypes"
    if key_cache.stride(-1) != 1:
        return SCATTERED_KEYS
    if max_query_len > MAX_NUMBA_ROWS:
        return f"with more than {MAX_NUMBA_ROWS} rows a request, matrix products are faster"
    return None


def _triton_supports(query: torch.Tensor, key_cache: torch.Tensor, *args: Any, **kwargs: Any) -> str | None:
    from ascend_spec_ops.mqa_attention import launch

    return SCATTERED_KEYS if key_cache.stride(-1) != 1 else launch.supports(query, key_cache)


def _npu_supports(*args: Any, **kwargs: Any) -> str | None:
    from ascend_spec_ops.mqa_attention import npu

    return npu.supports(*args, **kwargs)


selection.define(
    "mqa_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, "
    "Tensor query_start_loc, Tensor seq_lens, int max_query_len, float scale, *, Tensor? mask=None, "
    "int sliding_window=0, float soft_cap=0.0, int[]? query_lens_cpu=None, "
    "int[]? seq_lens_cpu=None) -> Tensor",
    _fake,
)
_PATH = "ascend_spec_ops.mqa_attention"
_triton = Implementation("triton", f"{_PATH}.launch:mqa_attention", _triton_supports)
_torch = Implementation("torch", f"{_PATH}.cpu:mqa_attention")
selection.implement(
    "mqa_attention",
    "cpu",
    Implementation("numba", f"{_PATH}.cpu_few_rows:mqa_attention", _numba_supports),
    _torch,
)
selection.implement("mqa_attention", "cuda", _triton, _torch)
selection.implement(
    "mqa_attention",
    "npu",
    Implementation("fused_infer_attention_score", f"{_PATH}.npu:mqa_attention", _npu_supports),
    _triton,
    _torch,
)
