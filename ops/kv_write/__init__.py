"""Write the keys and values of a step's new tokens into their slots of the paged KV cache.

The slot of a token is ``block_id * block_size + offset`` (vLLM's ``slot_mapping``); a negative slot marks a
row that is not written: padding, or a token whose K/V must not be kept.
"""

from __future__ import annotations

import torch

from ascend_spec_ops import selection
from ascend_spec_ops.selection import Implementation


def kv_write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Store row ``t`` of ``key`` and ``value`` at slot ``slot_mapping[t]``, in place.

    Args:
        key, value: ``[T, Hkv, D]`` float32, float16 or bfloat16; the last dimension is contiguous.
        key_cache, value_cache: ``[num_blocks, block_size, Hkv, D]``, same dtype. Any strided view whose last
            dimension is contiguous, so that every KV cache layout of vLLM can be passed without a copy.
        slot_mapping: ``[T]`` int64. Negative: the row is skipped. Non-negative slots must be distinct and
            below ``num_blocks * block_size``; the operator does not read them back to check.

    Raises:
        RuntimeError: wrong shapes, dtypes or strides.
    """
    check(key, value, key_cache, value_cache, slot_mapping)
    torch.ops.ascend_spec.kv_write(key, value, key_cache, value_cache, slot_mapping)


def check(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """The contract, from shapes, strides and dtypes alone; also the operator's shape function."""
    torch._check(
        key.dim() == 3 and value.shape == key.shape,
        lambda: f"key and value must both be [T, Hkv, D], got {list(key.shape)} and {list(value.shape)}",
    )
    torch._check(
        key_cache.dim() == 4
        and key_cache.shape[2:] == key.shape[1:]
        and value_cache.shape == key_cache.shape,
        lambda: (
            "key_cache and value_cache must both be [num_blocks, block_size, Hkv, D] with (Hkv, D) = "
            f"{tuple(key.shape[1:])}, got {list(key_cache.shape)} and {list(value_cache.shape)}"
        ),
    )
    torch._check(
        key.dtype == value.dtype == key_cache.dtype == value_cache.dtype,
        lambda: (
            f"key, value and the caches must share one dtype, got {key.dtype}, {value.dtype}, "
            f"{key_cache.dtype}, {value_cache.dtype}"
        ),
    )
    torch._check(
        all(tensor.stride(-1) == 1 for tensor in (key, value, key_cache, value_cache)),
        lambda: "the last dimension (head size) of key, value and the caches must be contiguous",
    )
    torch._check(
        slot_mapping.dtype == torch.int64 and slot_mapping.shape == key.shape[:1],
        lambda: (
            f"slot_mapping must be [{key.shape[0]}] int64, "
            f"got {list(slot_mapping.shape)} {slot_mapping.dtype}"
        ),
    )


selection.define(
    "kv_write(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_mapping) -> ()",
    check,
)
selection.implement("kv_write", "cpu", Implementation("torch", "ascend_spec_ops.kv_write.cpu:kv_write"))
_triton = Implementation("triton", "ascend_spec_ops.kv_write.launch:kv_write")
selection.implement("kv_write", "cuda", _triton)


def _npu_supports(*args: torch.Tensor) -> str | None:
    from ascend_spec_ops.kv_write import npu

    return npu.supports(*args)


selection.implement(
    "kv_write",
    "npu",
    Implementation("scatter_pa_kv_cache", "ascend_spec_ops.kv_write.npu:kv_write", _npu_supports),
    _triton,
)
