"""Launcher of the Triton kernel, for CUDA, NPU, and CPU tensors under the interpreter."""

from __future__ import annotations

import torch
import triton

from ascend_spec_ops import targets
from ascend_spec_ops.kv_write.kernel import kv_write_kernel


def kv_write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    num_tokens, num_kv_heads, head_dim = key.shape
    kv_write_kernel[targets.grid(num_tokens, key.device)](
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping.contiguous(),
        num_tokens,
        key_cache.shape[1],
        *key.stride()[:2],
        *value.stride()[:2],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        HKV=num_kv_heads,
        D=head_dim,
        BLOCK_H=triton.next_power_of_2(num_kv_heads),
        BLOCK_D=triton.next_power_of_2(head_dim),
    )
