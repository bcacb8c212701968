"""The device suite: collected where there is a device (or in a rehearsal), reported to a file on demand."""

from __future__ import annotations

import datetime
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from device import support

from ascend_spec_ops import selection

PACKAGES = ("torch", "torch-npu", "triton", "triton-ascend", "transformers", "numba", "numpy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device-report", type=Path, metavar="FILE", help="write outcomes as JSON")
    parser.addoption("--rehearse", action="store_true", help="run the device suite on the CPU, to try it out")


def pytest_configure(config: pytest.Config) -> None:
    support.rehearsing = config.getoption("--rehearse", False)
    path = config.getoption("--device-report", None)
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(path))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without a device one test says so, and the others are not even listed."""
    is_suite = collection_path.suffix == ".py" and collection_path.name != "test_presence.py"
    return True if is_suite and not support.kinds() else None


def device_facts() -> list[dict[str, Any]]:
    """Name and runtime of each device that tests ran on."""
    facts: list[dict[str, Any]] = []
    for kind in support.kinds():
        if kind == "cpu":
            facts.append({"kind": kind, "name": platform.processor() or platform.machine()})
            continue
        module = getattr(torch, kind)
        free, total = module.mem_get_info()
        facts.append(
            {
                "kind": kind,
                "name": module.get_device_name(),
                "properties": str(module.get_device_properties(0)),
                "memory_bytes": total,
                "free_bytes": free,
                "runtime": getattr(torch.version, kind, None) or os.environ.get("ASCEND_TOOLKIT_HOME"),
            }
        )
    return facts


def installed() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


class Report:
    """Notes each test's outcome, and writes them when the run ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        entry = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3)}
        if report.failed:
            entry["failure"] = f"in {report.when}: {report.longreprtext}"
        if report.skipped and isinstance(report.longrepr, tuple):
            entry["reason"] = report.longrepr[2]
        entry |= dict(report.user_properties)
        self.tests.append(entry)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tests.append({"test": report.nodeid, "outcome": "failed", "failure": report.longreprtext})

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        outcomes = [entry["outcome"] for entry in self.tests]
        content = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "devices": device_facts(),
            "platform": platform.platform(),
            "versions": installed(),
            "exit_status": int(exitstatus),
            "counts": {name: outcomes.count(name) for name in ("passed", "failed", "skipped")},
            "fallbacks": [[*key, count] for key, count in selection.fallbacks.items()],
            "tests": self.tests,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(content, indent=1) + "\n")
