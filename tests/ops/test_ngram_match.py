"""ngram_match: golden vectors, brute force against Numba and Triton, and mutants the vectors must kill."""

from __future__ import annotations

import random

import pytest
import torch

from ascend_spec_ops import ngram_match
from ascend_spec_ops.ngram_match import cpu, launch, reference

IMPLEMENTATIONS = {"cpu": cpu.ngram_match, "triton": launch.ngram_match, "reference": reference.ngram_match}
STALE = 7_777_777

# tokens, min_n, max_n, drafts wanted, draft
GOLDEN = [
    ([1, 2, 3, 4, 1, 2, 3], 2, 3, 3, [4, 1, 2]),
    ([1, 2, 9, 1, 2, 7, 1, 2], 2, 2, 3, [9, 1, 2]),  # earliest, not latest
    ([5, 5, 5, 5], 1, 3, 3, [5]),  # the match overlaps the suffix; one token is left
    ([1, 2, 3], 1, 3, 3, []),
    ([3, 1, 2, 3, 8, 9, 2, 3], 1, 3, 2, [8, 9]),  # longest before earliest
    ([1, 2, 3, 4, 1, 2, 3], 3, 5, 2, [4, 1]),
    ([], 1, 3, 3, []),
    ([4], 1, 1, 3, []),
    ([4, 4], 1, 5, 3, [4]),
    ([4, 4], 2, 5, 3, []),
    ([6, 1, 6, 1, 6, 1, 6], 1, 3, 9, [1, 6, 1, 6]),  # runs into the suffix and stops at the end
    ([1, 2, 3, 1, 2], 2, 2, 0, []),
    ([7, 3, 0, 7], 2, 3, 3, []),  # nothing stands before the row, not even a 0
]


def call(implementation, rows, min_n, max_n, num_drafts, max_drafts, width=None):
    """Run on ragged rows, in a wider tensor whose tail holds a repetition that only a bug can see."""
    width = width or max((len(row) for row in rows), default=0) + 5
    token_ids = torch.full((len(rows), width), STALE, dtype=torch.int32)
    for s, row in enumerate(rows):
        token_ids[s, : len(row)] = torch.tensor(row, dtype=torch.int32)
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    wanted = torch.tensor(num_drafts, dtype=torch.int32)
    return implementation(token_ids, lengths, min_n, max_n, wanted, max_drafts).tolist()


def padded(draft, width):
    return draft + [-1] * (width - len(draft))


