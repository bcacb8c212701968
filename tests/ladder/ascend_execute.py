"""Run the linalg that Ascend's compiler is given on this machine.

linalg -> loops and LLVM dialect (``bishengir-opt``) -> LLVM IR (libtriton) -> machine code (llvmlite), then
every program of the grid in turn. This shows what Triton's lowering to linalg means; it says nothing about
the passes below it, about the chip's rounding, or about races. Runs in the Ascend compiler's environment.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import ascendnpuir
import llvmlite.binding as binding
import numpy as np
from triton._C.libtriton import ir, llvm

HERE = Path(__file__).parent
OPT = Path(ascendnpuir.__file__).parent / "bin" / "bishengir-opt"

#: bufferise, then lower each dialect; some come twice because later ones bring them back
PASSES = (
    "execution-engine-convert-hfusion-to-upstream",
    "convert-elementwise-to-linalg",
    "linalg-generalize-named-ops",
    "eliminate-empty-tensors",
    "empty-tensor-to-alloc-tensor",
    "one-shot-bufferize=allow-return-allocs-from-loops=true",
    "convert-linalg-to-loops",
    "lower-affine",
    "convert-scf-to-cf",
    "expand-strided-metadata",
    "lower-affine",
    "memref-expand",
    *(f"convert-{dialect}" for dialect in ("math-to-libm", "math-to-llvm", "complex-to-llvm")),
    *(f"convert-{dialect}" for dialect in ("vector-to-llvm", "index-to-llvm")),
    "arith-expand",
    "convert-arith-to-llvm",
    "finalize-memref-to-llvm",
    "convert-func-to-llvm",
    "convert-cf-to-llvm",
    "lower-affine",
    "convert-arith-to-llvm",
    "reconcile-unrealized-casts",
)

RUNTIME_SYMBOLS = {
    "malloc": "tile_alloc",
    "free": "tile_free",
    "memrefCopy": "view_copy",
    "__extendhfsf2": "half_to_float",
    "__truncsfhf2": "float_to_half",
    "__truncdfhf2": "double_to_half",
    "__truncsfbf2": "float_to_bfloat",
}
SCALARS = {
    "i1": ctypes.c_bool,
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "fp32": ctypes.c_float,
}
ELEMENT_BYTES = {"i1": 1, "i8": 1, "i16": 2, "half": 2, "bfloat": 2, "i32": 4, "float": 4, "i64": 8}
#: bytes on both sides of every array, which a kernel must leave alone
GUARD = 4096
#: a memref argument is: allocated, aligned, offset, size, stride
MEMREF = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64]


@cache
def runtime() -> ctypes.CDLL:
    """The C helpers, compiled once a process and known to the JIT."""
    folder = tempfile.mkdtemp()
    library = Path(folder, "runtime.so")
    source = HERE / "ascend_runtime.c"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True, capture_output=True)
    loaded = ctypes.CDLL(str(library))
    for symbol, function in RUNTIME_SYMBOLS.items():
        binding.add_symbol(symbol, ctypes.cast(getattr(loaded, function), ctypes.c_void_p).value)
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return loaded


def without_device_attributes(linalg: str) -> str:
    """libtriton reads the lowered module, and does not know Huawei's attributes."""
    linalg = re.sub(r"\s*\{hacc\.arg_type = #hacc\.arg_type<\w+>\}", "", linalg)
    linalg = re.sub(r"(hacc\.entry|(hacc|hivm)\.\w+ = #\w+\.\w+<\w+>), ", "", linalg)
    return re.sub(r"^module attributes \{.*\} \{$", "module {", linalg, flags=re.MULTILINE)


def llvm_ir(linalg: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        source, lowered = Path(folder, "linalg.mlir"), Path(folder, "llvm.mlir")
        source.write_text(without_device_attributes(linalg))
        command = [str(OPT), str(source), *(f"--{p}" for p in PASSES), "-o", str(lowered)]
        subprocess.run(command, check=True, capture_output=True)
        context = ir.context()
        ir.load_dialects(context)
        llvm.init_targets()
        text = str(llvm.to_module(ir.parse_mlir_module(str(lowered), context), llvm.context()))
    # libtriton's LLVM prints `n * sizeof(T)` as a constant expression that llvmlite's LLVM no longer has
    size = r"ptrtoint \(ptr getelementptr \((\w+), ptr null, i(?:32|64) 1\) to i64\)"
    return re.sub(rf"mul \(i64 {size}, i64 (\d+)\)", lambda m: str(ELEMENT_BYTES[m[1]] * int(m[2])), text)


@cache
def machine_code(linalg: str) -> Any:
    """An execution engine; it must outlive the function pointers taken from it."""
    target = binding.Target.from_default_triple()
    # LLVM's optimiser takes a hundred times longer than these small launches win by it
    machine = target.create_target_machine(opt=1, cpu=binding.get_host_cpu_name())
    module = binding.parse_assembly(llvm_ir(linalg))
    module.verify()
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


class GuardedMemory:
    """A copy of some bytes between two guards, so that a write out of bounds is seen."""

    def __init__(self, content: np.ndarray) -> None:
        self.whole = np.full(content.nbytes + 2 * GUARD, 0xA5, np.uint8)
        self.inside = self.whole[GUARD : GUARD + content.nbytes]
        self.inside[:] = content

    def intact(self) -> bool:
        return bool((self.whole[:GUARD] == 0xA5).all() and (self.whole[-GUARD:] == 0xA5).all())


def execute(linalg: str, job: dict[str, Any]) -> None:
    """Run ``job["execute"]``:

    ``memory``: an npz file of byte arrays, written back in place; ``arguments``: name -> ``[array, offset in
    bytes]`` for a pointer, or a number; ``grid``: three sizes.
    """
    library = runtime()
    engine = machine_code(linalg)
    run = job["execute"]
    with np.load(run["memory"]) as arrays:
        memory = {name: GuardedMemory(arrays[name]) for name in arrays.files}
    types: list[Any] = [ctypes.c_int64] if "ffts_base_address" in linalg else []
    values: list[Any] = [0] * len(types)
    for _ in ("synchronisation lock", "workspace"):
        types += MEMREF
        values += [None, None, 0, 0, 1]
    for name, kind in job["signature"].items():
        value = run["arguments"][name]
        if kind.startswith("*"):
            address = memory[value[0]].inside.ctypes.data + value[1]
            types += MEMREF
            values += [address, address, 0, 1 << 40, 1]
        else:
            types.append(SCALARS[kind])
            values.append(value)
    types += [ctypes.c_int32] * 6
    function = ctypes.CFUNCTYPE(None, *types)(engine.get_function_address(job["function"]))
    sizes = run["grid"]
    for z, y, x in np.ndindex(*reversed(sizes)):
        function(*values, *sizes, x, y, z)
        library.tile_reset()
    broken = [name for name, block in memory.items() if not block.intact()]
    if broken:
        raise IndexError(f"the kernel wrote outside its arrays: {broken}")
    np.savez(run["memory"], **{name: block.inside for name, block in memory.items()})
