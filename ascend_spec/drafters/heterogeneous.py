"""Draft models with another vocabulary than the target's: by the tokens that both have (TLI), or by text (SLEM).

Both leave the output's law alone. Token-level intersection gives drafts and, where they are sampled, the very
distribution that they were drawn from; string-level exact match gives drafts without one, which are right or wrong.
Algorithms: Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
Vocabularies", 2502.05202.
"""

from __future__ import annotations

import codecs
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ascend_spec.drafters.draft_model import DraftModelDrafter
from ascend_spec.drafters.vocab import VocabMapping, Vocabulary
from ascend_spec.types import AttentionMetadata, Draft, DraftBatch

if TYPE_CHECKING:
    from ascend_spec.config import Plan
    from ascend_spec.models import CausalLM

logger = logging.getLogger(__name__)
#: with fewer tokens in common than this, nearly every draft is wrong
FEW_SHARED_TOKENS = 100
#: tokens of the context that are tokenized again together with a draft, so that it is cut as within a text
LOOK_BEHIND = 10


class SharedVocabModel:
    """A draft model as one of the target's vocabulary: token-level intersection.

    It reads one token of its own for each of the target's, so that positions and K/V are the target's, and its
    logits are ``-inf`` for all tokens but those that both have. Whoever drafts with it draws from its distribution
    renormalised on these, and gives that as the drafts' distribution: that is all that exactness asks for.

    Args:
        model: a loaded :class:`~ascend_spec.models.CausalLM`.
        mapping: between the target's vocabulary and the model's.

    Raises:
        ValueError: no token in common, or a mapping of another vocabulary than the model's.
    """

    def __init__(self, model: CausalLM, mapping: VocabMapping) -> None:
        if mapping.target_token_ids.numel() != model.info.vocab_size:
            raise ValueError(
                f"a mapping from {mapping.target_token_ids.numel()} tokens was given for a draft model of "
                f"{model.info.vocab_size}: make it with the width of the model's logits"
            )
        if mapping.num_shared == 0:
            raise ValueError(
                "target and draft model have no token in common, so nothing can be drafted: use another draft "
                'model, or "ascend_spec": {"heterogeneous_vocab_method": "slem"}'
            )
        logger.info("vocabularies of target and draft model: %s", mapping)
        if mapping.num_shared < FEW_SHARED_TOKENS:
            logger.warning(
                "target and draft model have %s; hardly a draft will be accepted. Use another draft model, or "
                '"ascend_spec": {"heterogeneous_vocab_method": "slem"}',
                mapping,
            )
        self.model, self.mapping = model, mapping.to(model.info.device)
        _ = self.mapping.shared  # what is computed once makes a device wait, which no step may do
        # no end of text here: nobody asks a draft model for it, and the ids would be the draft's
        self.info = replace(model.info, vocab_size=mapping.draft_token_ids.numel(), eos_token_ids=())

    @classmethod
    def from_plan(cls, plan: Plan, model: CausalLM) -> SharedVocabModel:
        return cls(model, VocabMapping.of(*vocabularies(plan)))

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> Any:
        return self.model.allocate_kv_cache(num_blocks, block_size)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: Any,
        attn_metadata: AttentionMetadata,
        logits_indices: torch.Tensor,
    ) -> torch.Tensor:
        """As :meth:`ascend_spec.models.CausalLM.forward`, ids and logits being the target's."""
        ids = self.mapping.to_draft(input_ids, positions)
        logits = self.model.forward(ids, positions, kv_caches, attn_metadata, logits_indices)
        return self.mapping.to_target_logits(logits)


