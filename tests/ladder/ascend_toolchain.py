"""Lower Triton kernels for an Ascend chip that is not there.

Runs in the Ascend compiler's own environment (triton-ascend, ascendnpu-ir, numpy, llvmlite; no torch) as a
server of jobs, see ``jobs``. A job also has ``arch`` and the compiler's ``options``; with ``execute`` the
kernel is lowered to linalg only and run on this machine (``ascend_execute``).

The stages are Triton's front end -> linalg (``triton-adapter-opt``) -> HFusion -> HIVM, with synchronisation,
the split into cube and vector cores and the plan of the on-chip memories (``bishengir-compile``). It stops
where ``bishengir-compile`` starts ``hivmc``, which only CANN has: machine code, launch and speed stay unseen.
"""

from __future__ import annotations

import importlib
import json
import re
import signal
import subprocess
import tempfile
import traceback
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import ascendnpuir
import jobs
import llvmlite.binding as llvm
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

COMPILER = Path(ascendnpuir.__file__).parent
#: what bishengir-compile says when all but the closed last step has succeeded
ONLY_HIVMC_MISSING = "External hivmc run fails, returning module before running external compiler"
#: memory scope in the compiler's report -> the module attribute that holds its capacity in bits
CAPACITY = {
    "ub": "UB_SIZE",
    "cbuf": "L1_SIZE",
    "l1": "L1_SIZE",
    "ca": "L0A_SIZE",
    "cb": "L0B_SIZE",
    "cc": "L0C_SIZE",
}
#: loops with a constant bound below this are a few scalars, not a vector taken apart
SHORT_LOOP = 16


@dataclass
class Report:
    """What became of one kernel."""

    stage: str = "front end"
    """The furthest stage reached: front end, linalg, hivm, lowered, executed."""
    error: str = ""
    core: str = ""
    """``aiv`` (vector), ``aic`` (cube) or ``mix``."""
    memory: dict[str, tuple[int, int]] = field(default_factory=dict)
    """``core/scope`` -> bytes used, bytes there."""
    missing_templates: list[str] = field(default_factory=list)
    """Device functions that hivmc would link and the compiler's library does not have."""
    findings: list[str] = field(default_factory=list)
    """What the compiler accepts without a word though it is slow or inexact; one entry a place."""


@cache
def template_functions() -> frozenset[str]:
    """Names of the device functions that hivmc links into a kernel for the 910 family."""
    files = [p for p in (COMPILER / "lib").glob("meta_op*.bc") if "c310" not in p.name]
    modules = [llvm.parse_bitcode(p.read_bytes()) for p in files]
    return frozenset(f.name for m in modules for f in m.functions if not f.is_declaration)


def lower_to_linalg(job: jobs.Job, report: Report) -> tuple[str, Any]:
    """The linalg text that ``bishengir-compile`` is given, and the backend's options."""
    kernel = getattr(importlib.import_module(job["module"]), job["function"])
    constexprs = job["constexprs"]
    signature = {n: t for n, t in job["signature"].items() if n not in constexprs}
    source = ASTSource(fn=kernel, signature=signature, constants=constexprs)
    target = GPUTarget("npu", job["arch"], 0)
    backend = make_backend(target)
    options = backend.parse_options({**source.parse_options(), **job.get("options", {})})
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    codegen = backend.get_codegen_implementation()
    module = source.make_ir(options, codegen, backend.get_module_map(), context)
    metadata = {"hash": job["function"], "target": target, **options.__dict__}
    module = stages["ttir"](module, metadata)
    report.stage = "linalg"
    linalg = stages["ttadapter"](module, metadata)
    report.core = (re.search(r'mix_mode\s*=\s*"([^"]+)"', linalg) or ["", ""])[1]
    # bishengir-compile does not know this attribute; triton-ascend strips it too
    return re.sub(r', mix_mode\s*=\s*"[^"]*"', "", linalg), options


#: The compiler itself crashes now and then, on attention kernels in 4 of 40 runs, and not on the same input again.
CRASHES_FORGIVEN = 4


def lower_to_hivm(linalg: str, options: Any, arch: str, report: Report) -> str:
    """The last module before ``hivmc``; fills in the memory plan."""
    report.stage = "hivm"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kernel.mlir").write_text(linalg)
        (folder / "temps").mkdir()
        command = [
            str(COMPILER / "bin" / "bishengir-compile"),
            "kernel.mlir",
            f"--target={arch}",
            f"--enable-auto-multi-buffer={options.multibuffer}",
            f"--enable-auto-bind-sub-block={options.enable_auto_bind_sub_block}",
            "--enable-hfusion-compile=true",
            "--enable-hivm-compile=true",
            "--enable-triton-kernel-compile=true",
            "--enable-memory-display",
            "--save-temps=temps",
            "-o",
            "kernel.o",
        ]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
        for _ in range(CRASHES_FORGIVEN):
            if run.returncode != -signal.SIGSEGV:
                break
            run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
        output = run.stdout + run.stderr
        result = folder / "temps" / "module.hivm.opt.mlir"
        lowered = result.exists() and (run.returncode == 0 or ONLY_HIVMC_MISSING in output)
        hivm = result.read_text() if result.exists() else ""
        read_memory_plan(folder, hivm, report)
        if not lowered:
            raise LoweringError(f"bishengir-compile: status {run.returncode}\n{compiler_errors(output)}")
    return hivm


