"""Tensor parallel over two processes: every rank makes the same drafts and draws the same tokens."""

from __future__ import annotations

from typing import Any

import pytest
import vllm_cpu_cases as cases
from vllm_support import supports

import ascend_spec

Answer = dict[str, Any]


def unseeded(**params: Any) -> list[cases.Request]:
    return [{"prompt": prompt, "params": {"temperature": 1.0, **params}} for prompt in cases.prompts()]


#: by the name of a test: requests, and what is wrong with which rank, the second if none is named
BATCHES: dict[str, dict[str, Any]] = {
    "greedy": {"requests": cases.greedy()},
    "seeded": {"requests": cases.sampled(temperature=0.5)},
    "unseeded": {"requests": unseeded(temperature=0.5, top_k=20)},
    "no drafter on rank 0": {"requests": cases.greedy(), "fault": "no drafter", "rank": 0},
    "no drafter on rank 1": {"requests": cases.greedy(), "fault": "no drafter"},
    "other drafts": {"requests": cases.greedy()[:1], "fault": "other drafts"},
    "other seeds": {"requests": unseeded(max_tokens=8)[1:3], "fault": "other seeds"},
}
PARTED = {"other drafts": "drafts", "other seeds": "tokens"}


@pytest.fixture(scope="session")
def engine(models: dict[str, str]) -> dict[str, Any]:
    return {"model": models["target"], "speculative_config": cases.methods(models)["ngram"], **cases.PLUGIN}


@pytest.fixture(scope="session")
def two_ranks(start: Any) -> Any:
    """Where NUMA nodes are fewer than vLLM would bind ranks to."""
    return start(VLLM_CPU_OMP_THREADS_BIND="nobind")


@pytest.fixture(scope="session")
def answers(two_ranks: Any, engine: dict[str, Any]) -> dict[str, Answer]:
    given = list(BATCHES.values())
    return dict(zip(BATCHES, two_ranks("vllm_cpu_ranks:generate", engine=engine, batches=given), strict=True))


def check_agree(answer: Answer, *what: str) -> None:
    first, second = sorted(answer["ranks"], key=lambda told: told["rank"])
    assert (first["rank"], second["rank"]) == (0, 1)
    for each in what:
        assert first[each], f"rank 0 made no {each}"
        assert first[each] == second[each]


@pytest.mark.parametrize("name", ["greedy", "seeded", "unseeded"])
def test_ranks_stay_together(answers: dict[str, Answer], name: str) -> None:
    check_agree(answers[name], "drafts", "tokens", "drafter", "sampler")
    assert 0 < answers[name]["accepted"] < answers[name]["drafted"]
    for told in answers[name]["ranks"]:
        assert (told["drafter"], told["sampler"]) == ("ours", "ours")
    assert all(len(output["tokens"]) == 28 for output in answers[name]["outputs"])


@supports("vllm-cpu 0.32.0", "V1, tensor parallel over 2", ["n-gram (ours)"], "text at temperature 0")
def test_greedy_text_is_that_of_one_rank_without_speculation(
    answers: dict[str, Answer], vllm: Any, models: dict[str, str]
) -> None:
    plain = vllm("vllm_cpu_engine:generate", engine={"model": models["target"]}, batches=[cases.greedy()])
    texts = [output["tokens"] for output in plain["outputs"][0]]
    assert [output["tokens"] for output in answers["greedy"]["outputs"]] == texts
    assert [output["tokens"] for output in answers["unseeded"]["outputs"]] != texts, "nothing was sampled"


@pytest.mark.parametrize("failing", [0, 1])
def test_a_drafter_that_fails_on_one_rank_parts_nobody(answers: dict[str, Answer], failing: int) -> None:
    """The scheduler hands out rank 0's drafts to all: without them there are none, and those of others are not asked
    for."""
    answer = answers[f"no drafter on rank {failing}"]
    check_agree(answer, "tokens")
    for told in answer["ranks"]:
        assert any(map(any, told["drafts"])) == (told["rank"] != failing)
    assert (answer["drafted"] > 0) == (failing != 0)
    assert answer["outputs"] == answers["greedy"]["outputs"]


@pytest.mark.parametrize("name", PARTED)
def test_ranks_that_part_are_noticed(answers: dict[str, Answer], name: str) -> None:
    with pytest.raises(AssertionError):
        check_agree(answers[name], PARTED[name])


def test_another_version_on_one_rank_ends_the_start(two_ranks: Any, engine: dict[str, Any]) -> None:
    answer = two_ranks("vllm_cpu_ranks:start_with_another_version", engine=engine, version="0.0.1")
    assert answer["error"]
    assert (
        f"different versions of ascend-spec: {ascend_spec.__version__} on rank 0; 0.0.1 on rank 1"
        in answer["said"]
    )
