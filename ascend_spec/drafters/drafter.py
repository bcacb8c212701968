"""What every drafter does."""

from __future__ import annotations

from typing import Protocol

from ascend_spec.types import Draft, DraftBatch


class Drafter(Protocol):
    """Guesses every request's next tokens. What it needs from the step, its SpeculatorConfig says."""

    def propose(self, batch: DraftBatch) -> Draft:
        """Drafts for every slot of ``batch``, at most ``batch.num_speculative_tokens`` each."""
        ...
