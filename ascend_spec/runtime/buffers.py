"""Persistent input buffers: a captured step reads the same memory each time, refilled before each replay."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch

Plan = TypeVar("Plan")


def new_buffers(plan: Plan) -> Plan:
    """A copy of ``plan`` (a dataclass, possibly nested) whose tensors are buffers of their own."""
    return _map_tensors(plan, plan, lambda _, tensor: tensor.clone(memory_format=torch.contiguous_format))


def refill(buffers: Plan, plan: Plan) -> Plan:
    """``plan`` with its tensors copied into ``buffers`` and replaced by them.

    Host fields (counts and lengths that operators take from the host) stay those of ``plan``: they are what a
    captured graph is updated with.

    Raises:
        ValueError: a tensor whose shape or dtype differs from its buffer, or that has none.
    """
    return _map_tensors(buffers, plan, _copy)


def shapes(plan: Any) -> tuple[Any, ...] | None:
    """Of the tensors of a plan, by place; plans of different shapes cannot share buffers."""
    if not is_dataclass(plan):
        return tuple(plan.shape) if isinstance(plan, torch.Tensor) else None
    return tuple(shapes(getattr(plan, field.name)) for field in fields(plan))


def _copy(buffer: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor:
    if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
        have = None if buffer is None else (list(buffer.shape), buffer.dtype)
        raise ValueError(
            f"a step has a tensor of {list(tensor.shape)} {tensor.dtype} where its bucket's buffer is "
            f"{have}; steps of one bucket must have equal shapes"
        )
    return buffer.copy_(tensor, non_blocking=True)


def _map_tensors(buffers: Any, plan: Any, function: Any) -> Any:
    changes = {}
    for field in fields(plan):
        value, buffer = getattr(plan, field.name), getattr(buffers, field.name)
        if isinstance(value, torch.Tensor):
            changes[field.name] = function(buffer, value)
        elif is_dataclass(value):
            changes[field.name] = _map_tensors(buffer, value, function)
        elif isinstance(buffer, torch.Tensor):
            raise ValueError(f"a step lacks the tensor {field.name!r} that its bucket was captured with")
    return replace(plan, **changes)
