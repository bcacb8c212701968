"""The mended interpreter multiplies bfloat16 by value."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ladder.interpreter import mend_bfloat16_dot

mend_bfloat16_dot()


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    out = tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), input_precision="ieee")
    tl.store(out_ptr + at, out)


def test_bfloat16_dot_equals_torch():
    a, b = torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    out = torch.zeros(16, 16)
    product_kernel[(1,)](a, b, out, N=16)
    torch.testing.assert_close(out, a.float() @ b.float(), rtol=1e-5, atol=1e-5)
