"""Every Triton kernel of the project, as it is compiled for GPUs and for Ascend. Needs no torch.

A kernel's ``signature`` gives the type of each run-time argument (``*bf16`` is a pointer), a variant its
constexprs as the launcher passes them for a real model. ``allowed`` lists what the lint of the Ascend
lowering may find in it, and why that is no harm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

GPU, ASCEND = "gpu", "ascend"
ASCEND_ARCH = "Ascend910B3"


@dataclass(frozen=True)
class Variant:
    """One compilation of a kernel."""

    label: str
    constexprs: dict[str, Any]
    types: dict[str, str] = field(default_factory=dict)
    """Arguments whose type differs from the kernel's signature."""
    backends: tuple[str, ...] = (GPU, ASCEND)
    options: dict[str, Any] = field(default_factory=dict)
    """Compile options of the launcher, such as ``num_warps``."""
    full: bool = False
    """Compiled in the long setting alone: close to another variant of the kernel."""


@dataclass(frozen=True)
class Allowed:
    """A finding of the lint that may stand, at most ``count`` times in one variant."""

    pattern: str
    count: int
    reason: str


@dataclass(frozen=True)
class Kernel:
    module: str
    name: str
    signature: dict[str, str]
    variants: tuple[Variant, ...]
    allowed: tuple[Allowed, ...] = ()

    def variants_for(self, backend: str) -> list[Variant]:
        return [variant for variant in self.variants if backend in variant.backends]

    def job(self, variant: Variant) -> dict[str, Any]:
        """What a compiler's process needs to know of one variant."""
        types = {**self.signature, **variant.types}
        return {
            "module": self.module,
            "function": self.name,
            "signature": {n: t for n, t in types.items() if n not in variant.constexprs},
            "constexprs": variant.constexprs,
            # allocations, and the strides of heads, rows and pages of real models
            "aligned": [n for n, t in types.items() if t.startswith("*") or "_stride_" in n],
            "options": variant.options,
        }

    def types_of(self, argument: str) -> set[str]:
        """Every type in which the argument is compiled."""
        return {v.types.get(argument, self.signature[argument]) for v in self.variants}

    def not_allowed(self, findings: list[str]) -> list[str]:
        """The findings that no entry of ``allowed`` covers."""
        left = {allowed: allowed.count for allowed in self.allowed}
        rest = []
        for finding in findings:
            entry = next((a for a in left if left[a] and re.fullmatch(a.pattern, finding)), None)
            if entry is None:
                rest.append(finding)
            else:
                left[entry] -= 1
        return rest


def arguments(text: str) -> dict[str, str]:
    """``"a_ptr:*fp32 n:i32"`` as a dictionary."""
    return dict(part.split(":") for part in text.split())


def power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


RANDOM_BITS = Kernel(
    module="ascend_spec_ops.uniforms.kernel",
    name="random_bits_kernel",
    signature=arguments(
        "seeds_ptr:*i32 positions_ptr:*i32 out_ptr:*i32 num_rows:i32 num_lanes:i32 stream:i32"
    ),
    variants=(Variant("half-2048", {"HALF": 2048}),),
)

KV_WRITE = Kernel(
    module="ascend_spec_ops.kv_write.kernel",
    name="kv_write_kernel",
    signature=arguments(
        """key_ptr:*bf16 value_ptr:*bf16 key_cache_ptr:*bf16 value_cache_ptr:*bf16 slots_ptr:*i64
        num_tokens:i32 block_size:i32 key_stride_t:i32 key_stride_h:i32 value_stride_t:i32 value_stride_h:i32
        key_cache_stride_b:i32 key_cache_stride_o:i32 key_cache_stride_h:i32
        value_cache_stride_b:i32 value_cache_stride_o:i32 value_cache_stride_h:i32"""
    ),
    variants=(
        Variant("8-heads-of-128", {"HKV": 8, "D": 128, "BLOCK_H": 8, "BLOCK_D": 128}),
        Variant("3-heads-of-80", {"HKV": 3, "D": 80, "BLOCK_H": 4, "BLOCK_D": 128}),
        Variant(
            "32-heads-of-128-fp32",
            {"HKV": 32, "D": 128, "BLOCK_H": 32, "BLOCK_D": 128},
            types=dict.fromkeys(("key_ptr", "value_ptr", "key_cache_ptr", "value_cache_ptr"), "*fp32"),
        ),
    ),
)

