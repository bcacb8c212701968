"""The vocabulary of speculative decoding: vLLM's fields by vLLM's names, ours under ``ascend_spec``.

A field's description says what it allows and, behind a colon, what that means; errors quote the first part. What fields
mean together is judged in :mod:`ascend_spec.config.checks`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ascend_spec.config.options import MOST, AscendSpecConfig, Checked, Name

#: no more drafts in a step, and no longer n-grams, than this
MOST_TOKENS = 2**20
#: a bound, which vLLM has not: the kernels of rule "fly" keep so many of each block of a row
MOST_TOP_K = 64

#: vLLM 0.33's
AttentionBackendName = Literal[
    "FLASH_ATTN", "FLASH_ATTN_DIFFKV", "TRITON_ATTN", "TRITON_ATTN_DIFFKV", "TRITON_FLASH_ATTN", "ROCM_ATTN",
    "ROCM_SEGMENTED_ATTN", "ROCM_AITER_MLA", "ROCM_AITER_TRITON_MLA", "ROCM_AITER_FA",
    "ROCM_AITER_MLA_SPARSE", "XPU_MLA_SPARSE", "TORCH_SDPA", "FLASHINFER", "TRITON_FLASHINFER",
    "FLASHINFER_MLA", "TOKENSPEED_MLA", "FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120",
    "FLASHINFER_MLA_SPARSE_SM90", "TRITON_MLA", "CUTLASS_MLA", "FLASHMLA", "FLASHMLA_SPARSE",
    "FLASHMLA_SPARSE_DSV4", "FLASHINFER_MLA_SPARSE_DSV4", "ROCM_FLASHMLA_SPARSE_DSV4",
    "FLASHMLA_SPARSE_DSV41", "FLASHINFER_MLA_SPARSE_DSV41", "ROCM_FLASHMLA_SPARSE_DSV41",
    "FLASHMLA_MEGA_ATTN_DSV41", "B12X", "FLASH_ATTN_MLA", "FLASH_ATTN_MLA_SPARSE",
    "FLASH_ATTN_MLA_SPARSE_FA4", "MINIMAX_M3_SPARSE", "CUTLASS_MSA", "TRITON_MSA", "STEP5_DSA",
    "NO_ATTENTION", "FLEX_ATTENTION", "HPC_ATTN", "ROCM_AITER_UNIFIED_ATTN", "CPU_ATTN", "CPU_MLA", "AMX_MLA",
    "TURBOQUANT", "ROCM_OCTAVE", "ULTRAQUANT", "CUSTOM",
]  # fmt: skip
MoEBackend = Literal[
    "auto", "triton", "batched_triton", "deep_gemm", "deep_gemm_mega_moe", "cutlass", "flashinfer_trtllm",
    "flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_moe_ep_cutedsl", "flashinfer_b12x", "b12x",
    "flashinfer_moe_ep_mega_deep_gemm", "marlin", "humming", "triton_unfused", "aiter", "aiter_mega_moe",
    "aiter_triton_mxfp4_bf16", "aiter_triton_mxfp4_mxfp4", "flydsl", "hpc", "emulation", "rdna3",
]  # fmt: skip


def _tuple(value: Any) -> Any:
    """JSON has lists only; a configuration must not change, so it holds tuples."""
    return tuple(value) if isinstance(value, list) else value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list | tuple) else value


def _backend(value: Any) -> Any:
    """In capitals; "auto" means that none was chosen."""
    if not isinstance(value, str):
        return value
    return None if value.lower() == "auto" else value.upper()


Ranges = Annotated[tuple[tuple[int, int, int], ...], BeforeValidator(_tuples)]
Rates = Annotated[tuple[float, ...], BeforeValidator(_tuple)]
AttentionBackend = Annotated[AttentionBackendName | None, BeforeValidator(_backend)]


class SpeculativeConfig(Checked):
    """How drafts are made and judged, as the user wrote it; :func:`ascend_spec.config.resolve` says what
    becomes of it."""

    # source and parallelism
    model: Name | None = Field(
        default=None,
        description="a draft model's or head's directory or name, or the dotted path of a drafter class",
    )
    method: Name | None = Field(default=None, description="a method's name in double quotes")
    custom_method: Name | None = Field(default=None, description="the name of a registered method")
    revision: Name | None = Field(default=None, description="a branch, tag or commit of the draft model")
    code_revision: Name | None = Field(
        default=None, description="a branch, tag or commit of the draft model's code"
    )
    draft_tensor_parallel_size: int | None = Field(
        default=None, ge=1, le=MOST, description="1 or the target's tensor parallel size"
    )
    draft_parallel_config: dict | None = Field(
        default=None, description="a dictionary of vLLM's ParallelConfig"
    )
    draft_model_config: dict | None = Field(
        default=None, description="a dictionary with hf_config, what extract_hidden_states is to write out"
    )
    draft_load_config: dict | None = Field(default=None, description="a dictionary of vLLM's LoadConfig")

    # budget
    num_speculative_tokens: int | None = Field(
        default=None,
        gt=0,
        le=MOST_TOKENS,
        description="an integer from 1 to 1048576: the most drafts in a step",
    )
    num_speculative_tokens_per_batch_size: Ranges | None = Field(
        default=None,
        description="a list of [first batch size, last batch size, num_speculative_tokens], all integers",
    )
    parallel_drafting: bool = Field(default=False, description="true or false")
    disable_padded_drafter_batch: bool = Field(default=False, description="true or false")

    # draft overrides
    quantization: Name | None = Field(default=None, description="the name of a quantization method")
    moe_backend: MoEBackend | None = Field(
        default=None, description="the name of a MoE backend of vLLM, such as triton"
    )
    attention_backend: AttentionBackend = Field(
        default=None, description="the name of an attention backend of vLLM, such as FLASH_ATTN"
    )
    kv_cache_dtype: Name | None = Field(default=None, description="the name of a KV cache dtype")
    draft_lm_head_quantization: Literal["fp8", "nvfp4"] | None = Field(
        default=None, description='"fp8" or "nvfp4"'
    )
    use_local_argmax_reduction: bool = Field(default=False, description="true or false")
    max_model_len: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description=f"an integer from 1 to {MOST}: the longest sequence of the draft model, in tokens",
    )
    enforce_eager: bool | None = Field(default=None, description="true or false")
    draft_sample_method: Literal["greedy", "probabilistic"] = Field(
        default="greedy", description='"greedy" or "probabilistic"'
    )

    # verification
    rejection_sample_method: Literal["standard", "synthetic", "block", "fly"] = Field(
        default="standard",
        description='"standard", "synthetic", "block" or "fly" (others under ascend_spec)',
    )
    synthetic_acceptance_rates: Rates | None = Field(
        default=None, description="a list of num_speculative_tokens numbers from 0 to 1 that do not increase"
    )
    synthetic_acceptance_length: float | None = Field(
        default=None, description="a number from 1 to num_speculative_tokens + 1"
    )
    fly_window_size: int | None = Field(
        default=None, ge=1, le=MOST_TOKENS, description="an integer from 1 to num_speculative_tokens - 1"
    )
    fly_entropy_threshold: float = Field(default=0.3, ge=0, description="a finite number, 0 or more")
    fly_entropy_top_k: int = Field(
        default=3, ge=1, le=MOST_TOP_K, description=f"an integer from 1 to {MOST_TOP_K}"
    )
    enable_adaptive_verification: bool = Field(default=False, description="true or false")

    # extras of single methods
    prompt_lookup_min: int | None = Field(
        default=None,
        ge=1,
        le=MOST_TOKENS,
        description="an integer from 1 to 1048576: the shortest n-gram in tokens",
    )
    prompt_lookup_max: int | None = Field(
        default=None,
        ge=1,
        le=MOST_TOKENS,
        description="an integer from 1 to 1048576: the longest n-gram in tokens",
    )
    suffix_decoding_max_tree_depth: int = Field(
        default=24, ge=1, le=MOST_TOKENS, description="an integer from 1 to 1048576"
    )
    suffix_decoding_max_cached_requests: int = Field(
        default=10000, ge=0, le=MOST, description=f"an integer from 0 to {MOST}"
    )
    suffix_decoding_max_spec_factor: float = Field(
        default=1.0, ge=0, description="a finite number, 0 or more"
    )
    suffix_decoding_min_token_prob: float = Field(default=0.1, ge=0, le=1, description="a number from 0 to 1")
    use_heterogeneous_vocab: bool = Field(default=False, description="true or false")
    disable_eagle_block_drop: bool = Field(default=False, description="true or false")
    disable_lookahead_block_hashes: bool = Field(default=False, description="true or false")
    index_share_for_mtp_iteration: bool | None = Field(default=None, description="true or false")
    dspark_draft_topk: int | None = Field(
        default=None, ge=1, le=MOST, description="an integer from 1 to the draft's vocabulary size"
    )
    xpress_topc: int | None = Field(
        default=None, ge=0, le=MOST, description="an integer from 0 (all) to the draft's vocabulary size"
    )
    speculator_options: dict | None = Field(
        default=None, description="a dictionary of options of a custom method"
    )

    ascend_spec: AscendSpecConfig = Field(
        default=AscendSpecConfig(), description="a dictionary of the options that vLLM doesn't have"
    )

    @property
    def rule(self) -> str:
        """The name of the acceptance rule that is meant."""
        return self.ascend_spec.rejection_sample_method or self.rejection_sample_method
