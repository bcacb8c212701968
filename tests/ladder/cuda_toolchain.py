"""Compile Triton kernels for GPUs that are not there: PTX and cubin for NVIDIA, hsaco for AMD.

Runs as a server of jobs (see ``jobs``), in a process without TRITON_INTERPRET. A job also has ``target``
(``[backend, architecture, warp size]``), ``options`` (``num_warps``, ...) and ``aligned``: the arguments that
are multiples of 16 in a real launch, for which Triton then specialises the kernel.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import tempfile
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

import jobs
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass
class Report:
    """What became of one kernel."""

    stage: str = "front end"
    """``compiled`` when a binary came out."""
    error: str = ""
    registers: int = 0
    stack: int = 0
    """Bytes of stack a thread: registers that did not fit."""
    shared: int = 0
    """Bytes of shared memory (LDS) a block."""


def source_of(job: jobs.Job) -> ASTSource:
    kernel = getattr(importlib.import_module(job["module"]), job["function"])
    index = {name: i for i, name in enumerate(kernel.arg_names)}
    signature = {n: "constexpr" if n in job["constexprs"] else job["signature"][n] for n in kernel.arg_names}
    return ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(index[n],): value for n, value in job["constexprs"].items()},
        attrs={(index[name],): [["tt.divisibility", 16]] for name in job["aligned"]},
    )


def nvidia_resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack a thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if usage is None:
        raise ValueError(f"cuobjdump names no registers: {text}")
    return int(usage[1]), int(usage[2])


def amd_resources(assembly: str) -> tuple[int, int]:
    """Vector registers and bytes of scratch a thread."""
    registers = re.search(r"\.vgpr_count:\s+(\d+)", assembly)
    scratch = re.search(r"\.private_segment_fixed_size:\s+(\d+)", assembly)
    if registers is None or scratch is None:
        raise ValueError("the assembly has no kernel metadata")
    return int(registers[1]), int(scratch[1])


def run_job(job: jobs.Job) -> jobs.Report:
    report = Report()
    try:
        compiled = triton.compile(
            source_of(job), target=GPUTarget(*job["target"]), options=dict(job.get("options", {}))
        )
        report.shared = compiled.metadata.shared
        if job["target"][0] == "cuda":
            report.registers, report.stack = nvidia_resources(compiled.asm["cubin"])
        else:
            report.registers, report.stack = amd_resources(compiled.asm["amdgcn"])
        report.stage = "compiled"
    except Exception:  # reported to the test, which fails with it
        report.error = traceback.format_exc(limit=-4)
    return asdict(report)


if __name__ == "__main__":
    jobs.serve(run_job)
