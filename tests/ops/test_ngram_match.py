"""ngram_match: golden vectors, and what is particular to an implementation. Fuzz and mutants: ``test_ngram_fuzz``."""

from __future__ import annotations

import random
import sys

import pytest
import torch

from ascend_spec_ops import ngram_match, selection
from ascend_spec_ops import warm_up as run_warm_up
from ascend_spec_ops.ngram_match import MATCHES, NO_BOUND, cpu, launch, reference, torch_fallback

IMPLEMENTATIONS = {
    "cpu": cpu.ngram_match,
    "triton": launch.ngram_match,
    "torch": torch_fallback.ngram_match,
    "reference": reference.ngram_match,
}
FAST = [name for name in IMPLEMENTATIONS if name != "reference"]
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
    ([1, 2, 9, 1, 2, 8, 1, 2], 1, 2, 1, [9]),
    ([7] * 10, 1, 3, 5, [7] * 5),
    ([8, 8, 8], 3, 3, 2, []),  # as long as the row
    ([8, 8, 8, 8], 3, 3, 2, [8]),  # one token more
    ([1, 2, 3, 1], 1, 9, 9, [2, 3, 1]),  # more is wanted than there is: no padding
]
#: of those where the most recent match is another one, and some more
GOLDEN_RECENT = [
    ([1, 2, 3, 4, 1, 2, 3], 2, 3, 3, [4, 1, 2]),
    ([1, 2, 9, 1, 2, 7, 1, 2], 2, 2, 3, [7, 1, 2]),
    ([5, 5, 5, 5], 1, 3, 3, [5]),
    ([1, 2, 3], 1, 3, 3, []),
    ([3, 1, 2, 3, 8, 9, 2, 3], 1, 3, 2, [8, 9]),  # longest before most recent
    ([1, 2, 3, 4, 1, 2, 3], 3, 5, 2, [4, 1]),
    ([6, 1, 6, 1, 6, 1, 6], 1, 3, 9, [1, 6]),
    ([1, 2, 9, 1, 2, 8, 1, 2], 1, 2, 1, [8]),
    ([7] * 10, 1, 3, 5, [7]),
    ([4, 1, 4, 2, 4], 1, 2, 2, [2, 4]),
    ([], 1, 3, 3, []),
]


def call(
    implementation,
    rows,
    min_n,
    max_n,
    num_drafts,
    max_drafts,
    match="earliest",
    vocab_size=NO_BOUND,
    width=None,
):
    """Run on ragged rows, in a wider tensor whose tail holds a repetition that only a bug can see."""
    width = width or max((len(row) for row in rows), default=0) + 5
    token_ids = torch.full((len(rows), width), STALE, dtype=torch.int32)
    for s, row in enumerate(rows):
        token_ids[s, : len(row)] = torch.tensor(row, dtype=torch.int32)
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    wanted = torch.tensor(num_drafts, dtype=torch.int32)
    return implementation(token_ids, lengths, min_n, max_n, wanted, max_drafts, match, vocab_size).tolist()


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


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(("tokens", "min_n", "max_n", "wanted", "draft"), GOLDEN_RECENT)
def test_golden_recent(name, tokens, min_n, max_n, wanted, draft):
    assert call(IMPLEMENTATIONS[name], [tokens], min_n, max_n, [wanted], 9, "recent") == [padded(draft, 9)]