class SlemDrafter:
    """Drafts by text: string-level exact match, for vocabularies with little in common.

    The request's text is tokenized for the draft model, which continues it greedily, and what it wrote is tokenized
    for the target. Drafts are deterministic, which is exact under every exact rule, however good they are; so
    nothing depends on tokenizers giving back what they were given.

    All of that happens on the host, text and tokens anew in each step: on an accelerator the host waits for the
    tokens of the step before. The draft model's K/V are kept as far as the new tokens of the text are the old ones;
    there is a sequence of ``max_model_len`` tokens for each slot.

    Args:
        model: a loaded :class:`~ascend_spec.models.CausalLM`, for this drafter alone.
        target, draft: the vocabularies.
        num_speculative_tokens: K, the width of the draft.
        max_num_seqs: slots, at least as many as a batch has.
        max_model_len: the longest text to draft for, in the draft model's tokens; None: what it supports.
    """

    def __init__(
        self,
        model: CausalLM,
        target: Vocabulary,
        draft: Vocabulary,
        num_speculative_tokens: int,
        *,
        max_num_seqs: int,
        max_model_len: int | None = None,
    ) -> None:
        self.target, self.draft = target, draft
        self.num_speculative_tokens, self.max_num_seqs = num_speculative_tokens, max_num_seqs
        self.inner = DraftModelDrafter(model, num_speculative_tokens, max_model_len=max_model_len)
        # the draft model's tokens by slot; of the last draft too, since what was accepted need not be computed again
        self.token_ids = torch.zeros((max_num_seqs, self.inner.max_model_len), dtype=torch.int32)
        self.num_tokens = [0] * max_num_seqs
        self.device = model.info.device

    @classmethod
    def from_plan(cls, plan: Plan, model: CausalLM) -> SlemDrafter:
        target, draft = vocabularies(plan)
        return cls(
            model,
            target,
            draft,
            plan.num_speculative_tokens,
            max_num_seqs=plan.target.max_num_seqs,
            max_model_len=plan.max_drafted_len,
        )

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """Make the caches. Not with the target's blocks: the same text has another number of tokens here."""
        per_slot = -(-self.inner.max_model_len // block_size)
        blocks = torch.arange(self.max_num_seqs * per_slot, dtype=torch.int32, device=self.device)
        self.block_table = blocks.view(self.max_num_seqs, per_slot)
        self.inner.allocate_kv_cache(blocks.numel(), block_size)
        self.num_tokens = [0] * self.max_num_seqs

    def follow(self, batch: DraftBatch) -> None:
        """Compute K/V of the text up to ``batch.num_computed_tokens``; a draft comes with it, and is dropped."""
        assert batch.num_computed_tokens is not None
        ends = torch.where(batch.num_tokens > 0, batch.num_computed_tokens, 0)
        self._continue(batch, ends.tolist(), [1] * len(ends))

    def propose(self, batch: DraftBatch) -> Draft:
        """``[S, K]`` deterministic drafts."""
        lens, wanted = batch.num_tokens.tolist(), batch.num_speculative_tokens.tolist()
        written = self._continue(batch, lens, wanted)
        tokens = torch.full((len(lens), self.num_speculative_tokens), -1, dtype=torch.int32)
        for slot, ids in written.items():
            context = batch.token_ids[slot, max(0, lens[slot] - LOOK_BEHIND) : lens[slot]].tolist()
            drafts = self._for_target(context, ids)[: min(wanted[slot], self.num_speculative_tokens)]
            tokens[slot, : len(drafts)] = torch.tensor(drafts, dtype=torch.int32)
        return Draft(tokens.to(batch.token_ids.device))

    def _continue(
        self, batch: DraftBatch, lens: Sequence[int], wanted: Sequence[int]
    ) -> dict[int, list[int]]:
        """What the draft model writes behind the first ``lens`` tokens of slots that want something: its own
        tokens, by slot."""
        assert batch.restarted is not None
        restarted = batch.restarted.tolist()
        kept = torch.zeros(self.max_num_seqs, dtype=torch.int32)
        num_tokens, asked = torch.zeros_like(kept), torch.zeros_like(kept)
        for slot, length in enumerate(lens):
            if restarted[slot]:
                self.num_tokens[slot] = 0
            if length and wanted[slot]:
                ids = self._for_draft(batch.token_ids[slot, :length].tolist())
                if 0 < len(ids) < self.inner.max_model_len:
                    kept[slot] = min(self._replace_tokens(slot, ids), len(ids) - 1)
                    num_tokens[slot], asked[slot] = len(ids), wanted[slot]
        inner = DraftBatch(
            token_ids=self.token_ids.to(self.device),
            num_tokens=num_tokens.to(self.device),
            num_speculative_tokens=asked.to(self.device),
            num_computed_tokens=kept.to(self.device),
            restarted=(kept == 0).to(self.device),
            block_table=self.block_table,
        )
        drafts = self.inner.propose(inner).token_ids.tolist()
        return {slot: self._remember(slot, drafts[slot]) for slot in num_tokens.nonzero()[:, 0].tolist()}

    def _replace_tokens(self, slot: int, ids: Sequence[int]) -> int:
        """Make ``ids`` the tokens of ``slot``; returns how many of the first ones it had already."""
        new, old = torch.tensor(ids, dtype=torch.int32), self.token_ids[slot]
        most = min(len(ids), self.num_tokens[slot])
        kept = int((new[:most] == old[:most]).cumprod(0).sum())
        old[: len(ids)] = new
        self.num_tokens[slot] = len(ids)
        return kept

    def _remember(self, slot: int, drafts: Sequence[int]) -> list[int]:
        ids = [id_ for id_ in drafts if id_ >= 0]
        begin = self.num_tokens[slot]
        self.token_ids[slot, begin : begin + len(ids)] = torch.tensor(ids, dtype=torch.int32)
        self.num_tokens[slot] = begin + len(ids)
        return ids

    def _for_draft(self, token_ids: Sequence[int]) -> list[int]:
        """The draft model's tokens of the target's, as far as they spell whole characters."""
        text, _ = _whole_characters(self.target.decode(token_ids))
        first = self.draft.first_token_id
        return ([] if first is None else [first]) + self.draft.encode(text)

    def _for_target(self, context: Sequence[int], drafts: Sequence[int]) -> list[int]:
        """The target's tokens of the draft model's; none where the text is cut otherwise than between what was
        there and what was drafted."""
        before, written = self.target.decode(context), self.draft.decode(_until_special(drafts, self.draft))
        _, pending = _whole_characters(before)  # the draft model was not shown it, and writes it again
        if not written.startswith(pending):
            return []
        written = written[len(pending) :]
        text, incomplete = _whole_characters(before + written)
        num_bytes = len(written) - len(incomplete)
        ids = self.target.encode(text)
        begin = len(ids)
        while num_bytes > 0 and begin > 0:
            begin -= 1
            num_bytes -= len(self.target.pieces[ids[begin]] or b"")
        return ids[begin:] if num_bytes == 0 else []


def _until_special(token_ids: Sequence[int], vocabulary: Vocabulary) -> Sequence[int]:
    """What stands before the first token that is no text: an end perhaps, which means nothing to the target."""
    return next((token_ids[:i] for i, id_ in enumerate(token_ids) if not vocabulary.pieces[id_]), token_ids)


def _whole_characters(text: bytes) -> tuple[str, bytes]:
    """``text`` without what cannot be part of a character, and the beginning of one at its end."""
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    return decoder.decode(text), decoder.getstate()[0]


def vocabularies(plan: Plan) -> tuple[Vocabulary, Vocabulary]:
    """Target's and draft model's, of the tokenizers that lie beside them.

    Raises:
        FileNotFoundError, ValueError: no tokenizer there, or one that cannot be compared.
    """
    from ascend_spec.models import load_tokenizer

    target, draft = plan.target, plan.draft_model
    assert draft is not None
    places = ((target.tokenizer or target.model.path, target.model), (draft.tokenizer, draft.facts))
    ours, theirs = (Vocabulary.of(load_tokenizer(path), facts.vocab_size or 0) for path, facts in places)
    return ours, theirs
