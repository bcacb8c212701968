"""The adapter for vLLM's V2 model runner (0.33).

The runner exists when it is attached to, its samplers don't: vLLM makes them at the end of ``load_model``. So the
speculator is replaced at once, and ``load_model`` of the instance is followed by the replacement of one method
of each sampler: the one that draws. What stands around it stays vLLM's: processors, logprobs, grammar, counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ascend_spec_ops
from ascend_spec.config import ConfigError, Finding, Plan
from ascend_spec.vllm.metrics import Metrics, is_first_tensor_rank
from ascend_spec.vllm.on_error import OnError
from ascend_spec.vllm.refusals import drafter_is_ours
from ascend_spec.vllm.seams import check_seams
from ascend_spec.vllm.v2_sampler import V2Draw, V2Verify
from ascend_spec.vllm.v2_speculator import V2Speculator

DRAW = {"_sample_random": V2Draw.__call__}
VERIFY = {"_verify": V2Verify.__call__}


class V2Adapter:
    """What was attached to one runner.

    Raises:
        ConfigError: what vLLM's V2 runner does and this project's draw would undo.
        SeamError: methods that are replaced take other arguments in this vLLM; nothing of the runner is changed.
    """

    def __init__(self, runner: Any, plan: Plan) -> None:
        refuse(runner)
        self.runner, self.plan = runner, plan
        # the last pipeline stage alone has a speculator and draws
        samples = runner.is_last_pp_rank
        drafts = runner.speculator is not None and drafter_is_ours(plan.speculator, "v2")
        if samples:
            probe_samplers()
        if drafts:
            check_seams(type(runner.speculator), replaced={"propose": V2Speculator.propose})
        self.metrics = Metrics(plan.rule, is_published=samples and is_first_tensor_rank())
        ascend_spec_ops.limit_threads(plan.num_threads)
        ascend_spec_ops.warm_up(plan.warm_up, runner.device)
        if samples:
            runner.load_model = self._load_model(runner.load_model)
        if drafts:
            runner.speculator = V2Speculator(runner.req_states, plan, OnError(plan, self.metrics))
        self.sampler = "ours" if samples else "none on this rank"
        self.drafter = "ours" if drafts else "vLLM's own" if runner.speculator is not None else "none"

    def _load_model(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def load_model(*args: Any, **kwargs: Any) -> Any:
            result = stock(*args, **kwargs)
            sampler, rejection = self.runner.sampler, self.runner.rejection_sampler
            check_seams(type(sampler), replaced=DRAW)  # some models bring their own
            sampler._sample_random = V2Draw(sampler, self.runner.req_states, self.metrics)
            if rejection is not None:
                check_seams(type(rejection), replaced=VERIFY)
                rejection._verify = V2Verify(sampler, self.plan, self.metrics)
            return result

        return load_model


def refuse(runner: Any) -> None:
    """What must not be attached to, in the words of the user's options.

    Raises:
        ConfigError: a pooling model, or watermarked output.
    """
    findings = []
    if runner.is_pooling_model:
        findings.append(Finding("ascend_spec", "A pooling model draws no tokens. Remove 'ascend_spec'."))
    if getattr(runner.vllm_config, "watermark_config", None) is not None:
        findings.append(
            Finding(
                "ascend_spec",
                "'ascend_spec' and a watermark config were given; the watermark is in vLLM's own draw, which "
                "ascend-spec would replace. Remove one of them.",
            )
        )
    if findings:
        raise ConfigError(findings)


def probe_samplers() -> None:
    """Whether the two methods that are replaced after loading are there.

    Raises:
        SeamError: they are not, or take other arguments.
    """
    from vllm.v1.worker.gpu.sample.sampler import Sampler
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    check_seams(Sampler, replaced=DRAW)
    check_seams(RejectionSampler, replaced=VERIFY)
