"""In the process that has vLLM: drafters that fail, and faults in how that is met."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import vllm_cpu_engine
import vllm_cpu_metrics

from ascend_spec.drafters import NgramDrafter
from ascend_spec.vllm import on_error, v1


def generate(engine: dict[str, Any], batch: list, fault: str | None = None) -> dict[str, Any]:
    """One batch, as :func:`vllm_cpu_engine.generate` gives it, and how often which drafter failed, and how many
    layers have a KV cache."""
    seen: dict[str, Any] = {}
    original, before = vllm_cpu_engine.run, fallbacks()

    def watched(llm: Any, requests: list) -> list:
        outputs = original(llm, requests)
        runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        seen.update(fallbacks=fallbacks() - before, layers=len(runner.kv_caches))
        return outputs

    with (
        FAULTS[fault]() if fault else contextlib.nullcontext(),
        mock.patch.object(vllm_cpu_engine, "run", watched),
    ):
        answer = vllm_cpu_engine.generate(engine, [batch])
    gc.collect()
    return {**answer, **seen}


def fallbacks() -> Counter[str]:
    """Of all engines in this process that are still held: one that did not start may be."""
    prefix = 'ascend_spec:fallbacks_total{reason="'
    shown = vllm_cpu_metrics.shown()
    return Counter(
        {
            name.removeprefix(prefix).removesuffix('"}'): int(shown[name])
            for name in shown
            if name.startswith(prefix)
        }
    )


@contextlib.contextmanager
def ngram_does_not_load() -> Iterator[None]:
    with mock.patch.object(NgramDrafter, "from_plan", side_effect=ValueError("no table")):
        yield


@contextlib.contextmanager
def ngram_fails_once() -> Iterator[None]:
    original, calls = NgramDrafter.propose_on_host, []

    def propose_on_host(self: NgramDrafter, *histories: Any) -> Any:
        calls.append(histories)
        if len(calls) == 3:
            raise RuntimeError("not now")
        return original(self, *histories)

    with mock.patch.object(NgramDrafter, "propose_on_host", propose_on_host):
        yield


@contextlib.contextmanager
def never_off() -> Iterator[None]:
    """ "disable" is taken for "continue" once the engine serves."""
    with (
        ngram_fails_once(),
        mock.patch.object(on_error.OnError, "is_off", property(lambda self: False, _ignore), create=True),
    ):
        yield


def _ignore(self: object, value: bool) -> None:
    """Set and forgotten."""


@contextlib.contextmanager
def runner_still_speculates() -> Iterator[None]:
    """The failure is met, the runner is not told."""

    def load_only(runner: Any, policy: on_error.OnError) -> None:
        stock = runner.drafter.load_model
        runner.drafter.load_model = lambda *args, **kwargs: policy.load(lambda: stock(*args, **kwargs))

    with mock.patch.object(v1, "load_or_go_without", load_only):
        yield


FAULTS = {
    fault.__name__: fault
    for fault in (ngram_does_not_load, ngram_fails_once, never_off, runner_still_speculates)
}
