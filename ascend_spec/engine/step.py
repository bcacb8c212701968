"""The device part of a step: everything between the scheduler's plan and the one copy back to the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ascend_spec.config import Bucket, Plan
from ascend_spec.engine.pool import TokenPool
from ascend_spec.runtime import Upload, new_buffers, refill, shapes
from ascend_spec.samplers.logprobs import LogprobRows
from ascend_spec.samplers.no_token import why_no_token
from ascend_spec.samplers.packing import needs_host_drafts, pack_processing
from ascend_spec.samplers.processors import process_logits
from ascend_spec.scorer import MQAScorer
from ascend_spec.types import Draft, ScheduledRequest, StepPlan

Sampler = Callable[..., torch.Tensor]


class DeviceStep:
    """Target forward, logits processors, sampler: ``plan -> [B, K + 2] int32``.

    Args:
        token_ids: ``[S, L]`` int32, committed tokens by slot.
    """

    def __init__(self, model: Any, sampler: Sampler, kv_caches: list, token_ids: torch.Tensor) -> None:
        self.model, self.sampler, self.kv_caches, self.token_ids = model, sampler, kv_caches, token_ids

    def __call__(self, plan: StepPlan) -> torch.Tensor:
        return self.judge(self.logits(plan), plan)

    def logits(self, plan: StepPlan) -> torch.Tensor:
        """``[N + B, V]``, as the model gives them."""
        return self.model.forward(
            plan.input_ids, plan.positions, self.kv_caches, plan.attention, plan.spec.logits_indices
        )

    def judge(self, logits: torch.Tensor, plan: StepPlan) -> torch.Tensor:
        """``[B, K + 2]`` int32; changes ``logits`` in place."""
        if not plan.spec.num_draft_tokens:  # only unfinished prompts: nothing to sample
            return logits.new_empty((0, plan.spec.max_spec_len + 2), dtype=torch.int32)
        limits = process_logits(logits, plan, self.token_ids)
        output = self.sampler(logits, plan.spec, plan.temperature, plan.seeds, plan.sample_positions)
        return output if limits is None else _limited(output, limits)


def _limited(output: torch.Tensor, limits: torch.Tensor) -> torch.Tensor:
    """``output [B, K + 2]`` with no more than ``limits [B]`` tokens a request."""
    counts = torch.minimum(output[:, 0], limits)[:, None]
    column = torch.arange(output.shape[1] - 1, device=output.device)
    return torch.cat([counts, torch.where(column < counts, output[:, 1:], -1)], 1)


class StepRunner:
    """Packs and runs steps; where shapes must be static, decode steps go through captured buckets."""

    def __init__(
        self, step: DeviceStep, scorer: MQAScorer, pool: TokenPool, capturer: Any, plan: Plan, vocab_size: int
    ) -> None:
        self.step, self.scorer, self.pool, self.capturer, self.plan = step, scorer, pool, capturer, plan
        self.vocab_size = vocab_size
        # bucket and shapes of the plan -> buffers, replay
        self.captured: dict[tuple[Any, ...], tuple[StepPlan, Callable[[StepPlan], torch.Tensor]]] = {}
        self.failures: dict[str, str] = {}
        """Of the last step's logits processors, by request."""
        self.logprobs: LogprobRows | None = None
        """Of the last step's requests that want them, all of their rows in order."""

    def run(self, scheduled: list[ScheduledRequest], draft: Draft | None) -> torch.Tensor:
        """``[B, K + 2]`` int32 on the device for the requests that sample; their tokens are in the pool."""
        bucket = self._bucket(scheduled)
        sampled = [item for item in scheduled if item.samples]
        plan = self.scorer.pack(scheduled, self.pool.token_ids, self.pool.block_table, draft, bucket)
        device = Upload(self.pool.token_ids.device)
        counts = plan.spec.num_draft_tokens
        self.failures = {}
        todo = pack_processing(sampled, counts, draft, self.vocab_size, device, self.failures)
        plan = replace(plan, processing=todo)
        self.logprobs = None
        if any(item.params.logprobs is not None for item in sampled):
            output = self._with_logprobs(sampled, plan, device)
        else:
            output = self.step(plan) if bucket is None else self._replay(bucket, plan)
        self.pool.commit(plan.slots, plan.sample_positions, output)
        return output

    def why_no_token(self, request: ScheduledRequest) -> str:
        """Why the last step gave ``request`` nothing."""
        return self.failures.get(request.request_id) or why_no_token(request, self.vocab_size)

    def _bucket(self, scheduled: list[ScheduledRequest]) -> Bucket | None:
        if self.plan.graph_mode == "none" or not all(request.decodes for request in scheduled):
            return None
        if any(needs_host_drafts(item) or item.params.logprobs is not None for item in scheduled):
            return None
        num_drafts = max(request.num_drafts for request in scheduled)
        return self.plan.bucket_for(len(scheduled), num_drafts)

    def _with_logprobs(self, sampled: list[ScheduledRequest], plan: StepPlan, device: Upload) -> torch.Tensor:
        """The rows of requests that want log-probabilities are copied before processors change them."""
        starts = [b + sum(plan.spec.num_draft_tokens[:b]) for b in range(len(sampled))]
        wanted = [
            (starts[b] + j, b, j)
            for b, item in enumerate(sampled)
            if item.params.logprobs is not None
            for j in range(item.num_drafts + 1)
        ]
        rows, requests, columns = (device.int64(values) for values in zip(*wanted, strict=True))
        logits = self.step.logits(plan)
        copied = logits[rows]
        output = self.step.judge(logits, plan)
        self.logprobs = LogprobRows(copied, output[requests, columns + 1].long())
        return output

    def _replay(self, bucket: Bucket, plan: StepPlan) -> torch.Tensor:
        key = (bucket, shapes(plan))
        if key not in self.captured:
            buffers = new_buffers(plan)
            self.captured[key] = (buffers, self.capturer.capture(self.step, buffers))
        buffers, replay = self.captured[key]
        return replay(refill(buffers, plan))
