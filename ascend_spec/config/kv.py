"""How much KV cache target and draft take. Both have the same number of blocks: one table serves both."""

from __future__ import annotations

from dataclasses import dataclass

from ascend_spec.config.draft_model import DraftModelConfig
from ascend_spec.config.speculator import SpeculatorConfig
from ascend_spec.config.target import TargetConfig

BYTES = {
    "float64": 8,
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "int8": 1,
    "nvfp4": 1,
}


@dataclass(frozen=True)
class KVPlan:
    """Sizes on one rank, in bytes; None where a config.json does not say. Nothing is swapped out."""

    block_size: int
    """tokens"""
    target_bytes_per_token: int | None
    draft_bytes_per_token: int | None
    """0: the method has no K/V of its own."""
    tokens_per_request: int
    """The longest request, with the slots that its drafts and the drafter's lookahead take beyond it."""
    max_num_seqs: int
    num_blocks: int
    """Of target and draft each: what was given, or what full requests need, if the memory allows."""

    @property
    def blocks_per_request(self) -> int:
        return -(-self.tokens_per_request // self.block_size)

    @property
    def bytes_per_token(self) -> int | None:
        if self.target_bytes_per_token is None or self.draft_bytes_per_token is None:
            return None
        return self.target_bytes_per_token + self.draft_bytes_per_token

    @property
    def bytes_per_request(self) -> int | None:
        each = self.bytes_per_token
        return None if each is None else each * self.block_size * self.blocks_per_request

    @property
    def total_bytes(self) -> int | None:
        each = self.bytes_per_token
        return None if each is None else each * self.block_size * self.num_blocks


def pool_shortfall(num_blocks: int, target: TargetConfig, num_lookahead_tokens: int) -> str | None:
    """Why a pool of ``num_blocks`` cannot hold one request of full length; None: it can."""
    num_tokens = num_blocks * target.block_size
    if num_tokens >= target.max_model_len + num_lookahead_tokens:
        return None
    ahead = f" and {num_lookahead_tokens} tokens of lookahead" if num_lookahead_tokens else ""
    return (
        f"a KV pool of {num_blocks} blocks of {target.block_size} tokens ({num_tokens} tokens) cannot hold one "
        f"request of max_model_len={target.max_model_len}{ahead}: raise num_kv_blocks or lower max_model_len"
    )


def plan_kv(speculator: SpeculatorConfig, target: TargetConfig, draft: DraftModelConfig | None) -> KVPlan:
    """Of a checked configuration."""
    beyond = max(speculator.num_speculative_tokens, speculator.num_lookahead_tokens)
    tokens = target.max_model_len + beyond
    target_bytes = target.kv_bytes_per_token or target.model.kv_bytes_per_token(
        _width(target.kv_cache_dtype, target.dtype), target.tensor_parallel_size
    )
    draft_bytes: int | None = None if speculator.uses_draft_kv_cache else 0
    if speculator.uses_draft_kv_cache and draft is not None:
        width = _width(draft.kv_cache_dtype or target.kv_cache_dtype, draft.dtype)
        draft_bytes = draft.facts.kv_bytes_per_token(width, draft.tensor_parallel_size)
    return KVPlan(
        block_size=target.block_size,
        target_bytes_per_token=target_bytes,
        draft_bytes_per_token=draft_bytes,
        tokens_per_request=tokens,
        max_num_seqs=target.max_num_seqs,
        num_blocks=_num_blocks(target, tokens, target_bytes, draft_bytes),
    )


def _num_blocks(target: TargetConfig, tokens: int, target_bytes: int | None, draft_bytes: int | None) -> int:
    if target.num_kv_blocks is not None:
        return target.num_kv_blocks
    wanted = -(-tokens // target.block_size) * target.max_num_seqs
    if target.kv_cache_bytes is None or target_bytes is None or draft_bytes is None:
        return wanted
    return min(wanted, target.kv_cache_bytes // ((target_bytes + draft_bytes) * target.block_size))


def _width(dtype: str, model_dtype: str) -> int:
    """Bytes of a value; "auto" is the model's dtype, and everything that is called fp8 something has one."""
    dtype = model_dtype if dtype == "auto" else dtype
    return BYTES.get(dtype, 1 if dtype.startswith(("fp8", "int8", "float8")) else 2)
