"""In the process that has vLLM: what attaching changes, and what is refused."""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

import torch
import vllm_cpu_engine
from vllm.engine.arg_utils import EngineArgs
from vllm_snapshot import differences, snapshot

from ascend_spec.config import ConfigError
from ascend_spec.vllm import plugin
from ascend_spec.vllm.translate import plan_for


def registering() -> dict[str, Any]:
    """Of the first ``register()`` in a process, a second one and ``unregister()``."""
    import vllm.v1.worker.worker_base  # noqa: F401

    states = [snapshot("vllm")]
    for step in (plugin.register, plugin.register, plugin.unregister):
        step()
        states.append(snapshot("vllm"))
    return {
        "first": differences(states[0], states[1]),
        "second": differences(states[1], states[2]),
        "undone": differences(states[0], states[3]),
        "imported": sorted({"numba", "triton", "torch_npu"} & set(sys.modules)),
        "device": torch.cuda.is_initialized(),
    }


def attaching(engine: dict[str, Any], batches: list) -> dict[str, Any]:
    """Of attaching to one engine, and of all that happens to callables until it has run."""
    seen: dict[str, Any] = {}
    original = plugin.attach_once

    def watched(worker: Any) -> None:
        seen["before"] = snapshot("vllm")
        kind = type(worker.model_runner)
        original(worker)
        seen["changed"] = differences(seen["before"], snapshot("vllm"))
        seen["same class"] = type(worker.model_runner) is kind
        seen["on the runner"] = hasattr(worker.model_runner, "ascend_spec")

    with mock.patch.object(plugin, "attach_once", watched):
        answer = vllm_cpu_engine.generate(engine, batches)
    # vLLM fills caches and counters of its own while it runs: what matters are the functions and classes it had
    after = {key: value for key, value in snapshot("vllm").items() if callable(seen["before"].get(key))}
    return {
        "attached": seen["on the runner"],
        "changed": seen["changed"],
        "changed later": differences(seen["before"], after),
        "same class": seen["same class"],
        "log": answer["log"],
    }


def is_wrapped() -> bool:
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    return hasattr(WorkerWrapperBase.init_device, "ascend_spec_original")


def stays_out(engine: dict[str, Any], batches: list) -> dict[str, Any]:
    """An engine that asks for us where we are not loaded."""
    return {**vllm_cpu_engine.generate(engine, batches), "wrapped": is_wrapped()}


def without_seam(engine: dict[str, Any], batches: list) -> dict[str, Any]:
    """A vLLM whose worker has no ``init_device`` to wrap, as far as the plugin sees."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    with vllm_cpu_engine.Messages() as messages:
        kept = WorkerWrapperBase.init_device
        del WorkerWrapperBase.init_device
        try:
            plugin.register()
        finally:
            WorkerWrapperBase.init_device = kept
        with mock.patch("ascend_spec.vllm.register"):
            answer = stays_out(engine, batches)
    return {**answer, "log": messages.lines}


def judge(model: str, cases: list[tuple[dict | None, Any]]) -> list[str]:
    """What :func:`plan_for` says to (speculative config, our options): an error's text, or the plan's method and
    rule."""
    verdicts = []
    for speculation, options in cases:
        settings = {**vllm_cpu_engine.ENGINE, "skip_tokenizer_init": True, "model": model}
        config = EngineArgs(**settings, speculative_config=speculation).create_engine_config()
        try:
            plan = plan_for(config, options, "v1")
            verdicts.append(f"{plan.name} {plan.rule.name}")
        except ConfigError as error:
            verdicts.append(str(error))
    return verdicts


def drafter_weights(engine: dict[str, Any]) -> dict[str, Any]:
    """Whose drafter a loaded engine has, the weights that vLLM's own one holds, in numbers, and the log."""
    with vllm_cpu_engine.Messages() as messages, vllm_cpu_engine.Engine(engine) as llm:
        runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        held = [each for each in vars(runner.drafter).values() if isinstance(each, torch.nn.Module)]
        return {
            "drafter": runner.ascend_spec.drafter,
            "weights": sum(weight.numel() for module in held for weight in module.parameters()),
            "log": messages.lines,
        }
