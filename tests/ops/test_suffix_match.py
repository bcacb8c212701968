"""suffix_match: golden vectors, brute force against Numba on random histories, and mutants that both must kill."""

from __future__ import annotations

import doctest
import random

import numpy as np
import pytest
import torch
from suffix_cases import GOLDEN, RUN, Golden, candidate, check_history, extend

from ascend_spec_ops.suffix_match import (
    PARALLEL_REQUESTS,
    SuffixForest,
    SuffixTree,
    reference,
    suffix_extend,
    suffix_match,
)
from ascend_spec_ops.suffix_match import extend as extend_module
from ascend_spec_ops.suffix_match import match as match_module
from ascend_spec_ops.suffix_match import tree as tree_module


def proposed(golden: Golden, name: str, num_drafts: int = 16):
    options = {"min_token_prob": 0.0, **golden.options, "tree": golden.parents is not None}
    if name == "reference":
        counted = reference.SuffixTree(golden.depth)
        counted.extend(0, golden.text)
        return counted.speculate(golden.text, num_drafts, **options)
    tree = SuffixTree(golden.depth)
    sequence = tree.start()
    extend(tree, [sequence], [golden.text])
    return candidate(tree, sequence, golden.text, num_drafts, **options)


def check_golden(golden: Golden, name: str) -> None:
    found = proposed(golden, name)
    assert list(found.token_ids) == golden.token_ids
    assert found.probs == pytest.approx(golden.probs)
    assert found.score == pytest.approx(sum(golden.probs))
    assert found.match_len == golden.match_len
    assert list(found.parents) == (golden.parents or list(range(-1, len(golden.token_ids) - 1)))


def check_all_golden(name: str) -> None:
    for golden in GOLDEN:
        check_golden(golden, name)


def check_histories(seeds: range, removes: bool = True) -> None:
    for seed in seeds:
        check_history(seed, removes)


@pytest.mark.parametrize("name", ["reference", "cpu"])
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: str(golden.text))
def test_golden(golden, name):
    check_golden(golden, name)


def test_a_tail_in_the_memory_counts():
    """Another text is followed with certainty, until the context itself stands in the memory too."""
    tree = SuffixTree(24)
    other, mine = tree.start(), tree.start()
    extend(tree, [other], [[5, 6, 7, 8, 9, 10]])
    tree.end(other)
    context = [1, 5, 6, 7]
    for sequence, probs in ((-1, (1.0,) * 3), (mine, (0.5,) * 3)):
        if sequence >= 0:
            extend(tree, [mine], [[5, 6, 7]])
        found = candidate(tree, sequence, context, 16, min_token_prob=0.0)
        assert (found.token_ids, found.probs, found.match_len) == ((8, 9, 10), probs, 3)


@pytest.mark.parametrize("part", range(20))
def test_cpu_equals_brute_force_on_random_histories(part, request):
    """2000 of them, 20000 in the long setting."""
    count = 1000 if request.config.getoption("full") else 100
    check_histories(range(part * count, (part + 1) * count))


class _EveryLength(reference.SuffixTree):
    """The candidate of every length of match, one by one."""

    def _matches(self, context, apart):
        return super()._matches(context, apart=True)


def test_lengths_of_one_count_are_continued_alike(monkeypatch):
    """Unless something was removed: then only the order of tokens that are equally frequent may differ."""
    monkeypatch.setattr(reference, "SuffixTree", _EveryLength)
    check_histories(range(300), removes=False)


def test_tokens_one_by_one_are_as_good_as_all_at_once():
    rng = random.Random(3)
    text = [rng.randrange(3) for _ in range(700)]  # over several pages
    together, single = SuffixTree(6), SuffixTree(6)
    extend(together, [together.start()], [text])
    single.start()
    for n in range(len(text)):
        extend(single, [0], [text[n : n + 1]])
    answers = [candidate(tree, 0, text, 8, max_spec_factor=2.0) for tree in (together, single)]
    assert answers[0] == answers[1]
    assert answers[0].token_ids
    assert together.token_ids(0).tolist() == single.token_ids(0).tolist() == text


