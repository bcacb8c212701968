"""Float32 exp and log that LLVM vectorises inside Numba loops, and the thread limit of Numba calls.

``math.exp`` in a Numba loop is a scalar call and six times slower than a softmax. These are polynomials
on straight-line code (coefficients: Cephes ``expf`` and ``logf``, S. Moshier), relative error under 2e-7.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import llvmlite.ir as llvm
import numba
import numpy as np
import torch
from numba import njit, types
from numba.extending import intrinsic

from ascend_spec_ops.threads import thread_limit

F = np.float32


@contextmanager
def jit_threads() -> Iterator[None]:
    """Run Numba's parallel loops on as many threads as torch may use and the limit allows, never more."""
    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, thread_limit(), numba.config.NUMBA_NUM_THREADS))
    if torch.get_num_threads() != threads:
        # starting Numba's pool raises the limit of the OpenMP runtime that torch shares with it
        torch.set_num_threads(threads)
    yield


@intrinsic
def float_as_int(typingctx, x):
    """The bits of a float32 as an int32."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], llvm.IntType(32))

    return types.int32(types.float32), codegen


@intrinsic
def int_as_float(typingctx, x):
    """The float32 with the bits of an int32."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], llvm.FloatType())

    return types.float32(types.int32), codegen


@intrinsic
def maximum(typingctx, a, b):
    """The larger of two float32; NaN if either is. LLVM vectorises a reduction with it, and no other form."""

    def codegen(context, builder, signature, args):
        pair = llvm.FunctionType(llvm.FloatType(), [llvm.FloatType()] * 2)
        function = builder.module.declare_intrinsic("llvm.maximum", [llvm.FloatType()], pair)
        return builder.call(function, args)

    return types.float32(types.float32, types.float32), codegen


# contract alone: with reassoc, the two-part reduction by log 2 below would be folded into one
@njit(fastmath={"contract"})
def exp_f32(x):
    """exp(x) for x <= 88; exactly 0 below -87.3 (and for -inf); NaN stays NaN."""
    n = np.floor(x * F(1.44269504) + F(0.5))
    n = F(-126.0) if n < F(-126.0) else n
    r = x - n * F(0.693359375)
    r = r - n * F(-2.12194440e-4)
    y = F(1.9875691500e-4)
    y = y * r + F(1.3981999507e-3)
    y = y * r + F(8.3334519073e-3)
    y = y * r + F(4.1665795894e-2)
    y = y * r + F(1.6666665459e-1)
    y = y * r + F(5.0000001201e-1)
    y = y * r * r + r + F(1.0)
    scaled = y * int_as_float(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))
    return F(0.0) if x < F(-87.3) else scaled


@njit(fastmath={"contract"})
def log_f32(x):
    """log(x) for positive normal x."""
    bits = float_as_int(x)
    # shift the mantissa into [sqrt(1/2), sqrt(2))
    shifted = np.int32(bits - np.int32(0x3F3504F3))
    e = np.int32(shifted >> np.int32(23))
    m = int_as_float(np.int32(bits - np.int32(e << np.int32(23)))) - F(1.0)
    z = m * m
    y = F(7.0376836292e-2)
    y = y * m + F(-1.1514610310e-1)
    y = y * m + F(1.1676998740e-1)
    y = y * m + F(-1.2420140846e-1)
    y = y * m + F(1.4249322787e-1)
    y = y * m + F(-1.6668057665e-1)
    y = y * m + F(2.0000714765e-1)
    y = y * m + F(-2.4999993993e-1)
    y = y * m + F(3.3333331174e-1)
    y = y * m * z
    k = F(e)
    y = y + k * F(-2.12194440e-4)
    y = y - F(0.5) * z
    return m + y + k * F(0.693359375)
