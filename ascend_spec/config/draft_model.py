"""The draft model's configuration: what it takes from the target, and what it keeps of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ascend_spec.config.checkpoint import ModelFacts
from ascend_spec.config.errors import Finding, nearest, quoted, wrong
from ascend_spec.config.parallel import check_draft_ranks
from ascend_spec.config.speculator import SpeculatorConfig
from ascend_spec.config.target import TargetConfig

#: vLLM 0.33's, without those that it has deprecated, and the one that vllm-ascend registers
QUANTIZATIONS = (
    "awq", "auto_awq", "fp8", "modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "auto_gptq",
    "gptq", "gptq_marlin", "awq_marlin", "humming", "compressed-tensors", "experts_int8", "quark", "moe_wna16",
    "torchao", "inc", "mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8", "online", "fp8_per_tensor", "fp8_per_block",
    "fp8_per_channel", "int8_per_channel_weight_only", "nvfp4_per_token", "mxfp8",
    "ascend",
)  # fmt: skip


@dataclass(frozen=True)
class DraftModelConfig:
    """How the draft model or head is loaded and run."""

    facts: ModelFacts
    model: str
    tokenizer: str
    tokenizer_mode: str
    dtype: str
    seed: int
    trust_remote_code: bool
    enforce_eager: bool
    max_logprobs: int
    config_format: str
    revision: str | None
    code_revision: str | None
    quantization: str | None
    hf_overrides: Callable[[Any], Any] | None
    max_model_len: int
    """The longest sequence that its checkpoint supports, at most the target's, or what was given; in tokens.
    How far is drafted is ``speculator.max_model_len``."""
    max_position_embeddings: int | None
    """What its rotary cache is sized for; None: the checkpoint does not say."""
    tensor_parallel_size: int
    enable_expert_parallel: bool
    moe_backend: str | None
    attention_backend: str | None
    kv_cache_dtype: str | None


def draft_model_config(speculator: SpeculatorConfig, target: TargetConfig) -> DraftModelConfig | None:
    """None for methods without a draft model of their own.

    Tokenizer, dtype, seed and flags are the target's; of overrides of its config, functions are applied to the
    draft's too, dictionaries are not, since their keys are the target's.
    """
    config, facts = speculator.config, speculator.draft
    if facts is None:
        return None
    own_weights = facts.path == speculator.default_model(config, target)
    return DraftModelConfig(
        facts=facts,
        model=facts.path,
        tokenizer=facts.path if config.use_heterogeneous_vocab else (target.tokenizer or target.model.path),
        tokenizer_mode=target.tokenizer_mode,
        dtype=target.dtype,
        seed=target.seed,
        trust_remote_code=target.trust_remote_code,
        enforce_eager=target.enforce_eager if config.enforce_eager is None else config.enforce_eager,
        max_logprobs=target.max_logprobs,
        config_format=target.config_format,
        revision=config.revision,
        code_revision=config.code_revision,
        quantization=config.quantization or (target.quantization if own_weights else None),
        hf_overrides=target.hf_overrides if callable(target.hf_overrides) else None,
        max_model_len=config.max_model_len or _shorter(facts.max_model_len, target),
        max_position_embeddings=speculator.draft_max_position_embeddings,
        tensor_parallel_size=config.draft_tensor_parallel_size or target.tensor_parallel_size,
        enable_expert_parallel=target.enable_expert_parallel and facts.is_moe,
        moe_backend=config.moe_backend,
        attention_backend=config.attention_backend,
        kv_cache_dtype=config.kv_cache_dtype,
    )


def _shorter(length: int | None, target: TargetConfig) -> int:
    """``length`` of the draft if it says one, and no more than the target's."""
    return min(length or target.max_model_len, target.max_model_len)


def check_draft_model(speculator: SpeculatorConfig, target: TargetConfig) -> Iterator[Finding]:
    """What cannot be honoured of the draft model's size, length and parallelism; of its parallelism alone where
    none was given."""
    config, draft = speculator.config, speculator.draft
    yield from _check_ranks(speculator, target)
    if draft is None:
        return
    supported = _shorter(draft.derived_max_model_len, target)
    if config.max_model_len is not None and config.max_model_len > supported:
        yield wrong(
            "max_model_len",
            config.max_model_len,
            f"at most {supported}, what the draft model and the target ({target.max_model_len}) both support",
            "Lower it.",
        )
    head_dtype = draft.get("head_dtype")
    if config.draft_lm_head_quantization and head_dtype not in (None, target.dtype):
        yield Finding(
            "draft_lm_head_quantization",
            f"'draft_lm_head_quantization' was given as {config.draft_lm_head_quantization!r}; it needs the "
            f"head's dtype to be the model's, but the head has {head_dtype} and the model {target.dtype}. "
            "Remove it.",
        )


def warn_draft_model(speculator: SpeculatorConfig, target: TargetConfig) -> Iterator[Finding]:
    """A draft model costs time in each of its passes, and what is no smaller than the target cannot win it back."""
    draft = speculator.draft
    if draft is None or not speculator.draft_has_own_vocab:  # a head is a layer or two
        return
    own, theirs = draft.layer_weights, target.model.layer_weights
    if own is not None and theirs is not None and own > theirs:
        yield Finding(
            "model",
            f"the draft model's layers are {own / theirs:.1f} times as large as the target's (embeddings and heads "
            "left out): drafting with it hardly saves time. Use a smaller one.",
        )


def _check_ranks(speculator: SpeculatorConfig, target: TargetConfig) -> Iterator[Finding]:
    ranks, wanted = target.tensor_parallel_size, speculator.config.draft_tensor_parallel_size
    if wanted not in (None, 1, ranks):
        yield wrong("draft_tensor_parallel_size", wanted, f"1 or the target's tensor parallel size, {ranks}")
    elif speculator.draft is not None:
        yield from check_draft_ranks(speculator.draft, wanted or ranks, target)


def check_quantization(name: str) -> Iterator[Finding]:
    """Of a draft model; a name that is not vLLM's would fail only when its weights are loaded."""
    if name.lower() not in QUANTIZATIONS:
        yield wrong(
            "quantization",
            name,
            f"one of {quoted(QUANTIZATIONS)}",
            f"Change or remove it.{nearest(name, QUANTIZATIONS)}",
        )