def random_row(rng, length):
    """Few symbols, so that matches of every length occur; sometimes periodic, the worst case of a search."""
    alphabet = rng.choice([1, 2, 3, 8, 150_000])
    if rng.random() < 0.3:
        period = [rng.randrange(alphabet) for _ in range(rng.randint(1, 6))]
        return (period * (length // len(period) + 1))[:length]
    return [rng.randrange(alphabet) for _ in range(length)]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(("tokens", "min_n", "max_n", "wanted", "draft"), GOLDEN)
def test_golden(name, tokens, min_n, max_n, wanted, draft):
    assert call(IMPLEMENTATIONS[name], [tokens], min_n, max_n, [wanted], 9) == [padded(draft, 9)]


@pytest.mark.parametrize("seed", range(20))
def test_cpu_equals_brute_force(seed):
    rng = random.Random(seed)
    for _ in range(100):
        rows = [random_row(rng, rng.randint(0, 40)) for _ in range(rng.randint(1, 8))]
        min_n = rng.randint(1, 6)
        max_n = rng.randint(min_n, 9)
        wanted = [rng.randint(-1, 7) for _ in rows]
        args = (rows, min_n, max_n, wanted, 5)
        assert call(cpu.ngram_match, *args) == call(reference.ngram_match, *args), args


@pytest.mark.parametrize(
    ("num_rows", "lengths", "min_n", "max_n", "max_drafts"),
    [
        (1, (0, 0), 1, 1, 1),
        (1, (1, 1), 1, 3, 2),
        (5, (0, 40), 1, 3, 4),
        (3, (1000, 1030), 2, 5, 3),  # around one block
        (2, (2040, 4200), 3, 7, 8),  # several parts a row
        (9, (0, 1100), 5, 5, 16),
        (6, (0, 20), 1, 30, 5),  # n-grams longer than the row
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_triton_equals_brute_force(num_rows, lengths, min_n, max_n, max_drafts, seed):
    rng = random.Random(seed)
    rows = [random_row(rng, rng.randint(*lengths)) for _ in range(num_rows)]
    args = (rows, min_n, max_n, [rng.randint(0, max_drafts) for _ in rows], max_drafts)
    assert call(launch.ngram_match, *args) == call(reference.ngram_match, *args)


@pytest.mark.parametrize("position", [3, 1020, 1023, 1024, 1025, 3000, 4094, 5000, 8190])
@pytest.mark.parametrize("name", ["cpu", "triton"])
def test_match_across_blocks(name, position):
    """A single occurrence, placed on either side of and across the seams of the kernel's blocks."""
    row = list(range(10, 9010))
    row[position : position + 4] = [1, 2, 3, 4]
    row[-4:] = [1, 2, 3, 4]
    expected = row[position + 4 : position + 7]
    assert call(IMPLEMENTATIONS[name], [row], 2, 4, [3], 3) == [expected]


@pytest.mark.parametrize("name", ["cpu", "triton"])
@pytest.mark.parametrize("positions", [(600, 1500, 2500, 3500), (1500, 5600), (600, 900, 8200)])
def test_earliest_of_equal_matches(name, positions):
    """In different parts of the row, in different blocks of a part, in one block."""
    row = list(range(10, 9010))
    for position in positions:
        row[position : position + 2] = [1, 2]
    row[-2:] = [1, 2]
    assert call(IMPLEMENTATIONS[name], [row], 2, 4, [2], 2) == [row[positions[0] + 2 : positions[0] + 4]]


@pytest.mark.parametrize("name", ["cpu", "triton"])
def test_neighbouring_tokens_are_told_apart(name):
    """Ids that a float32 would confuse differ."""
    big = 1 << 30
    assert call(IMPLEMENTATIONS[name], [[big + 1, 5, big]], 1, 1, [1], 1) == [[-1]]
    assert call(IMPLEMENTATIONS[name], [[big, 5, big]], 1, 1, [1], 1) == [[5]]


@pytest.mark.parametrize("name", ["cpu", "triton"])
def test_stale_tokens_are_never_read(name):
    """The tail repeats the suffix, and continues it: neither may match nor be proposed."""
    token_ids = torch.tensor([[1, 2, 3, 1, 2, 3, 3, 1, 2], [8, 9, 9, 8, 9, 8, 9, 8, 9]], dtype=torch.int32)
    lengths = torch.tensor([3, 2], dtype=torch.int32)
    wanted = torch.tensor([4, 4], dtype=torch.int32)
    out = IMPLEMENTATIONS[name](token_ids, lengths, 1, 3, wanted, 4)
    assert out.tolist() == [[-1] * 4] * 2


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_out_of_range_counts_are_clamped(name):
    token_ids = torch.tensor([[1, 2, 1, 2], [1, 2, 1, 2], [1, 2, 1, 2]], dtype=torch.int32)
    lengths = torch.tensor([99, -3, 4], dtype=torch.int32)
    wanted = torch.tensor([99, 2, -1], dtype=torch.int32)
    out = IMPLEMENTATIONS[name](token_ids, lengths, 1, 2, wanted, 2)
    assert out.tolist() == [[1, 2], [-1, -1], [-1, -1]]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(("num_rows", "width", "max_drafts"), [(0, 8, 3), (2, 0, 3), (2, 8, 0)])
def test_empty_shapes(name, num_rows, width, max_drafts):
    zeros = torch.zeros(num_rows, dtype=torch.int32)
    token_ids = torch.zeros((num_rows, width), dtype=torch.int32)
    out = IMPLEMENTATIONS[name](token_ids, zeros, 1, 2, zeros, max_drafts)
    assert out.shape == (num_rows, max_drafts)
    assert (out == -1).all()


@pytest.mark.parametrize("name", ["cpu", "triton"])
def test_rows_of_a_wider_tensor(name):
    storage = torch.full((3, 50), 1, dtype=torch.int32)
    storage[:, 10:14] = torch.tensor([1, 2, 1, 2], dtype=torch.int32)
    view = storage[::2, 10:20]
    counts = torch.tensor([4, 4], dtype=torch.int32)
    assert IMPLEMENTATIONS[name](view, counts, 2, 2, counts, 3).tolist() == [[1, 2, -1]] * 2
    assert IMPLEMENTATIONS[name](view, counts, 3, 3, counts, 3).tolist() == [[-1, -1, -1]] * 2


def test_parallel_equals_serial(monkeypatch):
    rng = random.Random(1)
    args = ([random_row(rng, rng.randint(0, 60)) for _ in range(33)], 1, 4, [4] * 33, 4)
    serial = call(cpu.ngram_match, *args)
    monkeypatch.setattr(cpu, "PARALLEL_TOKENS", 0)
    assert call(cpu.ngram_match, *args) == serial


def _latest(tokens, min_n, max_n, wanted):
    n = len(tokens)
    for m in range(min(max_n, n - 1), min_n - 1, -1):
        for start in reversed(range(n - m)):
            if tokens[start : start + m] == tokens[n - m :]:
                return tokens[start + m : start + m + wanted]
    return []


def _no_overlap(tokens, min_n, max_n, wanted):
    n = len(tokens)
    for m in range(min(max_n, n - 1), min_n - 1, -1):
        for start in range(n - 2 * m + 1):
            if tokens[start : start + m] == tokens[n - m :]:
                return tokens[start + m : start + m + wanted]
    return []


def _shortest(tokens, min_n, max_n, wanted):
    return next((d for m in range(min_n, max_n + 1) if (d := reference.match(tokens, m, m, wanted))), [])


def _stops_at_suffix(tokens, min_n, max_n, wanted):
    draft = reference.match(tokens, min_n, max_n, wanted)
    return draft[:1]


@pytest.mark.parametrize("mutant", [_latest, _no_overlap, _shortest, _stops_at_suffix])
def test_golden_vectors_kill_mutants(mutant):
    assert any(mutant(tokens, lo, hi, wanted) != draft for tokens, lo, hi, wanted, draft in GOLDEN)


def test_operator_and_opcheck():
    token_ids = torch.tensor([[1, 2, 3, 4, 1, 2, 3, 0]], dtype=torch.int32)
    args = (token_ids, torch.tensor([7], dtype=torch.int32), 2, 3, torch.tensor([3], dtype=torch.int32), 4)
    assert ngram_match(*args).tolist() == [[4, 1, 2, -1]]
    torch.library.opcheck(torch.ops.ascend_spec.ngram_match.default, args)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"min_n": 0}, ValueError, "min_n=0"),
        ({"min_n": 3, "max_n": 2}, ValueError, "max_n=2"),
        ({"max_drafts": -1}, ValueError, "max_drafts=-1"),
        ({"token_ids": torch.zeros(2, 4)}, RuntimeError, r"pass \[S, L"),
        ({"token_ids": torch.zeros(4, 2, dtype=torch.int32).t()}, RuntimeError, "contiguous"),
        ({"num_tokens": torch.zeros(3, dtype=torch.int32)}, RuntimeError, "num_tokens is"),
        ({"num_tokens": torch.zeros(4, dtype=torch.int32)[::2]}, RuntimeError, "contiguous"),
        ({"num_drafts": torch.zeros(2)}, RuntimeError, "num_drafts is"),
    ],
)
def test_bad_input(changes, error, text):
    good = {
        "token_ids": torch.zeros(2, 4, dtype=torch.int32),
        "num_tokens": torch.zeros(2, dtype=torch.int32),
        "min_n": 1,
        "max_n": 2,
        "num_drafts": torch.zeros(2, dtype=torch.int32),
        "max_drafts": 2,
    }
    with pytest.raises(error, match=text):
        ngram_match(**{**good, **changes})
