"""In the process that has vLLM: engines with our attention, and the layers that it refuses."""

from __future__ import annotations

import contextlib
import copy
from typing import Any
from unittest import mock

import torch
import vllm_cpu_engine
from attention_beside_stock import BROKEN, Step, beside_stock
from torch import nn

from ascend_spec.vllm import attention
from ascend_spec.vllm.seams import SeamError

Report = dict[str, Any]


def generate(engine: dict[str, Any], batches: list, broken: str | None = None) -> Report:
    """:func:`vllm_cpu_engine.generate`, and under "steps" what ``beside_stock`` tells.

    Args:
        broken: one of ``BROKEN``.
    """
    steps: list[Step] = []
    with BROKEN[broken]() if broken else contextlib.nullcontext(), beside_stock(steps.append):
        return {**vllm_cpu_engine.generate(engine, batches), "steps": steps}


# ---- what is refused
def judge_layers(engine: dict[str, Any]) -> Report:
    """Of one real layer, what :func:`ascend_spec.vllm.attention.unsupported` says to changed copies of it."""
    with vllm_cpu_engine.Engine(engine) as llm:
        core = llm.llm_engine.engine_core.engine_core
        runner = core.model_executor.driver_worker.worker.model_runner
        layer = next(iter(attention.target_layers(runner).values()))
        return {name: _judged(layer, path, value) for name, (path, value) in CHANGES.items()}


#: name -> (attribute, its value; GONE: there is none)
GONE = object()
CHANGES: dict[str, tuple[str, Any]] = {
    "nothing": ("attn_type", "decoder"),
    "encoder": ("attn_type", "encoder"),
    "alibi": ("impl.alibi_slopes", torch.ones(4)),
    "soft cap": ("impl.logits_soft_cap", 30.0),
    "window": ("sliding_window", 16),
    "sinks": ("has_sink", True),
    "images": ("use_mm_prefix", True),
    "value size": ("head_size_v", 64),
    "quantised": ("kv_cache", torch.zeros(1, 2, 32, 64, dtype=torch.uint8)),
    "no sink known": ("has_sink", GONE),
    "MLA": ("__class__", type("MLAAttention", (nn.Module,), {})),
}


def _judged(layer: nn.Module, path: str, value: Any) -> list[str]:
    layer = copy.copy(layer)
    layer.impl = copy.copy(layer.impl)
    owner: Any = layer.impl if path.startswith("impl.") else layer
    name = path.removeprefix("impl.")
    if value is GONE:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
    try:
        return attention.unsupported(layer, torch.float32)
    except SeamError as error:
        return [f"SeamError: {error}"]


def judge_metadata() -> list[str]:
    """What is said to a backend whose steps' metadata has no block table, and to one that declares nothing."""
    errors = []
    for declared in (type("Bare", (), {"__dataclass_fields__": {"seq_lens": None}}), None):

        def build(self: Any) -> None: ...

        build.__annotations__ = {"return": declared} if declared else {}
        builder = type("Builder", (), {"build": build})
        backend = type("Backend", (), {"get_builder_cls": staticmethod(lambda builder=builder: builder)})
        layer = mock.Mock(attn_backend=backend)
        try:
            attention.check_metadata(layer)
        except SeamError as error:
            errors.append(str(error))
    return errors


def twice(engine: dict[str, Any]) -> Report:
    """Of layers whose KV cache is made again, as vLLM does after profiling with a small one."""
    with vllm_cpu_engine.Engine(engine) as llm:
        core = llm.llm_engine.engine_core.engine_core
        runner = core.model_executor.driver_worker.worker.model_runner
        layers = attention.target_layers(runner).values()
        first = [layer.impl.forward for layer in layers]
        attention.replace_forwards(runner, 4)
        second = [layer.impl.forward for layer in layers]
        return {
            "replaced": all(isinstance(each, attention.MQAForward) for each in (*first, *second)),
            "nested": any(isinstance(each.stock, attention.MQAForward) for each in second),
            "zero": all(not layer.kv_cache.any() for layer in layers),
        }
