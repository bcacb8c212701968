"""Ranks of one engine compare version and plan: two real processes over gloo, without vLLM."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import vllm_rank_process
from config_fixtures import LLAMA, write
from vllm_rank_process import plan

import ascend_spec
from ascend_spec.vllm.ranks import digest, require_same_plan, require_same_version

Told = dict[str, str | None]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("target"), LLAMA)


@pytest.fixture(scope="module")
def ranks(target: str, tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """What each of two ranks was told, by case."""
    script, store = vllm_rank_process.__file__, tmp_path_factory.mktemp("ranks") / "store"
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(store), target],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    return [json.loads(stdout.splitlines()[-1]) for stdout, _ in outputs]


def check_refused(ranks: list[Told], case: str, *said: str) -> None:
    """Every rank stops, with the same words."""
    first, second = (told[case] for told in ranks)
    assert first is not None
    assert first == second
    for words in said:
        assert words in first


EXPECTED = {
    "another version": [f"{ascend_spec.__version__} on rank 0; 0.0.1 on rank 1", "Install the same wheel"],
    "another plan": ["into different plans", " on rank 0; ", " on rank 1", "the same files"],
}


@pytest.mark.parametrize("case", EXPECTED)
def test_ranks_that_differ_are_named(ranks: list[Told], case: str) -> None:
    check_refused(ranks, case, *EXPECTED[case])


def test_ranks_that_agree_go_on(ranks: list[Told]) -> None:
    assert [told["the same"] for told in ranks] == [None, None]


def test_a_rank_that_never_attaches_is_named(ranks: list[Told]) -> None:
    alone = ranks[0]["alone"]
    assert alone is not None
    assert alone.startswith("Not all ranks of this engine have attached ascend-spec within 2 s")
    assert re.search("[Rr]anks? 1 failed", alone)
    assert "ASCEND_SPEC_DISABLE" in alone


@pytest.mark.parametrize("case", EXPECTED)
def test_not_listening_is_noticed(ranks: list[Told], case: str) -> None:
    with pytest.raises(AssertionError):
        check_refused(ranks, f"{case}, not listening", *EXPECTED[case])


def test_one_rank_asks_nobody(target: str) -> None:
    require_same_version(None)
    require_same_plan(None, plan(target))


@pytest.mark.parametrize(
    "fields",
    [
        {"num_speculative_tokens": 5},
        {"prompt_lookup_max": 4},
        {"num_speculative_tokens_per_batch_size": [[1, 4, 2], [5, 256, 0]]},
        {"ascend_spec": {"on_error": "raise"}},
        {"method": "suffix", "prompt_lookup_max": None},
    ],
    ids=str,
)
def test_what_decides_tokens_is_in_the_digest(target: str, fields: dict[str, object]) -> None:
    assert digest(plan(target)) == digest(plan(target))
    assert digest(plan(target, **fields)) != digest(plan(target))