NGRAM_SCAN = Kernel(
    module="ascend_spec_ops.ngram_match.kernel",
    name="ngram_scan_kernel",
    signature=arguments(
        """token_ids_ptr:*i32 num_tokens_ptr:*i32 lengths_ptr:*fp32 ends_ptr:*fp32 num_rows:i32 row_stride:i32
        max_len:i32 max_n:i32"""
    ),
    variants=tuple(
        Variant(f"{match}-splits-{n}", {"RECENT": match == "recent", "SPLITS": n, "BLOCK": 1024})
        for match, n in (("earliest", 1), ("earliest", 8), ("recent", 8))
    ),
)

NGRAM_COPY = Kernel(
    module="ascend_spec_ops.ngram_match.kernel",
    name="ngram_copy_kernel",
    signature=arguments(
        """token_ids_ptr:*i32 num_tokens_ptr:*i32 num_drafts_ptr:*i32 lengths_ptr:*fp32 ends_ptr:*fp32
        out_ptr:*i32 num_rows:i32 row_stride:i32 max_len:i32 min_n:i32 max_drafts:i32 vocab_size:i32"""
    ),
    variants=tuple(
        Variant(f"{match}-splits-{n}", {"RECENT": match == "recent", "SPLITS": n, "DRAFTS_BLOCK": 8})
        for match, n in (("earliest", 1), ("earliest", 8), ("recent", 8))
    ),
)

DRAFT_INPUTS = Kernel(
    module="ascend_spec_ops.draft_inputs.kernel",
    name="draft_inputs_kernel",
    signature=arguments(
        """last_ptr:*i32 drafts_ptr:*i32 cu_ptr:*i32 num_tokens_ptr:*i32 blocks_ptr:*i32 ids_ptr:*i32
        positions_ptr:*i64 slots_ptr:*i64 seq_lens_ptr:*i32 num_requests:i32 blocks_stride:i32 max_block:i32
        block_size:i32 max_model_len:i32"""
    ),
    variants=(Variant("16-rows", {"ROWS": 16}), Variant("8-rows", {"ROWS": 8})),
)

#: vocabularies of 151936 and 32000 tokens, in blocks of 4096, rounded up to a power of two
QWEN_BLOCKS, LLAMA_BLOCKS = 64, 8
FLOAT32_LOGITS = {"logits_ptr": "*fp32", "draft_logits_ptr": "*fp32"}

BLOCK_STATISTICS = Kernel(
    module="ascend_spec_ops.verify.kernel",
    name="block_statistics_kernel",
    signature=arguments(
        """logits_ptr:*bf16 cu_ptr:*i32 temperature_ptr:*fp32 block_max_ptr:*fp32 block_arg_ptr:*i32
        block_lse_ptr:*fp32 top_ptr:*fp32 num_requests:i32 rows_a_request:i32 vocab_size:i32 num_blocks:i32
        stride:i32"""
    ),
    variants=(
        Variant("target", {"EXTRA": 1, "TOP_K": 0, "BLOCK": 4096}),
        Variant("target-fp32", {"EXTRA": 1, "TOP_K": 0, "BLOCK": 4096}, types={"logits_ptr": "*fp32"}),
        Variant("target-top-3", {"EXTRA": 1, "TOP_K": 3, "BLOCK": 4096}),
        Variant("draft", {"EXTRA": 0, "TOP_K": 0, "BLOCK": 4096}),
    ),
)

#: numbers of the rules of ``accept_kernel``
STANDARD, TYPICAL, SYNTHETIC, FLY = range(4)


def accept_variant(
    label: str, rule: int, sampled: bool, blocks: int, types: dict[str, str] | None = None, full: bool = False
) -> Variant:
    top_k = 3 if rule == FLY else 0
    constexprs = {"RULE": rule, "TOP_K": top_k, "NUM_TOPS": power_of_two(max(1, top_k * blocks))}
    constexprs |= {"SAMPLED": sampled, "NUM_BLOCKS": blocks}
    return Variant(label, constexprs, types or {}, full=full)


