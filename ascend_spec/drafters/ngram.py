"""The n-gram drafter (prompt lookup): the request's own history continues as it did before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ascend_spec.config import Plan
from ascend_spec.types import Draft, DraftBatch
from ascend_spec_ops import ngram_match
from ascend_spec_ops.ngram_match import NO_BOUND


@dataclass(frozen=True)
class NgramDrafter:
    """Proposes what followed the longest earlier occurrence of a request's last tokens.

    It needs no weights, works on whichever device holds the token history, and keeps no state: nothing is to be
    freed with a request, or to be told of one that was preempted. The rule is that of
    :func:`ascend_spec_ops.ngram_match`: longest match first, then the earliest or the most recent.

    >>> import torch
    >>> from ascend_spec.drafters import NgramDrafter
    >>> from ascend_spec.types import DraftBatch
    >>> drafter = NgramDrafter(prompt_lookup_min=2, prompt_lookup_max=4, num_speculative_tokens=3)
    >>> history = torch.tensor([[1, 2, 3, 4, 1, 2, 3, 0, 0, 0, 0]], dtype=torch.int32)
    >>> batch = DraftBatch(
    ...     token_ids=history,
    ...     num_tokens=torch.tensor([7], dtype=torch.int32),
    ...     num_speculative_tokens=torch.tensor([3], dtype=torch.int32),
    ... )
    >>> drafter.propose(batch).token_ids.tolist()
    [[4, 1, 2]]

    Of several longest matches, ``match`` says which is taken:

    >>> batch.token_ids[0, :8] = torch.tensor([1, 2, 9, 1, 2, 7, 1, 2])
    >>> batch.num_tokens[0] = 8
    >>> drafter.propose(batch).token_ids.tolist()
    [[9, 1, 2]]
    >>> NgramDrafter(2, 4, 3, match="recent").propose(batch).token_ids.tolist()
    [[7, 1, 2]]
    """

    prompt_lookup_min: int
    """Shortest n-gram, in tokens."""
    prompt_lookup_max: int
    """Longest n-gram, in tokens."""
    num_speculative_tokens: int
    """Width of the draft."""
    match: str = "earliest"
    """"earliest" or "recent", of the longest matches."""
    vocab_size: int | None = None
    """Ids from it on, and those below 0, are in no draft; None: only those below 0."""

    @classmethod
    def from_plan(cls, plan: Plan) -> NgramDrafter:
        low, high = plan.config.prompt_lookup_min, plan.config.prompt_lookup_max
        assert low is not None
        assert high is not None
        match, vocab_size = plan.config.ascend_spec.match, plan.target.model.vocab_size
        return cls(low, high, plan.num_speculative_tokens, match, vocab_size)

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
            self.match,
            self.vocab_size or NO_BOUND,
        )
        return Draft(token_ids=drafts)

    def propose_on_host(
        self, token_ids: np.ndarray, num_tokens: np.ndarray, num_speculative_tokens: np.ndarray
    ) -> np.ndarray:
        """:meth:`propose` for histories that are arrays already, as in vLLM's V1 runner: what surrounds the search
        takes longer than the search there.

        Args:
            token_ids: ``[S, max_model_len]`` int32, rows contiguous.
            num_tokens: ``[S]`` int32.
            num_speculative_tokens: ``[S]`` int32.

        Returns:
            ``[S, num_speculative_tokens of the drafter]`` int32, -1 behind a row's drafts.
        """
        from ascend_spec_ops.ngram_match.cpu import match_rows  # numba

        return match_rows(
            token_ids,
            num_tokens,
            self.prompt_lookup_min,
            self.prompt_lookup_max,
            np.minimum(num_speculative_tokens, token_ids.shape[1] - num_tokens),
            self.num_speculative_tokens,
            self.match,
            self.vocab_size or NO_BOUND,
        )
