"""The bitmask in Numba. A mask needs no arithmetic: logits are seen as integers, in whatever float they are."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange

from ascend_spec_ops.numba_math import jit_threads

#: float -> the integer of its size, and the bits of -inf
AS_INTEGER = {
    torch.float32: (torch.int32, np.int32(-0x800000)),
    torch.float16: (torch.int16, np.int16(-0x400)),
    torch.bfloat16: (torch.int16, np.int16(-0x80)),
}


@njit(parallel=True, cache=True)
def _apply(flat, stride, vocab_size, bitmask, minus_inf):
    for row in prange(bitmask.shape[0]):
        x = flat[row * stride : row * stride + vocab_size]
        whole = min(vocab_size // 32, bitmask.shape[1])
        for w in range(whole):
            word = bitmask[row, w]
            if word != -1:
                part = x[32 * w : 32 * w + 32]
                for i in range(32):
                    part[i] = part[i] if (word >> np.int32(i)) & 1 else minus_inf
        for token in range(32 * whole, vocab_size):
            w = token // 32
            if w >= bitmask.shape[1] or not (bitmask[row, w] >> (token - 32 * w)) & 1:
                x[token] = minus_inf


def apply_token_bitmask(logits: torch.Tensor, bitmask: torch.Tensor) -> None:
    rows, columns = logits.shape
    if not rows or not columns:
        return
    integer, minus_inf = AS_INTEGER[logits.dtype]
    # one flat vector and the distance between rows: strided rows need no copy
    flat = logits.view(integer).as_strided(((rows - 1) * logits.stride(0) + columns,), (1,)).numpy()
    with jit_threads():
        _apply(flat, logits.stride(0), columns, bitmask.numpy(), minus_inf)
