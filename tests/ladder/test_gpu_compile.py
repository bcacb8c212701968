"""Rung 3: every kernel compiles for NVIDIA's and AMD's data-centre GPUs and fits their resources."""

from __future__ import annotations

import pytest
from ladder.jobs import CompilerProcess
from ladder.kernels import GPU, KERNELS, Kernel, Variant

TARGETS = {
    "sm_80": ["cuda", 80, 32],
    "sm_90": ["cuda", 90, 32],
    "gfx942": ["hip", "gfx942", 64],
}
#: bytes of shared memory (LDS) that one block may use
SHARED_LIMIT = {"sm_80": 166912, "sm_90": 232448, "gfx942": 65536}

CASES = [
    pytest.param(k, v, id=f"{k.name}-{v.label}", marks=[pytest.mark.full] * v.full)
    for k in KERNELS
    for v in k.variants_for(GPU)
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("kernel", "variant"), CASES)
def test_compiles_and_fits(gpu: CompilerProcess, kernel: Kernel, variant: Variant, target: str):
    report = gpu.submit({**kernel.job(variant), "target": TARGETS[target]})
    assert report["stage"] == "compiled", report["error"]
    assert report["shared"] <= SHARED_LIMIT[target]
    if target == "sm_90":
        assert report["stack"] == 0, "registers spilled to memory"


def faulty(function: str, **constexprs: int) -> dict:
    return {
        "module": "faulty_kernels",
        "function": function,
        "signature": {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"},
        "constexprs": constexprs,
        "aligned": ["x_ptr", "out_ptr"],
        "options": {"num_warps": 1},
        "target": TARGETS["sm_90"],
    }


def test_a_spilling_kernel_is_seen(gpu: CompilerProcess):
    report = gpu.submit(faulty("hold_many_kernel", BLOCK=16384))
    assert report["stage"] == "compiled", report["error"]
    assert report["stack"] > 0


def test_shared_memory_is_seen(gpu: CompilerProcess):
    report = gpu.submit(faulty("hold_many_kernel", BLOCK=256) | {"options": {"num_warps": 4}})
    assert report["stage"] == "compiled", report["error"]
    assert report["shared"] > 0
    assert report["stack"] == 0


def test_a_kernel_that_does_not_compile_is_reported(gpu: CompilerProcess):
    report = gpu.submit(faulty("unknown_name_kernel", BLOCK=16))
    assert report["stage"] == "front end"
    assert "no_such_function" in report["error"]
