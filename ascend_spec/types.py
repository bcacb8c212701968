"""Plain data that several parts share. Frozen, no behaviour beyond construction, no devices of their own."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TokenTree:
    """Draft tokens that branch. ``parents[i]`` is the node draft ``i`` continues; -1: the last token."""

    parents: torch.Tensor
    """``[N]`` int32"""


@dataclass(frozen=True)
class Draft:
    """What a drafter proposes for a batch."""

    token_ids: torch.Tensor
    """``[B, K]`` int32; -1 marks an empty slot, and a row's tokens stand before its empty slots."""
    logits: torch.Tensor | None = None
    """``[B, K, V]``: the draft tokens were drawn from ``softmax(logits / temperature)``; None: one-hot."""
    temperature: torch.Tensor | None = None
    """``[B]`` float32, given with ``logits``; 0 marks a request whose drafts are deterministic (one-hot)."""
    tree: TokenTree | None = None


@dataclass(frozen=True)
class SpecDecodeMetadata:
    """The drafts of one step, as the target batch carries them. Built once a step, never mutated.

    Request ``b`` has ``num_draft_tokens[b] + 1`` logits rows: row ``j`` judges draft ``j``, and the last one
    gives the bonus token. Its first row is ``cu_num_draft_tokens[b - 1] + b``.
    """

    draft_token_ids: torch.Tensor
    """``[N]`` int32, flat; -1 marks an empty slot."""
    num_draft_tokens: tuple[int, ...]
    """``B`` counts, on the host."""
    cu_num_draft_tokens: torch.Tensor
    """``[B]`` int32, inclusive cumulative counts."""
    logits_indices: torch.Tensor
    """``[N + B]`` int64, the rows of the target batch whose logits are needed, request by request."""
    max_spec_len: int
    """K: the most drafts a request may have; fixes the width of the result."""
    draft_logits: torch.Tensor | None = None
    """``[N, V]``, or None when every draft is deterministic."""
    draft_temperature: torch.Tensor | None = None
    """``[B]`` float32, given with ``draft_logits``."""
    tree: TokenTree | None = None


@dataclass(frozen=True)
class AttentionMetadata:
    """Where the rows of one packed batch stand in the paged KV cache.

    The same lengths are held twice: on the device for kernels, and on the host for operators that take them
    from there (Ascend's fused attention) and for the CPU path.
    """

    block_table: torch.Tensor
    """``[B, max_blocks]`` int32, block ids; unused entries are never read."""
    slot_mapping: torch.Tensor
    """``[T]`` int64, ``block_id * block_size + offset`` of each row's K/V; -1: do not write."""
    query_start_loc: torch.Tensor
    """``[B + 1]`` int32, cumulative query lengths."""
    seq_lens: torch.Tensor
    """``[B]`` int32, KV length of each request, its new rows included."""
    query_lens_cpu: tuple[int, ...]
    seq_lens_cpu: tuple[int, ...]
    max_query_len: int
    num_tokens: torch.Tensor | None = None
    """``[B]`` int32, committed tokens of each request, those of its prompt that are not computed yet included
    and drafts not. Only rotary embeddings that depend on the length of the sequence read it."""
    mask: torch.Tensor | None = None
    """``[T, max_query_len]`` bool, which of its request's new rows each row sees; None: causal."""


@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled. Names and defaults are vLLM's."""

    temperature: float = 1.0
    """0 is greedy; else 1e-6 to 1e6."""
    seed: int | None = None
    """None: the engine draws one."""
    max_tokens: int = 16
    min_tokens: int = 0
    """End-of-sequence and stop tokens cannot be generated before this many tokens."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True)
class DraftBatch:
    """What a drafter that works on token history may see: one row a request slot."""

    token_ids: torch.Tensor
    """``[S, max_model_len]`` int32: prompt and committed output; stale from ``num_tokens`` on."""
    num_tokens: torch.Tensor
    """``[S]`` int32: committed tokens; 0 marks a slot that the call is not for."""
    num_speculative_tokens: torch.Tensor
    """``[S]`` int32: the most drafts wanted from each slot; 0 is allowed."""
    num_computed_tokens: torch.Tensor | None = None
    """``[S]`` int32: committed tokens whose K/V the target has computed, this step's included. Given to drafters
    with K/V of their own, as is ``restarted``; None for others."""
    restarted: torch.Tensor | None = None
    """``[S]`` bool: the slot's request began, or began again; K/V a drafter holds of the slot is not its."""


@dataclass(frozen=True)
class ScheduledRequest:
    """What one step computes for one request: committed tokens, then drafts."""

    request_id: str
    slot: int
    """Its row in the engine's pool tensors."""
    num_computed_tokens: int
    """Committed tokens whose K/V is in the cache."""
    num_tokens: int
    """Committed tokens in all: prompt and output."""
    num_new_tokens: int
    num_drafts: int = 0
    """Drafts follow only the last committed token."""
    temperature: float = 0.0
    seed: int = 0
    num_banned_rows: int = 0
    """Logits rows, from the first, in which ``banned_token_ids`` may not be drawn."""
    banned_token_ids: tuple[int, ...] = ()
    speculation_disabled: bool = False
    """It is never speculated on again."""

    @property
    def num_rows(self) -> int:
        return self.num_new_tokens + self.num_drafts

    @property
    def samples(self) -> bool:
        """Whether its last committed token is among the rows, so that a next one is drawn."""
        return self.num_computed_tokens + self.num_new_tokens == self.num_tokens

    @property
    def decodes(self) -> bool:
        """Whether its only new token is its last one: asked of what is computed, not of query lengths."""
        return self.num_computed_tokens + 1 == self.num_tokens


@dataclass(frozen=True)
class StepPlan:
    """Everything the device part of a step reads. ``T`` rows, of which ``N + B`` give logits."""

    input_ids: torch.Tensor
    """``[T]`` int32, never negative."""
    positions: torch.Tensor
    """``[T]`` int64"""
    attention: AttentionMetadata
    spec: SpecDecodeMetadata
    temperature: torch.Tensor
    """``[B]`` float32"""
    seeds: torch.Tensor
    """``[B]`` int64"""
    sample_positions: torch.Tensor
    """``[B]`` int64, where the first drawn token will stand: the committed length."""
    slots: torch.Tensor
    """``[B]`` int64, rows of the pool tensors the drawn tokens go to."""
    banned_token_ids: torch.Tensor | None = None
    """``[N + B, M]`` int64, or None when every token is allowed everywhere."""
    banned_bias: torch.Tensor | None = None
    """``[N + B, M]`` float32, added at ``banned_token_ids``: -inf, or 0 where the entry is padding."""
