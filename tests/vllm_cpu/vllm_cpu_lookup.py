"""In the process that has vLLM: what our drafters propose of which history, and faults in how they are asked."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from itertools import count
from typing import Any
from unittest import mock

import torch
import vllm_cpu_engine

from ascend_spec.drafters import NgramDrafter, SuffixDrafter
from ascend_spec.types import Draft, DraftBatch


def generate(engine: dict[str, Any], batches: list, fault: str | None = None) -> dict[str, Any]:
    """As :func:`vllm_cpu_engine.generate`, and "steps": for each batch and step a row for each request in it: id, place
    among the batch's requests, history (empty where nothing was sampled) and drafts."""
    original, steps = vllm_cpu_engine.run, []

    def watched(llm: Any, requests: list) -> list:
        runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        steps.append([])
        with _told(runner, steps[-1]):
            return original(llm, requests)

    with (
        FAULTS[fault]() if fault else contextlib.nullcontext(),
        mock.patch.object(vllm_cpu_engine, "run", watched),
    ):
        return {**vllm_cpu_engine.generate(engine, batches), "steps": steps}


@contextlib.contextmanager
def _told(runner: Any, steps: list) -> Iterator[None]:
    propose = runner.drafter.propose

    def telling(*args: Any, **options: Any) -> list[list[int]]:
        drafts, batch = propose(*args, **options), runner.input_batch
        sampled = next(argument for argument in args if isinstance(argument, list))
        lengths = [int(n) * bool(new) for n, new in zip(batch.num_tokens_no_spec, sampled, strict=False)]
        histories = [row[:n].tolist() for row, n in zip(batch.token_ids_cpu, lengths, strict=False)]
        ids = batch.req_ids[: len(sampled)]
        places = [int(name.split("-")[0]) for name in ids]
        steps.append(list(zip(ids, places, histories, drafts, strict=True)))
        return drafts

    with mock.patch.object(runner.drafter, "propose", telling):
        yield


# ---- faults
@contextlib.contextmanager
def match_is_ignored() -> Iterator[None]:
    made = NgramDrafter.from_plan

    def from_plan(plan: Any) -> NgramDrafter:
        return dataclasses.replace(made(plan), match="earliest")

    with mock.patch.object(NgramDrafter, "from_plan", from_plan):
        yield


def _asked_otherwise(change: Any) -> Any:
    """``change(batch)`` -> what is other in it."""
    propose = SuffixDrafter.propose

    def mutant(self: SuffixDrafter, batch: DraftBatch) -> Draft:
        return propose(self, dataclasses.replace(batch, **change(batch)))

    return mock.patch.object(SuffixDrafter, "propose", mutant)


@contextlib.contextmanager
def ids_of_a_step() -> Iterator[None]:
    """Each step's requests are taken for new ones."""
    numbers = count()

    def renamed(batch: DraftBatch) -> dict[str, Any]:
        step = next(numbers)
        assert batch.request_ids is not None
        return {"request_ids": tuple(f"{name} in step {step}" for name in batch.request_ids)}

    with _asked_otherwise(renamed):
        yield


@contextlib.contextmanager
def prompts_are_outputs() -> Iterator[None]:
    """So that they come into the memory that requests share."""

    def without(batch: DraftBatch) -> dict[str, Any]:
        assert batch.num_prompt_tokens is not None
        return {"num_prompt_tokens": torch.zeros_like(batch.num_prompt_tokens)}

    with _asked_otherwise(without):
        yield


FAULTS = {fault.__name__: fault for fault in (match_is_ignored, ids_of_a_step, prompts_are_outputs)}
