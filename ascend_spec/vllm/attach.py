"""Attach to one worker: plan, choose the adapter by what the runner has, and say in one line what was done."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from ascend_spec.config import Plan
from ascend_spec.vllm import ranks
from ascend_spec.vllm.attention import replace_attention
from ascend_spec.vllm.seams import SeamError
from ascend_spec.vllm.translate import misplaced_options, plan_for
from ascend_spec.vllm.v1 import V1Adapter
from ascend_spec.vllm.workarounds import keep_openmp_threads, override_kernels_once

logger = logging.getLogger("vllm.ascend_spec")


def attach(worker: Any, options: Any) -> None:
    """Change a worker's runner, as an instance; its classes and modules stay as they are.

    Raises:
        ConfigError: options or carrier that cannot be honoured.
        RankMismatchError: other ranks have another version of this package or another plan.
        SeamError: a vLLM whose runner is not one we know.
    """
    from vllm.platforms import current_platform

    override_kernels_once(current_platform, done=True)
    _tell(keep_openmp_threads())
    world = ranks.world(worker.vllm_config.parallel_config)
    ranks.require_same_version(world)
    runner = worker.model_runner
    kind = runner_kind(runner)
    plan = plan_for(worker.vllm_config, options, kind)
    ranks.require_same_plan(world, plan)
    for warning in _warnings(worker.vllm_config.additional_config, plan):
        logger.warning("ascend-spec: %s", warning)
    runner.ascend_spec = adapter = _adapter(kind)(runner, plan)
    if plan.config.ascend_spec.mqa_attention:
        replace_attention(runner, plan)
    _tell(keep_openmp_threads())  # what was compiled for the adapter may have started Numba's pool
    logger.info("ascend-spec is attached to %s%s", type(runner).__name__, _what_it_does(adapter, plan))


def _warnings(additional: dict[Any, Any], plan: Plan) -> Iterator[str]:
    for name in misplaced_options(additional):
        yield (
            f"{name!r} stands in --additional-config beside 'ascend_spec'; as an option of ours it belongs inside it, "
            "and is not read where it is"
        )
    yield from (warning.message for warning in plan.warnings)


def _what_it_does(adapter: Any, plan: Plan) -> str:
    if plan.name == "none":
        return (
            f", without a --speculative-config: nothing is drafted or judged; sampler: {adapter.sampler}; attention: "
            "vLLM's own"
        )
    attention = "ours, where drafts are judged" if plan.config.ascend_spec.mqa_attention else "vLLM's own"
    return (
        f": method {plan.name} with K = {plan.num_speculative_tokens}, rule {plan.rule.name} "
        f"({'lossless' if plan.rule.lossless else 'lossy'}); drafter: {adapter.drafter}{_weights(adapter, plan)}; "
        f"sampler: {adapter.sampler}; attention: {attention}"
    )


def _weights(adapter: Any, plan: Plan) -> str:
    """No drafter of ours stands in for one with weights, so what vLLM loads is what drafts."""
    if plan.draft_model is None or adapter.drafter == "none":
        return ""
    return f", with the weights of {plan.draft_model.model}"


def _tell(workaround: str | None) -> None:
    if workaround is not None:
        logger.info("ascend-spec workaround: %s", workaround)


def _adapter(kind: str) -> Any:
    if kind == "v1":
        return V1Adapter
    from ascend_spec.vllm.v2 import V2Adapter  # imports vLLM's V2 runner, which older ones don't have

    return V2Adapter


def runner_kind(runner: Any) -> str:
    """ "v1" or "v2", by what the runner has.

    Raises:
        SeamError: neither.
    """
    if "310" in type(runner).__name__:
        raise SeamError(
            f"{type(runner).__name__} runs on Ascend 310P, which has no Triton: ascend-spec does not run there. Remove "
            "'ascend_spec' from --additional-config."
        )
    if hasattr(runner, "_sample") and hasattr(runner, "input_batch"):
        return "v1"
    if hasattr(runner, "speculator") and hasattr(runner, "req_states"):
        return "v2"
    raise SeamError(
        f"{type(runner).__name__} is none of the model runners that ascend-spec knows: it has neither _sample and "
        "input_batch (V1) nor speculator and req_states (V2). Remove 'ascend_spec' from --additional-config, or "
        "use a vLLM version of the support table."
    )
