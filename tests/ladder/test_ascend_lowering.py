"""Rung 4, first half: every kernel lowers for Ascend 910B to the last stage before ``hivmc``."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from ladder.jobs import CompilerProcess
from ladder.kernels import ASCEND, ASCEND_ARCH, KERNELS, Allowed, Kernel, Variant

#: share of an on-chip memory that a kernel may use: compilers differ in what they add
MEMORY_SHARE = 0.9
#: a scalar loop over this many elements walks the vocabulary or the context, and nothing excuses it
LONG_LOOP = 512

CASES = [
    pytest.param(k, v, id=f"{k.name}-{v.label}", marks=[pytest.mark.full] * v.full)
    for k in KERNELS
    for v in k.variants_for(ASCEND)
]


@pytest.mark.parametrize(("kernel", "variant"), CASES)
def test_lowers_within_the_chip(ascend: CompilerProcess, kernel: Kernel, variant: Variant):
    report = ascend.submit({**kernel.job(variant), "arch": ASCEND_ARCH})
    assert report["stage"] == "lowered", report["error"]
    assert report["memory"]
    for memory, (used, there) in report["memory"].items():
        assert 0 < used <= MEMORY_SHARE * there, f"{memory}: {used} of {there} bytes"
    assert report["missing_templates"] == []
    assert kernel.not_allowed(report["findings"]) == []
    assert max(map(loop_length, report["findings"]), default=0) < LONG_LOOP


def loop_length(finding: str) -> float:
    """Elements that a loop of the scalar unit walks; without end where the compiler does not know."""
    loop = re.fullmatch(r"scalar loop to (\d+|a run-time bound)", finding)
    if loop is None:
        return 0
    return int(loop[1]) if loop[1].isdigit() else math.inf


def faulty(ascend: CompilerProcess, function: str, block: int = 1024) -> dict:
    job = {
        "module": "faulty_kernels",
        "function": function,
        "signature": {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"},
        "constexprs": {"BLOCK": block},
        "arch": ASCEND_ARCH,
    }
    return ascend.submit(job)


def test_an_overflow_is_reported(ascend: CompilerProcess):
    report = faulty(ascend, "hold_many_kernel", block=65536)
    assert report["stage"] == "hivm"
    assert "ub overflow" in report["error"]


def test_the_memory_plan_grows_with_the_block(ascend: CompilerProcess):
    used = [faulty(ascend, "hold_many_kernel", block)["memory"]["aiv/ub"][0] for block in (1024, 8192)]
    assert used[1] >= 2 * 4 * 8192
    assert used[0] < used[1]


@pytest.mark.parametrize(
    ("function", "finding"),
    [
        ("int64_compare_kernel", "scalar loop to 1024"),
        ("int64_sum_kernel", "scalar loop to 1024"),
        ("int32_division_kernel", "int32 vector division in float32"),
        ("inline_assembly_kernel", "inline assembly"),
    ],
)
def test_the_lint_finds(ascend: CompilerProcess, function: str, finding: str):
    report = faulty(ascend, function)
    assert report["stage"] == "lowered", report["error"]
    assert finding in report["findings"]


def test_a_clean_kernel_has_no_findings(ascend: CompilerProcess):
    assert faulty(ascend, "hold_many_kernel")["findings"] == []


def test_a_kernel_that_does_not_compile_is_reported(ascend: CompilerProcess):
    report = faulty(ascend, "unknown_name_kernel")
    assert report["stage"] == "front end"
    assert "no_such_function" in report["error"]


def test_allowances_are_counted():
    allowed = (Allowed(r"scalar loop to \d\d", 2, "a table of heads"),)
    kernel = replace(KERNELS[0], allowed=allowed)
    findings = ["scalar loop to 16", "scalar loop to 32"]
    assert kernel.not_allowed(findings) == []
    assert kernel.not_allowed([*findings, "scalar loop to 64"]) == ["scalar loop to 64"]
    assert kernel.not_allowed(["scalar loop to 1024"]) == ["scalar loop to 1024"]
