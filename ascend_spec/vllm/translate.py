"""From vLLM's configuration to a Plan: the configuration layer is the only one that decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ascend_spec.config import (
    AscendSpecConfig,
    ConfigError,
    Finding,
    ModelFacts,
    Plan,
    SpeculativeConfig,
    TargetConfig,
    load_speculative_config,
    resolve,
)
from ascend_spec.config.errors import shortened
from ascend_spec.config.methods.ngram import DEFAULT_PROMPT_LOOKUP
from ascend_spec.vllm.refusals import CARRIERS, refused

#: fields of ours that vLLM fills with objects of its own, or that name no model
OBJECTS = ("draft_parallel_config", "draft_model_config", "ascend_spec", "custom_method")
#: what vLLM has judged by its own lists of names, to which other packages add theirs, and what it alone reads
VLLM_JUDGES = ("quantization", "moe_backend", "attention_backend", "kv_cache_dtype", "draft_load_config")
#: what vLLM writes into ``model`` for methods without one
NO_MODEL = ("ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states")
#: of vLLM, where our attention can stand in for its own
ATTENTION_DEVICES = ("cpu", "cuda")
#: query rows of a request that vllm-ascend's attention takes, by its own assertion
ASCEND_QUERY_ROWS = 16


def plan_for(vllm_config: Any, options: Any, runner_kind: str) -> Plan:
    """The plan for a worker.

    Args:
        vllm_config: vLLM's ``VllmConfig``, whose ``speculative_config`` is the carrier.
        options: ``additional_config["ascend_spec"]``.
        runner_kind: "v1" or "v2".

    Raises:
        ConfigError: all that cannot be honoured.
    """
    carrier = vllm_config.speculative_config
    target = target_config(vllm_config, runner_kind)
    if carrier is None:
        if options != {}:
            raise ConfigError([_nothing_to_apply_to(options)])
        return resolve(None, target)
    plan = resolve(load_speculative_config({**_carried(carrier, options), "ascend_spec": options}), target)
    if found := [
        *refused(
            plan.speculator,
            runner_kind,
            carrier.method,
            async_scheduling=bool(vllm_config.scheduler_config.async_scheduling),
            device_type=_device_type(vllm_config),
        ),
        *_refused_on_ascend(plan, vllm_config),
        *_refused_attention(plan, vllm_config),
    ]:
        raise ConfigError(found)
    return plan


def misplaced_options(additional: dict[Any, Any]) -> list[str]:
    """Names of our options that stand in ``additional_config`` itself, where another package may have the same name."""
    return [name for name in AscendSpecConfig.model_fields if name in additional]


def _nothing_to_apply_to(options: Any) -> Finding:
    return Finding(
        "ascend_spec",
        f"'ascend_spec' was given as {shortened(options)} without a speculative config to apply it to. Add "
        "--speculative-config, or remove it from --additional-config.",
    )


#: options of vllm-ascend under which the sampler would see something else than whole rows of logits, or be ignored
ASCEND_OPTIONS = {
    "enable_reduce_sample": "gives the sampler a part of the vocabulary on each rank",
    "rejection_sampler_config": "configures a sampler that is not used here",
}


def _device_type(vllm_config: Any) -> str:
    return getattr(getattr(vllm_config, "device_config", None), "device_type", "")


def on_ascend(vllm_config: Any) -> bool:
    return _device_type(vllm_config) == "npu"


def _refused_on_ascend(plan: Plan, vllm_config: Any) -> Iterator[Finding]:
    """What vllm-ascend would run beside us, read from its wheels (0.23.0, 0.26.0rc1); no NPU has run it."""
    if not on_ascend(vllm_config):
        return
    additional = vllm_config.additional_config or {}
    for name, what in ASCEND_OPTIONS.items():
        if additional.get(name):
            yield Finding(
                name,
                f"'{name}' was given as {shortened(additional[name])} in --additional-config; it {what}. Remove it, "
                "or remove 'ascend_spec'.",
            )
    fine = additional.get("finegrained_tp_config") or {}
    if fine.get("lmhead_tensor_parallel_size"):
        yield Finding(
            "finegrained_tp_config",
            f"'finegrained_tp_config.lmhead_tensor_parallel_size' was given as "
            f"{fine['lmhead_tensor_parallel_size']}; the rows of logits are then padded, which our sampler does not "
            "expect. Remove it, or remove 'ascend_spec'.",
        )
    if getattr(getattr(vllm_config, "quant_config", None), "enable_c8_quant", False):
        yield Finding(
            "quantization",
            "the target's KV cache is int8 (C8), which vllm-ascend's attention reads for one query row a request, and "
            "a request with drafts has more. Use a target without C8, or no speculation.",
        )
    if plan.config.draft_sample_method == "probabilistic":
        yield Finding(
            "draft_sample_method",
            "'draft_sample_method' was given as \"probabilistic\", but vllm-ascend's drafters take the likeliest "
            "token and keep no distribution. Remove it.",
        )


def _refused_attention(plan: Plan, vllm_config: Any) -> Iterator[Finding]:
    """Where our attention cannot be had; what the target's layers refuse is known once they are loaded."""
    if not plan.config.ascend_spec.mqa_attention:
        return
    field, given = "ascend_spec.mqa_attention", "'ascend_spec.mqa_attention' was given as True"
    device = vllm_config.device_config.device_type
    if on_ascend(vllm_config):
        yield Finding(
            field,
            f"{given}; on Ascend vLLM's own attention stays, whose verification steps take "
            f"{ASCEND_QUERY_ROWS - 1} drafts a request. Remove it.",
        )
    elif device not in ATTENTION_DEVICES:
        yield Finding(field, f"{given}; it is built for CPU and CUDA, not for {device!r}. Remove it.")
    parts = getattr(vllm_config.parallel_config, "decode_context_parallel_size", 1)
    if parts > 1:
        yield Finding(
            field,
            f"{given}, but with decode_context_parallel_size={parts} a rank has only a part of a request's keys. "
            "Remove one of them.",
        )


