"""Run an operator's own launcher with its kernels replaced by what Ascend's compiler makes of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from ladder.jobs import CompilerProcess
from ladder.kernels import ASCEND_ARCH, KERNELS, Kernel

POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}


class Memory:
    """The storages behind a launch's tensors; tensors that share one keep sharing it."""

    def __init__(self) -> None:
        self.storages: dict[str, torch.UntypedStorage] = {}

    def pointer(self, tensor: torch.Tensor) -> tuple[str, int]:
        storage = tensor.untyped_storage()
        name = f"storage_{storage.data_ptr()}"
        self.storages[name] = storage
        return name, tensor.data_ptr() - storage.data_ptr()

    def bytes(self) -> dict[str, np.ndarray]:
        return {name: torch.empty(0, dtype=torch.uint8).set_(s).numpy() for name, s in self.storages.items()}


class AscendKernel:
    """Stands in a launcher's module for a Triton kernel: ``kernel[grid](*args, **kwargs)``."""

    def __init__(self, compiler: CompilerProcess, kernel: Kernel, argument_names: list[str]) -> None:
        self.compiler = compiler
        self.kernel = kernel
        self.argument_names = argument_names
        self.launches = 0

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            self.run(grid, dict(zip(self.argument_names, args, strict=False)) | kwargs)

        return launch

    def run(self, grid: tuple[int, ...], values: dict[str, Any]) -> None:
        self.launches += 1
        memory = Memory()
        signature, constexprs, arguments, options = {}, {}, {}, {}
        for name, value in values.items():
            if name not in self.argument_names:
                options[name] = value
            elif value is None or name not in self.kernel.signature:
                constexprs[name] = value
            else:
                signature[name], arguments[name] = self.argument(name, value, memory)
        assert options in [v.options for v in self.kernel.variants], f"{self.kernel.name}: {options}"
        # the lowered function takes its arguments in the source's order
        signature = {name: signature[name] for name in self.argument_names if name in signature}
        arrays = memory.bytes()
        with tempfile.TemporaryDirectory() as folder:
            file = str(Path(folder, "memory.npz"))
            np.savez(file, **arrays)
            execute = {"memory": file, "arguments": arguments, "grid": [*grid, 1, 1][:3]}
            job = {"module": self.kernel.module, "function": self.kernel.name, "arch": ASCEND_ARCH}
            job |= {"signature": signature, "constexprs": constexprs, "options": options, "execute": execute}
            report = self.compiler.submit(job)
            assert report["stage"] == "executed", report["error"]
            with np.load(file) as results:
                for name, array in arrays.items():
                    array[:] = results[name]

    def argument(self, name: str, value: Any, memory: Memory) -> tuple[str, Any]:
        """Type and value of a run-time argument; the type must be one that the table compiles."""
        if isinstance(value, torch.Tensor):
            kind, passed = POINTERS[value.dtype], memory.pointer(value)
        elif isinstance(value, float):
            kind, passed = "fp32", value
        else:
            wide = not -(2**31) <= value < 2**31
            kind, passed = "i64" if wide else "i32", value
        types = self.kernel.types_of(name)
        assert kind in types, f"{self.kernel.name}: {name} is launched as {kind}, the table compiles {types}"
        return kind, passed


@contextmanager
def lowered(launcher: ModuleType, compiler: CompilerProcess) -> Iterator[dict[str, AscendKernel]]:
    """Replace every kernel of the table that ``launcher`` names, by name."""
    stand_ins = {
        kernel.name: AscendKernel(compiler, kernel, getattr(launcher, kernel.name).arg_names)
        for kernel in KERNELS
        if hasattr(launcher, kernel.name)
    }
    originals = {name: getattr(launcher, name) for name in stand_ins}
    vars(launcher).update(stand_ins)
    try:
        yield stand_ins
    finally:
        vars(launcher).update(originals)
