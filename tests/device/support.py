"""Which devices are here, what runs on them, and the way of a test's tensors there and back."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map_only

import ascend_spec_ops  # noqa: F401  (fills the table)
from ascend_spec_ops import selection

KINDS = ("cuda", "npu")
OPS_TESTS = Path(__file__).parents[1] / "ops"

#: set by ``--rehearse``: the suite itself is tried on the CPU, with CUDA's kernels in Triton's interpreter
rehearsing = False


def absent(kind: str) -> str | None:
    """Why nothing can be tested on this kind of device, or None."""
    if kind == "npu" and importlib.util.find_spec("torch_npu") is None:
        return "no Ascend device: torch_npu is not installed"
    if kind == "npu":
        importlib.import_module("torch_npu")  # teaches torch the word "npu"
    if not getattr(torch, kind).is_available():
        return f"no {kind} device, so the device suite did not run: `make test-{kind}` on a machine with one"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return f"kernels are interpreted in this run: `make test-{kind}` compiles them"
    return None


def kinds() -> list[str]:
    return ["cpu"] if rehearsing else [kind for kind in KINDS if absent(kind) is None]


def on_kinds() -> list:
    """Parameters: each device that is here, under its marker."""
    marks = {kind: [getattr(pytest.mark, kind)] for kind in KINDS}
    return [pytest.param(kind, marks=marks.get(kind, []), id=kind) for kind in kinds()]


def to_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy with the same strides and gaps, which ``Tensor.to`` would close."""
    storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return storage.to(device, copy=True).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def move(values: Any, device: str) -> Any:
    """Tensors anywhere in tuples, lists and dicts; the rest stays."""
    return tree_map_only(torch.Tensor, lambda tensor: to_device(tensor, device), values)


def back(values: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), values)


def implementations(op: str, kind: str) -> list[selection.Implementation]:
    return selection.table[op].get("cuda" if rehearsing else kind, [])


@dataclass(frozen=True)
class Run:
    """One implementation of an operator on a device, called with tensors of the host."""

    op: str
    kind: str
    name: str

    def on_device(self, *args: Any, **kwargs: Any) -> Any:
        """With tensors of the device; skips where the implementation declines the arguments."""
        found = {each.name: each for each in implementations(self.op, self.kind)}[self.name]
        reason = found.supports(*args, **kwargs) if found.supports else None
        if reason is not None:
            pytest.skip(f"{self.op} on {self.kind}, {self.name}: {reason}")
        return found.function(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return back(self.on_device(*move(args, self.kind), **move(kwargs, self.kind)))


def runs(op: str) -> list:
    """Parameters: every implementation of ``op`` on every device that is here."""
    return [
        pytest.param(Run(op, kind, each.name), marks=param.marks, id=f"{kind}-{each.name}")
        for param in on_kinds()
        for kind in param.values
        for each in implementations(op, kind)
    ]


def load_ops_tests(name: str) -> ModuleType:
    """A module of ``tests/ops``, for its cases. That folder is on no path: ``ops`` must not be importable."""
    full_name = f"cases_of_{name}"
    if full_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(full_name, OPS_TESTS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full_name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
    return sys.modules[full_name]
