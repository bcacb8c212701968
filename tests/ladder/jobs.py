"""Compile jobs for a compiler that lives in a Python process of its own. Needs nothing but Python.

A job is one line of JSON on the process's standard input, its report one line back. A job names a kernel
(``module``, ``function``, ``signature``: argument -> type, ``constexprs``: argument -> value) and carries
whatever else its compiler wants; a report has at least ``stage`` and ``error``.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

Job = dict[str, Any]
Report = dict[str, Any]

#: a kernel that takes longer than this has hung its compiler
TIMEOUT_SECONDS = 600


def register_packages(packages: dict[str, str]) -> None:
    """Make ``kernel.py`` files importable without running any ``__init__``: those need torch."""
    for name, root in packages.items():
        folders = {name: Path(root)}
        folders |= {f"{name}.{p.parent.name}": p.parent for p in Path(root).glob("*/kernel.py")}
        for package, folder in folders.items():
            module = types.ModuleType(package)
            module.__path__ = [str(folder)]
            sys.modules[package] = module


def serve(run_job: Callable[[Job], Report]) -> None:
    """The main of a compiler's process; its one argument is ``{package: folder}`` in JSON."""
    register_packages(json.loads(sys.argv[1]))
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print must not stand between the replies
    for line in sys.stdin:
        print(json.dumps(run_job(json.loads(line))), file=replies, flush=True)


class CompilerProcess:
    """Starts ``command`` when it is first needed, and again after a job has killed it."""

    def __init__(self, command: list[str], packages: dict[str, str], env: dict[str, str]) -> None:
        self._command = [*command, json.dumps(packages)]
        # the interpreter replaces @triton.jit functions by ones that cannot be compiled
        self._env = {name: value for name, value in env.items() if name != "TRITON_INTERPRET"}
        self._process: subprocess.Popen[str] | None = None

    def submit(self, job: Job) -> Report:
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(self._command, env=self._env, stdin=pipe, stdout=pipe, text=True)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(job), file=process.stdin, flush=True)
        answered, _, _ = select.select([process.stdout], [], [], TIMEOUT_SECONDS)
        reply = process.stdout.readline() if answered else ""
        if reply:
            return json.loads(reply)
        status = self.close()
        return {"stage": "crashed", "error": f"the compiler's process ended with status {status}"}

    def close(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        if process.poll() is None:
            process.kill()
        status = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return status
