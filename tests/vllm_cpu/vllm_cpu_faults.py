"""In the process that has vLLM: its faults, looked at from near."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from vllm.platforms import current_platform
from vllm.utils import cpu_triton_utils
from vllm_cpu_engine import Engine, Messages, run

from ascend_spec.vllm import workarounds


def spread() -> dict[str, bool]:
    """Whether vLLM's substitute for its expand kernel writes float parameters where they are read."""
    current_platform.import_kernels()
    output = torch.full((5,), -7.0)
    cumulative = torch.tensor([2, 5], dtype=torch.int32)
    cpu_triton_utils._expand_kernel_impl(
        output, torch.tensor([0.5, 0.9]), cumulative, 0, 1, MAX_NUM_TOKENS=128
    )
    return {"written": bool((output != -7.0).any())}


def threads(engine: dict[str, Any], batch: list) -> dict[str, Any]:
    """How many torch uses in a process that was told to use one, while an engine runs."""
    with Messages() as messages, Engine(engine) as llm:
        run(llm, batch)
        return {"threads": torch.get_num_threads(), "log": messages.lines}


def workarounds_without_faults() -> dict[str, Any]:
    """What they do once llvmlite's object has no attributes that look like a module's, and threads are as wished."""
    platform = _Platform()
    workarounds.override_kernels_once(platform)
    with mock.patch("llvmlite.binding.ffi.lib", object()):
        for _ in range(3):
            platform.register_triton_kernel_overrides()
    return {"kernels replaced": platform.calls, "threads": workarounds.keep_openmp_threads()}


class _Platform:
    calls = 0

    def is_cpu(self) -> bool:
        return True

    def register_triton_kernel_overrides(self) -> None:
        self.calls += 1


def engines(settings: list[dict[str, Any]], batch: list) -> dict[str, Any]:
    """One after the other in this process: what each says, and the log."""
    with Messages() as messages:
        outputs = []
        for engine in settings:
            with Engine(engine) as llm:
                outputs.append(run(llm, batch))
        return {"outputs": outputs, "log": messages.lines}
