"""CANN's ScatterPaKvCache, through torch_npu.

Its documentation gives slots from 0 on; both published kernels of this kind (ScatterPaKvCache and ATB's
ReshapeAndCache) skip a negative slot, and vllm-ascend pads with -1 in production. A hardware run has to
confirm it; ``ascend_spec_ops.selection`` can put Triton first where it does not hold.
"""

from __future__ import annotations

import torch


def supports(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> str | None:
    """None, or why the Triton kernel has to run."""
    if not hasattr(torch.ops.npu, "npu_scatter_pa_kv_cache"):
        return "this torch_npu has no npu_scatter_pa_kv_cache"
    if not (key_cache.is_contiguous() and value_cache.is_contiguous()):
        return "the operator writes contiguous caches only"
    return None


def kv_write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    # "Norm" is the plain [num_blocks, block_size, Hkv, D] cache; the operator's default is the blocked PA_NZ
    torch.ops.npu.npu_scatter_pa_kv_cache(
        key.contiguous(),
        value.contiguous(),
        key_cache,
        value_cache,
        slot_mapping.contiguous(),
        cache_mode="Norm",
    )
