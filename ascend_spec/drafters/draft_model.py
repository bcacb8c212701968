"""The draft model: a smaller language model says what the target may say next, on paged K/V of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from ascend_spec.config import ModelFacts, Plan
from ascend_spec.drafters.drafter import KVDrafter
from ascend_spec.runtime import Upload
from ascend_spec.types import AttentionMetadata, Draft, DraftBatch
from ascend_spec_ops import draft_inputs, random_bits, sample
from ascend_spec_ops.uniforms import STREAM_DRAFT_LANE

if TYPE_CHECKING:  # importing transformers takes seconds, which nobody without a draft model should wait for
    from ascend_spec.models import CausalLM

#: ``(logits [B, V], j) -> [B] int32``, the tokens of every request's ``j``-th draft
Draw = Callable[[torch.Tensor, int], torch.Tensor]


class DraftModelDrafter:
    """Drafts with a causal LM of the target's vocabulary: a :class:`~ascend_spec.drafters.KVDrafter`.

    A proposal is one pass over the committed tokens whose K/V is missing, which gives the first draft, and one
    pass of a row a request for each further draft. In parallel (PARD) the first pass has mask tokens behind the
    committed ones and gives all drafts, draft ``j + 1`` from the ``j``-th mask, whatever the drafts before it.

    K/V stand in caches of the drafter's own, but in the slots of the target's block table, so that prefixes,
    preemption and freeing need nothing of their own. Of each slot it is known up to where they are right: a
    rejection lowers that, and what stands behind it is overwritten. The last draft of a proposal is never
    computed; where it was accepted, it comes first in the next pass.

    Used alone, it wants a :class:`DraftBatch` with the fields of :class:`KVDrafter`, ``block_table`` included:

    >>> import torch, transformers
    >>> from ascend_spec.drafters import DraftModelDrafter
    >>> from ascend_spec.models import CausalLM
    >>> from ascend_spec.types import DraftBatch
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    ...     max_position_embeddings=64,
    ... )
    >>> model = CausalLM.from_module(transformers.LlamaForCausalLM(config))
    >>> drafter = DraftModelDrafter(model, num_speculative_tokens=3)
    >>> drafter.allocate_kv_cache(num_blocks=4, block_size=16)
    >>> history = torch.zeros(1, 64, dtype=torch.int32)
    >>> history[0, :5] = torch.tensor([1, 2, 3, 4, 5])
    >>> one_request = DraftBatch(
    ...     token_ids=history,
    ...     num_tokens=torch.tensor([5], dtype=torch.int32),
    ...     num_speculative_tokens=torch.tensor([3], dtype=torch.int32),
    ...     num_computed_tokens=torch.tensor([4], dtype=torch.int32),  # what the target has K/V of
    ...     restarted=torch.tensor([True]),  # it is new; False from the second call on
    ...     block_table=torch.arange(4, dtype=torch.int32)[None],
    ... )
    >>> drafter.propose(one_request).token_ids.shape
    torch.Size([1, 3])

    Args:
        model: a loaded :class:`~ascend_spec.models.CausalLM`, for this drafter alone.
        num_speculative_tokens: K, the width of the draft.
        max_model_len: the longest sequence to draft for, its drafts included; None: what the model supports. Of a
            request that is longer nothing is computed.
        draft_sample_method: "greedy", or "probabilistic": drawn from ``softmax(logits / temperature)`` at the
            request's temperature. Its top-k, penalties and the like are not applied; they are in the target's
            distribution, which is all that exactness asks for.
        rule: that judges the drafts. Under "coupled" they are drawn with the target's own random numbers.
        mask_token_id: drafts in parallel, with this token in place of the drafts before; None: one by one.

    Raises:
        ValueError: a mask token that is none of the model's.
    """

    def __init__(
        self,
        model: CausalLM,
        num_speculative_tokens: int,
        *,
        max_model_len: int | None = None,
        draft_sample_method: str = "greedy",
        rule: str = "standard",
        mask_token_id: int | None = None,
    ) -> None:
        info = model.info
        if mask_token_id is not None and not 0 <= mask_token_id < info.vocab_size:
            raise ValueError(
                f"mask_token_id={mask_token_id} was given; the draft model's ids are 0 to {info.vocab_size - 1}"
            )
        # beyond the boundary of a longrope model all K/V would have to be computed again
        limits = (max_model_len, info.max_model_len, info.longrope_boundary)
        self.model = model
        self.num_speculative_tokens = num_speculative_tokens
        self.max_model_len = min(limit for limit in limits if limit is not None)
        self.samples = draft_sample_method == "probabilistic"
        self.is_coupled = rule == "coupled"
        self.mask_token_id = mask_token_id
        self.block_size = 0
        self.kv_caches: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._num_cached: torch.Tensor | None = None
        self._upload = Upload(info.device)

    @classmethod
    def from_plan(cls, plan: Plan) -> KVDrafter:
        """Load the planned draft model.

        Raises:
            FileNotFoundError, ValueError: a path that is no model, another vocabulary than the target's, or
                ``parallel_drafting`` with a model that names no mask token.
        """
        from ascend_spec.models import CausalLM

        planned = plan.draft_model
        assert planned is not None
        model: Any = CausalLM.load(planned.model, getattr(torch, planned.dtype), plan.target.device)
        if plan.config.use_heterogeneous_vocab:
            from ascend_spec.drafters.heterogeneous import SharedVocabModel, SlemDrafter

            if plan.config.ascend_spec.heterogeneous_vocab_method == "slem":
                return SlemDrafter.from_plan(plan, model)
            model = SharedVocabModel.from_plan(plan, model)
        wanted = plan.target.model.vocab_size
        if wanted is not None and model.info.vocab_size != wanted:
            raise ValueError(
                f"'model' was given as {planned.model!r}, whose vocabulary has {model.info.vocab_size} tokens; the "
                f"target's has {wanted}. Use a draft model with the target's tokenizer."
            )
        return cls(
            model,
            plan.num_speculative_tokens,
            max_model_len=plan.max_drafted_len,
            draft_sample_method=plan.config.draft_sample_method,
            rule=plan.rule.name,
            mask_token_id=_mask_token_id(planned.facts) if plan.config.parallel_drafting else None,
        )

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """Make the caches, as many blocks as the target has, of as many tokens; all that was known is forgotten."""
        self.block_size = block_size
        self.kv_caches = self.model.allocate_kv_cache(num_blocks, block_size)
        self._num_cached = None

    def follow(self, batch: DraftBatch) -> None:
        """Compute K/V up to ``batch.num_computed_tokens``."""
        self._first_pass(batch, _field(batch, "num_computed_tokens"), None)

    @torch.no_grad()
    def propose(self, batch: DraftBatch) -> Draft:
        """``[S, K]`` drafts; those that were sampled with their logits, where the rule reads them.

        The host waits for the device only where ``batch`` lacks ``max_spec_len`` or ``most_missing``.
        """
        room = self.max_model_len - batch.num_tokens
        wanted = torch.minimum(batch.num_speculative_tokens, room).clamp(0, self.num_speculative_tokens)
        most = int(wanted.max()) if batch.max_spec_len is None else batch.max_spec_len
        num_drafts = min(most, self.num_speculative_tokens)
        tokens = wanted.new_full((wanted.shape[0], self.num_speculative_tokens), -1)
        ends = torch.where(wanted > 0, batch.num_tokens, _field(batch, "num_computed_tokens"))
        first = self._first_pass(batch, ends, wanted if num_drafts else None)
        if first is None or num_drafts == 0:
            return Draft(tokens)
        slots, logits = first
        draw = self._draw(batch, slots)
        if self.mask_token_id is None:
            drafts, logits = self._chain(batch, slots, wanted.clamp(max=num_drafts), logits, draw, num_drafts)
        else:
            drafts = torch.stack([draw(logits[j], j) for j in range(num_drafts)])
        tokens[slots, :num_drafts] = drafts.T
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        proposed = (tokens >= 0) & (columns < wanted[:, None])  # -1: its logits were not finite
        tokens = torch.where(proposed.cumprod(1).bool(), tokens, -1)
        if not self.samples or self.is_coupled:
            return Draft(tokens)
        q = logits.new_zeros((*tokens.shape, logits.shape[-1]))
        q[slots, :num_drafts] = logits[:num_drafts].transpose(0, 1)
        return Draft(tokens, q, batch.temperature)

    # ---- the passes
    def _first_pass(
        self, batch: DraftBatch, ends: torch.Tensor, wanted: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Compute the K/V that each slot lacks before ``ends`` and, in parallel drafting, those of the mask tokens
        behind it. ``wanted`` None: nobody wants drafts.

        Where the host doesn't know how many tokens a slot lacks, it gets as many rows as that can be.

        Returns:
            ``[B]`` int64, the slots that have rows, and ``[1 or K, B, V]``, the logits of each one's last token and of
            its masks; None: nothing is missing.
        """
        starts = self._held(batch)
        ends = torch.where(batch.num_tokens < self.max_model_len, torch.maximum(starts, ends), starts)
        missing = ends - starts
        counts = missing.tolist() if batch.most_missing is None else batch.most_missing
        with_rows = [slot for slot, count in enumerate(counts) if count > 0]
        self._keep(batch, ends)
        if not with_rows:
            return None
        in_parallel = wanted is not None and self.mask_token_id is not None
        num_masks = self.num_speculative_tokens - 1 if in_parallel else 0
        lens = [counts[slot] + num_masks for slot in with_rows]
        slots, query_lens = self._upload.int64(with_rows), self._upload.int32(lens)
        used = ends if wanted is None or not in_parallel else ends + (wanted - 1).clamp(min=0)
        ids, positions, slot_mapping = self._rows(batch, slots, lens, starts, ends, used)
        query_start_loc = self._upload.int32([0, *accumulate(lens)])
        metadata = AttentionMetadata(
            block_table=_field(batch, "block_table")[slots],
            slot_mapping=slot_mapping,
            query_start_loc=query_start_loc,
            seq_lens=starts[slots] + query_lens,
            query_lens_cpu=tuple(lens),
            seq_lens_cpu=None,
            max_query_len=max(lens),
            num_tokens=batch.num_tokens[slots],
        )
        masks = torch.arange(num_masks + 1, dtype=torch.int32, device=slots.device)
        last = torch.minimum((missing[slots] - 1).clamp(min=0) + masks[:, None], query_lens - 1)
        rows = (query_start_loc[:-1] + last).flatten().long()
        logits = self.model.forward(ids, positions, self.kv_caches, metadata, rows)
        return slots, logits.view(num_masks + 1, len(lens), -1)

    def _rows(
        self,
        batch: DraftBatch,
        slots: torch.Tensor,
        lens: Sequence[int],
        starts: torch.Tensor,
        ends: torch.Tensor,
        used: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids, positions and K/V slots ``[T]`` of ``lens`` rows a slot from its ``starts`` on: committed tokens before
        ``ends``, mask tokens before ``used``, then empty rows, whose K/V is not written."""
        tables = _field(batch, "block_table")
        slot = slots[self._upload.int64([b for b, count in enumerate(lens) for _ in range(count)])]
        positions = starts[slot] + self._upload.int64([i for count in lens for i in range(count)])
        ids = batch.token_ids[slot, positions.clamp(max=batch.token_ids.shape[1] - 1)]
        if self.mask_token_id is not None:
            ids = torch.where(positions < ends[slot], ids, self.mask_token_id)
        block = tables[slot, (positions // self.block_size).clamp(max=tables.shape[1] - 1)].long()
        places = block * self.block_size + positions % self.block_size
        is_used = positions < used[slot]
        # an empty row may stand beyond the positions that the model has
        positions = positions.clamp(max=self.max_model_len - 1)
        return torch.where(is_used, ids, 0), positions, torch.where(is_used, places, -1)

    def _chain(
        self,
        batch: DraftBatch,
        slots: torch.Tensor,
        wanted: torch.Tensor,
        logits: torch.Tensor,
        draw: Draw,
        num_drafts: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All drafts ``[num_drafts, B]`` and the logits they were drawn from: each but the first from a pass with the
        one before it, in which slots that want no more are padding."""
        tables, num_tokens = _field(batch, "block_table")[slots], batch.num_tokens[slots]
        longest = min(self.max_model_len, tables.shape[1] * self.block_size)
        query_start_loc = torch.arange(slots.shape[0] + 1, dtype=torch.int32, device=slots.device)
        no_drafts, no_counts = num_tokens.new_empty(0), torch.zeros_like(num_tokens)
        all_logits = [logits[0]]
        drafts = [draw(logits[0], 0)]
        for j in range(1, num_drafts):
            lens = torch.where(wanted[slots] > j, num_tokens + j, 0)
            ids, positions, slot_mapping, seq_lens = draft_inputs(
                drafts[-1], no_drafts, no_counts, lens, tables, self.block_size, longest
            )
            metadata = AttentionMetadata(
                block_table=tables,
                slot_mapping=slot_mapping,
                query_start_loc=query_start_loc,
                seq_lens=seq_lens,
                query_lens_cpu=(1,) * slots.shape[0],
                seq_lens_cpu=None,
                max_query_len=1,
                num_tokens=num_tokens,
            )
            all_logits.append(
                self.model.forward(ids, positions, self.kv_caches, metadata, query_start_loc[:-1].long())
            )
            drafts.append(draw(all_logits[-1], j))
        self._keep(batch, torch.where(wanted > 0, batch.num_tokens + wanted - 1, self._cached(batch)))
        return torch.stack(drafts), torch.stack(all_logits)

    # ---- what is known of the K/V
    def _cached(self, batch: DraftBatch) -> torch.Tensor:
        """``[S]`` int32, tokens of each slot whose K/V has been computed, drafts included."""
        if self._num_cached is None:
            self._num_cached = torch.zeros_like(batch.num_tokens)
        return self._num_cached

    def _held(self, batch: DraftBatch) -> torch.Tensor:
        """``[S]`` int32, those of them that are right: what stands behind ``num_computed_tokens`` was rejected, or
        belonged to another request."""
        held = torch.minimum(self._cached(batch), _field(batch, "num_computed_tokens"))
        return torch.where(_field(batch, "restarted"), 0, held)

    def _keep(self, batch: DraftBatch, num_cached: torch.Tensor) -> None:
        """Take over ``num_cached`` for the slots that the call is for."""
        self._num_cached = torch.where(batch.num_tokens > 0, num_cached, self._cached(batch))

    # ---- the draw
    def _draw(self, batch: DraftBatch, slots: torch.Tensor) -> Draw:
        positions = batch.num_tokens[slots].long()
        if not self.samples:
            temperature, seeds = positions.new_zeros(positions.shape, dtype=torch.float32), positions
        else:
            temperature, seeds = _field(batch, "temperature")[slots], _field(batch, "seeds")[slots]
            if not self.is_coupled:
                seeds = draft_seeds(seeds, positions)
        return lambda logits, j: sample(logits, temperature, seeds, positions + j)


def draft_seeds(seeds: torch.Tensor, num_tokens: torch.Tensor) -> torch.Tensor:
    """Seeds of the random numbers that the drafts of one round take, independent of the target's.

    New ones for each round: a rule that judges drafts together has looked at those behind the one it rejected, and
    a number that had a say in that must not draw the next round's draft at the same position.

    Args:
        seeds: ``[B]`` int64, of the requests.
        num_tokens: ``[B]`` int64, committed tokens, where the round begins.

    Returns:
        ``[B]`` int64
    """
    low, high = random_bits(seeds, num_tokens, STREAM_DRAFT_LANE, 2).long().unbind(1)
    return (high << 32) | (low & 0xFFFFFFFF)


def _field(batch: DraftBatch, name: str) -> torch.Tensor:
    tensor = getattr(batch, name)
    if tensor is None:
        raise ValueError(
            f"a batch without {name} was given; a draft model needs it: see DraftBatch for what it is"
        )
    return tensor


#: where checkpoints say which token stands for a draft that is not known yet, in the order of vLLM
MASK_TOKEN_FIELDS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")


def _mask_token_id(facts: ModelFacts) -> int:
    fields = [(facts.get("dflash_config") or {}).get("mask_token_id"), *map(facts.get, MASK_TOKEN_FIELDS)]
    found = next((value for value in fields if value is not None), None)
    if found is None:
        raise ValueError(
            f"'parallel_drafting' was given, but the config.json of {facts.path!r} has none of "
            f"{', '.join(MASK_TOKEN_FIELDS)}, the token that stands for a draft: use a model that was trained for "
            "parallel drafting, or remove 'parallel_drafting'"
        )
    return found
