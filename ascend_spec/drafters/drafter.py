"""What every drafter does."""

from __future__ import annotations

from typing import Protocol

from ascend_spec.types import Draft, DraftBatch


class Drafter(Protocol):
    """Guesses every request's next tokens. What it needs from the step, its SpeculatorConfig says."""

    def propose(self, batch: DraftBatch) -> Draft:
        """Drafts for every slot of ``batch``, at most ``batch.num_speculative_tokens`` each."""
        ...


class KVDrafter(Drafter, Protocol):
    """A drafter with a KV cache of its own, which must be kept in step with the target's.

    After every step there is one call for each slot of which the target computed tokens: ``propose``, which
    also computes all K/V that is missing, or ``follow`` where no drafts are wanted. A request that is never
    speculated on again is not shown any more. Batches have ``num_computed_tokens`` and ``restarted``: of a
    restarted slot no K/V may be kept, else what there is up to ``num_computed_tokens``; behind it stand drafts
    that were rejected. There may be less: the last draft of a proposal was never computed and may have been
    accepted. A call that raises is followed by one that shows its slots as restarted.

    One that has ``allocate_kv_cache(num_blocks, block_size)`` is told at start how many blocks the target has, of
    how many tokens each: K/V may stand in the slots of ``batch.block_table``, which reaches
    ``num_lookahead_tokens`` of the method's contract beyond the committed tokens.
    """

    def follow(self, batch: DraftBatch) -> None:
        """Compute the K/V that is missing up to ``batch.num_computed_tokens``, and propose nothing."""
        ...
