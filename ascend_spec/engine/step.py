"""The device part of a step: everything between the scheduler's plan and the one copy back to the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ascend_spec.config import Bucket, Plan
from ascend_spec.engine.pool import TokenPool
from ascend_spec.runtime import new_buffers, refill
from ascend_spec.scorer import MQAScorer
from ascend_spec.types import Draft, ScheduledRequest, StepPlan

Sampler = Callable[..., torch.Tensor]


def device_step(model: Any, sampler: Sampler, kv_caches: list) -> Callable[[StepPlan], torch.Tensor]:
    """Target forward, min_tokens mask, sampler: one callable, ``plan -> [B, K + 2] int32``."""

    def step(plan: StepPlan) -> torch.Tensor:
        logits = model.forward(
            plan.input_ids, plan.positions, kv_caches, plan.attention, plan.spec.logits_indices
        )
        if not plan.spec.num_draft_tokens:  # only unfinished prompts: nothing to sample
            return logits.new_empty((0, plan.spec.max_spec_len + 2), dtype=torch.int32)
        if plan.banned_token_ids is not None and plan.banned_bias is not None:
            logits = logits.scatter_add(1, plan.banned_token_ids, plan.banned_bias.to(logits.dtype))
        return sampler(logits, plan.spec, plan.temperature, plan.seeds, plan.sample_positions)

    return step


class StepRunner:
    """Packs and runs steps; where shapes must be static, decode steps go through captured buckets."""

    def __init__(
        self,
        step: Callable[[StepPlan], torch.Tensor],
        scorer: MQAScorer,
        pool: TokenPool,
        capturer: Any,
        plan: Plan,
    ) -> None:
        self.step, self.scorer, self.pool, self.capturer, self.plan = step, scorer, pool, capturer, plan
        # bucket and width of the min_tokens mask -> buffers, replay
        self.captured: dict[tuple[Bucket, int], tuple[StepPlan, Callable[[StepPlan], torch.Tensor]]] = {}

    def run(self, scheduled: list[ScheduledRequest], draft: Draft | None) -> torch.Tensor:
        """``[B, K + 2]`` int32 on the device for the requests that sample; their tokens are in the pool."""
        bucket = self._bucket(scheduled)
        plan = self.scorer.pack(scheduled, self.pool.token_ids, self.pool.block_table, draft, bucket)
        output = self.step(plan) if bucket is None else self._replay(bucket, plan)
        self.pool.commit(plan.slots, plan.sample_positions, output)
        return output

    def _bucket(self, scheduled: list[ScheduledRequest]) -> Bucket | None:
        if self.plan.graph_mode == "none" or not all(request.decodes for request in scheduled):
            return None
        num_drafts = max(request.num_drafts for request in scheduled)
        return self.plan.bucket_for(len(scheduled), num_drafts)

    def _replay(self, bucket: Bucket, plan: StepPlan) -> torch.Tensor:
        key = (bucket, 0 if plan.banned_token_ids is None else plan.banned_token_ids.shape[1])
        if key not in self.captured:
            buffers = new_buffers(plan)
            self.captured[key] = (buffers, self.capturer.capture(self.step, buffers))
        buffers, replay = self.captured[key]
        return replay(refill(buffers, plan))
