"""Engines that start and stop, and requests that are aborted, leave nothing behind."""

from __future__ import annotations

import pytest
import vllm_cpu_cases as cases

REQUESTS = 500


@pytest.fixture(scope="session")
def engine(models):
    return {
        "model": models["target"],
        "speculative_config": cases.methods(models)["ngram"],
        "enable_prefix_caching": True,
        **cases.PLUGIN,
    }


def check_cycles(seen):
    """The first ones start what stays for good."""
    assert seen[-1] == seen[2], seen


def check_requests(answer, count):
    assert answer["finished"] + answer["aborted"] == count
    assert min(answer["finished"], answer["aborted"]) > count / 10
    assert answer["blocks"] == 0
    assert answer["requests"] == 0
    assert answer["seeds"] <= 8 * 4 + 4
    assert answer["more held"] == {"files": 0, "threads": 0, "python threads": 0}


def test_ten_engines(vllm, engine):
    check_cycles(vllm("vllm_cpu_leaks:cycles", engine=engine, batch=cases.greedy()[:2], count=10))


def test_a_kept_file_is_found(vllm, engine):
    arguments = {"engine": engine, "batch": cases.greedy()[:1], "count": 4}
    with pytest.raises(AssertionError):
        check_cycles(vllm("vllm_cpu_leaks:cycles", mutant="keeps_a_file", **arguments))


def test_aborted_requests(vllm, engine):
    check_requests(vllm("vllm_cpu_leaks:aborted_requests", engine=engine, count=REQUESTS), REQUESTS)


def test_a_kept_block_is_found(vllm, engine):
    answer = vllm("vllm_cpu_leaks:aborted_requests", engine=engine, count=60, leak=True)
    with pytest.raises(AssertionError):
        check_requests(answer, 60)
