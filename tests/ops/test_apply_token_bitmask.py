"""apply_token_bitmask: bits by hand, the reference against Numba and torch, and mutants."""

from __future__ import annotations

import pytest
import torch
from source_mutants import Patch
from torch.library import opcheck

import ascend_spec_ops
from ascend_spec_ops.apply_token_bitmask import cpu, device, reference

IMPLEMENTATIONS = {
    "cpu": cpu.apply_token_bitmask,
    "torch": device.apply_token_bitmask,
    "reference": reference.apply_token_bitmask,
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def allowed(apply_token_bitmask, words, vocab_size, dtype=torch.float32):
    """The tokens that a row of words leaves."""
    logits = torch.zeros(1, vocab_size, dtype=dtype)
    apply_token_bitmask(logits, torch.tensor([words], dtype=torch.int32).reshape(1, -1))
    assert ((logits == 0) | (logits == -torch.inf)).all()
    return (logits[0] == 0).nonzero().flatten().tolist()


def check(apply_token_bitmask):
    every = list(range(70))
    for words, vocab_size, expected in [
        ([0b1011], 5, [0, 1, 3]),
        ([-1], 32, every[:32]),
        ([-(1 << 31)], 32, [31]),
        ([1 << 30], 32, [30]),
        ([0, 1], 33, [32]),
        ([0, 1, -1], 70, [32, *every[64:]]),
        ([-1], 40, every[:32]),  # beyond the mask
        ([-1, -1, -1], 40, every[:40]),  # beyond the vocabulary
        ([], 3, []),
        ([0], 32, []),
    ]:
        assert allowed(apply_token_bitmask, words, vocab_size) == expected, words


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_by_hand(name):
    check(IMPLEMENTATIONS[name])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_rows", "vocab_size", "num_words"), [(1, 1, 1), (7, 100, 4), (5, 64, 2), (5, 65, 2), (3, 4097, 200)]
)
@pytest.mark.parametrize("name", ["cpu", "torch"])
def test_equals_reference(name, num_rows, vocab_size, num_words, dtype):
    generator = torch.Generator().manual_seed(vocab_size)
    wide = torch.randn(num_rows, vocab_size + 3, generator=generator).to(dtype)
    wide[0, 0] = torch.nan
    bitmask = torch.randint(-(2**31), 2**31, (num_rows, num_words), generator=generator, dtype=torch.int32)
    expected = wide.clone()
    reference.apply_token_bitmask(expected[:, :vocab_size], bitmask)
    IMPLEMENTATIONS[name](wide[:, :vocab_size], bitmask)
    torch.testing.assert_close(wide, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["cpu", "torch"])
def test_no_rows(name):
    IMPLEMENTATIONS[name](torch.empty(0, 40), torch.empty(0, 2, dtype=torch.int32))


@pytest.mark.parametrize(
    ("module", "mutant"),
    [
        (cpu, Patch("bits from the other end", "word >> np.int32(i)", "word >> np.int32(31 - i)")),
        (cpu, Patch("1 is forbidden", "part[i] if (word", "part[i] if 1 - (word")),
        (cpu, Patch("beyond the mask is allowed", "w >= bitmask.shape[1] or", "w < bitmask.shape[1] and")),
        (cpu, Patch("no last part of a word", "range(32 * whole, vocab_size)", "range(32 * whole, 0)")),
        (device, Patch("the sign bit is lost", "+ [-(1 << 31)]", "+ [0]")),
        (device, Patch("beyond the mask is allowed", ":].fill_(MINUS_INF)", ":].fill_(0.0)")),
        (device, Patch("1 is forbidden", ") == 0)", ") != 0)")),
    ],
    ids=str,
)  # fmt: skip
def test_mutants_are_killed(module, mutant, tmp_path):
    loaded = mutant.load(module, tmp_path)
    with pytest.raises(AssertionError):
        check(loaded.apply_token_bitmask)


def test_operator_and_opcheck():
    bitmask = torch.tensor([[5], [-1]], dtype=torch.int32)
    opcheck(torch.ops.ascend_spec.apply_token_bitmask.default, (torch.zeros(2, 4), bitmask))
    logits = torch.zeros(2, 4)
    ascend_spec_ops.apply_token_bitmask(logits, bitmask)
    assert (logits == 0).tolist() == [[True, False, True, False], [True] * 4]


@pytest.mark.parametrize(
    ("logits", "bitmask", "message"),
    [
        (torch.zeros(2, 4, dtype=torch.int32), torch.zeros(2, 1, dtype=torch.int32), "logits must be"),
        (torch.zeros(4, 2).t(), torch.zeros(2, 1, dtype=torch.int32), "contiguous"),
        (torch.zeros(2, 4), torch.zeros(2, 1, dtype=torch.int64), "bitmask must be"),
        (torch.zeros(2, 4), torch.zeros(3, 1, dtype=torch.int32), "bitmask must be"),
    ],
)
def test_wrong_arguments_are_named(logits, bitmask, message):
    with pytest.raises(RuntimeError, match=message):
        ascend_spec_ops.apply_token_bitmask(logits, bitmask)
