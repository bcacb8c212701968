"""Before the first step: the engine's facts for the plan."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from ascend_spec.config import (
    Plan,
    SpeculativeConfig,
    TargetConfig,
    check_max_model_len,
    load_speculative_config,
    pool_shortfall,
    read_model_facts,
    resolve,
)
from ascend_spec.models import ModelInfo
from ascend_spec.runtime import DeviceFacts, kv_cache_budget

logger = logging.getLogger(__name__)
Given = str | dict[str, Any] | SpeculativeConfig | None
Sizes = dict[str, Any]
"""``max_model_len``, ``block_size``, ``num_kv_blocks``, ``max_num_seqs``, ``max_num_batched_tokens``, as they
were given to :class:`ascend_spec.engine.LLM`."""


def check_before_loading(
    given: Given, path: str | os.PathLike[str], facts: DeviceFacts, sizes: Sizes
) -> None:
    """Judge a configuration by the model's config.json, before the weights are read.

    Raises:
        ValueError, ConfigError: as :func:`make_plan`.
    """
    try:
        model = read_model_facts(os.fspath(path))
    except ValueError:
        return  # who reads the model says what is wrong with it
    longest = sizes["max_model_len"] or model.max_position_embeddings
    if given is not None and longest is not None:
        target = TargetConfig(model, longest, **_engine_facts(facts, sizes))
        _loaded(given, target)


def make_plan(given: Given, info: ModelInfo, facts: DeviceFacts, sizes: Sizes) -> Plan:
    """The plan of an engine.

    Args:
        given: the speculative configuration as it was written; None: no speculation.
        info: of the loaded model.
        facts: of its device.

    Raises:
        ValueError: sizes that are none, or don't fit each other or the model.
        ConfigError: a speculative configuration that cannot be honoured.
    """
    target = TargetConfig(
        info.facts,
        check_max_model_len(sizes["max_model_len"], info.max_model_len),
        kv_cache_bytes=kv_cache_budget(info.device),
        kv_bytes_per_token=info.kv_bytes_per_token,
        dtype=str(info.dtype).removeprefix("torch."),
        device=str(info.device),
        **_engine_facts(facts, sizes),
    )
    plan = resolve(_loaded(given, target), target, embedded=True)
    if shortfall := pool_shortfall(plan.kv.num_blocks, target, plan.num_lookahead_tokens):
        raise ValueError(shortfall)
    for warning in plan.warnings:
        logger.warning("%s", warning.message)
    return plan


def allocate_draft_kv_cache(drafter: Any, plan: Plan) -> None:
    """Have a drafter with K/V of its own make its caches; others are left alone.

    Raises:
        ValueError: the planned method reserves no room for them.
    """
    if not hasattr(drafter, "allocate_kv_cache"):
        return
    if not plan.speculator.uses_draft_kv_cache:
        raise ValueError(
            f"a drafter with K/V of its own was given, but method {plan.name!r} reserves no room for them: name a "
            "method that does in speculative_config, such as draft_model"
        )
    drafter.allocate_kv_cache(plan.kv.num_blocks, plan.kv.block_size)


def _loaded(given: Given, target: TargetConfig) -> SpeculativeConfig | None:
    if given is None or isinstance(given, SpeculativeConfig):
        return given
    return load_speculative_config(given, target=target, embedded=True)


def _engine_facts(facts: DeviceFacts, sizes: Sizes) -> dict[str, Any]:
    chosen = {name: value for name, value in sizes.items() if name != "max_model_len"}
    if chosen["block_size"] is None:
        chosen["block_size"] = facts.block_size
    _check_positive(**{name: value for name, value in chosen.items() if name != "num_kv_blocks"})
    return {
        **chosen,
        "graph_mode": "full" if facts.static_shapes else "none",
        "attention_takes_trees": False,  # the engine judges chains
        "num_threads": torch.get_num_threads(),
    }


def _check_positive(**sizes: int) -> None:
    for name, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} was given; choose an integer, 1 or more")
