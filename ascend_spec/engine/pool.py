"""The device's view of running requests: one row a slot, kept up to date without asking the host."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import torch

from ascend_spec.engine.request import Request
from ascend_spec.runtime import Upload
from ascend_spec.types import Draft, DraftBatch, ScheduledRequest


class TokenPool:
    """Committed tokens and block tables by slot.

    The last row of each tensor belongs to no slot: padded requests read it, and what must go nowhere is
    written there, so that shapes stay fixed.
    """

    def __init__(
        self, max_num_seqs: int, max_model_len: int, num_table_blocks: int, device: torch.device
    ) -> None:
        rows = max_num_seqs + 1
        self.upload = Upload(device)
        self.token_ids = torch.zeros((rows, max_model_len), dtype=torch.int32, device=device)
        self.num_tokens = torch.zeros(rows, dtype=torch.int32, device=device)
        self.max_num_tokens = torch.zeros(rows, dtype=torch.int32, device=device)
        self.num_prompt_tokens = torch.zeros(rows, dtype=torch.int32, device=device)
        self.temperature = torch.zeros(rows, dtype=torch.float32, device=device)
        self.seeds = torch.zeros(rows, dtype=torch.int64, device=device)
        self.block_table = torch.zeros((rows, num_table_blocks), dtype=torch.int32, device=device)
        self.num_table_blocks = [0] * rows  # entries written, on the host

    def admit(self, request: Request) -> None:
        """Write a request that starts, or starts again after preemption, into its slot."""
        slot, length = request.slot, request.num_tokens
        self.token_ids[slot, :length] = self.upload.int32(request.token_ids)
        self.num_tokens[slot] = length
        self.max_num_tokens[slot] = request.max_num_tokens
        self.num_prompt_tokens[slot] = len(request.prompt_token_ids)
        self.temperature[slot] = float(request.params.temperature)
        self.seeds[slot] = request.seed
        self.num_table_blocks[slot] = 0

    def update_block_table(self, request: Request) -> None:
        begin, end = self.num_table_blocks[request.slot], len(request.block_ids)
        if begin < end:
            self.block_table[request.slot, begin:end] = self.upload.int32(request.block_ids[begin:])
            self.num_table_blocks[request.slot] = end

    def commit(self, slots: torch.Tensor, positions: torch.Tensor, output_token_ids: torch.Tensor) -> None:
        """Append what a step emitted.

        Args:
            slots: ``[B]`` int64; the last row for padded requests.
            positions: ``[B]`` int64, where each one's first token goes: what the host has committed, so that
                a step which broke off half-way leaves nothing behind.
            output_token_ids: ``[B, K + 2]`` int32, counts first.
        """
        counts, tokens = output_token_ids[:, 0], output_token_ids[:, 1:]
        column = torch.arange(tokens.shape[1], device=slots.device)
        emitted = column < counts[:, None]
        width = self.token_ids.shape[1]
        places = slots[:, None] * width + positions[:, None] + column
        nowhere = self.token_ids.numel() - 1
        places = torch.where(emitted, places, nowhere)
        self.token_ids.view(-1).scatter_(0, places.flatten(), tokens.flatten())
        self.num_tokens[slots] = positions.to(torch.int32) + counts
        self.num_tokens[-1] = 0

    def draft_batch(
        self, slots: Sequence[int], num_speculative_tokens: int, max_len: int, running: Iterable[Request]
    ) -> DraftBatch:
        """History of ``slots``; other rows want no drafts. None is asked for more drafts than can matter, or
        for drafts beyond ``max_len`` tokens of a sequence."""
        request_ids: list[str | None] = [None] * (self.token_ids.shape[0] - 1)
        for request in running:
            request_ids[request.slot] = request.request_id
        wanted = torch.zeros_like(self.num_tokens)
        wanted[self.upload.int64(slots)] = 1
        room = (self.max_num_tokens - 1).clamp(max=max_len) - self.num_tokens
        room = room.clamp(0, num_speculative_tokens)
        return DraftBatch(
            token_ids=self.token_ids[:-1],
            num_tokens=(self.num_tokens * wanted)[:-1],
            num_speculative_tokens=(room * wanted)[:-1],
            num_prompt_tokens=self.num_prompt_tokens[:-1],
            request_ids=tuple(request_ids),
            temperature=self.temperature[:-1],
            seeds=self.seeds[:-1],
            max_spec_len=num_speculative_tokens,
        )

    def add_kv_state(
        self, batch: DraftBatch, scheduled: Iterable[ScheduledRequest], running: Iterable[Request]
    ) -> DraftBatch:
        """``batch`` with what a drafter with K/V of its own needs besides.

        Args:
            batch: of :meth:`draft_batch`.
            scheduled: what the target has just computed. Behind a chunk of a prompt it stands at the chunk's
                end; of every other request it has computed all tokens but the last.
            running: requests that have a slot.
        """
        num_slots, width = batch.token_ids.shape
        ends, restarted = [width] * num_slots, [False] * num_slots
        for item in scheduled:
            if not item.samples:
                ends[item.slot] = item.num_computed_tokens + item.num_new_tokens
        for request in running:
            restarted[request.slot] = not request.known_to_drafter
        return replace(
            batch,
            num_computed_tokens=torch.minimum((batch.num_tokens - 1).clamp(min=0), self.upload.int32(ends)),
            restarted=self.upload.bool(restarted),
            block_table=self.block_table[:-1],
        )


def most_missing(
    slots: Collection[int],
    num_slots: int,
    scheduled: Iterable[ScheduledRequest],
    running: Iterable[Request],
    drafts_have_kv: bool,
) -> tuple[int, ...]:
    """How many tokens' K/V a drafter may lack of each slot after the target's step, as far as the host knows.

    Args:
        slots: that the drafter's call is for; others get 0.
        scheduled: what the target has just computed.
        drafts_have_kv: whether the drafter computes K/V of its drafts, all but the last; those of accepted ones are
            then there.
    """
    items = {item.slot: item for item in scheduled}
    counts = [0] * num_slots
    for request in running:
        if request.slot in slots:
            item = items.get(request.slot)
            counts[request.slot] = _most_missing(request, item, drafts_have_kv)
    return tuple(counts)


def _most_missing(request: Request, item: ScheduledRequest | None, drafts_have_kv: bool) -> int:
    num_drafts = 0 if item is None else item.num_drafts
    if request.known_to_drafter and (item is None or item.decodes):
        # the drafts that were accepted, or the last of them, and the token after them
        return 2 if drafts_have_kv else max(num_drafts, 1) + 1
    if item is None:
        return request.num_tokens
    before = 0 if request.known_to_drafter else item.num_computed_tokens
    return before + item.num_new_tokens + (num_drafts + 1 if item.samples else 0)


def check_draft(draft: Draft, num_slots: int, vocab_size: int) -> None:
    """Hold a drafter to the shapes and dtypes of :class:`Draft`, before a step trips over them.

    Raises:
        ValueError: what was given and what it must be.
    """
    if not isinstance(draft, Draft):
        raise ValueError(
            f"propose returned a {type(draft).__name__}; it must return an ascend_spec.types.Draft"
        )
    tokens, logits, temperature = draft.token_ids, draft.logits, draft.temperature
    if tokens.dtype != torch.int32 or tokens.dim() != 2 or tokens.shape[0] != num_slots:
        raise ValueError(
            f"draft token_ids are {list(tokens.shape)} {tokens.dtype}; they must be [{num_slots}, K] int32"
        )
    if draft.tree is not None:
        raise ValueError("a draft is a tree; the engine judges chains: leave tree out")
    if (logits is None) != (temperature is None):
        raise ValueError("a draft has logits or temperature alone; give both, or neither if deterministic")
    if logits is None or temperature is None:
        return
    if logits.shape != (*tokens.shape, vocab_size) or not logits.is_floating_point():
        raise ValueError(
            f"draft logits are {list(logits.shape)} {logits.dtype}; they must be floating point, "
            f"{[*tokens.shape, vocab_size]}"
        )
    if temperature.shape != (num_slots,) or temperature.dtype != torch.float32:
        raise ValueError(
            f"draft temperature is {list(temperature.shape)} {temperature.dtype}; it must be [{num_slots}] "
            "float32"
        )


def trim_draft(draft: Draft, batch: DraftBatch, vocab_size: int) -> torch.Tensor:
    """``draft.token_ids`` with everything empty that must not be judged: what lies behind an id the target
    does not have, or beyond what the batch asked for."""
    tokens = draft.token_ids
    column = torch.arange(tokens.shape[1], device=tokens.device)
    usable = (tokens >= 0) & (tokens < vocab_size) & (column < batch.num_speculative_tokens[:, None])
    return torch.where(usable.cumprod(1).bool(), tokens, -1)