def test_the_better_tree_wins_and_the_own_one_of_equal_ones():
    local, shared = SuffixForest(8), SuffixTree(8)
    mine = local.plant()
    context = [1, 2, 3, 1, 2]
    extend(local[mine], [0], [context])
    one = np.ones(1, np.int32)

    def drafts():
        return suffix_match(
            np.array([context], np.int32), 5 * one, one, 1, min_token_prob=0.0,
            local=local, local_trees=mine * one, shared=shared,
        ).token_ids.tolist()  # fmt: skip

    extend(shared, [shared.start()], [[1, 2, 8, 1, 2, 9]])
    assert drafts() == [[3]]  # a half each
    extend(shared, [shared.start()], [[1, 2, 9]])
    assert drafts() == [[9]]


class Requests:
    """Texts that go into trees of their own and, from a place of their own on, into a shared one."""

    def __init__(self, size: int, length: int) -> None:
        rng = np.random.default_rng(0)
        self.texts = rng.integers(0, 4, (size, length)).astype(np.int32)
        self.forest, self.shared = SuffixForest(8), SuffixTree(8)
        self.begins = np.zeros(size, np.int32)
        self.prompts = np.arange(size, dtype=np.int32) % length
        self.trees = {
            "local": self.forest,
            "local_trees": np.array([self.forest.plant() for _ in range(size)], np.int32),
            "shared": self.shared,
            "shared_sequences": np.array([self.shared.start() for _ in range(size)], np.int32),
        }

    def extend(self, num_tokens: int) -> None:
        ends = self.begins + num_tokens
        shared_begins = np.maximum(self.begins, self.prompts)
        suffix_extend(self.texts, self.begins, ends, **self.trees, shared_begins=shared_begins)
        self.begins = ends

    def drafts(self) -> tuple[list, ...]:
        found = suffix_match(self.texts, self.begins, 0 * self.begins + 8, 8, **self.trees)
        n = (found.token_ids >= 0).sum(1)
        columns = (found.token_ids, found.parents, found.probs)
        return *(
            [row[:k].tolist() for row, k in zip(column, n, strict=True)] for column in columns
        ), n.tolist()


def check_threads(monkeypatch) -> None:
    """Steps of many tokens and of few, by threads and without; texts are those that went in."""
    many, one_by_one = Requests(PARALLEL_REQUESTS + 5, 200), Requests(PARALLEL_REQUESTS + 5, 200)
    counted = [0, 0]
    for number, requests in enumerate((many, one_by_one)):
        if number:
            monkeypatch.setattr(match_module, "PARALLEL_REQUESTS", 1000)
            monkeypatch.setattr(extend_module, "PARALLEL_TOKENS", 10**6)
        for num_tokens in (1, 100, 7, 60, 9):
            requests.extend(num_tokens)
        counted[number] = requests.drafts()
        local, shared = requests.trees["local_trees"], requests.trees["shared_sequences"]
        for i, prompt in enumerate(requests.prompts):
            assert requests.forest[local[i]].token_ids(0).tolist() == requests.texts[i, :177].tolist()
            assert requests.shared.token_ids(shared[i]).tolist() == requests.texts[i, prompt:177].tolist()
    assert counted[0] == counted[1]
    assert sum(counted[0][-1]) > 0


