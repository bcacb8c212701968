"""Whether a model, target or draft, can be spread over ranks as it is asked."""

from __future__ import annotations

from collections.abc import Iterator

from ascend_spec.config.checkpoint import ModelFacts
from ascend_spec.config.errors import Finding
from ascend_spec.config.target import TargetConfig


def check_parallel(target: TargetConfig) -> Iterator[Finding]:
    """Of the target, with or without speculation."""
    ranks, model = target.tensor_parallel_size, target.model
    if heads := _undivided_heads(model, ranks):
        yield Finding(
            "tensor_parallel_size",
            f"'tensor_parallel_size' was given as {ranks}, but the target's {heads} attention heads cannot be "
            f"divided by it. Use a divisor of {heads}.",
        )
    has_experts = model.get("num_experts") or model.get("block_configs")  # by layer, or as many in each
    if target.enable_expert_parallel and model.known and not has_experts:
        yield Finding(
            "enable_expert_parallel",
            "'enable_expert_parallel' was given as true, but the target has no experts. Remove it.",
        )


def check_draft_ranks(draft: ModelFacts, ranks: int, target: TargetConfig) -> Iterator[Finding]:
    """Of a draft model on ``ranks`` ranks."""
    if heads := _undivided_heads(draft, ranks):
        yield Finding(
            "draft_tensor_parallel_size",
            f"'draft_tensor_parallel_size' comes to {ranks}, but the draft model's {heads} attention heads "
            f"cannot be divided by it. Set 'draft_tensor_parallel_size' to 1.",
        )
    experts = draft.get("num_experts") or 0
    if target.enable_expert_parallel and draft.is_moe and experts < ranks:
        yield Finding(
            "draft_tensor_parallel_size",
            f"The draft model has {experts} experts, fewer than the {ranks} ranks they would be spread over. "
            "Set 'draft_tensor_parallel_size' to 1.",
        )


def _undivided_heads(model: ModelFacts, ranks: int) -> int | None:
    """How many attention heads there are, if ``ranks`` ranks cannot share them evenly."""
    heads = model.get("num_attention_heads")
    return heads if isinstance(heads, int) and heads % ranks else None
