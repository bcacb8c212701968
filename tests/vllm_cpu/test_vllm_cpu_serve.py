"""``vllm serve`` with a real model and our n-gram drafter, and a client that streams and goes away."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from smollm2 import smollm2_path
from vllm_cpu_process import environment

#: for a server on a busy machine
PATIENCE_SECONDS = 300
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


class Server:
    """``python -m`` its module: the command ``vllm`` asks for a distribution named vllm, and ours is vllm-cpu."""

    def __init__(self, python: str, log: Path, *options: str) -> None:
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
                env=environment(VLLM_DO_NOT_TRACK="1"),
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


def still_works(process: psutil.Process) -> bool:
    """What has ended and was not asked for its status by anybody counts as gone."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def server(vllm_python: str, tmp_path: Path) -> Iterator[Server]:
    options = {
        "--model": str(smollm2_path()),
        "--dtype": "float32",
        "--max-model-len": "512",
        "--max-num-seqs": "8",
        "--kv-cache-memory-bytes": str(256 << 20),
        "--speculative-config": json.dumps(NGRAM),
        "--additional-config": json.dumps({"ascend_spec": {}}),
    }
    pairs: list[Any] = [word for option in options.items() for word in option]
    server = Server(vllm_python, tmp_path / "serve.log", "--enforce-eager", *pairs)
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.wait()


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.full)])
def test_serve(start, server, rounds):
    server.wait_until_ready()
    answer = start()("vllm_cpu_client:drive", url=server.url, rounds=rounds)
    assert answer["broken off"] == 4 * rounds
    for texts, whole in zip(answer["texts"], answer["whole"], strict=True):
        assert texts == [whole] * (2 * rounds)
        assert whole.strip()
    counters = answer["counters"]
    assert counters["spec_decode_num_draft_tokens_total"] > 0
    assert counters["spec_decode_num_accepted_tokens_total"] > 0
    assert server.stop() == 0
    assert [child for child in server.children if still_works(child)] == []
    served, _, _ = server.log.read_text().partition("[shutdown]")  # after it vLLM ends its processes by force
    assert "drafter: ours; sampler: ours" in served
    assert "Traceback" not in served