@pytest.mark.parametrize("match", MATCHES)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("tokens", "vocab_size", "draft"),
    [
        ([1, 2, 5, 6, 1, 2], 7, [5, 6, 1]),
        ([1, 2, 5, 6, 1, 2], 6, [5]),
        ([1, 2, 5, 6, 1, 2], 5, []),
        ([1, 2, 5, -1, 1, 2], NO_BOUND, [5]),  # as vLLM marks tokens that the host has not seen
        ([-7, 2, 5, 6, -7, 2], NO_BOUND, [5, 6]),
        ([9, 2, 5, 6, 9, 2], 9, [5, 6]),  # matched like any other
    ],
)
def test_what_is_no_token_is_matched_and_never_drafted(name, match, tokens, vocab_size, draft):
    found = call(IMPLEMENTATIONS[name], [tokens], 2, 3, [3], 4, match, vocab_size)
    assert found == [padded(draft, 4)]


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
@pytest.mark.parametrize("match", MATCHES)
@pytest.mark.parametrize("seed", range(2))
def test_triton_equals_brute_force(num_rows, lengths, min_n, max_n, max_drafts, match, seed):
    rng = random.Random(seed)
    rows = [random_row(rng, rng.randint(*lengths)) for _ in range(num_rows)]
    args = (rows, min_n, max_n, [rng.randint(0, max_drafts) for _ in rows], max_drafts, match)
    assert call(launch.ngram_match, *args) == call(reference.ngram_match, *args)


@pytest.mark.parametrize("position", [3, 1020, 1023, 1024, 1025, 3000, 4094, 5000, 8190])
@pytest.mark.parametrize("name", FAST)
def test_match_across_blocks(name, position):
    """A single occurrence, placed on either side of and across the seams of the kernel's blocks."""
    row = list(range(10, 9010))
    row[position : position + 4] = [1, 2, 3, 4]
    row[-4:] = [1, 2, 3, 4]
    expected = row[position + 4 : position + 7]
    assert call(IMPLEMENTATIONS[name], [row], 2, 4, [3], 3) == [expected]


@pytest.mark.parametrize(("match", "chosen"), [("earliest", 0), ("recent", -1)])
@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("positions", [(600, 1500, 2500, 3500), (1500, 5600), (600, 900, 8200)])
def test_which_of_equal_matches(name, positions, match, chosen):
    """In different parts of the row, in different blocks of a part, in one block."""
    row = list(range(10, 9010))
    for position in positions:
        row[position : position + 2] = [1, 2]
    row[-2:] = [1, 2]
    expected = row[positions[chosen] + 2 : positions[chosen] + 4]
    assert call(IMPLEMENTATIONS[name], [row], 2, 4, [2], 2, match) == [expected]


@pytest.mark.parametrize("name", FAST)
def test_neighbouring_tokens_are_told_apart(name):
    """Ids that a float32 would confuse differ."""
    big = 1 << 30
    assert call(IMPLEMENTATIONS[name], [[big + 1, 5, big]], 1, 1, [1], 1) == [[-1]]
    assert call(IMPLEMENTATIONS[name], [[big, 5, big]], 1, 1, [1], 1) == [[5]]


@pytest.mark.parametrize("match", MATCHES)
@pytest.mark.parametrize("name", FAST)
def test_stale_tokens_do_not_matter(name, match):
    """The tail repeats the suffix, and continues it: neither may match nor be proposed."""
    token_ids = torch.tensor([[1, 2, 3, 1, 2, 3, 3, 1, 2], [8, 9, 9, 8, 9, 8, 9, 8, 9]], dtype=torch.int32)
    lengths = torch.tensor([3, 2], dtype=torch.int32)
    wanted = torch.tensor([4, 4], dtype=torch.int32)
    out = IMPLEMENTATIONS[name](token_ids, lengths, 1, 3, wanted, 4, match, NO_BOUND)
    assert out.tolist() == [[-1] * 4] * 2


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_out_of_range_counts_are_clamped(name):
    token_ids = torch.tensor([[1, 2, 1, 2], [1, 2, 1, 2], [1, 2, 1, 2]], dtype=torch.int32)
    lengths = torch.tensor([99, -3, 4], dtype=torch.int32)
    wanted = torch.tensor([99, 2, -1], dtype=torch.int32)
    out = IMPLEMENTATIONS[name](token_ids, lengths, 1, 2, wanted, 2, "earliest", NO_BOUND)
    assert out.tolist() == [[1, 2], [-1, -1], [-1, -1]]


