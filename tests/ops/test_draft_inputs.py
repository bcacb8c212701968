"""draft_inputs: hand-computed rows, the reference against Numba and Triton over a grid, and mutants."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from ascend_spec_ops import draft_inputs
from ascend_spec_ops.draft_inputs import cpu, launch, reference

IMPLEMENTATIONS = {
    "cpu": cpu.draft_inputs,
    "triton": launch.draft_inputs,
    "reference": reference.draft_inputs,
}
NAMES = ("input_ids", "positions", "slot_mapping", "seq_lens")


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def run(implementation, args):
    return dict(zip(NAMES, (result.tolist() for result in implementation(*args)), strict=True))


# Blocks of 4 tokens, at most 10 tokens. Requests: two drafts across a block boundary; none; one real and one
# empty draft; two drafts of which the second stands at the limit; padding with a draft.
BY_HAND = (
    int32([11, 21, 31, 41, 51]),
    int32([12, 13, 32, -1, 42, 43, 52]),
    int32([2, 2, 4, 6, 7]),
    int32([4, 1, 6, 9, 0]),
    int32([[7, 3, 5], [2, -1, -1], [9, 4, -1], [6, 8, 1], [-1, -1, -1]]),
    4,
    10,
)
EXPECTED = {
    "input_ids": [11, 12, 13, 21, 31, 32, 0, 41, 42, 0, 0, 0],
    "positions": [3, 4, 5, 0, 5, 6, 7, 8, 9, 0, 0, 0],
    "slot_mapping": [31, 12, 13, 8, 17, 18, -1, 4, 5, -1, -1, -1],
    "seq_lens": [6, 1, 8, 10, 0],
}


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_by_hand(name):
    assert run(IMPLEMENTATIONS[name], BY_HAND) == EXPECTED


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_one_draft_step(name):
    """No drafts: one row a request, one of them past the end."""
    args = (int32([5, 6, 7]), int32([]), int32([0, 0, 0]), int32([4, 11, 0]), int32([[1, 2, 3]] * 3), 4, 10)
    assert run(IMPLEMENTATIONS[name], args) == {
        "input_ids": [5, 0, 0],
        "positions": [3, 0, 0],
        "slot_mapping": [7, -1, -1],
        "seq_lens": [4, 10, 0],
    }


def random_args(rng, num_requests, max_k, block_size, max_model_len):
    """Drafts with empty ends, padded requests, lengths up to and beyond the limit, shuffled blocks."""
    counts = [rng.randint(0, max_k) for _ in range(num_requests)]
    drafts = []
    for k in counts:
        real = rng.randint(0, k)
        drafts += [rng.randrange(150_000) for _ in range(real)] + [-1] * (k - real)
    blocks = -(-max_model_len // block_size)
    table = torch.randperm(num_requests * blocks, generator=torch.Generator().manual_seed(rng.randrange(99)))
    return (
        int32([rng.randrange(150_000) for _ in range(num_requests)]),
        int32(drafts),
        int32([sum(counts[: b + 1]) for b in range(num_requests)]),
        int32([rng.choice([0, rng.randint(1, max_model_len), max_model_len]) for _ in range(num_requests)]),
        table.to(torch.int32).reshape(num_requests, blocks),
        block_size,
        max_model_len,
    )


@pytest.mark.parametrize("name", ["cpu", "triton"])
@pytest.mark.parametrize(
    ("num_requests", "max_k"), [(1, 0), (1, 40), (5, 1), (7, 40), (33, 7), (257, 0), (257, 3)]
)
@pytest.mark.parametrize(("block_size", "max_model_len"), [(1, 9), (3, 31), (16, 64), (128, 1000)])
def test_equals_reference(name, num_requests, max_k, block_size, max_model_len):
    args = random_args(random.Random(num_requests + max_k), num_requests, max_k, block_size, max_model_len)
    results = IMPLEMENTATIONS[name](*args)
    for what, result, expected in zip(NAMES, results, reference.draft_inputs(*args), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=0, msg=lambda m, what=what: f"{what}: {m}")


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_no_requests(name):
    empty = int32([])
    results = IMPLEMENTATIONS[name](empty, empty, empty, empty, torch.zeros((0, 3), dtype=torch.int32), 4, 10)
    assert [r.shape for r in results] == [(0,)] * 4


@pytest.mark.parametrize("name", ["cpu", "triton"])
def test_table_that_is_part_of_a_wider_one(name):
    wide = torch.arange(40, dtype=torch.int32).reshape(4, 10)
    table = wide[::2, 3:6]
    args = (int32([1, 2]), int32([3, 4]), int32([1, 2]), int32([4, 8]), table, 4, 10)
    assert run(IMPLEMENTATIONS[name], args)["slot_mapping"] == [3 * 4 + 3, 4 * 4, 24 * 4 + 3, 25 * 4]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("n - 1, 0)", "n, 0)"),  # the last token at position num_tokens
        ("position >= limit", "position > limit"),
        ("if token < 0", "if token < -1"),  # an empty slot is written
        ("min(n + end - begin, limit)", "n + end - begin"),
        ("max_model_len if n > 0 else 0", "max_model_len"),  # padding is written
        ("begin = end\n", "begin = 0\n"),
    ],
)
def test_mutants_are_killed(old, new):
    source = Path(reference.__file__).read_text()
    assert source.count(old) == 1
    mutant: dict = {}
    exec(compile(source.replace(old, new), "mutant", "exec"), mutant)
    assert run(mutant["draft_inputs"], BY_HAND) != EXPECTED


def test_operator_and_opcheck():
    assert run(draft_inputs, BY_HAND) == EXPECTED
    torch.library.opcheck(torch.ops.ascend_spec.draft_inputs.default, BY_HAND)


@pytest.mark.parametrize(
    ("index", "value", "error", "text"),
    [
        (5, 0, ValueError, "block_size=0"),
        (6, 0, ValueError, "max_model_len=0"),
        (6, 13, RuntimeError, "3 blocks of 4 tokens a row, fewer than max_model_len=13"),
        (0, torch.zeros(5), RuntimeError, "last_token_ids is"),
        (1, torch.zeros((7, 1), dtype=torch.int32), RuntimeError, r"draft_token_ids is \[7, 1\].*\[N\]"),
        (1, torch.zeros(14, dtype=torch.int32)[::2], RuntimeError, "contiguous"),
        (2, torch.zeros(5, dtype=torch.int64), RuntimeError, "cu_num_draft_tokens is"),
        (3, torch.zeros(4, dtype=torch.int32), RuntimeError, "num_tokens is"),
        (4, torch.zeros((4, 3), dtype=torch.int32), RuntimeError, r"pass \[5, M\]"),
        (4, torch.zeros((3, 5), dtype=torch.int32).t(), RuntimeError, "contiguous"),
    ],
)
def test_bad_input(index, value, error, text):
    args = [*BY_HAND[:index], value, *BY_HAND[index + 1 :]]
    with pytest.raises(error, match=text):
        draft_inputs(*args)


@pytest.mark.parametrize("cu", [[2, 2, 4, 6, 9], [2, 2, 4, 6, 6], [2, 2, 7, 6, 7], [-1, 2, 4, 6, 7]])
def test_counts_that_lead_out_of_the_rows_are_refused_on_the_cpu(cu):
    with pytest.raises(RuntimeError, match=r"must end at the number of drafts \(7\)"):
        draft_inputs(*BY_HAND[:2], int32(cu), *BY_HAND[3:])
