"""Whether all ranks of an engine run the same: this package's version, and the same plan.

Ranks send each other neither drafts nor tokens: each computes them from what all have, and gets the same. Another
version of this package on one node, or other files under the same path, would part them without a word.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import ascend_spec
from ascend_spec.config import Plan
from ascend_spec.config.plan import canonical

#: until a rank counts as one that never attaches; all have just met, in ``init_process_group``
PATIENCE = timedelta(minutes=5)


class RankMismatchError(RuntimeError):
    """Ranks of one engine would not draft or draw the same tokens."""


def world(parallel_config: Any) -> dist.ProcessGroup | None:
    """The ranks of vLLM's engine, on the CPU; None: there is one rank, or ranks come and go (elastic expert
    parallelism), so that a newcomer would ask ranks which have long been attached."""
    from vllm.distributed.parallel_state import get_world_group

    group = get_world_group()
    if group.world_size == 1 or getattr(parallel_config, "enable_elastic_ep", False):
        return None
    return group.cpu_group


def require_same_version(group: dist.ProcessGroup | None) -> None:
    """A collective call, before anything that versions could decide differently.

    Raises:
        RankMismatchError: ranks with another version of this package, or without it.
    """
    if group is None:
        return
    _require_all(group)
    if (found := _differing(group, ascend_spec.__version__)) is not None:
        raise RankMismatchError(
            f"The ranks of this engine have different versions of ascend-spec: {found}. They could draft and draw "
            "different tokens. Install the same wheel for all of them and start again."
        )


def require_same_plan(group: dist.ProcessGroup | None, plan: Plan) -> None:
    """A collective call.

    Raises:
        RankMismatchError: ranks that would speculate in another way.
    """
    if group is None:
        return
    if (found := _differing(group, digest(plan))) is not None:
        raise RankMismatchError(
            f"The ranks of this engine have resolved the same --speculative-config into different plans: {found}. "
            "See to it that all of them have the same wheel of ascend-spec and the same files of the models, and "
            "start again."
        )


def digest(plan: Plan) -> str:
    """Of all that decides which tokens are drafted and drawn; the same in every process."""
    decides = (
        canonical(plan.config.model_dump()),
        plan.name,
        plan.rule.name,
        plan.num_speculative_tokens_by_batch_size,
        plan.target.seed,
        plan.target.max_model_len,
        plan.hash_factors(),
    )
    return hashlib.sha256(repr(decides).encode()).hexdigest()[:12]


def _require_all(group: dist.ProcessGroup) -> None:
    """Wait for the other ranks, but not forever: one without this package does not come."""
    if dist.get_backend(group) != dist.Backend.GLOO:  # torch has this barrier for no other
        return
    try:
        dist.monitored_barrier(group, PATIENCE, wait_all_ranks=True)
    except RuntimeError as error:
        raise RankMismatchError(
            f"Not all ranks of this engine have attached ascend-spec within {PATIENCE.total_seconds():.0f} s "
            f"({error}). Install the same wheel for all of them, and see to it that none has ASCEND_SPEC_DISABLE or "
            "a VLLM_PLUGINS without ascend_spec in its environment."
        ) from error


def _differing(group: dist.ProcessGroup, mine: str) -> str | None:
    """Which rank has what, such as "0.1.0 on ranks 0, 2; 0.2.0 on rank 1"; None: all have the same."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, mine, group=group)
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(str(rank))
    if len(ranks) == 1:
        return None
    return "; ".join(f"{v} on rank{'s'[: len(r) > 1]} {', '.join(r)}" for v, r in ranks.items())