@pytest.mark.parametrize("match", MATCHES)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(("num_rows", "width", "max_drafts"), [(0, 8, 3), (2, 0, 3), (2, 8, 0), (0, 0, 0)])
def test_empty_shapes(name, match, num_rows, width, max_drafts):
    zeros = torch.zeros(num_rows, dtype=torch.int32)
    token_ids = torch.zeros((num_rows, width), dtype=torch.int32)
    out = IMPLEMENTATIONS[name](token_ids, zeros, 1, 2, zeros, max_drafts, match, NO_BOUND)
    assert out.shape == (num_rows, max_drafts)
    assert (out == -1).all()


@pytest.mark.parametrize("name", FAST)
def test_rows_of_a_wider_tensor(name):
    storage = torch.full((3, 50), 1, dtype=torch.int32)
    storage[:, 10:14] = torch.tensor([1, 2, 1, 2], dtype=torch.int32)
    view = storage[::2, 10:20]
    counts = torch.tensor([4, 4], dtype=torch.int32)
    for n, expected in ((2, [1, 2, -1]), (3, [-1, -1, -1])):
        out = IMPLEMENTATIONS[name](view, counts, n, n, counts, 3, "recent", NO_BOUND)
        assert out.tolist() == [expected] * 2


def test_parallel_equals_serial(monkeypatch):
    rng = random.Random(1)
    args = ([random_row(rng, rng.randint(0, 60)) for _ in range(33)], 1, 4, [4] * 33, 4)
    serial = call(cpu.ngram_match, *args)
    monkeypatch.setattr(cpu, "PARALLEL_TOKENS", 0)
    assert call(cpu.ngram_match, *args) == serial


def test_operator_and_opcheck():
    token_ids = torch.tensor([[1, 2, 3, 4, 1, 2, 3, 0]], dtype=torch.int32)
    args = (token_ids, torch.tensor([7], dtype=torch.int32), 2, 3, torch.tensor([3], dtype=torch.int32), 4)
    assert ngram_match(*args).tolist() == [[4, 1, 2, -1]]
    torch.library.opcheck(torch.ops.ascend_spec.ngram_match.default, (*args, "recent", 100))


def test_operator_hands_on_what_is_asked():
    token_ids = torch.tensor([[1, 2, 9, 1, 2, 7, 1, 2]], dtype=torch.int32)
    args = (token_ids, torch.tensor([8], dtype=torch.int32), 2, 2, torch.tensor([3], dtype=torch.int32), 3)
    assert ngram_match(*args).tolist() == [[9, 1, 2]]
    assert ngram_match(*args, match="recent").tolist() == [[7, 1, 2]]
    assert ngram_match(*args, match="recent", vocab_size=7).tolist() == [[-1] * 3]


@pytest.mark.parametrize("device", ["cuda", "npu"])
def test_without_triton_torch_is_asked(device, monkeypatch):
    args = (None, None, 1, 1, None, 1, "earliest", NO_BOUND)
    assert selection.choose("ngram_match", device, *args).name == "triton"
    monkeypatch.setitem(sys.modules, "triton", None)
    package = sys.modules["ascend_spec_ops.ngram_match"]
    monkeypatch.setattr(package, "find_spec", lambda name: None)
    package._lacks_triton.cache_clear()
    try:
        assert selection.choose("ngram_match", device, *args).name == "torch"
    finally:
        package._lacks_triton.cache_clear()


def test_both_forms_are_compiled_at_start(monkeypatch):
    """No request waits for the compiler, neither the first nor the first of a large batch."""
    called = []
    for name in ("_serial", "_parallel"):
        monkeypatch.setattr(cpu, name, lambda *args, name=name: called.append(name))
    run_warm_up(["ngram_match"], torch.device("cpu"))
    assert set(called) == {"_serial", "_parallel"}


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"min_n": 0}, ValueError, "min_n=0"),
        ({"min_n": 3, "max_n": 2}, ValueError, "max_n=2"),
        ({"max_drafts": -1}, ValueError, "max_drafts=-1"),
        ({"match": "latest"}, ValueError, "match='latest'; choose one of"),
        ({"vocab_size": 0}, ValueError, "vocab_size=0"),
        ({"vocab_size": (1 << 24) + 1}, ValueError, "vocab_size=16777217"),
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
