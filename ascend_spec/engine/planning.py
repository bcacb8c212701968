"""Before the first step: the engine's facts for the plan."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ascend_spec.config import (
    Plan,
    SpeculativeConfig,
    TargetConfig,
    check_max_model_len,
    pool_shortfall,
    resolve,
)
from ascend_spec.runtime import DeviceFacts, kv_cache_budget

logger = logging.getLogger(__name__)


def make_plan(
    config: SpeculativeConfig | None,
    model: Any,
    facts: DeviceFacts,
    *,
    max_model_len: int | None,
    block_size: int | None,
    num_kv_blocks: int | None,
    max_num_seqs: int,
    max_num_batched_tokens: int,
) -> Plan:
    """The plan of an engine with these arguments; see :class:`ascend_spec.engine.LLM`.

    Raises:
        ValueError: sizes that are none, or don't fit each other or the model.
        ConfigError: a speculative configuration that cannot be honoured.
    """
    info = model.info
    block_size = facts.block_size if block_size is None else block_size
    _check_positive(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, block_size=block_size
    )
    target = TargetConfig(
        info.facts,
        check_max_model_len(max_model_len, info.max_model_len),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=block_size,
        num_kv_blocks=num_kv_blocks,
        kv_cache_bytes=kv_cache_budget(info.device),
        kv_bytes_per_token=info.kv_bytes_per_token,
        graph_mode="full" if facts.static_shapes else "none",
        dtype=str(info.dtype).removeprefix("torch."),
        num_threads=torch.get_num_threads(),
    )
    plan = resolve(config, target, embedded=True)
    if shortfall := pool_shortfall(plan.kv.num_blocks, target, plan.num_lookahead_tokens):
        raise ValueError(shortfall)
    for warning in plan.warnings:
        logger.warning("%s", warning.message)
    return plan


def _check_positive(**sizes: int) -> None:
    for name, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} was given; choose an integer, 1 or more")
