"""Times of the verification kernels, for the report; nothing is asserted of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from device.support import on_kinds

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "verify.py"


@pytest.mark.full
@pytest.mark.parametrize("kind", on_kinds())
def test_verify(kind, tmp_path, record_property):
    output = tmp_path / "verify.json"
    command = [sys.executable, str(SCRIPT), "--device", kind, "--output", str(output)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    record_property("benchmark", json.loads(output.read_text()))
