"""The adapter for vLLM's V1 model runner (run with 0.32 and 0.33 on a CPU; read in vllm-ascend 0.23 and 0.26).

It replaces bound methods of instances: the runner's ``_sample``; the drafter's ``propose`` where the drafter is
ours; and where vLLM's own drafter samples, the draw, which vLLM makes without the requests' seeds.
"""

from __future__ import annotations

from typing import Any

import ascend_spec_ops
from ascend_spec.config import Plan
from ascend_spec.vllm.metrics import Metrics, is_first_tensor_rank, is_last_pipeline_rank
from ascend_spec.vllm.on_error import OnError
from ascend_spec.vllm.refusals import drafter_is_ours
from ascend_spec.vllm.seams import check_seams
from ascend_spec.vllm.v1_drafters import V1DraftSampler, V1NgramProposer, V1SuffixProposer, load_or_go_without
from ascend_spec.vllm.v1_sampler import V1Sampler

#: what the sampler holds on to
SAMPLER_SEAMS = (
    "_sample", "seq_lens", "input_batch.req_ids", "input_batch.generators",
    "input_batch.req_output_token_ids",
    "input_batch.update_async_output_token_ids", "sampler.apply_logits_processors", "sampler.gather_logprobs",
    "sampler.compute_logprobs", "sampler.gather_specific_token_logprobs",
)  # fmt: skip
#: the same, where drafts are judged
JUDGE_SEAMS = ("_get_spec_decode_draft_probs", "rejection_sampler.apply_logits_processors")
#: of a drafter that samples
DRAW_SEAMS = ("drafter._sample_from_logits", "drafter._enable_probabilistic_draft_probs")
#: where our drafter of a method proposes
PROPOSE_SEAMS = {
    "ngram": ("drafter.propose",),
    "suffix": (
        "drafter.propose", "input_batch.req_ids", "input_batch.num_prompt_tokens", "input_batch.num_tokens_no_spec",
        "input_batch.token_ids_cpu",
    ),
}  # fmt: skip
#: what a runner without its drafter is changed in
LOAD_SEAMS = (
    "drafter.load_model", "speculative_config", "num_spec_tokens",
    "vllm_config.compilation_config.static_forward_context",
)  # fmt: skip


class V1Adapter:
    """What was attached to one runner.

    Raises:
        SeamError: a part of the runner that is missing; nothing of it is changed then.
    """

    def __init__(self, runner: Any, plan: Plan) -> None:
        self.plan = plan
        speculates = plan.num_speculative_tokens > 0
        # the last pipeline stage alone samples; vLLM's rejection sampler is there with speculation
        samples = hasattr(runner, "rejection_sampler") if speculates else is_last_pipeline_rank()
        drafter = getattr(runner, "drafter", None)  # None on vllm-ascend's pipeline stages but the last
        drafts = drafter is not None and drafter_is_ours(plan.speculator, "v1")
        draws = samples and plan.speculator.draft_distribution == "sampled"
        may_go_without = drafter is not None and not drafts and plan.config.ascend_spec.on_error == "disable"
        check_seams(
            runner,
            (SAMPLER_SEAMS if samples else ())
            + (JUDGE_SEAMS if samples and speculates else ())
            + (PROPOSE_SEAMS[plan.method] if drafts else ())
            + (DRAW_SEAMS if draws else ())
            + (LOAD_SEAMS if may_go_without else ()),
        )
        self.metrics = Metrics(plan.rule, is_published=samples and is_first_tensor_rank())
        on_error = OnError(plan, self.metrics)
        ascend_spec_ops.limit_threads(plan.num_threads)
        ascend_spec_ops.warm_up(plan.warm_up, runner.device)
        if samples:
            runner._sample = sampler = V1Sampler(runner, plan, self.metrics)
            if draws:
                runner.drafter._sample_from_logits = V1DraftSampler(runner.drafter, sampler)
                # vLLM keeps them with few of the rules alone
                runner.drafter._enable_probabilistic_draft_probs = True
        if drafts:
            runner.drafter.propose = (
                V1SuffixProposer(runner, plan, on_error)
                if plan.method == "suffix"
                else V1NgramProposer(runner.drafter, plan, on_error)
            )
        if may_go_without:
            load_or_go_without(runner, on_error)
        self.sampler = "ours" if samples else "none on this rank"
        self.drafter = "ours" if drafts else "vLLM's own" if drafter is not None else "none"
        if drafter is not None and plan.method == "ngram_gpu":
            self.drafter += " (its history is in tensors of the runner; ours drafts with method ngram)"
        if draws:
            self.drafter += ", drawing from the requests' seeds"