def _carried(carrier: Any, options: Any) -> dict[str, Any]:
    """vLLM's fields as the user may have written them; values that vLLM left alone are left out."""
    fields = {}
    for name, field in SpeculativeConfig.model_fields.items():
        value = getattr(carrier, name, None)
        if name not in (*OBJECTS, *VLLM_JUDGES) and value is not None and value != field.get_default():
            fields[name] = value
    if fields.get("model") in NO_MODEL:
        del fields["model"]
    lookup = ("prompt_lookup_min", "prompt_lookup_max")
    for name in lookup:  # vLLM writes 0 for methods without them
        if fields.get(name) == 0:
            del fields[name]
    carries = isinstance(options, dict) and options.get("method") in CARRIERS
    if carries and all(fields.get(name) == DEFAULT_PROMPT_LOOKUP for name in lookup):  # vLLM wrote both
        for name in lookup:
            del fields[name]
    if "synthetic_acceptance_rates" in fields:  # a mean length has become rates by now
        fields.pop("synthetic_acceptance_length", None)
    return fields


def target_config(vllm_config: Any, runner_kind: str) -> TargetConfig:
    """vLLM's facts of the target, in our words."""
    model, parallel, scheduler = (
        vllm_config.model_config,
        vllm_config.parallel_config,
        vllm_config.scheduler_config,
    )
    mode = str(getattr(vllm_config.compilation_config.cudagraph_mode, "name", "NONE"))
    return TargetConfig(
        ModelFacts(model.model, model.hf_config.to_dict()),
        model.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        block_size=vllm_config.cache_config.block_size or 16,
        runner="v2" if runner_kind == "v2" else "v1",
        max_query_len=ASCEND_QUERY_ROWS if on_ascend(vllm_config) else None,
        graph_mode="full" if "FULL" in mode else "none" if mode == "NONE" else "piecewise",
        enforce_eager=bool(model.enforce_eager),
        enable_prefix_caching=bool(vllm_config.cache_config.enable_prefix_caching),
        has_kv_connector=vllm_config.kv_transfer_config is not None,
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        data_parallel_size=parallel.data_parallel_size,
        prefill_context_parallel_size=getattr(parallel, "prefill_context_parallel_size", 1),
        enable_expert_parallel=parallel.enable_expert_parallel,
        dtype=str(model.dtype).removeprefix("torch."),
        kv_cache_dtype=str(vllm_config.cache_config.cache_dtype),
        quantization=model.quantization,
        tokenizer=model.tokenizer,
        tokenizer_mode=str(model.tokenizer_mode),
        seed=model.seed or 0,
        trust_remote_code=model.trust_remote_code,
        max_logprobs=model.max_logprobs,
        config_format=str(model.config_format),
        hf_overrides=model.hf_overrides,
        model_weights=getattr(model, "model_weights", None) or None,
        num_threads=torch.get_num_threads() * parallel.tensor_parallel_size,
    )
