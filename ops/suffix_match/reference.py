"""Suffix decoding by brute force: every substring up to the depth, counted in a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import floor

Substring = tuple[int, ...]


@dataclass
class _Entry:
    count: int
    stamp: int
    """Of equal counts the larger one comes first: when it was last incremented, and of what never was,
    minus the time when it came."""
    children: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Candidate:
    """What one tree proposes."""

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    """Of each token the index of the one it continues; -1: the last token of the context."""
    probs: tuple[float, ...] = ()
    """Of each token, together with those it continues."""
    match_len: int = 0

    @property
    def score(self) -> float:
        return sum(self.probs)


class SuffixTree:
    """Counts of all substrings of at most ``max_depth`` tokens, of any number of sequences."""

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self.entries: dict[Substring, _Entry] = {(): _Entry(0, 0)}
        self.sequences: dict[int, list[int]] = {}
        self._clock = 0

    def extend(self, sequence: int, token_ids: Sequence[int]) -> None:
        """Append tokens to a sequence, which begins with its first ones."""
        text = self.sequences.setdefault(sequence, [])
        for token in token_ids:
            text.append(token)
            self._clock += 1
            for length in range(1, min(len(text), self.max_depth) + 1):
                self._count(tuple(text[len(text) - length :]))

    def _count(self, substring: Substring) -> None:
        entry = self.entries.get(substring)
        if entry is None:
            self.entries[substring] = _Entry(1, -self._clock)
            self.entries[substring[:-1]].children.add(substring[-1])
        else:
            entry.count += 1
            entry.stamp = self._clock

    def remove(self, sequence: int) -> None:
        """Forget a sequence: counts are as if it had never been."""
        text = self.sequences.pop(sequence)
        for start in range(len(text)):
            for end in range(min(len(text), start + self.max_depth), start, -1):
                substring = tuple(text[start:end])
                entry = self.entries[substring]
                entry.count -= 1
                if entry.count == 0:
                    del self.entries[substring]
                    self.entries[substring[:-1]].children.discard(substring[-1])

    def children(self, substring: Substring) -> list[int]:
        """What follows, most frequent first."""

        def place(token: int) -> tuple[int, int]:
            child = (*substring, token)
            entry = self.entries[child]
            return -entry.count, -entry.stamp

        return sorted(self.entries[substring].children, key=place)

    def speculate(
        self,
        context: Sequence[int],
        num_drafts: int,
        *,
        max_spec_factor: float = 1.0,
        max_spec_offset: float = 0.0,
        min_token_prob: float = 0.0,
        tree: bool = False,
    ) -> Candidate:
        """The candidate of the best score among those of all match lengths; of equal ones the longest match."""
        context = tuple(context)[-self.max_depth :]
        most = {
            length: min(num_drafts, floor(max_spec_factor * length + max_spec_offset + 1e-6))
            for length in range(1, len(context))
        }
        best = Candidate()
        for lengths in self._matches(context, apart=tree):
            if not tree:  # a path ends where the tree does
                most |= {length: min(most[length], self.max_depth - length) for length in lengths}
            farthest = max(lengths, key=lambda length: (most[length], length))
            expand = self._tree if tree else self._path
            found = expand(context[len(context) - farthest :], most[farthest], min_token_prob)
            if found.token_ids and found.score >= best.score:
                longest = max(length for length in lengths if most[length] >= len(found.token_ids))
                best = replace(found, match_len=longest)
        return best

    def _matches(self, context: Substring, apart: bool) -> list[list[int]]:
        """Lengths of the context's ends that occur and are followed by something, those of one count together."""
        groups: list[list[int]] = []
        counts: list[int] = []
        for length in range(1, len(context)):
            entry = self.entries.get(context[len(context) - length :])
            if entry is None or not entry.children:
                break
            if apart or entry.count not in counts[-1:]:
                groups.append([])
            groups[-1].append(length)
            counts.append(entry.count)
        return groups

    def _path(self, node: Substring, budget: int, min_prob: float) -> Candidate:
        tokens: list[int] = []
        probs: list[float] = []
        at = node
        while len(tokens) < budget and (following := self.children(at)):
            at = (*at, following[0])
            prob = self.entries[at].count / self.entries[node].count
            if prob < min_prob or following[0] < 0:
                break
            tokens.append(following[0])
            probs.append(prob)
        return Candidate(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(probs), len(node))

    def _tree(self, node: Substring, budget: int, min_prob: float) -> Candidate:
        tokens: list[int] = []
        probs: list[float] = []
        parents: list[int] = []
        waiting = [(-1, node)]  # parent, and what is expanded
        frontier: list[
            tuple[int, int, Substring]
        ] = []  # count, parent, substring; in the order of their coming
        while len(tokens) < budget:
            for parent, at in waiting:
                children = ((*at, token) for token in self.children(at) if token >= 0)
                frontier += [(self.entries[child].count, parent, child) for child in children]
            if not frontier:
                break
            best = max(range(len(frontier)), key=lambda i: (frontier[i][0], -i))
            count, parent, child = frontier.pop(best)
            prob = count / self.entries[node].count
            if prob < min_prob:
                break
            tokens.append(child[-1])
            probs.append(prob)
            parents.append(parent)
            waiting = [(len(tokens) - 1, child)]
        return Candidate(tuple(tokens), tuple(parents), tuple(probs), len(node))
