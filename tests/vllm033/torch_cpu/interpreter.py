"""Mends masks in Triton's interpreter.

The interpreter (up to 3.9) makes a Python bool of a scalar comparison and an int32 of that, so that a mask which is
the conjunction of a vector and a scalar is int32, and loads and stores refuse it.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_load, _store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store


def _as_mask(handle: TensorHandle) -> TensorHandle:
    return TensorHandle(handle.data.astype(bool), tl.int1)


def _masked_load(self: InterpreterBuilder, ptrs: Any, mask: TensorHandle, *rest: Any, **options: Any) -> Any:
    return _load(self, ptrs, _as_mask(mask), *rest, **options)


def _masked_store(self: InterpreterBuilder, ptrs: Any, value: Any, mask: TensorHandle, *rest: Any) -> Any:
    return _store(self, ptrs, value, _as_mask(mask), *rest)


def mend_masks() -> None:
    """For the rest of the process; calling it again changes nothing."""
    InterpreterBuilder.create_masked_load = _masked_load
    InterpreterBuilder.create_masked_store = _masked_store
