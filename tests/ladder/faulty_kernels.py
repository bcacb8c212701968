"""Kernels with one fault each: what the rungs have to catch. Imports triton alone."""

import triton
import triton.language as tl


@triton.jit
def hold_many_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Several blocks are alive at once: too many registers, or an on-chip memory that overflows."""
    lane = tl.arange(0, BLOCK)
    a = tl.load(x_ptr + lane)
    b = tl.load(x_ptr + BLOCK + lane)
    tl.store(out_ptr + lane, a * tl.sum(b, axis=0) + b * tl.sum(a, axis=0))


@triton.jit
def unknown_name_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.store(out_ptr, no_such_function(n))  # noqa: F821


@triton.jit
def int64_compare_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Ascend's vector unit cannot compare int64: a loop over the block on the scalar unit."""
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lane)
    tl.store(out_ptr + lane, tl.where(x.to(tl.int64) * 3 < n, x, 0.0))


@triton.jit
def int64_sum_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Nor can it reduce int64: the loop carries the sum and stores nothing."""
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lane).to(tl.int64)
    tl.store(out_ptr, tl.sum(x, axis=0).to(tl.float32))


@triton.jit
def int32_division_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Ascend divides int32 vectors in float32."""
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lane).to(tl.int32)
    tl.store(out_ptr + lane, (x // n).to(tl.float32))


@triton.jit
def inline_assembly_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """PTX, which the Ascend compiler passes on."""
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lane)
    y = tl.inline_asm_elementwise("ex2.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    tl.store(out_ptr + lane, y)


@triton.jit
def multiply_high_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """triton-ascend 3.2 lowers the unsigned high product as a signed one."""
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lane).to(tl.uint32, bitcast=True)
    high = tl.umulhi(x, x)
    tl.store(out_ptr + lane, high.to(tl.float32, bitcast=True))


@triton.jit
def out_of_bounds_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Stores one block after the end of its array."""
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + n + lane, tl.load(x_ptr + lane))