ACCEPT = Kernel(
    module="ascend_spec_ops.verify.kernel_walks",
    name="accept_kernel",
    signature=arguments(
        """logits_ptr:*bf16 draft_logits_ptr:*bf16 draft_ptr:*i32 cu_ptr:*i32 temperature_ptr:*fp32
        draft_temperature_ptr:*fp32 seeds_ptr:*i32 positions_ptr:*i32 block_max_ptr:*fp32 block_arg_ptr:*i32
        block_lse_ptr:*fp32 draft_lse_ptr:*fp32 rule_ptr:*fp32 state_ptr:*i32 totals_ptr:*fp32 out_ptr:*i32
        num_requests:i32 max_spec_len:i32 vocab_size:i32 num_blocks:i32 stride:i32 draft_stride:i32
        first_option:fp32 second_option:fp32"""
    ),
    variants=(
        accept_variant("one-hot", STANDARD, False, QWEN_BLOCKS),
        accept_variant("sampled", STANDARD, True, LLAMA_BLOCKS),
        accept_variant("sampled-fp32", STANDARD, True, QWEN_BLOCKS, FLOAT32_LOGITS),
        accept_variant("typical", TYPICAL, False, QWEN_BLOCKS),
        accept_variant("typical-fp32", TYPICAL, False, LLAMA_BLOCKS, FLOAT32_LOGITS, full=True),
        accept_variant("synthetic", SYNTHETIC, True, QWEN_BLOCKS),
        accept_variant("synthetic-one-hot", SYNTHETIC, False, LLAMA_BLOCKS, full=True),
        accept_variant("fly", FLY, True, QWEN_BLOCKS),
        accept_variant("fly-one-hot", FLY, False, LLAMA_BLOCKS, full=True),
    ),
)

ENTROPY = Kernel(
    module="ascend_spec_ops.verify.kernel_walks",
    name="entropy_kernel",
    signature=arguments(
        """logits_ptr:*bf16 draft_ptr:*i32 cu_ptr:*i32 temperature_ptr:*fp32 block_lse_ptr:*fp32
        entropy_ptr:*fp32 num_requests:i32 max_spec_len:i32 vocab_size:i32 num_blocks:i32 stride:i32
        epsilon:fp32"""
    ),
    variants=(
        Variant("bf16", {"NUM_BLOCKS": QWEN_BLOCKS, "BLOCK": 4096}),
        Variant(
            "fp32", {"NUM_BLOCKS": LLAMA_BLOCKS, "BLOCK": 4096}, types={"logits_ptr": "*fp32"}, full=True
        ),
    ),
)

BLOCK_PRODUCT = Kernel(
    module="ascend_spec_ops.verify.kernel_block",
    name="block_product_kernel",
    signature=arguments(
        """logits_ptr:*bf16 draft_logits_ptr:*bf16 draft_ptr:*i32 cu_ptr:*i32 temperature_ptr:*fp32
        draft_temperature_ptr:*fp32 block_lse_ptr:*fp32 draft_lse_ptr:*fp32 num_drafts_ptr:*i32
        product_ptr:*fp32 num_requests:i32 max_spec_len:i32 vocab_size:i32 num_blocks:i32 stride:i32
        draft_stride:i32"""
    ),
    variants=(
        Variant("sampled", {"SAMPLED": True, "NUM_BLOCKS": QWEN_BLOCKS}),
        Variant("one-hot", {"SAMPLED": False, "NUM_BLOCKS": LLAMA_BLOCKS}, FLOAT32_LOGITS, full=True),
    ),
)

BLOCK_RESIDUAL = Kernel(
    module="ascend_spec_ops.verify.kernel_block",
    name="block_residual_kernel",
    signature=arguments(
        """logits_ptr:*bf16 draft_logits_ptr:*bf16 cu_ptr:*i32 temperature_ptr:*fp32
        draft_temperature_ptr:*fp32 block_lse_ptr:*fp32 draft_lse_ptr:*fp32 num_drafts_ptr:*i32
        product_ptr:*fp32 rest_ptr:*fp32 num_requests:i32 max_spec_len:i32 vocab_size:i32 num_blocks:i32
        stride:i32 draft_stride:i32"""
    ),
    variants=(
        Variant("bf16", {"NUM_BLOCKS": QWEN_BLOCKS, "BLOCK": 4096}),
        Variant("fp32", {"NUM_BLOCKS": LLAMA_BLOCKS, "BLOCK": 4096}, FLOAT32_LOGITS, full=True),
    ),
)

BLOCK_WALK = Kernel(
    module="ascend_spec_ops.verify.kernel_block",
    name="block_walk_kernel",
    signature=arguments(
        """draft_ptr:*i32 cu_ptr:*i32 temperature_ptr:*fp32 draft_temperature_ptr:*fp32 seeds_ptr:*i32
        positions_ptr:*i32 block_max_ptr:*fp32 block_arg_ptr:*i32 block_lse_ptr:*fp32 draft_lse_ptr:*fp32
        num_drafts_ptr:*i32 product_ptr:*fp32 rest_ptr:*fp32 state_ptr:*i32 totals_ptr:*fp32 mass_ptr:*fp32
        out_ptr:*i32 num_requests:i32 max_spec_len:i32 vocab_size:i32 num_blocks:i32"""
    ),
    variants=(
        Variant("sampled", {"SAMPLED": True, "NUM_BLOCKS": QWEN_BLOCKS}),
        Variant("one-hot", {"SAMPLED": False, "NUM_BLOCKS": LLAMA_BLOCKS}, full=True),
    ),
)

