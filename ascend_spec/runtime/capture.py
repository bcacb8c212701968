"""Capture and replay of the device part of a step.

A capturer has one method, ``capture(function, inputs) -> replay``. ``inputs`` is a plan whose tensors are
persistent buffers; ``replay(inputs)`` is called with the same buffers, refilled, and with fresh host fields,
and returns the output. A graph launcher ignores the function at replay and updates its graph with the host
fields; :class:`Eager` calls it again; :class:`Recorder` calls it again and watches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

Function = Callable[[Any], torch.Tensor]


class Eager:
    """Nothing is captured: each replay runs the function."""

    def capture(self, function: Function, inputs: Any) -> Function:
        return function


class HostSyncError(RuntimeError):
    """The device part of a step made the host wait, or its shapes depend on data."""


class Recorder:
    """Stands in for a device graph in tests, and refuses what a graph could not capture.

    On capture the function runs once on its buffers and once on fake tensors, both times without any host
    synchronisation; each replay must come with the captured buffers and fills the captured output.

    Raises:
        HostSyncError: a host synchronisation, a data-dependent shape, or a replay on other memory.
    """

    def __init__(self) -> None:
        self.num_captures = 0
        self.num_replays = 0

    def capture(self, function: Function, inputs: Any) -> Function:
        with no_host_sync():
            output = function(inputs)
        fake = run_fake(function, inputs)
        if fake.shape != output.shape or fake.dtype != output.dtype:
            raise HostSyncError(f"on fake tensors the step gives {fake.shape}, on real ones {output.shape}")
        addresses = _addresses(inputs)
        self.num_captures += 1

        def replay(inputs: Any) -> torch.Tensor:
            if _addresses(inputs) != addresses:
                raise HostSyncError("a replay was given other buffers than those of the capture: refill them")
            self.num_replays += 1
            with no_host_sync():
                return output.copy_(function(inputs))

        return replay


def run_fake(function: Function, inputs: Any) -> torch.Tensor:
    """Run on fake tensors, which have no data: fails where a shape or a branch depends on values."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode:
            return function(_map(inputs, mode.from_tensor))
    except torch._subclasses.fake_tensor.UnsupportedFakeTensorException as error:
        raise HostSyncError(f"the step cannot run without data: {error}") from error
    except (
        torch._subclasses.fake_tensor.DataDependentOutputException,
        torch._subclasses.fake_tensor.DynamicOutputShapeException,
    ) as error:
        raise HostSyncError(f"the step depends on data: {error}") from error


def _map(inputs: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(inputs, torch.Tensor):
        return function(inputs)
    if is_dataclass(inputs):
        return replace(inputs, **{f.name: _map(getattr(inputs, f.name), function) for f in fields(inputs)})  # type: ignore[type-var]
    return inputs


def _addresses(inputs: Any) -> list[int]:
    addresses: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        addresses.append(tensor.data_ptr())
        return tensor

    _map(inputs, note)
    return addresses


#: Methods that read values on the host. On CPU tensors most of them never reach the dispatcher.
_READS = (
    "item", "tolist", "numpy", "cpu", "__array__", "__bool__", "__int__", "__float__", "__index__",
    "__complex__", "__dlpack__", "__contains__", "is_nonzero", "equal", "nonzero", "argwhere", "unique",
    "unique_consecutive",
)  # fmt: skip
#: Operators whose output shape, or whose result on the host, depends on data.
_DATA_DEPENDENT = {
    "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2", "unique_dim",
    "unique_consecutive", "bincount", "allclose",
}  # fmt: skip
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
_MASKS = {torch.bool, torch.uint8}


class _Watch(TorchDispatchMode):
    """Our own operators are opaque: what they do on the host is the business of their CPU implementation."""

    def __init__(self, suspended: Callable[[], Any]) -> None:
        super().__init__()
        self.suspended = suspended

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if func.namespace == "ascend_spec":
            with self.suspended():
                return func(*args, **kwargs)
        name = func.__name__.split(".")[0]
        if name in _DATA_DEPENDENT or func is torch.ops.aten.repeat_interleave.Tensor:
            raise HostSyncError(f"aten.{name} makes the host wait for data")
        if name in _INDEXING and any(index is not None and index.dtype in _MASKS for index in args[1]):
            raise HostSyncError(f"aten.{name} with a mask has a shape that depends on data")
        return func(*args, **kwargs)


def _refuse(name: str) -> Callable[..., Any]:
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        raise HostSyncError(f"Tensor.{name} reads values on the host in the device part of a step")

    return method


def _to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    # a device taken from another tensor may be the CPU in a test; the word may not
    if any(isinstance(arg, str) and arg == "cpu" for arg in (*args, kwargs.get("device"))):
        raise HostSyncError("Tensor.to('cpu') copies to the host in the device part of a step")
    return torch._C.TensorBase.to(self, *args, **kwargs)


_GUARDED = {"to": _to, **{name: _refuse(name) for name in _READS}}


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Inside, reading a tensor's values on the host raises :class:`HostSyncError`. For one thread alone."""
    own = {name: vars(torch.Tensor).get(name) for name in _GUARDED}  # None: inherited from the C base class

    def guard() -> None:
        for name, method in _GUARDED.items():
            setattr(torch.Tensor, name, method)

    def restore() -> None:
        for name, method in own.items():
            if method is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, method)

    @contextmanager
    def suspended() -> Iterator[None]:
        restore()
        try:
            yield
        finally:
            guard()

    guard()
    try:
        with _Watch(suspended):
            yield
    finally:
        restore()