def test_threads_change_nothing(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check_threads(monkeypatch)
    finally:
        torch.set_num_threads(before)


def test_a_shared_tree_that_gets_prompts_too_is_noticed(monkeypatch):
    monkeypatch.setattr(np, "maximum", lambda a, b: a)
    with pytest.raises(AssertionError):
        check_threads(monkeypatch)


def test_a_felled_tree_leaves_nothing():
    forest = SuffixForest(8)
    trees = [forest.plant() for _ in range(20)]
    sizes = {forest.nbytes}
    for number in trees[5:]:
        extend(forest[number], [0], [[1, 2, 3] * 20])
        forest.fell(number)
    assert len(forest) == 5
    again = [forest.plant() for _ in range(15)]
    assert sorted([*trees[:5], *again]) == sorted(trees)
    sizes.add(forest.nbytes)
    assert len(sizes) == 1
    one = np.ones(1, np.int32)
    assert forest.ends_as(again[0] * one, np.array([[9]], np.int32), 0 * one).tolist() == [True]


def test_memory_is_reclaimed():
    """Ten thousand sequences, of which a hundred are kept, take no more than a few hundred do."""
    rng = np.random.default_rng(1)
    tree, one, kept = SuffixTree(16), np.ones(1, np.int32), []
    sizes = []
    for count in range(10_000):
        kept.append(tree.start())
        text = rng.integers(0, 50, (1, 20)).astype(np.int32)
        tree.extend(kept[-1] * one, text, 0 * one, 20 * one)
        tree.end(kept[-1])
        if len(kept) > 100:
            tree.remove(kept.pop(0))
        if count in (500, 9_999):
            sizes.append(tree.nbytes)
    assert sizes[0] == sizes[1]
    assert tree.num_sequences == 100


def test_bad_depth():
    with pytest.raises(ValueError, match="max_depth=0"):
        SuffixTree(0)


def test_counts_out_of_range_are_clamped():
    forest = SuffixForest(8)
    tree = forest.plant()
    text = [*RUN, 1, 2, 3]
    extend(forest[tree], [0], [text])
    rows = np.array([text] * 3, np.int32)
    lengths, wanted = np.array([99, -1, 9], np.int32), np.array([99, 3, -2], np.int32)
    found = suffix_match(rows, lengths, wanted, 2, local=forest, local_trees=np.full(3, tree, np.int32))
    assert found.token_ids.tolist() == [[4, 5], [-1, -1], [-1, -1]]


def test_docstring_example():
    result = doctest.testmod(tree_module)
    assert result.attempted > 0
    assert result.failed == 0


# ---- mutants of the rule: vectors and random histories must tell each from it
class _TailLeftOut(reference.SuffixTree):
    """A single earlier occurrence would be certain."""

    def _path(self, node, budget, min_prob):
        entry = self.entries[node]
        entry.count -= 1
        try:
            return super()._path(node, budget, min_prob) if entry.count else reference.Candidate()
        finally:
            entry.count += 1


class _WholeContext(reference.SuffixTree):
    """Matches as long as the context."""

    def speculate(self, context, num_drafts, **options):
        return super().speculate([None, *context], num_drafts, **options)


class _FirstInserted(reference.SuffixTree):
    """Of equal tokens the one that came first, however often they were seen."""

    def _count(self, substring):
        stamp = self.entries[substring].stamp if substring in self.entries else -self._clock
        super()._count(substring)
        self.entries[substring].stamp = stamp


class _LastInserted(reference.SuffixTree):
    """The last one also of those that were seen once."""

    def _count(self, substring):
        super()._count(substring)
        self.entries[substring].stamp = self._clock


class _ShortestMatch(reference.SuffixTree):
    """Of equal scores the first."""

    def speculate(self, context, num_drafts, **options):
        ends = (context[len(context) - n :] for n in range(2, len(context) + 1))
        found = [super(_ShortestMatch, self).speculate(end, num_drafts, **options) for end in ends]
        return max(found, key=lambda each: each.score, default=reference.Candidate())


class _RoundedBudget(reference.SuffixTree):
    def speculate(self, context, num_drafts, *, max_spec_offset=0.0, **options):
        return super().speculate(context, num_drafts, max_spec_offset=max_spec_offset + 0.5, **options)


MUTANTS = [_TailLeftOut, _WholeContext, _FirstInserted, _LastInserted, _ShortestMatch, _RoundedBudget]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_random_histories_kill_mutants(mutant, monkeypatch):
    monkeypatch.setattr(reference, "SuffixTree", mutant)
    with pytest.raises(AssertionError):
        check_histories(range(200))


@pytest.mark.parametrize("mutant", [_TailLeftOut, _FirstInserted, _LastInserted])
def test_golden_vectors_kill_mutants(mutant, monkeypatch):
    monkeypatch.setattr(reference, "SuffixTree", mutant)
    with pytest.raises(AssertionError):
        check_all_golden("reference")


def _keep_counts(tree, sequence):
    """A sequence that is removed goes on being counted."""


def test_random_histories_notice_a_removal_that_removes_nothing(monkeypatch):
    monkeypatch.setattr(SuffixTree, "remove", _keep_counts)
    with pytest.raises(AssertionError):
        check_histories(range(100))