COUPLED_ROWS = Kernel(
    module="ascend_spec_ops.verify.kernel_coupled",
    name="coupled_rows_kernel",
    signature=arguments(
        """cu_ptr:*i32 temperature_ptr:*fp32 seeds_ptr:*i32 positions_ptr:*i32 block_max_ptr:*fp32
        block_arg_ptr:*i32 block_lse_ptr:*fp32 row_temperature_ptr:*fp32 row_seeds_ptr:*i32
        row_positions_ptr:*i32 row_state_ptr:*i32 token_ptr:*i32 num_requests:i32 num_blocks:i32"""
    ),
    variants=(Variant("64-blocks", {"NUM_BLOCKS": QWEN_BLOCKS}),),
)

COUPLED_MATCH = Kernel(
    module="ascend_spec_ops.verify.kernel_coupled",
    name="coupled_match_kernel",
    signature=arguments(
        "draft_ptr:*i32 cu_ptr:*i32 token_ptr:*i32 out_ptr:*i32 num_requests:i32 max_spec_len:i32"
    ),
    variants=(Variant("any", {}),),
)

RESIDUAL_MASS = Kernel(
    module="ascend_spec_ops.verify.kernel",
    name="residual_mass_kernel",
    signature=arguments(
        """logits_ptr:*bf16 draft_logits_ptr:*bf16 cu_ptr:*i32 temperature_ptr:*fp32
        draft_temperature_ptr:*fp32 block_lse_ptr:*fp32 state_ptr:*i32 totals_ptr:*fp32 mass_ptr:*fp32
        num_requests:i32 vocab_size:i32 num_blocks:i32 stride:i32 draft_stride:i32"""
    ),
    variants=(
        Variant("one-hot", {"SAMPLED": False, "BLOCK": 4096}),
        Variant("sampled", {"SAMPLED": True, "BLOCK": 4096}),
        Variant("sampled-fp32", {"SAMPLED": True, "BLOCK": 4096}, types=FLOAT32_LOGITS),
    ),
)

DRAW = Kernel(
    module="ascend_spec_ops.verify.kernel",
    name="draw_kernel",
    signature=arguments(
        """logits_ptr:*bf16 draft_logits_ptr:*bf16 cu_ptr:*i32 temperature_ptr:*fp32
        draft_temperature_ptr:*fp32 seeds_ptr:*i32 positions_ptr:*i32 block_lse_ptr:*fp32 state_ptr:*i32
        totals_ptr:*fp32 mass_ptr:*fp32 out_ptr:*i32 num_requests:i32 max_spec_len:i32 vocab_size:i32
        num_blocks:i32 stride:i32 draft_stride:i32"""
    ),
    # four warps would spill where rows of logits do not start on multiples of 16 elements
    variants=tuple(
        Variant(
            label, {"SAMPLED": sampled, "NUM_BLOCKS": blocks, "HALF": 2048}, types, options={"num_warps": 8}
        )
        for label, sampled, blocks, types in (
            ("one-hot", False, QWEN_BLOCKS, {}),
            ("sampled", True, LLAMA_BLOCKS, {}),
            ("sampled-fp32", True, QWEN_BLOCKS, FLOAT32_LOGITS),
        )
    ),
)

FILTER_LOGITS = Kernel(
    module="ascend_spec_ops.filter_logits.kernel",
    name="filter_logits_kernel",
    signature=arguments(
        """logits_ptr:*bf16 temperature_ptr:*fp32 top_k_ptr:*i32 top_p_ptr:*fp32 min_p_ptr:*fp32 num_rows:i32
        vocab_size:i32 stride:i32"""
    ),
    variants=(
        Variant("bf16", {"BLOCK": 2048}, options={"num_warps": 8}),
        Variant("fp32", {"BLOCK": 2048}, {"logits_ptr": "*fp32"}, options={"num_warps": 8}),
    ),
)