class LoweringError(Exception):
    """The compiler refused the kernel."""


def compiler_errors(output: str) -> str:
    """The lines that say what went wrong; of a crash, what stands above its stack."""
    lines = [x for x in output.splitlines() if "hivmc" not in x]
    errors = [x for x in lines if "error:" in x or "Assert" in x]
    return "\n".join(errors or [x for x in lines if not x.startswith(" #") and not x.startswith("#")])[:4000]


def read_memory_plan(folder: Path, hivm: str, report: Report) -> None:
    """The highest byte that any buffer of each on-chip memory reaches."""
    capacity = {name: int(bits) // 8 for name, bits in re.findall(r'"(\w+_SIZE)", (\d+)', hivm)}
    for file in sorted(folder.glob("memory_info_*.json")):
        core = file.stem.rsplit("_", 1)[1]
        for record in json.loads(file.read_text())["Record"]:
            if record.get("error_info"):
                report.error = f"{core}: {record['error_info']}"
            buffers = record["memory_info_array"]
            ends = [offset + b["extent"] // 8 for b in buffers for offset in b["offset"]]
            key = f"{core}/{record['scope']}"
            used = max([*ends, report.memory.get(key, (0, 0))[0]])
            report.memory[key] = (used, capacity.get(CAPACITY.get(record["scope"], ""), 0))


def find_missing_templates(hivm: str) -> list[str]:
    wanted = set(re.findall(r"func\.func private @(\w+)", hivm))
    known = template_functions()
    return sorted(w for w in wanted if w not in known and f"_mlir_ciface_{w}" not in known)


def lint(hivm: str) -> list[str]:
    """Places that compile though they are slow, inexact or impossible on the chip."""
    findings = scalar_loops(hivm)
    findings += ["inline assembly"] * hivm.count("llvm.inline_asm")
    calls = re.findall(r"call @(\w+)", hivm)
    for first, second in pairwise(calls):
        if first.startswith("vcast_int32_t_to_float") and second.startswith("vdiv"):
            findings.append("int32 vector division in float32")
    return sorted(findings)


def scalar_loops(hivm: str) -> list[str]:
    """The compiler's own loops that work on one element of an on-chip memory at a time.

    They count in ``index``; a loop of the kernel's source counts in i32 or i64. Each was a vector operation
    that the vector unit does not have, and the bound tells which tensor it walks: it is the block size of
    the vocabulary or of the context.
    """
    findings: list[str] = []
    open_loops: list[dict[str, Any]] = []
    depth = 0
    for line in hivm.splitlines():
        if re.search(r"\bscf\.(for|while)\b", line) and line.endswith("{"):
            loop = re.search(r"scf\.for %\S+ = %\S+ to %(\S+) step", line)
            counts_in_index = loop is not None and not re.search(r": i(32|64) \{$", line)
            # a reduction carries its result from turn to turn instead of storing it
            result = "iter_args" in line
            bound = loop[1] if loop and counts_in_index else None
            open_loops.append({"depth": depth, "bound": bound, "load": False, "result": result})
        depth += line.count("{") - line.count("}")
        if open_loops:
            open_loops[-1]["load"] |= "memref.load" in line
            open_loops[-1]["result"] |= "memref.store" in line
        while open_loops and depth <= open_loops[-1]["depth"]:
            done = open_loops.pop()
            if done["bound"] and done["load"] and done["result"]:
                constant = re.fullmatch(r"c(\d+)", done["bound"])
                if constant is None:
                    findings.append("scalar loop to a run-time bound")
                elif int(constant[1]) >= SHORT_LOOP:
                    findings.append(f"scalar loop to {constant[1]}")
    return findings


def run_job(job: jobs.Job) -> jobs.Report:
    report = Report()
    try:
        linalg, options = lower_to_linalg(job, report)
        if "execute" not in job:
            hivm = lower_to_hivm(linalg, options, job["arch"], report)
            report.missing_templates = find_missing_templates(hivm)
            report.findings = lint(hivm)
            report.stage = "lowered"
        else:
            import ascend_execute

            ascend_execute.execute(linalg, job)
            report.stage = "executed"
    except LoweringError as error:
        report.error = f"{report.error}\n{error}".strip()
    except subprocess.CalledProcessError as error:
        tool = Path(error.cmd[0]).name
        errors = compiler_errors(error.stderr.decode(errors="replace"))
        report.error = f"{tool}: status {error.returncode}\n{errors}"
    except Exception:  # reported to the test, which fails with it
        report.error = traceback.format_exc(limit=-4)
    return asdict(report)


if __name__ == "__main__":
    jobs.serve(run_job)
