"""vLLM's adaptive verification, which asks for CUDA streams and graphs, on a CPU: its own choice of drafts and its own
layout of the step, with costs that are made up.

Runs in the process that has vLLM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.v1.worker.gpu.spec_decode import adaptive_verification as stock

RUNNER = "vllm.v1.worker.gpu.model_runner"


def _manager(tell: Callable[[list[int], list[int]], None]) -> type:
    class OnCPU(stock.AdaptiveVerificationManager):
        def __init__(self, **arguments: Any) -> None:
            with mock.patch("torch.cuda.Stream"), mock.patch("torch.cuda.Event"):
                super().__init__(**arguments)
            # a step costs as much as a dozen rows: some drafts are worth theirs
            costs = 12.0 + np.arange(self.req_states.max_num_batched_tokens + 1)
            self.cost_tables = np.zeros(self.req_states.max_num_reqs + 1), costs

        def reallocate_drafts(self, req_ids: list[str], idx_mapping: torch.Tensor) -> Any:
            scheduled = self._batch_budget[0]
            found = super().reallocate_drafts(req_ids, idx_mapping)
            tell([scheduled[each] for each in req_ids], (found[0].diff() - self.num_bonus_tokens).tolist())
            return found

        def record_confidences(self, confidence_probs: torch.Tensor, input_batch: Any) -> None:
            self._confidence_probs[input_batch.idx_mapping] = confidence_probs[: input_batch.num_reqs]
            self._stale_confidences[self._stale_idx].np[:] = self._confidence_probs.numpy()

    return OnCPU


@contextlib.contextmanager
def drafts_left_out(tell: Callable[[list[int], list[int]], None]) -> Iterator[None]:
    """``tell(drafts that each request has, drafts that are verified)``, of each step."""
    manager = _manager(tell)

    def create(*, enable_adaptive_verification: bool, **arguments: Any) -> Any:
        names = ("req_states", "query_start_loc", "num_bonus_tokens", "max_total_logits")
        wanted = {name: arguments[name] for name in names}
        return manager(**wanted) if enable_adaptive_verification else None

    with (
        mock.patch.object(VllmConfig, "_validate_adaptive_verification"),
        mock.patch(f"{RUNNER}.resolve_adaptive_cudagraph_mode", lambda mode, **_: mode),
        mock.patch(f"{RUNNER}.maybe_create_adaptive_verification_manager", create),
        mock.patch.object(stock, "_assign_draft_token_budget_compiled", stock._assign_draft_token_budget),
    ):
        yield
