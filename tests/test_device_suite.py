"""The device suite, rehearsed: it passes on the CPU with interpreted kernels, and fails where they are wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_spec_ops import selection

ROOT = Path(__file__).parents[1]
#: a few tests of each operator
FEW = {
    "random_bits": "test_random_bits",
    "verify": "test_neighbours_and_batch_order_do_not_matter",
    "sample": "test_sample",
    "ngram_match": "test_ngram_golden",
    "draft_inputs": "test_draft_inputs_by_hand",
    "filter_logits": "test_filter_golden",
    "apply_penalties": "test_penalties_by_hand",
    "apply_token_bitmask": "test_token_bitmask",
    "kv_write": "test_kv_write",
    "mqa_attention": "test_mqa_attention_of_a_verification",
}
SABOTAGE = """
import pytest
import torch


def wrong(run):
    def function(*args, **kwargs):
        result = run(*args, **kwargs)
        # in place: the first tensor, behind the run itself; kv_write's are its third and fourth
        written = args[3 if args[0].op == "kv_write" else 1]
        tensors = [written] if result is None else [result] if isinstance(result, torch.Tensor) else result
        for tensor in tensors:
            tensor[(0,) * tensor.dim()] += 1
        return result

    return function


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    from device import support

    run = support.Run.on_device
    support.Run.on_device = lambda self, *args, **kwargs: wrong(run)(self, *args, **kwargs)
"""


def rehearse(report: Path, *options: str, **environment: str) -> tuple[subprocess.CompletedProcess, dict]:
    command = [sys.executable, "-m", "pytest", "tests/device", "--rehearse", "-q", "-p", "no:cacheprovider"]
    command += ["--device-report", str(report), *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert report.is_file(), run.stdout + run.stderr
    return run, json.loads(report.read_text())


def test_every_operator_is_rehearsed():
    assert set(FEW) == set(selection.table)


def test_the_suite_passes_and_reports(tmp_path):
    run, report = rehearse(tmp_path / "folder" / "report.json")
    assert run.returncode == 0, run.stdout
    assert report["exit_status"] == 0
    assert report["devices"][0]["kind"] == "cpu"
    assert {"python", "torch", "triton"} <= set(report["versions"])
    assert report["counts"]["failed"] == 0
    assert report["counts"]["passed"] > 100
    assert sum(report["counts"].values()) == len(report["tests"])
    assert all(test["reason"] for test in report["tests"] if test["outcome"] == "skipped")


def test_wrong_results_are_failures_with_their_text(tmp_path):
    (tmp_path / "sabotage.py").write_text(SABOTAGE)
    path = {"PYTHONPATH": str(tmp_path)}
    run, report = rehearse(
        tmp_path / "report.json", "-p", "sabotage", "-k", " or ".join(FEW.values()), **path
    )
    assert run.returncode == 1, run.stdout + run.stderr
    failed = [test for test in report["tests"] if test["outcome"] == "failed"]
    for op, name in FEW.items():
        assert any(name in test["test"] for test in failed), f"nothing noticed a wrong {op}"
    assert all("Error" in test["failure"] for test in failed)


@pytest.mark.parametrize("kind", ["cuda", "npu"])
def test_without_a_device_one_line_says_so(kind):
    from device.support import absent

    reason = absent(kind)
    if reason is None:
        pytest.skip("there is one")
    command = [sys.executable, "-m", "pytest", "tests/device", "-m", kind, "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    skips = [line for line in run.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(skips) == 1, run.stdout
    assert reason.split(":")[0] in skips[0]