APPLY_PENALTIES = Kernel(
    module="ascend_spec_ops.apply_penalties.kernel",
    name="apply_penalties_kernel",
    signature=arguments(
        """logits_ptr:*bf16 history_ptr:*i32 slots_ptr:*i32 draft_ptr:*i32 cu_ptr:*i32 repetition_ptr:*fp32
        presence_ptr:*fp32 frequency_ptr:*fp32 num_requests:i32 vocab_size:i32 num_blocks:i32 stride:i32
        history_stride:i32"""
    ),
    variants=(
        Variant("bf16", {"BLOCK": 2048}),
        Variant("fp32", {"BLOCK": 2048}, {"logits_ptr": "*fp32"}),
    ),
)


@dataclass(frozen=True)
class AttentionCall:
    """One compilation of ``mqa_attention_kernel`` a backend: the call, and the tiles the launcher picks."""

    label: str
    group: int
    head_dim: int
    block_size: int
    tiles: dict[str, tuple[int, int, int]]
    """backend -> BLOCK_Q, PIECE, PIECES"""
    mask: bool = False
    window: bool = False
    soft_cap: bool = False
    dtype: str = "*bf16"

    def variant(self, backend: str) -> Variant:
        block_q, piece, pieces = self.tiles[backend]
        constexprs = {"MASK": self.mask, "WINDOW": self.window, "SOFT_CAP": self.soft_cap}
        constexprs |= {"GROUP": self.group, "D": self.head_dim}
        constexprs |= {"BLOCK_G": power_of_two(self.group), "BLOCK_D": max(16, power_of_two(self.head_dim))}
        constexprs |= {"BLOCK_Q": block_q, "PIECE": piece, "PIECES": pieces}
        types = dict.fromkeys(("out_ptr", "query_ptr", "key_cache_ptr", "value_cache_ptr"), self.dtype)
        if not self.mask:  # the lengths stand for the pointer that the flag switches off
            types["mask_ptr"] = "*i32"
        label = f"{self.label}-{backend}"
        return Variant(label, constexprs, types, backends=(backend,), options={"num_warps": 8})


ATTENTION_CALLS = (
    AttentionCall("causal", 7, 128, 128, {GPU: (4, 64, 1), ASCEND: (4, 64, 1)}),
    AttentionCall("small-pages", 4, 64, 16, {GPU: (8, 16, 4), ASCEND: (8, 16, 1)}),
    AttentionCall("tiny-pages", 4, 64, 8, {GPU: (8, 8, 8), ASCEND: (8, 8, 2)}),
    AttentionCall("tree", 4, 128, 128, {GPU: (8, 64, 1), ASCEND: (8, 64, 1)}, mask=True),
    AttentionCall("tree-window", 8, 128, 16, {GPU: (4, 16, 4), ASCEND: (4, 16, 1)}, mask=True, window=True),
    AttentionCall("cap", 2, 256, 128, {GPU: (16, 32, 1), ASCEND: (8, 64, 1)}, window=True, soft_cap=True),
    AttentionCall("fp32", 4, 64, 128, {GPU: (4, 16, 1), ASCEND: (8, 64, 1)}, dtype="*fp32"),
)

MQA_ATTENTION = Kernel(
    module="ascend_spec_ops.mqa_attention.kernel",
    name="mqa_attention_kernel",
    signature=arguments(
        """out_ptr:*bf16 query_ptr:*bf16 key_cache_ptr:*bf16 value_cache_ptr:*bf16 block_table_ptr:*i32
        query_start_ptr:*i32 seq_lens_ptr:*i32 mask_ptr:*i8 depth_ptr:*i32 num_requests:i32
        num_kv_heads:i32 num_query_tiles:i32 pieces_per_page:i32 mask_width:i32 scale:fp32 window:i32
        soft_cap:fp32 query_stride_t:i32 query_stride_h:i32 key_stride_b:i32 key_stride_o:i32
        key_stride_h:i32 value_stride_b:i32 value_stride_o:i32 value_stride_h:i32 table_stride:i32"""
    ),
    variants=tuple(call.variant(backend) for call in ATTENTION_CALLS for backend in (GPU, ASCEND)),
)

KERNELS = (
    RANDOM_BITS,
    KV_WRITE,
    NGRAM_SCAN,
    NGRAM_COPY,
    DRAFT_INPUTS,
    BLOCK_STATISTICS,
    ACCEPT,
    ENTROPY,
    BLOCK_PRODUCT,
    BLOCK_RESIDUAL,
    BLOCK_WALK,
    COUPLED_ROWS,
    COUPLED_MATCH,
    RESIDUAL_MASS,
    DRAW,
    FILTER_LOGITS,
    APPLY_PENALTIES,
    MQA_ATTENTION,
)
