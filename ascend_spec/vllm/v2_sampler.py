"""The draw in vLLM's V2 runner: its samplers' last step, after processors, temperature, top-k and top-p.

Steps with and without drafts draw from the same noise, so speculation on and off share one sampler. Nothing here
waits for the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import ascend_spec_ops
from ascend_spec.config import Plan
from ascend_spec.vllm.metrics import Metrics


class V2Draw:
    """Stands in for ``Sampler._sample_random`` of one instance: a step without drafts."""

    def __init__(self, sampler: Any, req_states: Any, metrics: Metrics) -> None:
        self.states, self.req_states, self.metrics = sampler.sampling_states, req_states, metrics

    def __call__(
        self,
        processed_logits: torch.Tensor,
        expanded_idx_mapping: torch.Tensor,
        idx_mapping_np: Any,
        pos: torch.Tensor,
        top_k: torch.Tensor | None,
        top_p: torch.Tensor | None,
        has_topp_only_rows: bool,
        use_fused_sampler: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``processed_logits [N, V]``, of row ``i`` for the request in slot ``expanded_idx_mapping[i]`` whose
        last token stands at ``pos[i]`` -> tokens ``[N]`` int64 and the logits they were drawn from."""
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

        rows = apply_top_k_top_p(processed_logits, top_k, top_p, has_topp_only_rows=has_topp_only_rows)
        temperature, seeds = _temperature_and_seeds(self.states, expanded_idx_mapping)
        tokens = ascend_spec_ops.sample(rows, temperature, seeds, pos + 1)
        self.metrics.count_steps_without_drafts(self._num_decoding(idx_mapping_np))
        self.metrics.count_non_finite(tokens < 0)
        return torch.where(tokens < 0, _finite_argmax(rows), tokens).to(torch.int64), rows

    def _num_decoding(self, slots: np.ndarray) -> int:
        """Requests whose prompt is computed, so that they may have drafts. In vLLM's trial run there are none."""
        prompt, computed = (
            self.req_states.prefill_len.np[slots],
            self.req_states.num_computed_prefill_tokens[slots],
        )
        return int(((prompt > 0) & (computed >= prompt)).sum())


class V2Verify:
    """Stands in for ``RejectionSampler._verify`` of one instance: a step with drafts."""

    def __init__(self, sampler: Any, plan: Plan, metrics: Metrics) -> None:
        self.sampler, self.states = sampler, sampler.sampling_states
        self.plan, self.metrics = plan, metrics

    def __call__(
        self,
        logits: torch.Tensor,
        draft_logits: torch.Tensor | None,
        draft_sampled: torch.Tensor,
        pos: torch.Tensor,
        cu_num_logits: torch.Tensor,
        idx_mapping: torch.Tensor,
        idx_mapping_np: Any,
        expanded_idx_mapping: torch.Tensor,
        expanded_local_pos: torch.Tensor,
        seq_lens_upper_bound_np: Any,
        verify_draft_sampled: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Judge the drafts of ``B`` requests, whose rows are those of ``cu_num_logits [B + 1]``.

        Args:
            logits: ``[N + B, V]``.
            draft_logits: ``[max_num_reqs, K, V]`` by slot, before temperature; None: drafts are deterministic.
            draft_sampled, verify_draft_sampled: ``[N + B]``, the token that each row was given, its first one
                the request's last token, the others drafts; the second has -1 where a grammar forbids one.
            pos: ``[N + B]`` int64, where that token stands.
            expanded_idx_mapping, expanded_local_pos: ``[N + B]``, the slot of a row and its place in its request.

        Returns:
            the logits that were judged ``[N + B, V]``, tokens ``[B, K + 1]`` int64, their number ``[B]`` int32.
        """
        rows = self.sampler.apply_sampling_params(
            logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, draft_sampled, expanded_local_pos,
            seq_lens_upper_bound_np,
        )  # fmt: skip
        first = cu_num_logits[:-1].to(torch.int64)
        counts = cu_num_logits[1:] - torch.arange(1, len(first) + 1, device=rows.device)
        drafts = _draft_rows(counts, len(rows) - len(first))
        temperature, seeds = _temperature_and_seeds(self.states, idx_mapping)
        if not self.plan.rule.needs_q:
            draft_logits = None
        if draft_logits is not None:
            draft_logits = draft_logits[expanded_idx_mapping[drafts], expanded_local_pos[drafts] - 1]
            draft_logits = draft_logits[:, : rows.shape[1]]
        output = ascend_spec_ops.verify(
            rows,
            verify_draft_sampled[drafts].to(torch.int32),
            counts.to(torch.int32),
            temperature,
            seeds,
            pos[first] + 1,
            self.plan.num_speculative_tokens,
            draft_logits,
            None if draft_logits is None else self.states.temperature.gpu[idx_mapping],
            self.plan.rule.name,
            self.plan.rule_options,
        )
        self.metrics.count_non_finite(output[:, 0] == 0)
        tokens = output[:, 1:].to(torch.int64)
        tokens[:, 0] = torch.where(output[:, 0] == 0, _finite_argmax(rows[first]), tokens[:, 0])
        return rows, tokens, output[:, 0].clamp(min=1)


def _draft_rows(cu_num_draft_tokens: torch.Tensor, num_drafts: int) -> torch.Tensor:
    """``[N]`` int64: the rows that hold drafts, which are all but the first of each request."""
    drafts = torch.arange(num_drafts, device=cu_num_draft_tokens.device)
    return drafts + 1 + torch.searchsorted(cu_num_draft_tokens, drafts, right=True)


def _temperature_and_seeds(states: Any, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is left to apply of the temperature, which is 0 (greedy) or 1, and the requests' seeds."""
    return (states.temperature.gpu[slots] != 0).to(torch.float32), states.seeds.gpu[slots]


def _finite_argmax(rows: torch.Tensor) -> torch.Tensor:
    """vLLM cannot fail one request: one whose logits are not finite gets the largest of those that are."""
    return rows.nan_to_num(nan=float("-inf")).argmax(-1)
