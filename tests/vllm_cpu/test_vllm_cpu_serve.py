"""``vllm serve`` with a real model and our n-gram drafter, and a client that streams and goes away."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest
from smollm2 import smollm2_path
from vllm_cpu_leftovers import Leftovers
from vllm_cpu_server import Server
from vllm_support import supports

README = Path(__file__).parents[2] / "README.md"
COMMAND = "python -m vllm.entrypoints.openai.api_server "


def options_of_readme(text: str) -> list[str]:
    """What a newcomer is told to type after the command, with a model that is there."""
    (line,) = [line for line in text.splitlines() if line.startswith(COMMAND)]
    words = shlex.split(line.removeprefix(COMMAND))
    return [str(smollm2_path()) if word == "MODEL" else word for word in words]


@pytest.fixture
def server(vllm_python: str, tmp_path: Path) -> Iterator[Server]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    options = options_of_readme(README.read_text())
    own = {
        "TMPDIR": str(temporary),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "kept"),
    }  # a cache that is to stay
    server = Server(vllm_python, tmp_path / "serve.log", *options, **own)
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.wait()


@supports("vllm-cpu 0.32.0", "V1", ["n-gram (ours)"], "a server")
@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.full)])
def test_serve(start, server, rounds):
    server.wait_until_ready()
    left = Leftovers(server.log.parent / "temporary", [psutil.Process(server.process.pid), *server.children])
    answer = start()("vllm_cpu_client:drive", url=server.url, rounds=rounds)
    assert answer["broken off"] == 4 * rounds
    for texts, whole in zip(answer["texts"], answer["whole"], strict=True):
        assert texts == [whole] * (2 * rounds)
        assert whole.strip()
    counters = answer["counters"]
    assert counters["spec_decode_num_draft_tokens_total"] > 0
    assert counters["spec_decode_num_accepted_tokens_total"] > 0
    assert server.stop() == 0
    assert left.found() == []
    served, _, _ = server.log.read_text().partition("[shutdown]")  # after it vLLM ends its processes by force
    assert "drafter: ours; sampler: ours" in served
    assert "Traceback" not in served


def test_leftovers_are_found(tmp_path):
    """One of each kind, which a server that leaves nothing is not."""
    memory = SharedMemory(create=True, size=1)
    with subprocess.Popen(["sleep", "600"]) as child:
        left = Leftovers(tmp_path, [psutil.Process(), psutil.Process(child.pid)])
        left.processes.remove(psutil.Process())
        handle, file = tempfile.mkstemp(dir=tmp_path)
        os.close(handle)
        names = [
            f"process {child.pid}",
            f"file {Path(file).name}",
            f"shared memory {memory.name.lstrip('/')}",
        ]
        assert set(names) <= set(left.found())
        child.kill()
    memory.close()
    memory.unlink()
    os.unlink(file)
    assert not set(names) & set(left.found())
