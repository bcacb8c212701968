"""The suffix drafter: what followed the last tokens most often, in this request and in outputs of others."""

from __future__ import annotations

import hashlib
import logging
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ascend_spec.config import Plan
from ascend_spec.drafters import suffix_memory
from ascend_spec.drafters.suffix_memory import Tokenizer
from ascend_spec.types import Draft, DraftBatch
from ascend_spec_ops import SuffixForest, SuffixTree, suffix_extend, suffix_match

logger = logging.getLogger(__name__)
#: requests that end between two savings of the memory
SAVE_EVERY = 1000
#: columns of what is known of a running request: its own tree (prompt and output), the sequence of its output in the
#: shared memory (-1: there is none), and how many tokens are in the trees
LOCAL, SHARED, NUM_PROMPT_TOKENS, NUM_TOKENS = range(4)
#: a row that no request has
NOBODY = 0


@dataclass(frozen=True)
class _Ended:
    request_id: str
    num_prompt_tokens: int
    num_tokens: int
    digest: bytes
    """Of prompt and output."""


class SuffixDrafter:
    """Proposes the most frequent continuation of the longest useful match of a request's last tokens.

    The rule is that of :mod:`ascend_spec_ops.suffix_match`, on two trees: one of the request's own prompt and output,
    and one shared memory of the outputs, not the prompts, of requests that run or have ended; the better score wins.
    How many drafts there are, none included, each match decides.

    A request is known by its id: one that comes back after preemption goes on with what is counted of it, one that
    begins anew under an id is a new one. Slots mean nothing. It works on the host; drafts for another device are
    copied there, and the history from there.

    >>> import torch
    >>> from ascend_spec.drafters import SuffixDrafter
    >>> from ascend_spec.types import DraftBatch
    >>> drafter = SuffixDrafter(num_speculative_tokens=8)
    >>> def int32(*values):
    ...     return torch.tensor(values, dtype=torch.int32)
    >>> batch = DraftBatch(
    ...     token_ids=int32([1, 2, 3, 4, 5, 6, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0]),
    ...     num_tokens=int32(9),
    ...     num_speculative_tokens=int32(8),
    ...     num_prompt_tokens=int32(8),
    ...     request_ids=("a",),
    ... )
    >>> drafter.propose(batch).token_ids.tolist()
    [[4, 5, 6, -1, -1, -1, -1, -1]]

    Args:
        num_speculative_tokens: the most drafts of a request, and the width of a draft.
        max_tree_depth: of a match and what follows it, in tokens.
        max_cached_requests: how many requests' outputs the memory holds, running ones included; the first that ended
            goes first. 0: there is no memory; -1: it has no bound.
        max_spec_factor: drafts for each token of the match.
        min_token_prob: the least share of a match's occurrences that a draft must follow.
        memory_path: of a file that the memory begins with, if it exists, and that it is saved to: each time
            SAVE_EVERY requests have ended, by :meth:`save`, and when the drafter goes, at the end of the process at
            the latest. None, and without a memory: no file.
        tokenizer: whose token ids these are; a file of another one's is refused.

    Raises:
        ValueError: a file that cannot be read; it is left as it is.
    """

    def __init__(
        self,
        num_speculative_tokens: int,
        max_tree_depth: int = 24,
        max_cached_requests: int = 10000,
        max_spec_factor: float = 1.0,
        min_token_prob: float = 0.1,
        memory_path: str | None = None,
        tokenizer: Tokenizer = Tokenizer(),  # noqa: B008
    ) -> None:
        self.num_speculative_tokens = num_speculative_tokens
        self.max_cached_requests = max_cached_requests
        self.max_spec_factor = max_spec_factor
        self.min_token_prob = min_token_prob
        self.local = SuffixForest(max_tree_depth)
        self.shared = SuffixTree(max_tree_depth) if max_cached_requests != 0 else None
        self._active: dict[str, int] = {}  # row of `_requests` by id
        self._requests = np.full((1, 4), -1, np.int32)
        self._free_rows: list[int] = []
        self._ended: dict[
            int, _Ended
        ] = {}  # by sequence of the shared tree, in the order in which they ended
        self._last: dict[str, int] = {}  # by id, of `_ended`
        self._sequences: dict[int, None] = {}  # of the shared tree, in the order in which they began
        self._num_unsaved = 0
        self._save: weakref.finalize | None = None
        if memory_path is not None and self.shared is not None:
            for output in suffix_memory.load(memory_path, tokenizer):
                self._remember(output)
            # holds what is saved and not the drafter, so that it may go
            self._write = partial(_write, memory_path, tokenizer, self.shared, self._sequences)
            self._save = weakref.finalize(self, self._write)

    @classmethod
    def from_plan(cls, plan: Plan) -> SuffixDrafter:
        config = plan.config
        return cls(
            plan.num_speculative_tokens,
            config.suffix_decoding_max_tree_depth,
            config.suffix_decoding_max_cached_requests,
            config.suffix_decoding_max_spec_factor,
            config.suffix_decoding_min_token_prob,
            plan.config.ascend_spec.suffix_memory_path,
            Tokenizer.of_model(plan.target.model.path, plan.target.model.vocab_size),
        )

    @property
    def num_active_requests(self) -> int:
        return len(self._active)

    @property
    def num_cached_requests(self) -> int:
        """Of which the memory holds an output, those that run included."""
        return len(self._sequences)

    def propose(self, batch: DraftBatch) -> Draft:
        """Deterministic drafts ``[S, num_speculative_tokens]``, no further than the width of ``batch.token_ids``.

        Raises:
            ValueError: the batch has no ``request_ids`` or no ``num_prompt_tokens``.
        """
        if batch.request_ids is None or batch.num_prompt_tokens is None:
            raise ValueError("suffix decoding needs request_ids and num_prompt_tokens in a DraftBatch")
        self.release(batch.request_ids)
        texts = batch.token_ids.cpu().numpy()
        num_tokens = np.minimum(batch.num_tokens.cpu().numpy(), texts.shape[1])
        prompts = batch.num_prompt_tokens.cpu().numpy()
        wanted = np.minimum(batch.num_speculative_tokens.cpu().numpy(), texts.shape[1] - num_tokens)
        drafts = np.full((len(num_tokens), self.num_speculative_tokens), -1, np.int32)
        slots = np.flatnonzero(num_tokens > 0)
        if slots.size < len(num_tokens):
            texts, num_tokens, prompts, wanted = (
                texts[slots],
                num_tokens[slots],
                prompts[slots],
                wanted[slots],
            )
        if slots.size:
            ids = [batch.request_ids[slot] for slot in slots.tolist()]
            rows, requests = self._known(ids, texts, num_tokens, prompts)
            self._count(requests, texts, num_tokens)
            self._requests[rows, NUM_TOKENS] = num_tokens
            drafts[slots] = self._match(requests, texts, num_tokens, wanted)
        return Draft(token_ids=torch.from_numpy(drafts).to(batch.token_ids.device))

    def release(self, running: Iterable[str | None]) -> None:
        """End all requests but these: what they had of their own is forgotten, their outputs stay in the memory."""
        for request_id in self._active.keys() - set(running):
            self._end(request_id)

    def save(self) -> None:
        """Write the memory to its file, if it has one. What cannot be written is logged: drafts go on."""
        self._num_unsaved = 0
        if self._save is not None:
            self._write()

    # ---- requests
    def _known(
        self, ids: list[str | None], texts: np.ndarray, num_tokens: np.ndarray, prompts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """``[n]``, rows of `_requests`, made where a request is new, and ``[4, n]``, their columns."""
        active = self._active
        rows = np.array([active.get(request_id or "", NOBODY) for request_id in ids])
        requests = self._requests[rows].T.copy()
        local, _, begun, counted = requests
        same = (counted <= num_tokens) & (begun == prompts) & self.local.ends_as(local, texts, counted)
        if same.all():
            return rows, requests
        for i in np.flatnonzero(~same):
            request_id = ids[i]
            if request_id in active:  # it ended, and its id was given to another one at once
                self._end(request_id)
            rows[i] = self._begin(request_id, texts[i, : num_tokens[i]], int(prompts[i]))
        return rows, self._requests[rows].T.copy()

    def _begin(self, request_id: str | None, text: np.ndarray, num_prompt_tokens: int) -> int:
        if request_id is None:
            raise ValueError("a DraftBatch has tokens in a slot without a request id")
        if not self._free_rows:
            have = len(self._requests)
            self._requests = np.concatenate([self._requests, np.empty((max(8, have), 4), np.int32)])
            self._free_rows.extend(range(len(self._requests) - 1, have - 1, -1))
        shared, counted = self._resumed(request_id, text, num_prompt_tokens)
        if shared < 0 and self.shared is not None:
            shared = self.shared.start()
            self._sequences[shared] = None
        local, one = self.local.plant(), np.ones(1, np.int32)
        self.local[local].extend(0 * one, np.ascontiguousarray(text)[None], 0 * one, counted * one)
        row = self._active[request_id] = self._free_rows.pop()
        self._requests[row] = local, shared, num_prompt_tokens, counted
        self._evict()
        return row

    def _end(self, request_id: str) -> None:
        row = self._active.pop(request_id)
        local, shared, num_prompt_tokens, num_tokens = self._requests[row].tolist()
        self._free_rows.append(row)
        if self.shared is not None:
            self.shared.end(shared)
            digest = _digest(self.local[local].token_ids(0))
            self._ended[shared] = _Ended(request_id, num_prompt_tokens, num_tokens, digest)
            self._last[request_id] = shared
            self._num_unsaved += 1
        self.local.fell(local)
        if self._num_unsaved >= SAVE_EVERY:
            self.save()

    def _remember(self, output: np.ndarray) -> None:
        """An output of an earlier time."""
        assert self.shared is not None
        sequence, one = self.shared.start(), np.ones(1, np.int32)
        self.shared.extend(sequence * one, output[None], 0 * one, len(output) * one)
        self.shared.end(sequence)
        self._sequences[sequence] = None
        self._ended[sequence] = _Ended("", 0, 0, b"")
        self._evict()

    def _resumed(self, request_id: str, text: np.ndarray, num_prompt_tokens: int) -> tuple[int, int]:
        """Preempted requests look as if they had ended, until they are back: then their sequence in the memory goes on.
        Returns it and how many of the tokens were counted; -1 and 0 for a new request."""
        sequence = self._last.get(request_id, -1)
        if sequence < 0:
            return -1, 0
        ended = self._ended[sequence]
        beginning = text[: ended.num_tokens]
        if ended.num_prompt_tokens != num_prompt_tokens or _digest(beginning) != ended.digest:
            return -1, 0
        del self._ended[sequence], self._last[request_id]
        return sequence, ended.num_tokens

    def _forget(self, sequence: int) -> None:
        assert self.shared is not None
        self.shared.remove(sequence)
        del self._sequences[sequence]
        request_id = self._ended.pop(sequence).request_id
        if self._last.get(request_id) == sequence:
            del self._last[request_id]

    def _evict(self) -> None:
        while self._ended and 0 <= self.max_cached_requests < self.num_cached_requests:
            self._forget(next(iter(self._ended)))

    # ---- a step
    def _count(self, requests: np.ndarray, texts: np.ndarray, num_tokens: np.ndarray) -> None:
        """Put the tokens that are new into the trees."""
        local, shared, prompts, counted = requests
        suffix_extend(
            texts, counted, num_tokens, local=self.local, local_trees=local,
            shared=self.shared, shared_sequences=shared, shared_begins=np.maximum(counted, prompts),
        )  # fmt: skip

    def _match(
        self, requests: np.ndarray, texts: np.ndarray, num_tokens: np.ndarray, wanted: np.ndarray
    ) -> np.ndarray:
        found = suffix_match(
            texts, num_tokens, wanted, self.num_speculative_tokens,
            local=self.local, local_trees=requests[LOCAL], shared=self.shared, shared_sequences=requests[SHARED],
            max_spec_factor=self.max_spec_factor, min_token_prob=self.min_token_prob,
        )  # fmt: skip
        return found.token_ids


def _write(path: str, tokenizer: Tokenizer, tree: SuffixTree, sequences: Iterable[int]) -> None:
    try:
        suffix_memory.save(path, [tree.token_ids(sequence) for sequence in sequences], tokenizer)
    except OSError as error:
        logger.warning("the suffix memory could not be saved to %r: %s", path, error)


def _digest(token_ids: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(token_ids).tobytes(), digest_size=16).digest()
