"""Faults of vLLM's sampling on a CPU, each shown without the plugin and not met with it.

Where one of the first halves fails, vLLM has mended the fault: drop the workaround, if it has one.
"""

from __future__ import annotations

import pytest
import vllm_cpu_cases as cases

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


@pytest.fixture(scope="session")
def engine(models):
    return {"model": models["target"], "speculative_config": NGRAM}


def generate(vllm, engine, batch, **how):
    return vllm("vllm_cpu_engine:generate", engine=engine, batches=[batch], **how)


def test_sampling_parameters_of_draft_rows(vllm, engine):
    """vLLM spreads them into a temporary copy, and then reads what was never written. We spread them ourselves."""
    assert vllm("vllm_cpu_faults:spread")["written"] is False
    batch = cases.sampled(top_k=3, temperature=0.5)
    report = generate(vllm, engine, batch, mutant="expand_fails", fails=True)
    assert report["error"] == "called", "vLLM's own sampler spreads parameters"
    answer = generate(vllm, {**engine, **cases.PLUGIN}, batch, mutant="expand_fails")
    assert answer["metrics"][0]["num_draft_tokens"] > 0
    assert all(len(output["tokens"]) > 20 for output in answer["outputs"][0])


def test_top_k_in_a_step_without_drafts(vllm, engine):
    batch = cases.sampled(top_k=3)
    report = generate(vllm, engine, batch, fails=True)
    assert "max(): Expected reduction dim" in report["error"]
    answer = generate(vllm, {**engine, **cases.PLUGIN}, batch)
    assert all(len(output["tokens"]) > 20 for output in answer["outputs"][0])


def test_a_seeded_prompt_in_parts(vllm, engine):
    """vLLM sets the offset of a generator back, which those on a CPU don't have."""
    in_parts = {**engine, "max_num_batched_tokens": 32}
    report = generate(vllm, in_parts, cases.sampled(), fails=True)
    assert report["error"] == "CPU Generator does not use offset"
    whole = generate(vllm, {**engine, **cases.PLUGIN}, cases.sampled())
    answer = generate(vllm, {**in_parts, **cases.PLUGIN}, cases.sampled())
    assert answer["outputs"] == whole["outputs"], "a seed means the same however its prompt was computed"


def test_a_second_engine_in_a_process(start, engine):
    """vLLM's search for kernels fails at an object of llvmlite's, once numba is there: whoever's engine came first."""
    fresh, ours = start(), {**engine, **cases.PLUGIN}
    batch = cases.greedy()[:2]
    answer = fresh("vllm_cpu_faults:engines", settings=[engine, ours, engine], batch=batch)
    first, *later = answer["outputs"]
    assert later == [first, first]
    assert sum("is attached" in line for line in answer["log"]) == 1
    report = fresh(
        "vllm_cpu_faults:engines", mutant="no_workaround", fails=True, settings=[ours], batch=batch
    )
    assert report["type"] == "AttributeError"
    assert "get" in report["error"]


def test_threads_and_what_is_told(switched_off, two_threads, engine):
    """Numba's pool raises torch's threads above what OMP_NUM_THREADS says. Each workaround is named when it is used,
    and not used where there is no fault."""
    arguments = {"engine": {**engine, **cases.PLUGIN}, "batch": cases.greedy()}
    assert switched_off("vllm_cpu_faults:threads", **arguments) == {"threads": 2, "log": []}
    answer = two_threads("vllm_cpu_faults:threads", **arguments)
    assert answer["threads"] == 1
    (said,) = [line for line in answer["log"] if "workaround" in line]
    assert "torch's threads are 1 again" in said
    without = two_threads("vllm_cpu_faults:workarounds_without_faults")
    assert without == {"kernels replaced": 3, "threads": None}
