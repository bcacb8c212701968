"""The n-gram drafter (prompt lookup): the request's own history continues as it did before."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ascend_spec.config import Plan
from ascend_spec.types import Draft, DraftBatch
from ascend_spec_ops import ngram_match


@dataclass(frozen=True)
class NgramDrafter:
    """Proposes what followed the longest earlier occurrence of a request's last tokens.

    It needs no weights, works on whichever device holds the token history, and keeps no state. The rule is
    that of :func:`ascend_spec_ops.ngram_match`: longest match first, then the earliest.

    >>> import torch
    >>> from ascend_spec.drafters import NgramDrafter
    >>> from ascend_spec.types import DraftBatch
    >>> drafter = NgramDrafter(prompt_lookup_min=2, prompt_lookup_max=4, num_speculative_tokens=3)
    >>> history = torch.tensor([[1, 2, 3, 4, 1, 2, 3, 0, 0, 0]], dtype=torch.int32)
    >>> batch = DraftBatch(
    ...     token_ids=history,
    ...     num_tokens=torch.tensor([7], dtype=torch.int32),
    ...     num_speculative_tokens=torch.tensor([3], dtype=torch.int32),
    ... )
    >>> drafter.propose(batch).token_ids.tolist()
    [[4, 1, 2]]
    """

    prompt_lookup_min: int
    """Shortest n-gram, in tokens."""
    prompt_lookup_max: int
    """Longest n-gram, in tokens."""
    num_speculative_tokens: int
    """Width of the draft."""

    @classmethod
    def from_plan(cls, plan: Plan) -> NgramDrafter:
        low, high = plan.config.prompt_lookup_min, plan.config.prompt_lookup_max
        assert low is not None
        assert high is not None
        return cls(low, high, plan.num_speculative_tokens)

    def propose(self, batch: DraftBatch) -> Draft:
        """Deterministic drafts ``[S, num_speculative_tokens]``; no host synchronisation.

        A request is drafted no further than ``max_model_len``, the width of ``batch.token_ids``.
        """
        room = batch.token_ids.shape[1] - batch.num_tokens
        drafts = ngram_match(
            batch.token_ids,
            batch.num_tokens,
            self.prompt_lookup_min,
            self.prompt_lookup_max,
            torch.minimum(batch.num_speculative_tokens, room),
            self.num_speculative_tokens,
        )
        return Draft(token_ids=drafts)
