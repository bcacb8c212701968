"""Random numbers: published vectors, the same bits everywhere, and the accuracy of the transforms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from numba import njit

from ascend_spec_ops import random_bits, uniforms
from ascend_spec_ops.uniforms import cpu, launch, reference
from ascend_spec_ops.uniforms.kernel import exponential, gumbel

SEEDS = [0, 1, -1, -(2**63), 2**63 - 1, (1 << 40) + 12345, 0x0123456789ABCDEF]
POSITIONS = [0, 1, 4095, 2**31 - 1, 2**31, 2**32 + 7, 123456]

#: (key, counter, words): Threefry-2x32-20 of the Random123 distribution's known-answer file
KNOWN_ANSWERS = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@njit
def numba_threefry(k0, k1, c0, c1):
    return cpu.threefry2x32(np.uint32(k0), np.uint32(k1), np.uint32(c0), np.uint32(c1))


@pytest.mark.parametrize(("key", "counter", "words"), KNOWN_ANSWERS)
def test_known_answers(key, counter, words):
    assert reference.threefry2x32(*key, *counter) == words
    assert numba_threefry(*key, *counter) == words


@pytest.mark.parametrize("rounds_off", ["rotation", "parity"])
def test_known_answers_kill_mutants(monkeypatch, rounds_off):
    if rounds_off == "rotation":
        monkeypatch.setattr(reference, "ROTATIONS", ((13, 15, 26, 6), (17, 29, 16, 25)))
    else:
        monkeypatch.setattr(reference, "PARITY", 0x1BD11BDB)
    key, counter, words = KNOWN_ANSWERS[0]
    assert reference.threefry2x32(*key, *counter) != words


def python_words(seeds: list[int], positions: list[int], stream: int, lanes: list[int]) -> torch.Tensor:
    words = [[reference.word(s, p, stream, i) for i in lanes] for s, p in zip(seeds, positions, strict=True)]
    return torch.tensor(np.array(words, np.uint32).view(np.int32))


@pytest.mark.parametrize("num_lanes", [1, 2047, 2049, 4096, 5000])
@pytest.mark.parametrize("stream", [0, 4, 255])
def test_one_stream_of_bits(num_lanes, stream):
    args = (torch.tensor(SEEDS), torch.tensor(POSITIONS), stream, num_lanes)
    expected = reference.random_bits(*args)
    lanes = sorted({0, num_lanes // 2, num_lanes - 1, *range(0, num_lanes, 397)})
    assert torch.equal(expected[:, lanes], python_words(SEEDS, POSITIONS, stream, lanes))
    assert torch.equal(random_bits(*args), expected)
    assert torch.equal(launch.random_bits(*args), expected)


def test_no_rows_and_strided_input():
    empty = torch.zeros(0, dtype=torch.int64)
    assert random_bits(empty, empty, 0, 10).shape == (0, 10)
    seeds, positions = torch.tensor(SEEDS).repeat_interleave(2)[::2], torch.tensor(POSITIONS).flip(0)
    expected = reference.random_bits(seeds, positions, 1, 100)
    assert torch.equal(random_bits(seeds, positions, 1, 100), expected)
    assert torch.equal(launch.random_bits(seeds, positions, 1, 100), expected)


def test_numbers_do_not_depend_on_the_batch():
    seeds, positions = torch.tensor(SEEDS), torch.tensor(POSITIONS)
    whole = random_bits(seeds, positions, 2, 3000)
    for b in range(len(SEEDS)):
        assert torch.equal(random_bits(seeds[b : b + 1], positions[b : b + 1], 2, 100)[0], whole[b, :100])


def test_streams_seeds_and_positions_are_disjoint():
    """No counter is used twice: of 80,000 words, as many repeat as chance gives, which is under one."""
    streams = [value for name, value in vars(uniforms).items() if name.startswith("STREAM_")]
    assert len(set(streams)) == len(streams) == 6
    seeds, positions = torch.tensor([3, 3, 4, 3 + (1 << 32)]), torch.tensor([9, 10, 9, 9])
    words = torch.cat([random_bits(seeds, positions, stream, 4096) for stream in streams])
    pairs = (words.flatten()[:-1].long() << 32) + words.flatten()[1:].long()
    assert pairs.unique().numel() == pairs.numel()
    assert words.numel() - words.unique().numel() <= 8


@triton.jit
def transform_kernel(bits_ptr, exponential_ptr, gumbel_ptr, N: tl.constexpr):
    lane = tl.arange(0, N)
    bits = tl.load(bits_ptr + lane).to(tl.uint32, bitcast=True)
    tl.store(exponential_ptr + lane, exponential(bits))
    tl.store(gumbel_ptr + lane, gumbel(bits))


def triton_transforms(bits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    results = torch.empty(2, bits.numel())
    transform_kernel[(1,)](bits, results[0], results[1], N=bits.numel())
    return results[0], results[1]


@njit
def fill_transforms(bits, exponentials, gumbels):
    for i in range(bits.size):
        exponentials[i] = cpu.exponential_f32(bits[i])
        gumbels[i] = cpu.gumbel_f32(bits[i])


def numba_transforms(bits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    results = torch.empty(2, bits.numel())
    fill_transforms(bits.numpy().view(np.uint32), results[0].numpy(), results[1].numpy())
    return results[0], results[1]


def edge_and_random_words() -> torch.Tensor:
    edges = [0, 1, 2, 255, 2**24, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2**24, 2**32 - 2, 2**32 - 1]
    random = torch.randint(0, 2**32, (4096 - len(edges),), generator=torch.Generator().manual_seed(1))
    return torch.cat([torch.tensor(edges), random]).to(torch.int32)


@pytest.mark.parametrize("transforms", [numba_transforms, triton_transforms])
def test_transforms_are_accurate(transforms):
    bits = edge_and_random_words()
    exponentials, gumbels = transforms(bits)
    exact = reference.exponential_of(bits)
    assert ((exponentials.double() - exact).abs() / exact).max() < 2e-6
    # a Gumbel variate passes through 0 where the exponential is 1: there its error is the exponential's
    exact = reference.gumbel_of(bits)
    assert ((gumbels.double() - exact).abs() / exact.abs().clamp(min=1)).max() < 2e-6
    assert exponentials.isfinite().all()
    assert gumbels.isfinite().all()


def test_the_plain_float32_formula_would_fail():
    bits = edge_and_random_words()
    u = ((bits.long() & 0xFFFFFFFF).float() + 0.5) * 2.0**-32
    exact = reference.exponential_of(bits)
    assert not ((-torch.log1p(-u)).double() - exact).abs().div(exact).max() < 2e-6


def test_reference_transform():
    assert reference.exponential(0) == pytest.approx(0.5 / 2**32)
    assert reference.exponential(2**32 - 1) == pytest.approx(33 * math.log(2), rel=1e-9)
    bits = random_bits(torch.tensor([7]), torch.tensor([0]), 0, 1 << 20)[0]
    sample = reference.exponential_of(bits)
    # mean and variance of a million standard exponentials, five standard errors
    assert abs(sample.mean() - 1) < 5 / 2**10
    assert abs(sample.var() - 1) < 5 * math.sqrt(8) / 2**10


@pytest.mark.parametrize(
    ("seeds", "positions", "stream", "num_lanes", "message"),
    [
        (torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.int64), 0, 10, "seeds"),
        (torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), 0, 10, "seeds"),
        (torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), 0, 10, "positions"),
        (torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), 256, 10, "stream"),
        (torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), 0, -1, "num_lanes"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_bad_input_is_refused_before_anything_runs(seeds, positions, stream, num_lanes, message, device):
    with pytest.raises(RuntimeError, match=message):
        random_bits(seeds.to(device), positions.to(device), stream, num_lanes)


def test_opcheck():
    args = (torch.tensor(SEEDS), torch.tensor(POSITIONS), 3, 4100)
    torch.library.opcheck(torch.ops.ascend_spec.random_bits.default, args)
