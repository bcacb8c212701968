"""Mends bfloat16 products in Triton's interpreter.

The interpreter (up to 3.9) holds bfloat16 as raw uint16, and its ``tl.dot`` multiplies those integers. Here
the operands are widened to the float32 of the same value first, which is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_create_dot = InterpreterBuilder.create_dot


def _widened(handle: TensorHandle) -> TensorHandle:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _exact_dot(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *rest: Any, **options: Any) -> Any:
    return _create_dot(self, _widened(a), _widened(b), *rest, **options)


def mend_bfloat16_dot() -> None:
    """For the rest of the process; calling it again changes nothing."""
    InterpreterBuilder.create_dot = _exact_dot
