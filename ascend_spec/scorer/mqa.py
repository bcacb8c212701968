"""The multi-query scorer: each request contributes its new committed tokens and its drafts as query rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from ascend_spec.config import Bucket
from ascend_spec.runtime import Upload
from ascend_spec.types import AttentionMetadata, Draft, ScheduledRequest, SpecDecodeMetadata, StepPlan
from ascend_spec_ops import draft_inputs


@dataclass(frozen=True)
class MQAScorer:
    """Packs scheduled requests into one target batch. It holds only constants of the engine.

    Attributes:
        block_size: tokens a KV block.
        max_model_len: in tokens.
        max_spec_len: K, the most drafts a request may ever have.
    """

    block_size: int
    max_model_len: int
    max_spec_len: int

    def pack(
        self,
        requests: Sequence[ScheduledRequest],
        token_ids: torch.Tensor,
        block_table: torch.Tensor,
        draft: Draft | None = None,
        bucket: Bucket | None = None,
    ) -> StepPlan:
        """One step's inputs. Reads nothing back from the device.

        Args:
            requests: those that decode stand first. Only they may have drafts.
            token_ids: ``[S + 1, L]`` int32, committed tokens by slot; row ``S`` belongs to padded requests.
            block_table: ``[S + 1, M]`` int32, block ids by slot, ``M * block_size >= max_model_len``.
            draft: its row ``s`` holds the drafts of slot ``s``; needed when any request has drafts.
            bucket: pad to it. Then all requests must decode, each with at most ``bucket.num_drafts`` drafts.
                Missing drafts become empty slots (-1), missing requests have length 0.

        Returns:
            the plan; its sampled requests are ``requests`` that sample, in order, then padded ones.
        """
        counts = [request.num_drafts for request in requests]
        if bucket is not None:
            padded = ScheduledRequest("", token_ids.shape[0] - 1, -1, 0, num_new_tokens=1)
            requests = [*requests, *[padded] * (bucket.num_requests - len(requests))]
            counts = [bucket.num_drafts] * len(requests)
        num_decodes = sum(request.decodes for request in requests)
        sampled = [(r, count) for r, count in zip(requests, counts, strict=True) if r.samples]
        device = Upload(token_ids.device)
        spec = self._spec_metadata(requests, counts, sampled, draft, device)
        slots = device.int64([request.slot for request in requests])
        tables = block_table.index_select(0, slots)
        input_ids, positions, slot_mapping, _ = self._decode_rows(
            requests[:num_decodes], spec, token_ids, tables[:num_decodes], slots[:num_decodes], device
        )
        if num_decodes < len(requests):
            chunk = self._prefill_rows(requests[num_decodes:], token_ids, block_table, device)
            pairs = zip((input_ids, positions, slot_mapping), chunk, strict=True)
            input_ids, positions, slot_mapping = (torch.cat(pair) for pair in pairs)
        return StepPlan(
            input_ids=input_ids,
            positions=positions,
            attention=_attention_metadata(requests, counts, tables, slot_mapping, device),
            spec=spec,
            temperature=device.float32([request.temperature for request, _ in sampled]),
            seeds=device.int64([request.seed for request, _ in sampled]),
            sample_positions=device.int64([request.num_tokens for request, _ in sampled]),
            slots=device.int64([request.slot for request, _ in sampled]),
        )

    def _decode_rows(self, requests, spec, token_ids, tables, slots, device):  # type: ignore[no-untyped-def]
        """Rows ``[last token, drafts]`` of the requests that decode, from device tensors."""
        num_tokens = [request.num_tokens for request in requests]
        last = token_ids[slots, device.int64([max(n - 1, 0) for n in num_tokens])]
        cu_num_draft_tokens = spec.cu_num_draft_tokens[: len(requests)]
        return draft_inputs(
            last,
            spec.draft_token_ids,
            cu_num_draft_tokens,
            device.int32(num_tokens),
            tables,
            self.block_size,
            self.max_model_len,
        )

    def _prefill_rows(self, requests, token_ids, block_table, device):  # type: ignore[no-untyped-def]
        """Rows of committed tokens that have no K/V yet, gathered from the pool by (slot, position)."""
        slots = device.int64([r.slot for r in requests for _ in range(r.num_new_tokens)])
        positions = device.int64(
            [r.num_computed_tokens + i for r in requests for i in range(r.num_new_tokens)]
        )
        blocks = block_table[slots, positions // self.block_size].long()
        return token_ids[slots, positions], positions, blocks * self.block_size + positions % self.block_size

    def _spec_metadata(self, requests, counts, sampled, draft, device):  # type: ignore[no-untyped-def]
        ends = list(accumulate(r.num_new_tokens + count for r, count in zip(requests, counts, strict=True)))
        logits_indices = [
            row
            for request, count, end in zip(requests, counts, ends, strict=True)
            if request.samples
            for row in range(end - count - 1, end)
        ]
        num_draft_tokens = tuple(count for _, count in sampled)
        metadata = SpecDecodeMetadata(
            draft_token_ids=device.int32([]),
            num_draft_tokens=num_draft_tokens,
            cu_num_draft_tokens=device.int32(list(accumulate(num_draft_tokens))),
            logits_indices=device.int64(logits_indices),
            max_spec_len=self.max_spec_len,
        )
        if not any(num_draft_tokens):
            return metadata
        return _with_drafts(metadata, sampled, draft, device)


def _with_drafts(
    metadata: SpecDecodeMetadata,
    sampled: Sequence[tuple[ScheduledRequest, int]],
    draft: Draft | None,
    device: Upload,
) -> SpecDecodeMetadata:
    """Gather each request's drafts from its row of ``draft``; places beyond its own count stay empty."""
    places = [(r.slot, j) if j < r.num_drafts else None for r, count in sampled for j in range(count)]
    if draft is None:
        assert not any(places), "drafts were scheduled, but there are none"
        empty = device.int32([-1] * len(places))
        return replace(metadata, draft_token_ids=empty)
    rows = device.int64([place[0] if place else 0 for place in places])
    columns = device.int64([place[1] if place else 0 for place in places])
    present = device.bool([place is not None for place in places])
    tokens = torch.where(present, draft.token_ids[rows, columns], -1)
    if draft.logits is None or draft.temperature is None:
        return replace(metadata, draft_token_ids=tokens)
    # a padded request's slot is beyond the draft's rows; it has no drafts, so any temperature will do
    slots = device.int64([min(r.slot, draft.temperature.shape[0] - 1) for r, _ in sampled])
    return replace(
        metadata,
        draft_token_ids=tokens,
        draft_logits=draft.logits[rows, columns],
        draft_temperature=draft.temperature[slots],
    )


def _attention_metadata(
    requests: Sequence[ScheduledRequest],
    counts: Sequence[int],
    tables: torch.Tensor,
    slot_mapping: torch.Tensor,
    device: Upload,
) -> AttentionMetadata:
    query_lens = tuple(r.num_new_tokens + count for r, count in zip(requests, counts, strict=True))
    # not capped at max_model_len, as draft_inputs' are: attention finds a row's position by counting back
    # from here, and empty slots at the end may stand beyond it
    seq_lens = tuple(
        r.num_computed_tokens + length if r.num_tokens else 0
        for r, length in zip(requests, query_lens, strict=True)
    )
    return AttentionMetadata(
        block_table=tables,
        slot_mapping=slot_mapping,
        query_start_loc=device.int32([0, *accumulate(query_lens)]),
        seq_lens=device.int32(seq_lens),
        query_lens_cpu=query_lens,
        seq_lens_cpu=seq_lens,
        max_query_len=max(query_lens),
        num_tokens=device.int32([r.num_tokens for r in requests]),
    )
