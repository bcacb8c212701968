"""Plain data that several parts share. Frozen, no behaviour beyond construction, no devices of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

#: ``(output_token_ids, logits [V]) -> logits [V]``, or with the prompt's ids first, as in vLLM
LogitsProcessor = Callable[..., torch.Tensor]


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
    seq_lens_cpu: tuple[int, ...] | None
    """None: the host doesn't know them, as in a draft step that begins before it has seen the last one's tokens."""
    max_query_len: int
    num_tokens: torch.Tensor | None = None
    """``[B]`` int32, committed tokens of each request, those of its prompt that are not computed yet included
    and drafts not. Only rotary embeddings that depend on the length of the sequence read it."""
    mask: torch.Tensor | None = None
    """``[T, max_query_len]`` bool, which of its request's new rows each row sees; None: causal."""


@dataclass(frozen=True)
class StructuredOutputsParams:
    """What a request's text must look like: exactly one of these. Names are vLLM's."""

    json: str | Mapping[str, Any] | None = None
    """A JSON schema."""
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    """One of these texts."""
    grammar: str | None = None
    """In EBNF, as xgrammar reads it."""
    json_object: bool = False
    """Any JSON object."""


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
    top_k: int = 0
    """Only so many of the likeliest tokens can be drawn; 0 or -1: all."""
    top_p: float = 1.0
    """Only the likeliest tokens whose probabilities add up to this."""
    min_p: float = 0.0
    """Only tokens at least this likely, relative to the likeliest."""
    repetition_penalty: float = 1.0
    """Divides the logits of tokens that were in prompt or output, or multiplies negative ones."""
    presence_penalty: float = 0.0
    """Taken from the logits of tokens that were in the output."""
    frequency_penalty: float = 0.0
    """Taken from the logits of tokens once for each time they were in the output."""
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of token ids."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Nothing else can be drawn; None: everything."""
    bad_words: tuple[str, ...] = ()
    """Words whose last token cannot be drawn after the others."""
    structured_outputs: StructuredOutputsParams | None = None
    """What the text must look like. Where it is at its end the request ends, ``ignore_eos`` or not."""
    logits_processors: tuple[LogitsProcessor, ...] = ()
    """Called for every row of logits, in order, before penalties."""
    logprobs: int | None = None
    """With each output token: its log-probability and that of so many of the likeliest tokens; None: neither."""

    @property
    def has_penalties(self) -> bool:
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1.0, 0.0, 0.0)

    @property
    def cuts_tokens(self) -> bool:
        """Whether top-k, top-p or min-p leave anything out; greedy output doesn't depend on them."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


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
    num_prompt_tokens: torch.Tensor | None = None
    """``[S]`` int32: how many of the tokens are the prompt; stale where ``num_tokens`` is 0."""
    request_ids: tuple[str | None, ...] | None = None
    """``S`` ids on the host, of all running requests, by slot: one that is not among them any more has ended or
    waits to be computed again. None in a slot: nobody's."""
    temperature: torch.Tensor | None = None
    """``[S]`` float32, for drafters that sample: 0 is greedy; stale where ``num_tokens`` is 0."""
    seeds: torch.Tensor | None = None
    """``[S]`` int64, of the requests' random numbers; stale where ``num_tokens`` is 0."""
    block_table: torch.Tensor | None = None
    """``[S, M]`` int32, the blocks of the target's K/V, which a drafter's own may share; entries behind a
    request's blocks are stale. For drafters with K/V of their own, as the next two."""
    max_spec_len: int | None = None
    """On the host: no slot wants more drafts than this; None: ask ``num_speculative_tokens``."""
    most_missing: tuple[int, ...] | None = None
    """``S`` counts on the host, where asking the device would make it wait: no slot lacks the drafter's K/V of
    more tokens than this, and 0 marks one that the call is not for. None: ask the tensors."""


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
    params: SamplingParams = SamplingParams()
    token_ids: Sequence[int] = ()
    """Its committed tokens, of which the first ``num_prompt_tokens`` are the prompt; not to be changed."""
    num_prompt_tokens: int = 0
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    grammar: Any = None
    """Of :mod:`ascend_spec.samplers.grammar`; None: its output is free."""
    speculation_disabled: bool = False
    """It is never speculated on again."""
    memo: dict[str, Any] = field(default_factory=dict)
    """What is made of its parameters once, for all of its steps."""

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
class TokenBias:
    """logit_bias: what is added to the logits of some tokens."""

    token_ids: torch.Tensor
    """``[B, M]`` int64"""
    values: torch.Tensor
    """``[B, M]`` float32; 0 where the entry only pads."""


@dataclass(frozen=True)
class MinTokens:
    """Tokens that may not be drawn in the first rows of a request."""

    token_ids: torch.Tensor
    """``[B, M]`` int64; an id may stand there more than once."""
    num_rows: torch.Tensor
    """``[B]`` int64"""


@dataclass(frozen=True)
class BadWords:
    token_ids: torch.Tensor
    """``[L, B, W]`` int32, of each word the last token, the one before it, and so on; -1 behind its first."""
    num_prompt_tokens: torch.Tensor
    """``[B]`` int32; the prompt is not searched."""


@dataclass(frozen=True)
class Penalties:
    num_prompt_tokens: torch.Tensor
    """``[B]`` int32"""
    repetition: torch.Tensor
    """``[B]`` float32, as the other two."""
    presence: torch.Tensor
    frequency: torch.Tensor


@dataclass(frozen=True)
class Cuts:
    """What is left of the vocabulary."""

    top_k: torch.Tensor
    """``[N + B]`` int32, 0: all."""
    top_p: torch.Tensor
    """``[N + B]`` float32, 1: all."""
    min_p: torch.Tensor
    """``[N + B]`` float32, 0: all."""


@dataclass(frozen=True)
class LogitsProcessing:
    """What is done to the ``N + B`` rows of logits before they are drawn from. What is None, nobody asked for."""

    row_requests: torch.Tensor
    """``[N + B]`` int64, the request each row belongs to."""
    row_offsets: torch.Tensor
    """``[N + B]`` int64, the row's place among those of its request."""
    bitmask: torch.Tensor | None = None
    """``[N + B, ceil(V / 32)]`` int32, bit ``i`` of word ``w`` allows token ``32 * w + i``."""
    bad_words: BadWords | None = None
    callbacks: tuple[tuple[int, Callable[[torch.Tensor], torch.Tensor]], ...] = ()
    """Row and what is to be called with its logits ``[V]``, in order."""
    bias: TokenBias | None = None
    min_tokens: MinTokens | None = None
    penalties: Penalties | None = None
    cuts: Cuts | None = None


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
    processing: LogitsProcessing | None = None
    """None: logits are drawn from as they are."""
