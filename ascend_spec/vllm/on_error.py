"""What a drafter's failure means: the option ``on_error``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ascend_spec.config import Plan
from ascend_spec.vllm.metrics import Metrics
from ascend_spec.vllm.ranks import RankMismatchError

logger = logging.getLogger("vllm.ascend_spec")
T = TypeVar("T")


class OnError:
    """Around a drafter's loading and proposing. The output goes on without the drafts: they are judged anyway."""

    def __init__(self, plan: Plan, metrics: Metrics) -> None:
        self.on_error, self.metrics = plan.config.ascend_spec.on_error, metrics
        # V1 hands out the drafts of one rank to all; on V2 each rank goes on from those that it has made
        target = plan.target
        self.parts_ranks = target.runner == "v2" and target.tensor_parallel_size > 1
        self.is_off = False
        """Speculation is off for good."""
        self._has_failed = False

    def load(self, load: Callable[[], T]) -> T | None:
        """What ``load`` gives; None: it failed, and speculation is off.

        Raises:
            Exception: what ``load`` raises, unless ``on_error`` is "disable".
        """
        return self._attempt(load, raises=self.on_error != "disable")

    def propose(self, propose: Callable[[], T]) -> T | None:
        """What ``propose`` gives; None: this step has no drafts.

        Raises:
            Exception: what ``propose`` raises, if ``on_error`` is "raise".
            RankMismatchError: it failed on this rank, and others would go on with the drafts that they have.
        """
        return None if self.is_off else self._attempt(propose, raises=self.on_error == "raise")

    def _attempt(self, call: Callable[[], T], raises: bool) -> T | None:
        try:
            return call()
        except Exception as error:
            if raises:
                raise
            if self.parts_ranks:
                raise RankMismatchError(
                    f"The drafter failed on this rank ({type(error).__name__}: {error}). With tensor parallelism each "
                    "rank of vLLM's V2 runner goes on from its own drafts, so that one without them would part from "
                    "the others: 'ascend_spec.on_error' is \"raise\" there, whatever it was given as."
                ) from error
            self.is_off = self.on_error == "disable"
            self.metrics.count_fallback(f"drafter failed: {type(error).__name__}")
            if not self._has_failed:
                what = "speculation is off from now on" if self.is_off else "this step goes on without drafts"
                logger.exception("ascend-spec: the drafter failed (%s); %s", error, what)
            self._has_failed = True
        return None
