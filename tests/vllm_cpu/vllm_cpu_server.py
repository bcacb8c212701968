"""A server of vLLM's as a process, and what is left of it."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import psutil
from vllm_cpu_process import environment

#: for a server on a busy machine
PATIENCE_SECONDS = 300


class Server:
    """``python -m`` its module: the command ``vllm`` asks for a distribution named vllm, and ours is vllm-cpu."""

    def __init__(self, python: str, log: Path, *options: str, **more: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{port}", log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [
                    python,
                    "-m",
                    "vllm.entrypoints.openai.api_server",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(port),
                    *options,
                ],
                env=environment(VLLM_DO_NOT_TRACK="1", **more),
                cwd=log.parent,  # in a checkout, an old egg-info there would stand for the installed package
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.children: list[psutil.Process] = []

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.5)
        self.children = psutil.Process(self.process.pid).children(recursive=True)

    def stop(self) -> int:
        """Its exit code, once it was interrupted as by Ctrl-C."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def left_behind(self) -> list[psutil.Process]:
        """Those of its processes that go on without it: each gets a moment to see that it is gone."""
        deadline = time.monotonic() + 30
        while (
            left := [child for child in self.children if still_works(child)]
        ) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left


def still_works(process: psutil.Process) -> bool:
    """What has ended and was not asked for its status by anybody counts as gone."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
