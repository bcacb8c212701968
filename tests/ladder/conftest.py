"""The compilers' processes, one of each a test run, started when first asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ladder.jobs import CompilerProcess

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGES = {"ascend_spec_ops": str(ROOT / "ops")}


@pytest.fixture(scope="session")
def ascend() -> Iterator[CompilerProcess]:
    """The Ascend compiler."""
    python = os.environ.get("ASCEND_SPEC_ASCEND_PYTHON", str(ROOT / ".venv-ascend" / "bin" / "python"))
    if shutil.which(python) is None:
        pytest.skip(f"no Ascend compiler at {python}: `make setup-ascend` creates it")
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing: it builds the run time of kernels lowered for Ascend")
    probe = subprocess.run(
        [python, "-c", "import triton, ascendnpuir, llvmlite, numpy"], capture_output=True, text=True
    )
    if probe.returncode:
        pytest.skip(f"the Ascend compiler at {python} is incomplete: {probe.stderr[-200:]}")
    command = [python, str(HERE / "ascend_toolchain.py")]
    # threads would only fight over the cores of a test machine
    process = CompilerProcess(command, PACKAGES, {**os.environ, "OMP_NUM_THREADS": "1"})
    yield process
    process.close()


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilerProcess]:
    """Triton's own compiler."""
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    process = CompilerProcess([sys.executable, str(HERE / "cuda_toolchain.py")], PACKAGES, env)
    yield process
    process.close()
