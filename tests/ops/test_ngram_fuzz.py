"""ngram_match against brute force on random rows, and broken copies of each implementation, which must fail there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from source_mutants import Patch

from ascend_spec_ops.ngram_match import NO_BOUND, cpu, kernel, launch, reference, torch_fallback

Case = tuple[torch.Tensor, torch.Tensor, int, int, torch.Tensor, int, str, int]
#: implementation -> cases in the default setting and in the full one, 100 000 in all
NUM_CASES = {
    "numba": (3000, 58_000),
    "borders": (1500, 20_000),
    "torch": (1500, 20_000),
    "triton": (150, 2000),
}
#: every row is out of patience at its first candidate
IMPATIENT = Patch("by borders alone", "PATIENCE = 4", "PATIENCE = -1")


def random_row(rng: random.Random) -> list[int]:
    """Few symbols, so that matches of every length occur; sometimes periodic, sometimes longer than a block."""
    alphabet = rng.choice([1, 2, 3, 8, 150_000])
    length = rng.randint(0, 200) if rng.random() < 0.15 else rng.randint(0, 40)
    kind = rng.random()
    if kind < 0.2:
        period = [rng.randrange(alphabet) for _ in range(rng.randint(1, 6))]
        return (period * (length // len(period) + 1))[:length]
    if kind < 0.3:  # runs with breaks: long matches begin everywhere
        run = rng.randint(2, 30)
        return (([1] * run + [2]) * (length // run + 1))[:length] + [1] * rng.randint(0, run + 5)
    row = [rng.randrange(alphabet) for _ in range(length)]
    if kind < 0.4:
        return [-5 if rng.random() < 0.1 else token for token in row]
    if kind < 0.6 and length:  # the suffix stands somewhere before, in a row without other repetitions
        row = rng.sample(range(10_000), length)
        cut = rng.randrange(1, min(length, 12) + 1)
        start = rng.randrange(max(length - cut, 1))
        row[start : start + cut] = row[-cut:]
    return row


def random_cases(rng: random.Random) -> Iterator[Case]:
    while True:
        rows = [random_row(rng) for _ in range(rng.choice([1, 2, 12]))]  # a single one is split
        width = max(map(len, rows)) + rng.randint(0, 3)
        token_ids = torch.full((len(rows), width), rng.randrange(3), dtype=torch.int32)
        for s, row in enumerate(rows):
            token_ids[s, : len(row)] = torch.tensor(row, dtype=torch.int32)
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
        wanted = torch.tensor([rng.randint(-1, 7) for _ in rows], dtype=torch.int32)
        min_n = rng.randint(1, 4)
        max_n = rng.randint(min_n, 9 if rng.random() < 0.9 else 40)
        match = rng.choice(["earliest", "recent"])
        vocab_size = rng.choice([2, 100_000, 1 << 24, NO_BOUND])
        yield token_ids, lengths, min_n, max_n, wanted, rng.randint(1, 6), match, vocab_size


def first_failure(run: Callable[..., torch.Tensor], seed: int, num_cases: int) -> Case | None:
    cases = random_cases(random.Random(seed))
    while num_cases > 0:
        case = next(cases)
        if not torch.equal(run(*case), reference.ngram_match(*case)):
            return case
        num_cases -= len(case[0])
    return None


@pytest.fixture
def in_small_blocks(monkeypatch):
    """Of the kernel: seams between blocks and between parts of a row, in rows that brute force can look at."""
    monkeypatch.setattr(launch, "BLOCK", 32)


@pytest.mark.parametrize("name", NUM_CASES)
def test_equals_brute_force(name, request, tmp_path, in_small_blocks):
    run = {
        "numba": lambda: cpu.ngram_match,
        "borders": lambda: IMPATIENT.load(cpu, tmp_path).ngram_match,
        "torch": lambda: torch_fallback.ngram_match,
        "triton": lambda: launch.ngram_match,
    }[name]()
    num_cases = NUM_CASES[name][request.config.getoption("full")]
    assert first_failure(run, list(NUM_CASES).index(name), num_cases) is None


def test_full_setting_is_a_hundred_thousand_cases():
    assert sum(full for _, full in NUM_CASES.values()) == 100_000


@pytest.mark.parametrize("match", ["earliest", "recent"])
def test_a_row_can_use_up_the_patience(match):
    """Runs with breaks, and a suffix that is a longer run: the filter lets nearly every position through."""
    row = torch.tensor([([1] * 50 + [2]) * 40 + [1] * 75], dtype=torch.int32)
    length = torch.tensor([row.numel()], dtype=torch.int32)
    assert cpu._scan(row[0].numpy(), 1, 100, match == "recent") == (-1, -1)
    case = (row, length, 1, 100, torch.tensor([4], dtype=torch.int32), 4, match, NO_BOUND)
    assert torch.equal(cpu.ngram_match(*case), reference.ngram_match(*case))


# ---------------------------------------------------------------------------------------------- mutants
CPU_MUTANTS = [
    Patch("choice swapped", 'match == "recent"', 'match != "recent"', 26),
    Patch("no overlap with the suffix", "min(max_n, end + 1))", "min(max_n, end + 1, n - 1 - end))", 26),
    Patch(
        "shortest n-gram ignored",
        "num_tokens, min_n, max_n, num_drafts, is_",
        "num_tokens, 1, max_n, num_drafts, is_",
    ),
    Patch("longest n-gram one longer", "max_n = min(max_n, n - 1)", "max_n = min(max_n + 1, n - 1)"),
    Patch("longest n-gram one shorter", "max_n = min(max_n, n - 1)", "max_n = min(max_n, n - 2)"),
    Patch("the suffix matches itself", "right = n - 1  #", "right = n  #"),
    Patch("the end of the row one further", "out.size, n - 1 - end)", "out.size, n - end)"),
    Patch("a draft too many", "min(num_drafts, out.size, n", "min(num_drafts + 1, out.size, n"),
    Patch("filter looks at half", "for i in range(BLOCK):", "for i in range(BLOCK // 2):"),
    Patch("filter looks one too far", "(tokens, first, length)", "(tokens, first, length + 1)"),
    Patch("stale tokens are read", "min(max(num_tokens[s], 0), width)", "width"),
    Patch("negative ids are drafted", "token < 0 or token", "token"),
    Patch("the vocabulary one larger", "token >= vocab_size", "token > vocab_size"),
]
AFTER_CAP = "length == max_n:\n            "
BORDER_MUTANTS = [
    Patch("ties swapped", "(length == best and not recent)", "(length == best and recent)", 26),
    Patch(
        "one token less behind the cap", AFTER_CAP + "length = border[length - 1]", AFTER_CAP + "length -= 1"
    ),
    Patch("no way back", "length = border[length - 1]\n        if token", "length = 0\n        if token"),
]
TORCH_MUTANTS = [
    Patch("choice swapped", 'match == "recent"', 'match != "recent"', 26),
    Patch("the suffix matches itself", "agrees = end < n - 1", "agrees = end < n"),
    Patch("shortest n-gram ignored", "(length >= min_n)", "(length >= 1)"),
    Patch("longest n-gram one shorter", "min(max_n, width)", "min(max_n - 1, width)"),
    Patch("what is behind a hole is kept", "fits.cummin(1).values", "fits"),
]
KERNEL_MUTANTS = [
    Patch("choice among blocks", "if longest >= best:", "if longest > best:", 26),
    Patch("a later block wins", "if longest > best:", "if longest >= best:", 26),
    Patch("choice in a block", "length == longest, lane, 0.0", "length == longest, -lane, -1024.0", 26),
    Patch("choice among parts", "== longest, ends, 16777216.0", "== longest, ends - 32.0, 16777216.0", 26),
    Patch(
        "the suffix matches itself",
        "position < tl.cast(n - 1, tl.float32)",
        "position < tl.cast(n, tl.float32)",
    ),
    Patch("before the row", "length = tl.minimum(length, position + 1.0)", "length = length + 0.0"),
    Patch("shortest n-gram ignored", "if longest < min_n:", "if longest < 1:"),
    Patch("what is behind a hole is kept", "place < stop", "usable"),
]


def impatient(mutant: Patch, folder) -> Callable[..., torch.Tensor]:
    source = SimpleNamespace(__file__=str(folder / "impatient.py"))
    text = (folder / "impatient.py").write_text
    assert cpu.__file__ is not None
    with open(cpu.__file__) as original:
        text(original.read().replace(IMPATIENT.old, IMPATIENT.new))
    return mutant.load(source, folder).ngram_match


@pytest.mark.parametrize("mutant", CPU_MUTANTS, ids=str)
def test_broken_scan(mutant, tmp_path):
    assert first_failure(mutant.load(cpu, tmp_path).ngram_match, 0, 3000) is not None


@pytest.mark.parametrize("mutant", BORDER_MUTANTS, ids=str)
def test_broken_border_pass(mutant, tmp_path):
    assert first_failure(impatient(mutant, tmp_path), 0, 3000) is not None


@pytest.mark.parametrize("mutant", TORCH_MUTANTS, ids=str)
def test_broken_fallback(mutant, tmp_path):
    assert first_failure(mutant.load(torch_fallback, tmp_path).ngram_match, 0, 1000) is not None


@pytest.mark.parametrize("mutant", KERNEL_MUTANTS, ids=str)
def test_broken_kernel(mutant, tmp_path, monkeypatch, in_small_blocks):
    broken = mutant.load(kernel, tmp_path)
    for name in ("ngram_scan_kernel", "ngram_copy_kernel"):
        monkeypatch.setattr(launch, name, getattr(broken, name))
    assert first_failure(launch.ngram_match, 0, 1000) is not None
