"""A fake of torch_npu, for importing vllm-ascend where there is no NPU: it computes nothing.

Every attribute exists, and what was asked for is in :data:`touched`, which a test holds against the real
torch_npu. Packages that vllm-ascend or the vLLM beside it import and that are not installed with the tests
(:data:`ABSENT`) are faked in the same way. As the real one, it is loaded by torch itself, through the entry point
``torch.backends``.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from datetime import timedelta
from typing import Any

import torch

#: of servers, tokenizers and images, but for acl (CANN's Python), scipy and triton's part for Ascend
ABSENT = (
    "acl", "gguf", "ijson", "mistral_common", "scipy", "torchvision", "triton.language.extra.cann", "uvicorn",
)  # fmt: skip
#: dotted names that were asked for
touched: set[str] = set()


class _AnyAttribute(type):
    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _fake(cls, f"{cls.path}.{name}", name)


class Fake(metaclass=_AnyAttribute):
    """Stands for a class or a function that is named, and at most called."""

    path = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...


class Stream:
    """A stream or an event, with nothing on it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_stream(self, stream: Stream) -> None: ...

    def wait_event(self, event: Stream) -> None: ...

    def record(self, stream: Stream | None = None) -> None: ...

    def synchronize(self) -> None: ...


class FakeModule(types.ModuleType):
    __version__ = "1.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _fake(self, f"{self.__name__}.{name}", name)


def _fake(owner: Any, path: str, name: str) -> type:
    touched.add(path)
    made = _AnyAttribute(name, (Fake,), {"path": path})
    setattr(owner, name, made)
    return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if any(f"{fullname}.".startswith(f"{package}.") for package in ("torch_npu", *ABSENT)):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return FakeModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "triton.language.extra.cann.extension":
            module.get_element = get_element


def get_element(vector: Any, index: tuple[Any]) -> Any:
    """Triton's extension for Ascend, as Triton's interpreter can run it: one element of a vector."""
    import triton.language as tl

    touched.add("triton.language.extra.cann.extension.get_element")
    return tl.sum(tl.where(tl.arange(0, vector.shape[0]) == index[0], vector, 0))


class _Device:
    """What is asked of an Ascend 910B3."""

    name, total_memory = "Ascend910B3", 64 << 30


class TritonDriver:
    """What vllm-ascend asks Triton's driver."""

    class utils:
        @staticmethod
        def get_device_properties(device: int) -> dict[str, int]:
            return {"num_aicore": 20, "num_vectorcore": 40}


npu = FakeModule("torch.npu")
#: what has an answer
ANSWERS: dict[str, Any] = {
    "Event": Stream,
    "Stream": Stream,
    "current_stream": Stream,
    "default_stream": Stream,
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "get_device_name": lambda device=0: _Device.name,
    "get_device_properties": lambda device=0: _Device(),
    "get_soc_version": lambda: 223,
    "mem_get_info": lambda device=None: (_Device.total_memory, _Device.total_memory),
    "memory_reserved": lambda device=None: 0,
    "memory_stats": lambda device=None: {},
    "_is_in_bad_fork": lambda: False,
    "is_current_stream_capturing": lambda: False,
}
npu.__dict__.update(ANSWERS)
touched |= {f"torch.npu.{name}" for name in ANSWERS}


def npu_top_k_top_p(
    logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None
) -> torch.Tensor:
    """The largest k, and of what is left the smallest set that has probability p; the others become -inf."""
    touched.add("torch_npu.npu_top_k_top_p")
    values, order = logits.sort(-1, descending=True)
    if k is not None:
        values[torch.arange(values.shape[1]) >= k[:, None]] = float("-inf")
    if p is not None:
        probs = values.softmax(-1)
        values[probs.cumsum(-1) - probs >= p[:, None]] = float("-inf")
    return torch.empty_like(logits).scatter_(-1, order, values)


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    return torch.distributed.ProcessGroupGloo(store, rank, size, timeout)


def _autoload() -> None:
    """Called by torch when it has been imported."""
    torch.distributed.Backend.register_backend("hccl", _gloo, devices=["cpu"])
    torch.distributed.is_hccl_available = lambda: True


os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported: vllm-ascend's kernels run on CPU tensors
torch.utils.rename_privateuse1_backend("npu")
torch.npu = sys.modules["torch.npu"] = npu
sys.meta_path.insert(0, _Finder())
sys.modules[__name__].__class__ = FakeModule
__version__ = "2.10.0.post4"
