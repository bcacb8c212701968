"""What the benchmarks share: calls timed in turn, facts about the machine, and JSON."""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
QUIET = 0.5


def interleave(
    functions: dict[str, Callable[[], Any]],
    repeats: int,
    synchronize: Callable[[], None] = lambda: None,
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Call each function once a round, so that a slow spell of the machine falls on all of them.

    Every other round runs backwards: what a function leaves in the caches favours no fixed successor.

    Returns:
        Seconds of each call, and what each function returned last.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    results: dict[str, Any] = {}
    for index in range(repeats):
        for name in list(functions)[:: -1 if index % 2 else 1]:
            synchronize()
            start = perf_counter()
            results[name] = functions[name]()
            synchronize()
            seconds[name].append(perf_counter() - start)
    return seconds, results


def environment(device: str) -> dict[str, Any]:
    """Where and when numbers were taken."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": device,
        "device_name": cpu_model() if device == "cpu" else getattr(torch, device).get_device_name(),
        "cpu": cpu_model(),
        "threads": torch.get_num_threads(),
        "load_average_before": round(os.getloadavg()[0], 2),
        "versions": {
            "python": platform.python_version(),
            **versions("torch", "numba", "triton", "transformers"),
        },
    }


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def watch_other_work() -> Callable[[], float | None]:
    """Start watching; the function returned tells how many cores other programs have kept busy since then.
    None where the system does not say."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return lambda: None

    def busy_seconds_of_others() -> float:
        user, nice, system, _idle, _wait, *rest = map(int, stat.read_text().split("\n", 1)[0].split()[1:9])
        own = os.times()
        return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK") - own.user - own.system

    start, busy = perf_counter(), busy_seconds_of_others()
    return lambda: max(0.0, round((busy_seconds_of_others() - busy) / (perf_counter() - start), 2))


def versions(*packages: str) -> dict[str, str | None]:
    """Version of each package; None: not installed."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def require(device: str) -> None:
    """End the program with a reason where ``device`` cannot be used."""
    if device == "npu" and importlib.util.find_spec("torch_npu"):
        importlib.import_module("torch_npu")  # teaches torch the word "npu"
    module = getattr(torch, device, None)
    if module is None or not module.is_available():
        raise SystemExit(f"--device {device} was given, but torch finds none here: leave it out, or use cpu")


def warn_if_busy() -> None:
    load = os.getloadavg()[0]
    if load > QUIET:
        print(f"the machine is busy (load average {load:.2f}, quiet is under {QUIET}): times will be off")


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
    print(f"wrote {path}")
