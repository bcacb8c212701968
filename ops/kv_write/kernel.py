"""K/V of one token a turn, for CUDA and Ascend. Imports triton alone."""

import triton
import triton.language as tl


@triton.jit
def kv_write_kernel(
    key_ptr,  # [T, HKV, D]
    value_ptr,  # [T, HKV, D]
    key_cache_ptr,  # [num_blocks, block_size, HKV, D], strided
    value_cache_ptr,  # [num_blocks, block_size, HKV, D], strided
    slots_ptr,  # [T] int64
    num_tokens,
    block_size,
    key_stride_t,
    key_stride_h,
    value_stride_t,
    value_stride_h,
    key_cache_stride_b,
    key_cache_stride_o,
    key_cache_stride_h,
    value_cache_stride_b,
    value_cache_stride_o,
    value_cache_stride_h,
    HKV: tl.constexpr,
    D: tl.constexpr,
    BLOCK_H: tl.constexpr,  # HKV, rounded up to a power of two
    BLOCK_D: tl.constexpr,  # D, rounded up to a power of two
):
    """One program a token, grid-stride. Everything that may exceed 31 bits is a scalar."""
    h = tl.arange(0, BLOCK_H)[:, None]
    d = tl.arange(0, BLOCK_D)[None, :]
    inside = (h < HKV) & (d < D)
    for t in range(tl.program_id(0), num_tokens, tl.num_programs(0)):
        slot = tl.load(slots_ptr + t)
        if slot >= 0:
            block = slot // block_size
            offset = slot - block * block_size
            token = tl.cast(t, tl.int64)
            k = tl.load(key_ptr + token * key_stride_t + h * key_stride_h + d, mask=inside)
            v = tl.load(value_ptr + token * value_stride_t + h * value_stride_h + d, mask=inside)
            to_k = key_cache_ptr + (block * key_cache_stride_b + offset * key_cache_stride_o)
            to_v = value_cache_ptr + (block * value_cache_stride_b + offset * value_cache_stride_o)
            tl.store(to_k + h * key_cache_stride_h + d, k, mask=inside)
            tl.store(to_v + h * value_cache_stride_h + d, v, mask=inside)
