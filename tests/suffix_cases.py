"""Suffix decoding: golden vectors and random histories, for whoever has trees to hold to them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ascend_spec_ops.suffix_match import SuffixForest, SuffixTree, reference, suffix_match
from ascend_spec_ops.suffix_match.reference import Candidate

RUN = [1, 2, 3, 4, 5, 6]
FORK = [1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 1, 2, 3]
PAIR = [1, 2, 9, 1, 2, 7, 1, 2, 7, 1, 2]


@dataclass(frozen=True)
class Golden:
    """What a sequence that is its own context is continued with."""

    text: list[int]
    token_ids: list[int]
    probs: list[float]
    match_len: int
    parents: list[int] | None = None
    """None: a path."""
    depth: int = 24
    options: dict[str, Any] = field(default_factory=dict)


def ties(*order: int) -> list[int]:
    """0 1 2 with continuations in this order, each after a token of its own, then 0 1 2 again."""
    return [token for place, following in enumerate(order, 50) for token in (place, 0, 1, 2, following)] + [
        0,
        1,
        2,
    ]


TWICE = {"max_spec_factor": 2.0}
ONE = {"max_spec_factor": 0.4}  # one draft at a match of three
GOLDEN = [
    Golden([*RUN, 1, 2, 3], [4, 5, 6], [0.5] * 3, 3),  # the tail counts: one occurrence is a half
    Golden([*RUN, 1, 2, 3], [4, 5, 6, 1, 2, 3], [0.5] * 6, 3, options=TWICE),
    Golden([*RUN, 1, 2, 3], [4, 5, 6, 1], [0.5] * 4, 3, options={"max_spec_offset": 1.0}),
    Golden([*RUN, 1, 2, 3], [], [], 0, options={"min_token_prob": 0.6}),
    Golden([*RUN, 1, 2, 3], [4, 5, 6], [0.5] * 3, 3, options={"min_token_prob": 0.5}),
    Golden(FORK, [4, 5, 1, 2, 3, 4], [2 / 3] + [1 / 3] * 5, 3, options=TWICE),
    Golden(FORK, [4, 5, 6, 1, 1, 2], [2 / 3] + [1 / 3] * 5, 3, [-1, 0, 0, 1, 2, 3], options=TWICE),
    Golden(PAIR, [7, 1, 2, 7], [0.5, 0.5, 0.5, 0.25], 2, options=TWICE),
    Golden(PAIR, [7, 1, 2, 9], [0.5, 0.5, 0.5, 0.25], 2, [-1, 0, 1, -1], options=TWICE),
    Golden(PAIR[:8], [9, 1], [1 / 3] * 2, 2),
    Golden([*RUN, 1, 2, 3, 4], [5, 6], [0.5] * 2, 2, depth=4),
    Golden([7] * 5, [7, 7], [0.75, 0.5], 2),
    Golden([7] * 5, [7] * 4, [0.8, 0.6, 0.4, 0.2], 1, options={"max_spec_factor": 4.0}),
    Golden(ties(9, 9, 7, 7), [7], [0.4], 3, options=ONE),
    Golden(ties(9, 7, 7, 9), [9], [0.4], 3, options=ONE),
    Golden(ties(9, 7), [9], [1 / 3], 3, options=ONE),
    Golden(ties(9, 7, 9, 7), [7], [0.4], 3, options=ONE),
    Golden(ties(9, 9, 7, 8, 8), [8], [1 / 3], 3, options=ONE),  # Arctic's library: 9 (test_suffix_arctic.py)
    Golden([1, 2, -5, 1, 2], [], [], 0),  # what is no token is not proposed
    Golden([], [], [], 0),
    Golden([3], [], [], 0),
    Golden([3, 3], [3], [0.5], 1),
    Golden([4, 5, 4, 5], [4], [0.5], 2, options={"max_spec_factor": 0.5}),
]


def candidate(
    tree: SuffixTree, sequence: int, context: list[int], num_drafts: int, /, **options: Any
) -> Candidate:
    """What the tree proposes for one request; ``sequence`` -1: its context is looked up."""
    one = np.ones(1, np.int32)
    own = {"local": SuffixForest(tree.max_depth), "local_trees": -one}
    row = np.array(context, np.int32).reshape(1, -1)
    found = suffix_match(
        row, len(context) * one, num_drafts * one, num_drafts,
        **own, shared=tree, shared_sequences=sequence * one, **options,
    )  # fmt: skip
    n = int((found.token_ids[0] >= 0).sum())
    assert (found.token_ids[0, n:] == -1).all()
    columns = (found.token_ids, found.parents, found.probs)
    result = Candidate(*(tuple(column[0, :n].tolist()) for column in columns), int(found.match_lens[0]))
    assert abs(found.scores[0] - result.score) < 1e-9
    return result


def extend(tree: SuffixTree, sequences: list[int], texts: list[list[int]]) -> None:
    lengths = np.array([len(text) for text in texts], np.int32)
    rows = np.zeros((len(texts), max(lengths, default=0)), np.int32)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    tree.extend(np.array(sequences, np.int32), rows, 0 * lengths, lengths)


class History:
    """Sequences that begin, go on, end and are removed at random, in a tree and in the reference."""

    def __init__(self, rng: random.Random, removes: bool = True) -> None:
        self.rng, self.removes = rng, removes
        self.depth, self.vocab = rng.choice([1, 2, 3, 5, 8]), rng.choice([1, 2, 3, 5])
        self.reference, self.tree = reference.SuffixTree(self.depth), SuffixTree(self.depth)
        self.going: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self._names = iter(range(1000))

    def change(self) -> None:
        action = self.rng.random()
        if action < 0.25 or not self.going:
            name = next(self._names)
            self.going[name] = self.tree.start()
            self.reference.extend(name, [])
        elif action < 0.35:
            name = self.rng.choice(list(self.going))
            self.tree.end(self.going[name])
            self.ended[name] = self.going.pop(name)
        elif action < 0.38 and self.ended:  # it goes on after all
            name = self.rng.choice(list(self.ended))
            self.going[name] = self.ended.pop(name)
        elif action < 0.45 and self.removes:
            group = self.going if self.rng.random() < 0.3 or not self.ended else self.ended
            name = self.rng.choice(list(group))
            self.tree.remove(group.pop(name))
            self.reference.remove(name)
        else:
            names = self.rng.sample(list(self.going), self.rng.randint(1, len(self.going)))
            texts = [self.text(12) for _ in names]
            for name, text in zip(names, texts, strict=True):
                self.reference.extend(name, text)
            extend(self.tree, [self.going[name] for name in names], texts)

    def text(self, longest: int) -> list[int]:
        length = self.rng.randint(0, longest)
        return [self.rng.randrange(self.vocab) - (self.rng.random() < 0.05) for _ in range(length)]

    def question(self) -> tuple[Candidate, Candidate]:
        """What tree and reference propose for a context."""
        rng = self.rng
        options = {
            "max_spec_factor": rng.choice([0.5, 1.0, 2.0, 4.0]),
            "max_spec_offset": rng.choice([0.0, 1.0]),
            "min_token_prob": rng.choice([0.0, 0.1, 0.3, 0.6]),
            "tree": rng.random() < 0.4,
        }
        num_drafts, sequence, context = rng.choice([1, 3, 8]), -1, self.text(9)
        if self.going and rng.random() < 0.6:
            name = rng.choice(list(self.going))
            sequence = self.going[name]
            context = self.text(rng.choice([0, 3])) + self.reference.sequences[name]
        return (
            candidate(self.tree, sequence, context, num_drafts, **options),
            self.reference.speculate(context, num_drafts, **options),
        )

    def remove_all(self) -> None:
        for sequence in (*self.going.values(), *self.ended.values()):
            self.tree.remove(sequence)


def check_history(seed: int, removes: bool = True) -> None:
    history = History(random.Random(seed), removes)
    for _ in range(history.rng.randint(1, 25)):
        history.change()
        for _ in range(2):
            ours, reference = history.question()
            assert ours == reference, seed
    history.remove_all()
    assert history.tree.num_nodes == 1, seed
    assert history.tree.num_keys == 0, seed
