"""Our counters at ``/metrics``: of a server, whose worker is another process, and of an engine in one process."""

from __future__ import annotations

import json
import os
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import vllm_cpu_cases as cases
from vllm_cpu_server import Server

INFO = 'ascend_spec:rule_info{lossless="true",rule="standard"}'
STEPS = "ascend_spec:steps_without_drafts_total"
NON_FINITE = "ascend_spec:non_finite_logits_total"
FAILED = 'ascend_spec:fallbacks_total{reason="drafter failed: RuntimeError"}'
Served = tuple[Server, Path]


@pytest.fixture(scope="session")
def engine(models):
    return {"model": models["target"], "speculative_config": cases.methods(models)["ngram"], **cases.PLUGIN}


# ---- a server
@pytest.fixture(scope="module")
def folders() -> Iterator[list[Path]]:
    """Of two servers, for their temporary files: their sockets lie there too, whose paths have to be short."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        yield [Path(one), Path(other)]


@pytest.fixture(scope="module")
def servers(vllm_python: str, models, folders, tmp_path_factory) -> Iterator[list[Served]]:
    """One as anybody starts it, and one told to use Prometheus' multiprocess mode; both with one TMPDIR."""
    options = {
        "--model": models["target"],
        "--dtype": "float32",
        "--max-model-len": "256",
        "--max-num-seqs": "4",
        "--kv-cache-memory-bytes": str(16 << 20),
        "--speculative-config": json.dumps(cases.methods(models)["ngram"]),
        "--additional-config": json.dumps({"ascend_spec": {}}),
    }
    words: list[Any] = [word for option in options.items() for word in option]
    words += ["--enforce-eager", "--skip-tokenizer-init"]
    shared, multiprocess = folders
    logs = tmp_path_factory.mktemp("metrics")
    started = [
        (Server(vllm_python, logs / "plain.log", *words, TMPDIR=str(shared)), shared),
        (
            Server(
                vllm_python,
                logs / "multiprocess.log",
                *words,
                TMPDIR=str(shared),
                PROMETHEUS_MULTIPROC_DIR=str(multiprocess),
            ),
            multiprocess,
        ),
    ]
    try:
        for server, _ in started:
            server.wait_until_ready()
        yield started
    finally:
        for server, _ in started:
            if server.process.poll() is None:
                server.process.kill()
                server.process.wait()


def ask(server: Server) -> None:
    """A greedy request for tokens that repeat themselves now and then."""
    body = {"prompt": cases.prompts()[0], "max_tokens": 60, "temperature": 0.0, "ignore_eos": True}
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=300).close()


def scrape(server: Server) -> dict[str, float]:
    """Sample -> value; of vLLM's without labels."""
    found: dict[str, float] = {}
    text = urllib.request.urlopen(f"{server.url}/metrics", timeout=60).read().decode()
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(("ascend_spec:", "vllm:spec_decode", "vllm:generation_tokens_total")):
            found[name if name.startswith("ascend_spec:") else name.partition("{")[0]] = float(value)
    return found


def check_counts(seen: dict[str, float]) -> None:
    """Of one request: each of its tokens is its first, was drawn in a step without drafts or in one with them, or
    was an accepted draft."""
    drafts, accepted, drafted = (
        seen[f"vllm:spec_decode_num_{name}_total"] for name in ("drafts", "accepted_tokens", "draft_tokens")
    )
    assert seen[INFO] == 1
    assert 0 < accepted <= drafted
    assert seen[STEPS] > 0
    assert seen[NON_FINITE] == 0
    # the last step may have been cut short
    assert 0 <= 1 + seen[STEPS] + drafts + accepted - seen["vllm:generation_tokens_total"] <= 4


def our_files(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if "ascend-spec" in name]


def test_a_server_shows_its_own_counters_and_leaves_no_file(servers: list[Served]):
    (plain, _), (multiprocess, _) = servers
    before = scrape(multiprocess)
    assert before[INFO] == 1
    assert before[STEPS] == 0
    ask(plain)
    check_counts(scrape(plain))
    assert scrape(multiprocess)[STEPS] == 0, "it was another server that was asked"
    ask(multiprocess)
    check_counts(scrape(multiprocess))
    assert scrape(plain)[STEPS] == scrape(multiprocess)[STEPS]
    with pytest.raises(AssertionError):
        check_counts({**scrape(plain), STEPS: 0})
    for server, folder in servers:
        assert len(our_files(folder)) == 2, "which are the counters and the rule"
        assert server.stop() == 0
        assert server.left_behind() == []
        assert our_files(folder) == []


# ---- an engine in the same process
def check_watched(answer: dict[str, Any]) -> None:
    seen = answer["samples"]
    assert seen[INFO] == 1
    assert seen[STEPS] > 0
    assert seen[NON_FINITE] == 0
    assert answer["files"] == 2
    assert answer["left"] == 0
    assert answer["vllm"]["num_accepted_tokens"] <= answer["vllm"]["num_draft_tokens"]


@pytest.fixture(scope="module")
def alone(start):
    """A process of its own: vLLM's counters of other engines are not there."""
    return start()


def test_an_engine_in_this_process(alone, engine):
    check_watched(alone("vllm_cpu_metrics:watch", engine=engine, batch=cases.greedy()))
    for fault in ("files_are_kept", "steps_not_counted", "logits_not_finite"):
        answer = alone("vllm_cpu_metrics:watch", engine=engine, batch=cases.greedy(), fault=fault)
        with pytest.raises(AssertionError):
            check_watched(answer)


def test_failures_and_logits_that_are_not_finite_are_counted(alone, engine):
    batch = [{**request, "params": {"max_tokens": 8}} for request in cases.greedy()[:2]]
    answer = alone("vllm_cpu_metrics:watch", mutant="ngram_fails", engine=engine, batch=batch)
    assert answer["samples"][FAILED] > 1
    answer = alone("vllm_cpu_metrics:watch", engine=engine, batch=batch, fault="logits_not_finite")
    assert answer["samples"][NON_FINITE] == 8, "the second request has as many steps"
    assert FAILED not in answer["samples"]


def check_apart(asked: dict[str, float], idle: dict[str, float]) -> None:
    assert asked[INFO] == idle[INFO] == 1
    assert asked[STEPS] > 0
    assert idle[STEPS] == 0


def test_programs_see_their_own(alone, start, engine):
    processes = {alone: cases.greedy(), start(): []}
    for fault in (None, "one_name_for_all"):
        for process, batch in processes.items():
            process("vllm_cpu_metrics:hold", engine=engine, batch=batch, fault=fault)
        seen = [process("vllm_cpu_metrics:shown") for process in processes]
        for process in processes:
            process("vllm_cpu_metrics:release")
        if fault is None:
            check_apart(*seen)
        else:
            with pytest.raises(AssertionError):
                check_apart(*seen)
