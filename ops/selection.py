"""The one table that says which implementation of an operator runs where.

PyTorch's dispatcher picks by the tensors' device; within a device the implementations stand in order, and
the first whose ``supports(*args)`` returns ``None`` runs. A reason (a string) means "not with these
arguments": it is logged once, counted in :data:`fallbacks`, and the next one is asked.
"""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.library import Library

NAMESPACE = "ascend_spec"
DISPATCH_KEYS = {"cpu": "CPU", "cuda": "CUDA", "npu": "PrivateUse1"}

logger = logging.getLogger(__name__)
_library = Library(NAMESPACE, "DEF")


@dataclass(frozen=True)
class Implementation:
    """One way to run an operator. ``path`` is ``module:function``, imported when first used, so that
    numba, triton and torch_npu cost nothing where they are not needed."""

    name: str
    path: str
    supports: Callable[..., str | None] | None = None

    @cached_property
    def function(self) -> Callable[..., Any]:
        module, function = self.path.split(":")
        return getattr(importlib.import_module(module), function)


#: op -> device type -> implementations in order of preference
table: dict[str, dict[str, list[Implementation]]] = {}
#: (op, device, implementation passed over, reason) -> how often
fallbacks: Counter[tuple[str, str, str, str]] = Counter()


def define(schema: str, fake: Callable[..., Any]) -> None:
    """Declare an operator. ``fake`` computes the shapes and dtypes of its results from meta tensors.

    The low-level ``Library`` interface is used because a call through it costs 3 us, against 9 to 15 for
    ``torch.library.custom_op``.
    """
    _library.define(schema)
    name = schema.split("(", 1)[0]
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    table[name] = {}


def implement(op: str, device: str, *implementations: Implementation) -> None:
    """Set the implementations of ``op`` on ``device`` (``cpu``, ``cuda`` or ``npu``), best first."""
    table[op][device] = list(implementations)
    _library.impl(op, _dispatcher(op, device), DISPATCH_KEYS[device])


def _dispatcher(op: str, device: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return choose(op, device, *args, **kwargs).function(*args, **kwargs)

    return call


def choose(op: str, device: str, *args: Any, **kwargs: Any) -> Implementation:
    """The implementation that runs ``op`` on ``device`` for these arguments.

    Raises:
        NotImplementedError: none supports them; the message lists every reason.
    """
    reasons = []
    for implementation in table[op].get(device, []):
        reason = implementation.supports(*args, **kwargs) if implementation.supports else None
        if reason is None:
            return implementation
        reasons.append(f"{implementation.name}: {reason}")
        _count_fallback((op, device, implementation.name, reason))
    raise NotImplementedError(
        f"{NAMESPACE}::{op} cannot run on {device} with these arguments: "
        + ("; ".join(reasons) or "no implementation is registered for this device")
    )


def _count_fallback(key: tuple[str, str, str, str]) -> None:
    if key not in fallbacks:
        op, device, name, reason = key
        # not a fault: most reasons are a better choice for these arguments
        logger.info("%s on %s: '%s' is not used (%s)", op, device, name, reason)
    fallbacks[key] += 1
