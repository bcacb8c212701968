"""In the process that has vLLM: our counters as Prometheus' registry gives them, and faults for their tests."""

from __future__ import annotations

import contextlib
import gc
import glob
import os
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from prometheus_client import REGISTRY, generate_latest
from vllm_cpu_engine import Engine, counters, run

from ascend_spec.vllm import metrics
from ascend_spec.vllm.v1_sampler import V1Sampler


def samples(text: str) -> dict[str, float]:
    """Of the lines of an answer of ``/metrics``, ours: name with labels -> value."""
    lines = (line.rpartition(" ") for line in text.splitlines() if line.startswith("ascend_spec:"))
    return {name: float(value) for name, _, value in lines}


def files() -> list[str]:
    return glob.glob(os.path.join(tempfile.gettempdir(), f"*_{metrics._own_name()}-*"))


def watch(engine: dict[str, Any], batch: list, fault: str | None = None) -> dict[str, Any]:
    """Of an engine in this process: what is shown, what vLLM counts, and the files while it runs and after it."""
    with FAULTS[fault]() if fault else contextlib.nullcontext():
        answer = _watch(engine, batch)
        gc.collect()
        return {**answer, "left": len(files())}


def _watch(engine: dict[str, Any], batch: list) -> dict[str, Any]:
    with Engine(engine) as llm:
        run(llm, batch)
        return {"samples": shown(), "files": len(files()), "vllm": counters(llm)}


def hold(engine: dict[str, Any], batch: list, fault: str | None = None) -> None:
    """The same, but the engine stays until :func:`release`."""
    held.enter_context(FAULTS[fault]() if fault else contextlib.nullcontext())
    run(held.enter_context(Engine(engine)), batch)


def release() -> None:
    held.close()
    gc.collect()


def shown() -> dict[str, float]:
    return samples(generate_latest(REGISTRY).decode())


held = contextlib.ExitStack()


@contextlib.contextmanager
def logits_not_finite() -> Iterator[None]:
    """The second request's, in each of its steps."""
    original = V1Sampler._constrain

    def mutant(self: V1Sampler, rows: torch.Tensor, *rest: Any) -> Any:
        rows, temperature = original(self, rows, *rest)
        if len(temperature) > 1:
            drafts = rest[1]
            rows[1 if drafts is None else drafts.num_draft_tokens[0] + 1] = float("nan")
        return rows, temperature

    with mock.patch.object(V1Sampler, "_constrain", mutant):
        yield


@contextlib.contextmanager
def files_are_kept() -> Iterator[None]:
    with mock.patch.object(metrics, "_remove"):
        yield
    metrics._remove(files())


@contextlib.contextmanager
def steps_not_counted() -> Iterator[None]:
    with mock.patch.object(metrics.Metrics, "count_steps_without_drafts"):
        yield


@contextlib.contextmanager
def one_name_for_all() -> Iterator[None]:
    """Files of all servers of a machine look alike."""
    with mock.patch.object(metrics, "_own_name", return_value="ascend-spec-anybody"):
        yield


FAULTS = {
    fault.__name__: fault
    for fault in (logits_not_finite, files_are_kept, steps_not_counted, one_name_for_all)
}
