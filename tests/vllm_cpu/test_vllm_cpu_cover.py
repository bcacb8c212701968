"""What a server does to a batch, in pairs: chunked prefill, prefix cache, preemption, K by batch size, aborts,
arrivals, logprobs and processors. Greedy requests must not notice the speculation, seeded ones must repeat."""

from __future__ import annotations

import math
from typing import Any

import pytest
import vllm_cpu_cases as cases
from test_vllm_cpu_matrix import plain  # noqa: F401

ENGINES = cases.covering_array(cases.ENGINE_FACTORS)
BATCHES = cases.covering_array(cases.BATCH_FACTORS)
Answer = dict[str, Any]


def batches(plain: list[list[int]]) -> list[list[cases.Request]]:  # noqa: F811
    return [cases.batch_of(cell, plain) for cell in BATCHES]


@pytest.fixture(scope="session")
def without(vllm, models, plain) -> dict[str, Answer]:  # noqa: F811
    """The batches without speculation and without us, by logprobs mode."""
    roomy = cases.engine_of(dict.fromkeys(cases.ENGINE_FACTORS, False) | {"method": "ngram"})
    return {
        mode: vllm(
            "vllm_cpu_engine:generate",
            engine={**roomy, "model": models["target"], "logprobs_mode": mode},
            batches=batches(plain),
        )
        for mode in cases.ENGINE_FACTORS["logprobs_mode"]
    }


def run(vllm, models, plain, cell: cases.Cell, mutant: str | None = None) -> Answer:  # noqa: F811
    """Every batch twice."""
    engine = {"model": models["target"], **cases.engine_of(cell), **cases.speculation_of(cell, models)}
    twice = [batch for batch in batches(plain) for _ in range(2)]
    return vllm("vllm_cpu_engine:generate", mutant=mutant, engine=engine, batches=twice)


def check(answer: Answer, expected: Answer, cell: cases.Cell) -> None:
    for number, batch in enumerate(BATCHES):
        first, second = answer["outputs"][2 * number : 2 * number + 2]
        for i, want in enumerate(expected["outputs"][number]):
            where = f"batch {batch}, request {i}"
            if not (batch["sampled_neighbours"] and i % 2):
                _compare(first[i], want, f"{where}, first run")
                _compare(second[i], want, f"{where}, second run")
            # with a prefix cache the second run is scheduled otherwise, and K may differ; a memory has other drafts
            elif not cell["prefix_cache"] and cell["method"] != "suffix":
                assert first[i]["tokens"] == second[i]["tokens"], where
                assert first[i]["tokens"], where


def _compare(got: dict, want: dict, where: str) -> None:
    """An aborted request may have got some tokens more or fewer."""
    both = min(len(got["tokens"]), len(want["tokens"]))
    aborted = None in (got["finish_reason"], want["finish_reason"])
    assert aborted or len(got["tokens"]) == len(want["tokens"]), where
    assert got["tokens"][:both] == want["tokens"][:both], where
    assert (got["logprobs"] is None) == (want["logprobs"] is None), where
    for ours, theirs in zip(got["logprobs"] or [], want["logprobs"] or [], strict=False):
        assert [(token, rank) for token, _, rank in ours] == [(token, rank) for token, _, rank in theirs], (
            where
        )
        for (_, a, _), (_, b, _) in zip(ours, theirs, strict=True):
            assert a == b or math.isclose(a, b, abs_tol=1e-4), where


def total(answer: Answer, name: str) -> float:
    return sum(each[name] for each in answer["metrics"])


@pytest.mark.parametrize("factors", [cases.ENGINE_FACTORS, cases.BATCH_FACTORS], ids=["engines", "batches"])
def test_every_pair_is_covered(factors):
    chosen = cases.covering_array(factors)
    names = sorted(factors)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            seen = {(cell[first], cell[second]) for cell in chosen}
            assert len(seen) == len(factors[first]) * len(factors[second]), (first, second)


@pytest.mark.parametrize("cell", ENGINES, ids=lambda cell: "-".join(str(value) for value in cell.values()))
def test_batches(vllm, models, plain, without, cell):  # noqa: F811
    answer = run(vllm, models, plain, cell)
    check(answer, without[cell["logprobs_mode"]], cell)
    assert total(answer, "num_draft_tokens") > 0
    assert total(answer, "num_accepted_tokens") > 0
    assert (total(answer, "num_preemptions") > 0) == cell["scarce_blocks"]


@pytest.mark.parametrize("mutant", ["processors_see_no_drafts", "shifted_logprobs"])
def test_mutants_are_found(vllm, models, plain, without, mutant):  # noqa: F811
    cell = {
        **dict.fromkeys(cases.ENGINE_FACTORS, False),
        "method": "draft_model",
        "logprobs_mode": "raw_logprobs",
    }
    answer = run(vllm, models, plain, cell, mutant)
    with pytest.raises(AssertionError):
        check(answer, without["raw_logprobs"], cell)


def test_min_tokens_within_a_step(vllm, models, plain):  # noqa: F811
    """A stop token that is allowed from the bonus row of a step on: vLLM's own method would not let it come yet."""
    speculation = cases.methods(models)["draft_model_self"]
    bonus = 2 * (
        speculation["num_speculative_tokens"] + 1
    )  # the first token comes alone, then steps of K + 1
    requests = [
        {
            "prompt": prompt,
            "params": {"ignore_eos": False, "stop_token_ids": [text[bonus]], "min_tokens": bonus - 1},
        }
        for prompt, text in zip(cases.prompts(), plain, strict=True)
    ]
    engine = {"model": models["target"]}
    ours = {**engine, "speculative_config": speculation, **cases.PLUGIN}
    off, on, mutant = (
        vllm("vllm_cpu_engine:generate", batches=[requests], **how)["outputs"][0]
        for how in ({"engine": engine}, {"engine": ours}, {"engine": ours, "mutant": "stock_bonus_row"})
    )
    assert bonus + 1 in [len(output["tokens"]) for output in off]
    assert on == off
    assert mutant != off
