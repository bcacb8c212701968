"""Continuous batching: which requests get how many rows in the next step."""

from __future__ import annotations

import logging
from collections import deque

from ascend_spec.config import Plan
from ascend_spec.engine.block_manager import BlockManager
from ascend_spec.engine.request import Request
from ascend_spec.metrics import SpecDecodeMetrics
from ascend_spec.types import ScheduledRequest

logger = logging.getLogger(__name__)


class Scheduler:
    """First come, first served. ``running`` and then ``waiting`` are in order of arrival.

    A step takes the last token of each decoding request, then as many of their drafts as budget and blocks
    allow, and fills the budget with chunks of prompts. A prompt's blocks are taken when it starts, so only
    requests that have grown can run out of them; then the newest running request gives up its blocks and is
    computed again later (its committed tokens are its prompt then).
    """

    def __init__(self, blocks: BlockManager, plan: Plan, metrics: SpecDecodeMetrics) -> None:
        self.blocks = blocks
        self.plan = plan
        self.metrics = metrics
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.free_slots = deque(range(plan.target.max_num_seqs))

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def schedule(self) -> list[ScheduledRequest]:
        """Requests that decode stand first. Every row counts against the budget, drafts included."""
        decodes = self._schedule_decodes()
        budget = self.plan.target.max_num_batched_tokens - sum(scheduled.num_rows for scheduled in decodes)
        return decodes + self._schedule_prefills(budget)

    def remove(self, request: Request) -> None:
        """Take a finished or aborted request out, wherever it is, and free what it holds."""
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._release(request)

    def _schedule_decodes(self) -> list[ScheduledRequest]:
        scheduled = []
        budget = self.plan.target.max_num_batched_tokens
        # a request that must be computed again (LongRope) is a prompt that has grown: it may need a block too
        pending = deque(r for r in self.running if r.decodes or not self.blocks.holds(r, self._reach(r)))
        draft_budget = max(0, budget - len(pending))
        if (self.waiting and self.free_slots) or len(pending) < len(self.running):
            draft_budget //= 2  # drafts are only guesses: prompts get the other half
        while pending and budget > 0:
            request = pending.popleft()
            while self.blocks.capacity(request) < self._reach(request) and request.slot >= 0:
                self._preempt_newest(pending)
            if request.slot < 0:
                break  # it was itself the newest
            if not request.decodes:
                self.blocks.allocate(request, self._reach(request))  # its rows are scheduled with the prompts
                continue
            # a block for each decode still to come: drafts must not be the reason for a preemption
            reserved = len(pending) * self.blocks.block_size
            room = max(0, self.blocks.capacity(request) - self._reach(request) - reserved)
            num_drafts = min(request.num_drafts, draft_budget, room)
            scheduled.append(self._rows(request, 1, num_drafts))
            draft_budget -= num_drafts
            budget -= 1 + num_drafts
        return scheduled

    def _schedule_prefills(self, budget: int) -> list[ScheduledRequest]:
        scheduled = []
        for request in self.running:
            chunk = self._chunk(request, budget)
            if not request.decodes and chunk > 0:
                scheduled.append(self._rows(request, chunk, 0))
                budget -= chunk
        while self.waiting and self.free_slots:
            request = self.waiting[0]
            chunk = self._chunk(request, budget)
            if chunk <= 0 or self.blocks.capacity(request) < self._reach(request):
                break
            self.running.append(self.waiting.popleft())
            request.slot = self.free_slots.popleft()
            scheduled.append(self._rows(request, chunk, 0))
            budget -= chunk
        # a prompt of one token is a decode without drafts
        return sorted(scheduled, key=lambda request: not request.decodes)

    def _reach(self, request: Request) -> int:
        """Tokens that blocks are needed for: the committed ones, and what the drafter writes beyond them."""
        return request.num_tokens + self.plan.num_lookahead_tokens

    def _chunk(self, request: Request, budget: int) -> int:
        """How much of a prompt is computed next. What is left must be nothing, or more than the drafter reads
        beyond the chunk."""
        left = request.num_tokens - request.num_computed_tokens
        if left <= budget:
            return left
        return min(budget, left - self.plan.num_prefill_lookahead_tokens)

    def _rows(self, request: Request, num_new_tokens: int, num_drafts: int) -> ScheduledRequest:
        self.blocks.allocate(request, self._reach(request) + num_drafts)
        return ScheduledRequest(
            request_id=request.request_id,
            slot=request.slot,
            num_computed_tokens=request.num_computed_tokens,
            num_tokens=request.num_tokens,
            num_new_tokens=num_new_tokens,
            num_drafts=num_drafts,
            temperature=request.params.temperature,
            seed=request.seed,
            num_banned_rows=max(0, request.params.min_tokens - request.num_output_tokens),
            banned_token_ids=request.banned_token_ids,
            params=request.params,
            token_ids=request.token_ids,
            num_prompt_tokens=len(request.prompt_token_ids),
            bad_words_token_ids=request.bad_words_token_ids,
            grammar=request.grammar,
            speculation_disabled=request.speculation_disabled,
            memo=request.memo,
        )

    def _preempt_newest(self, pending: deque[Request]) -> None:
        request = self.running.pop()
        logger.info("request %s is preempted: the KV pool is full", request.request_id)
        if request in pending:
            pending.remove(request)
        self._release(request)
        request.restart()
        self.waiting.appendleft(request)
        self.metrics.num_preemptions += 1

    def _release(self, request: Request) -> None:
        self.blocks.free(request)
        if request.slot >= 0:
            self.free_slots.append(request.slot)
            request.slot = -1
