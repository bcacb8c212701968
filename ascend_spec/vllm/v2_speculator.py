"""This project's drafters as vLLM's V2 runner calls drafters."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from ascend_spec.config import Plan
from ascend_spec.drafters import create_drafter
from ascend_spec.types import DraftBatch
from ascend_spec.vllm.on_error import OnError


class V2Speculator(BaseSpeculator):
    """A drafter whose drafts are deterministic."""

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, req_states: Any, plan: Plan, on_error: OnError) -> None:
        self.req_states = req_states
        self.num_speculative_steps = plan.num_speculative_tokens
        self.on_error = on_error
        self.drafter = on_error.load(lambda: create_drafter(plan))

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Nothing is captured."""

    def capture(self) -> None:
        """Nothing is captured."""

    @torch.inference_mode()
    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: torch.Tensor,
        aux_hidden_states: list[torch.Tensor] | None,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        last_sampled: torch.Tensor,
        next_prefill_tokens: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        dp_sync_state: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        mm_inputs: Any = None,
        is_profile: bool = False,
        num_speculative_tokens: int | None = None,
    ) -> torch.Tensor:
        """Drafts ``[num_reqs, K]`` int64 of the requests in ``input_batch.idx_mapping``.

        ``num_sampled [num_reqs]`` int32 is 0 in the middle of a prompt. vLLM verifies K rows of every request and
        looks all of them up in its embedding, so that empty places hold the last token, which is judged like any
        other draft.
        """
        slots = input_batch.idx_mapping
        width = self.num_speculative_steps
        wanted = width if num_speculative_tokens is None else num_speculative_tokens
        last = last_sampled[slots].view(-1, 1)
        if dummy_run or not wanted:
            return last.repeat(1, width)
        drafts = self.on_error.propose(lambda: self._drafts(slots, num_sampled, wanted))
        return last.repeat(1, width) if drafts is None else torch.where(drafts < 0, last, drafts)

    def _drafts(self, slots: torch.Tensor, num_sampled: torch.Tensor, wanted: int) -> torch.Tensor:
        assert self.drafter is not None  # the method is one whose drafter is ours, and it loaded
        return self.drafter.propose(self._batch(slots, num_sampled, wanted)).token_ids[slots]

    def _batch(self, slots: torch.Tensor, num_sampled: torch.Tensor, wanted: int) -> DraftBatch:
        history = self.req_states.all_token_ids.gpu
        wanted_by_slot = torch.zeros(len(history), dtype=torch.int32, device=history.device)
        wanted_by_slot[slots] = torch.where(num_sampled > 0, wanted, 0).to(torch.int32)
        num_tokens = torch.where(wanted_by_slot > 0, self.req_states.total_len.gpu, 0)
        return DraftBatch(history, num_tokens, wanted_by_slot)
