"""Stock vLLM 0.33 in a process of its own, on a platform of these tests (``torch_cpu``)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomllib
import torch
import transformers
from filelock import FileLock

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: what outlives a run: paths that numba's cache is bound to, and that cache, which another environment's
#: numba must not share
CACHE = ROOT / ".cache" / "vllm033"
Cases = dict[str, dict[str, Any]]
Ask = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture(scope="session")
def python() -> str:
    """The Python that has stock vLLM."""
    path = os.environ.get("ASCEND_SPEC_VLLM_PYTHON", str(ROOT / ".venv-vllm" / "bin" / "python"))
    if shutil.which(path) is None:
        pytest.skip(f"no vLLM at {path}: `make setup-vllm` creates it")
    return path


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all of pytest's processes, with the models ``target`` and ``draft`` in it."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "vllm033"
    with FileLock(f"{directory}.lock"):
        if not directory.exists():
            _write_site(CACHE / "site")
            _write_models(directory)
    return directory


def _write_site(site: Path) -> None:
    """A directory for PYTHONPATH: this project and the platform, with the entry points by which vLLM finds both."""
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    (site / "ascend_spec").symlink_to(ROOT / "ascend_spec")
    (site / "ascend_spec_ops").symlink_to(ROOT / "ops")
    (site / "torch_cpu").symlink_to(HERE / "torch_cpu")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    _write_distribution(site, "ascend_spec", declared)
    _write_distribution(site, "torch_cpu", {"vllm.platform_plugins": {"torch_cpu": "torch_cpu:platform"}})


def _write_distribution(site: Path, name: str, entry_points: dict[str, dict[str, str]]) -> None:
    directory = site / f"{name}-0.dist-info"
    directory.mkdir()
    (directory / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    lines = []
    for group, names in entry_points.items():
        lines += [f"[{group}]", *(f"{entry} = {target}" for entry, target in names.items())]
    (directory / "entry_points.txt").write_text("\n".join(lines))


def _write_models(directory: Path) -> None:
    """A tiny random Llama whose greedy text repeats itself now and then, and one that is nearly the same."""
    config = transformers.LlamaConfig(
        vocab_size=160,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = transformers.LlamaForCausalLM(config)
        model.save_pretrained(directory / "target")
        for parameter in model.parameters():
            parameter.data += 0.02 * torch.randn_like(parameter)
        model.save_pretrained(directory / "draft")


@pytest.fixture(scope="session")
def ask(python: str, shared: Path) -> Ask:
    """``ask(name, cases, **environment)``: what became of each case, by name; run once for all processes."""

    def ask(name: str, cases: Cases, **environment: str) -> dict[str, dict[str, Any]]:
        answers = shared / f"{name}.json"
        with FileLock(shared / f"{name}.lock"):
            if not answers.exists():
                _run(python, cases, answers, environment)
        return json.loads(answers.read_text())

    return ask


def _run(python: str, cases: Cases, answers: Path, environment: dict[str, str]) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    unfinished = answers.with_suffix(".unfinished")
    done = subprocess.run(
        [python, str(HERE / "engine.py"), str(unfinished)],
        input=json.dumps(cases),
        text=True,
        capture_output=True,
        env={
            **inherited,
            "PYTHONPATH": os.pathsep.join([str(CACHE / "site"), str(HERE.parent)]),
            "NUMBA_CACHE_DIR": str(CACHE / "numba"),
            "VLLM_CACHE_ROOT": str(CACHE / "vllm"),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CONFIGURE_LOGGING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
            **environment,
        },
    )
    answers.with_suffix(".log").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr[-3000:]
    unfinished.rename(answers)
