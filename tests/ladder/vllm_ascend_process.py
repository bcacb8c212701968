"""A process with the real Python of vllm-ascend and of the vLLM beside it, unpacked from their wheels, and a fake
torch_npu."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

from filelock import FileLock
from ladder.jobs import CompilerProcess
from ladder.wheel_source import PAIRS, find_wheel

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".cache" / "vllm_ascend"


def unpacked(ascend: str) -> Path | None:
    """The Python in the wheels of a vllm-ascend and its vLLM, in one directory; None: there are no wheels."""
    wheels = find_wheel("vllm_ascend", ascend), find_wheel("vllm", PAIRS[ascend])
    if None in wheels:
        return None
    directory = CACHE / ascend
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{directory}.lock"):
        if not directory.exists():
            unfinished = directory.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            for wheel in filter(None, wheels):
                with zipfile.ZipFile(wheel) as archive:
                    names = (
                        name for name in archive.namelist() if name.endswith(".py") or ".dist-info/" in name
                    )
                    archive.extractall(unfinished, names)
            unfinished.rename(directory)
    return directory


def site() -> Path:
    """This project, and the fake torch_npu with the entry point by which torch loads it."""
    directory = CACHE / "site"
    with FileLock(f"{directory}.lock"):
        shutil.rmtree(directory, ignore_errors=True)
        packages = {"ascend_spec": ROOT / "ascend_spec", "ascend_spec_ops": ROOT / "ops"}
        fake = {"torch_npu": HERE / "vllm_ascend_site" / "torch_npu"}
        information = directory / "torch_npu-2.10.0.dist-info"
        information.mkdir(parents=True)
        for name, source in {**packages, **fake}.items():
            (directory / name).symlink_to(source)
        (information / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.10.0.post4\n"
        )
        (information / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")
    return directory


class AscendProcess:
    """A process of its own: what is patched in it stays so."""

    def __init__(self, python: str, wheels: Path, site: Path) -> None:
        path = [site, wheels, ROOT / "tests"]
        inherited = {name: value for name, value in os.environ.items() if name != "VLLM_PLUGINS"}
        command = [python, str(ROOT / "tests" / "vllm_cpu" / "vllm_cpu_jobs.py")]
        self._process = CompilerProcess(
            command,
            {},
            {
                **inherited,
                "PYTHONPATH": os.pathsep.join(map(str, path)),
                "NUMBA_CACHE_DIR": str(CACHE / "numba"),
                "VLLM_CACHE_ROOT": str(CACHE / "vllm"),
                "VLLM_NO_USAGE_STATS": "1",
                "OMP_NUM_THREADS": "1",
                "NUMBA_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",  # set but empty: vLLM keeps Triton although there is no driver
                "TORCHDYNAMO_DISABLE": "1",  # it would ask the device for its streams
            },
        )

    def __call__(self, function: str, **arguments: Any) -> Any:
        report = self._process.submit(
            {"call": f"ladder.vllm_ascend_worker:{function}", "arguments": arguments}
        )
        assert "error" not in report, report
        return report["result"]

    def close(self) -> None:
        self._process.close()


def python_with_vllm() -> str:
    return os.environ.get("ASCEND_SPEC_VLLM_PYTHON", str(ROOT / ".venv-vllm" / "bin" / "python"))
