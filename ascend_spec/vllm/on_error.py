"""What a drafter's failure means: the option ``on_error``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from ascend_spec.config import ConfigError, Finding, Plan
from ascend_spec.vllm.metrics import Metrics

logger = logging.getLogger("vllm.ascend_spec")
T = TypeVar("T")


class OnError:
    """Around a drafter's loading and proposing. The output goes on without the drafts: they are judged anyway."""

    def __init__(self, plan: Plan, metrics: Metrics) -> None:
        self.on_error, self.metrics = plan.config.ascend_spec.on_error, metrics
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
        """
        return None if self.is_off else self._attempt(propose, raises=self.on_error == "raise")

    def _attempt(self, call: Callable[[], T], raises: bool) -> T | None:
        try:
            return call()
        except Exception as error:
            if raises:
                raise
            self.is_off = self.on_error == "disable"
            self.metrics.count_fallback(f"drafter failed: {type(error).__name__}")
            if not self._has_failed:
                what = "speculation is off from now on" if self.is_off else "this step goes on without drafts"
                logger.exception("ascend-spec: the drafter failed (%s); %s", error, what)
            self._has_failed = True
        return None


def refuse_disable(vllm_config: Any, plan: Plan) -> None:
    """Where vLLM's own drafter cannot be left out once it has failed to load.

    Raises:
        ConfigError: ``on_error`` is "disable" there.
    """
    if plan.config.ascend_spec.on_error != "disable":
        return
    parallel = vllm_config.parallel_config
    reasons = {
        "the V2 runner verifies as many drafts of every request in every step": plan.target.runner != "v1",
        "under asynchronous scheduling drafts are expected in every step (--no-async-scheduling)": bool(
            vllm_config.scheduler_config.async_scheduling
        ),
        "a drafter that fails on one rank alone would part the ranks": parallel.tensor_parallel_size > 1,
        "on Ascend it was not tried": vllm_config.device_config.device_type == "npu",
    }
    if found := [reason for reason, holds in reasons.items() if holds]:
        raise ConfigError(
            [
                Finding(
                    "ascend_spec.on_error",
                    "'ascend_spec.on_error' was given as 'disable', which this start cannot keep with a drafter of "
                    f'vLLM\'s own: {"; ".join(found)}. Use "continue" or "raise".',
                )
            ]
        )
