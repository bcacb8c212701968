"""filter_logits: golden vectors, the reference against Numba and Triton, properties, and mutants they must kill."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from source_mutants import Patch
from torch.library import opcheck

import ascend_spec_ops
from ascend_spec_ops.filter_logits import cpu, kernel, launch, reference

IMPLEMENTATIONS = {
    "cpu": cpu.filter_logits,
    "triton": launch.filter_logits,
    "reference": reference.filter_logits,
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
#: of a sum of probabilities, by which a float32 sum may be wrong
SLACK = 1e-5
INF = math.inf
#: log of .4 .3 .2 .1, in the order .1 .4 .2 .3
FOUR = [math.log(p) for p in (0.1, 0.4, 0.2, 0.3)]

# logits, temperature, top_k, top_p, min_p, ids that stay
GOLDEN = [
    (FOUR, 1.0, 0, 1.0, 0.0, [0, 1, 2, 3]),
    (FOUR, 1.0, 2, 1.0, 0.0, [1, 3]),
    (FOUR, 1.0, 4, 1.0, 0.0, [0, 1, 2, 3]),
    (FOUR, 1.0, 9, 1.0, 0.0, [0, 1, 2, 3]),
    (FOUR, 1.0, -1, 1.0, 0.0, [0, 1, 2, 3]),
    (FOUR, 1.0, 0, 0.69, 0.0, [1, 3]),
    (FOUR, 1.0, 0, 0.71, 0.0, [1, 2, 3]),  # the token that crosses top_p stays
    (FOUR, 1.0, 0, 0.0, 0.0, [1]),
    (FOUR, 1.0, 0, 1.0, 0.45, [1, 2, 3]),  # of the largest: .18
    (FOUR, 1.0, 0, 1.0, 1.0, [1]),
    (FOUR, 1.0, 0, 1.0, 2.0, [1]),
    (FOUR, 1.0, 2, 0.5, 0.0, [1]),  # renormalised: 4/7 3/7
    (FOUR, 1.0, 3, 0.75, 0.0, [1, 3]),  # 4/9 3/9 2/9
    (FOUR, 1.0, 0, 0.5, 0.6, [1]),  # min-p leaves .4 .3, and top-p is of these
    (FOUR, 0.5, 0, 0.8, 0.0, [1, 3]),  # 16/30 9/30 4/30 1/30
    (FOUR, 0.5, 0, 1.0, 0.3, [1, 3]),
    (FOUR, 2.0, 0, 0.9, 0.0, [0, 1, 2, 3]),
    (FOUR, 0.0, 1, 0.1, 0.9, [0, 1, 2, 3]),  # greedy
    (FOUR, -1.0, 1, 0.1, 0.9, [0, 1, 2, 3]),
    (FOUR, 1e-12, 0, 0.999, 0.0, [1]),
    ([3.0, 2.0, 2.0, 2.0, 1.0], 1.0, 2, 1.0, 0.0, [0, 1, 2, 3]),  # all that tie with the k-th
    ([3.0, 2.0, 2.0, 2.0, 1.0], 1.0, 5, 1.0, 0.0, [0, 1, 2, 3, 4]),
    ([0.0, 1.0, 1.0, 0.0, 1.0], 1.0, 0, 0.1, 0.0, [1, 2, 4]),  # equal logits stay or go together
    ([0.0, 1.0, 1.0, 0.0, 1.0], 1.0, 1, 0.1, 1.0, [1, 2, 4]),
    ([0.0, 1.0, 1.0, 0.0, 1.0], 1.0, 4, 0.99, 0.0, [0, 1, 2, 3, 4]),
    ([0.0, -0.0, -1.0], 1.0, 1, 1.0, 0.0, [0, 1]),  # both zeros are equal
    ([-INF, 1.0, 0.0, -INF], 1.0, 3, 1.0, 0.0, [1, 2]),
    ([-INF, 1.0, -INF, -INF], 1.0, 1, 0.5, 0.5, [1]),
    ([3e38, -3e38, 2e38], 1.0, 2, 1.0, 0.0, [0, 2]),
    ([5.0], 1.0, 1, 0.5, 0.5, [0]),
]
#: not for devices, which may take the smallest floats for zeros
SUBNORMAL = [
    ([-0.0, 0.0, -1e-45], 1.0, 2, 1.0, 0.0, [0, 1]),
    ([-0.0, 0.0, 1e-45], 1.0, 1, 1.0, 0.0, [2]),
    ([1e-45, 0.0, 3e-45, -1.0], 1.0, 2, 1.0, 0.0, [0, 2]),
]
NOT_VALID = [[1.0, math.nan, 0.0], [1.0, INF, 0.0], [-INF, -INF, -INF], [math.nan, -INF, INF]]


def parameters(rows):
    """``[R]`` tensors of (temperature, top_k, top_p, min_p) a row."""
    temperature, top_k, top_p, min_p = zip(*rows, strict=True) if rows else ((), (), (), ())
    return (
        torch.tensor(temperature, dtype=torch.float32),
        torch.tensor(top_k, dtype=torch.int32),
        torch.tensor(top_p, dtype=torch.float32),
        torch.tensor(min_p, dtype=torch.float32),
    )


def check_golden(filter_logits, vectors=GOLDEN):
    for logits, *row, kept in vectors:
        x = torch.tensor([logits])
        filter_logits(x, *parameters([row]))
        expected = [value if i in kept else -INF for i, value in enumerate(logits)]
        assert torch.equal(x, torch.tensor([expected])), (logits, row, kept)


def check_not_valid(filter_logits):
    for logits in NOT_VALID:
        x = torch.tensor([logits, [2.0, 1.0, 0.0]])
        bits = x.view(torch.int32)[0].clone()
        filter_logits(x, *parameters([(1.0, 1, 0.5, 0.5)] * 2))
        assert torch.equal(x.view(torch.int32)[0], bits), logits
        assert x[1].tolist() == [2.0, -INF, -INF]


def kept(row, temperature, top_k, top_p, min_p):
    return reference.filter_row(row.double(), temperature, top_k, top_p, min_p) > -INF


def check_row(before, after, temperature, top_k, top_p, min_p):
    """What stays is a set that float32 may take for the right one, and has its bits; returns whether there is
    only one such set."""
    if temperature <= 0 or not reference.is_valid(before):
        assert torch.equal(before.view(torch.uint8), after.view(torch.uint8))
        return True
    stays = after > -INF
    assert torch.equal(after[stays], before[stays])
    slack = SLACK + 3e-7 * abs(float(before.max())) / temperature  # x - max has the rounding of max
    sign = [1 if top_p < 1 else 0, 1 if min_p > 0 else 0]
    least, most = (
        kept(before, temperature, top_k, max(0.0, top_p + s * slack * sign[0]), min_p * (1 - s * slack * sign[1]))
        for s in (-1, 1)
    )  # fmt: skip
    assert not (least & ~stays).any(), "a token that must stay was cut"
    assert not (stays & ~most).any(), "a token that must go stayed"
    gone = before[~stays & (before > -INF)]
    assert not len(gone) or gone.max() < before[stays].min(), "a cut logit is as large as one that stayed"
    return bool(torch.equal(least, most))


def check(filter_logits, logits, rows):
    """How many rows have one right answer alone."""
    x = logits.clone()
    filter_logits(x, *parameters(rows))
    # float32 is what the operator is given
    exact = zip(*(tensor.tolist() for tensor in parameters(rows)), strict=True)
    return sum(check_row(before, after, *row) for before, after, row in zip(logits, x, exact, strict=True))


def random_rows(num_rows, vocab_size, generator):
    """Each parameter is on in half of the rows; some rows are greedy."""

    def maybe(value, off):
        return value if torch.rand((), generator=generator) < 0.5 else off

    def uniform():
        return float(torch.rand((), generator=generator))

    return [
        (
            0.0 if uniform() < 0.1 else 0.2 + 2 * uniform(),
            maybe(int(vocab_size ** uniform()), 0),
            maybe(uniform(), 1.0),
            maybe(uniform() ** 3, 0.0),
        )
        for _ in range(num_rows)
    ]


def random_case(num_rows, vocab_size, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    spread = torch.rand(num_rows, 1, generator=generator) * 5
    logits = (spread * torch.randn(num_rows, vocab_size, generator=generator) + 2).to(dtype)
    return logits, random_rows(num_rows, vocab_size, generator)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_golden(name):
    check_golden(IMPLEMENTATIONS[name], GOLDEN + SUBNORMAL)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_rows_that_are_not_valid_are_left_alone(name):
    check_not_valid(IMPLEMENTATIONS[name])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_rows", "vocab_size"),
    [(1, 1), (40, 2), (30, 63), (30, 64), (30, 65), (40, 1000), (17, 16385), (3, 49152)],
)
def test_cpu_equals_reference(num_rows, vocab_size, dtype):
    logits, rows = random_case(num_rows, vocab_size, dtype)
    sure = check(cpu.filter_logits, logits, rows)
    assert vocab_size > 1000 or sure > 0.8 * num_rows


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_rows", "vocab_size"), [(1, 1), (20, 2), (9, 2047), (9, 2049), (3, 9001)])
def test_triton_equals_reference(num_rows, vocab_size, dtype):
    check(launch.filter_logits, *random_case(num_rows, vocab_size, dtype))


@pytest.mark.parametrize("spread", [0.0, 1e-3, 1.0, 3.0, 30.0])
def test_cpu_on_a_large_vocabulary(spread):
    """Flat rows, where nearly all tokens are candidates, to rows with a few likely ones."""
    generator = torch.Generator().manual_seed(5)
    logits = spread * torch.randn(6, 151936, generator=generator)
    every = [(0.8, k, p, m) for k, p, m in [(50, 1, 0), (0, 0.9, 0), (50, 0.9, 0), (5000, 1, 0)]]
    check(cpu.filter_logits, logits, [*every, (0.8, 0, 0.999, 0.01), (1.3, 2000, 0.95, 0.1)])


@pytest.mark.parametrize("name", ["cpu", "triton"])
class TestDefinition:
    """Small facts that hold for every implementation."""

    def test_row_strides(self, name):
        logits, rows = random_case(5, 300)
        wide = torch.full((5, 400), torch.nan)
        wide[:, 50:350] = logits
        IMPLEMENTATIONS[name](wide[:, 50:350], *parameters(rows))
        IMPLEMENTATIONS[name](logits, *parameters(rows))
        assert torch.equal(wide[:, 50:350], logits)
        assert wide[:, :50].isnan().all()
        assert wide[:, 350:].isnan().all()

    def test_a_row_does_not_see_its_neighbours(self, name):
        """Rows with one parameter, with none and with all in one batch are cut as each alone."""
        logits, _ = random_case(5, 500)
        rows = [
            (1.0, 1, 1.0, 0.0),
            (1.0, 0, 1.0, 0.0),
            (1.0, 0, 0.1, 0.0),
            (1.0, 500, 1.0, 0.0),
            (0.5, 9, 0.9, 0.1),
        ]
        together = logits.clone()
        IMPLEMENTATIONS[name](together, *parameters(rows))
        for row in range(5):
            alone = logits[row : row + 1].clone()
            IMPLEMENTATIONS[name](alone, *parameters(rows[row : row + 1]))
            assert torch.equal(alone[0], together[row])

    def test_worst_case_of_the_search(self, name):
        """Logits over the whole range of floats, half of them negative, all different."""
        powers = 2.0 ** torch.arange(-120, 120, dtype=torch.float32)
        logits = torch.cat([powers, -powers, torch.tensor([3e38, -3e38, 1e-42, -1e-42])])
        logits = logits[torch.randperm(len(logits), generator=torch.Generator().manual_seed(1))][None]
        for k in (1, 2, 100, 241, 242, 243, 400, 483):
            check(IMPLEMENTATIONS[name], logits, [(1.0, k, 1.0, 0.0)])

    def test_no_rows(self, name):
        IMPLEMENTATIONS[name](torch.empty(0, 7), *parameters([]))


quarter_logits = st.lists(st.integers(-20, 20).map(lambda n: n / 4), min_size=1, max_size=150)
row_parameters = st.tuples(
    st.sampled_from([0.0, 0.25, 1.0, 3.0]),
    st.integers(-1, 160),
    st.floats(0, 1.25, width=32),
    st.floats(0, 1, width=32),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(logits=quarter_logits, row=row_parameters)
def test_cpu_with_many_ties(logits, row):
    check(cpu.filter_logits, torch.tensor([logits]), [row])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(logits=quarter_logits, row=row_parameters)
def test_triton_with_many_ties(logits, row):
    check(launch.filter_logits, torch.tensor([logits]), [row])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    logits=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=200),
    top_k=st.integers(1, 200),
)
def test_top_k_of_any_floats(logits, top_k):
    x = torch.tensor([logits])
    cpu.filter_logits(x, *parameters([(1.0, top_k, 1.0, 0.0)]))
    least = sorted(logits, reverse=True)[min(top_k, len(logits)) - 1]
    assert (x[0] > -INF).tolist() == [value >= least for value in logits]


def _top_p_without_renormalising(row, temperature, top_k, top_p, min_p):
    """top-p of all tokens, then the other two."""
    nucleus = reference.cut_top_p(row, temperature, top_p) == -INF
    return reference.cut_top_k(reference.cut_min_p(row, temperature, min_p), top_k).masked_fill(nucleus, -INF)


def _min_p_last(row, temperature, top_k, top_p, min_p):
    row = reference.cut_top_p(reference.cut_top_k(row, top_k), temperature, top_p)
    return reference.cut_min_p(row, temperature, min_p)


def _exactly_k(row, temperature, top_k, top_p, min_p):
    """The k-th's ties go, but for as many as there is room for."""
    first = row.argsort(descending=True, stable=True)[: top_k if top_k > 0 else None]
    mask = torch.ones_like(row, dtype=torch.bool).index_fill_(0, first, False)
    return filter_row(row.masked_fill(mask, -INF), temperature, 0, top_p, min_p)


def _k_is_cut_too(row, temperature, top_k, top_p, min_p):
    return filter_row(row, temperature, top_k - 1 if top_k > 1 else top_k, top_p, min_p)


def _without_temperature(row, temperature, top_k, top_p, min_p):
    return filter_row(row, 1.0, top_k, top_p, min_p)


def _min_p_of_one(row, temperature, top_k, top_p, min_p):
    rare = torch.softmax(row / temperature, 0) < min_p
    return filter_row(row.masked_fill(rare & (row < row.max()), -INF), temperature, top_k, top_p, 0.0)


def _crossing_token_goes(row, temperature, top_k, top_p, min_p):
    row = filter_row(row, temperature, top_k, top_p, min_p)
    least = row[row > -INF].min()
    return row.masked_fill((row == least) & (row < row.max()), -INF) if top_p < 1 else row


def _equal_logits_part(row, temperature, top_k, top_p, min_p):
    """vLLM's top-p where logits are equal: by the order of a sort."""
    row = filter_row(row, temperature, top_k, 1.0, min_p)
    values, order = row.sort(stable=True)
    gone = torch.softmax(values / temperature, 0).cumsum(0) <= 1 - top_p
    gone[-1] = False
    return row.masked_fill(torch.zeros_like(gone).scatter(0, order, gone), -INF)


filter_row = reference.filter_row


@pytest.mark.parametrize(
    "mutant",
    [
        _top_p_without_renormalising, _min_p_last, _exactly_k, _k_is_cut_too, _without_temperature, _min_p_of_one,
        _crossing_token_goes, _equal_logits_part,
    ],
)  # fmt: skip
def test_golden_vectors_kill(mutant, monkeypatch):
    def guarded(row, temperature, *rest):
        return mutant(row, temperature, *rest) if temperature > 0 and reference.is_valid(row) else row

    monkeypatch.setattr(reference, "filter_row", guarded)
    with pytest.raises(AssertionError):
        check_golden(reference.filter_logits)


CPU_MUTANTS = [
    Patch("top-p is not renormalised", "m, scale, cut)\n", "m, scale, MINUS_INF)\n"),
    Patch("the threshold goes", "x[i] = x[i] if x[i] >= cut", "x[i] = x[i] if x[i] > cut"),
    Patch("one more than k", "bins[chosen] < target", "bins[chosen] <= target"),
    Patch("greedy rows are cut", "temperature[row] > F(0.0) and cuts_some", "cuts_some"),
    Patch("rows with a NaN are cut", "    if not np.isfinite(m):\n        return MINUS_INF\n", ""),
    Patch(
        "the bound of block maxima is taken of too few blocks",
        "    if top_k <= block_max.shape[0]:",
        "    if top_k <= block_max.shape[0] + 1:",
    ),
    Patch("the bound is the largest maximum", "float(top_k)))\n    n = _g", "1.0))\n    n = _g"),
    Patch("the tail is not small enough", "0.999 * (1.0 - top_p)", "99.0 * (1.0 - top_p)"),
    Patch("floats in the order of their bits", "bits if bits >= 0 else -(bits & 0x7FFFFFFF)", "bits"),
    Patch("two zeros", "else -(bits & 0x7FFFFFFF)", "else -(bits & 0x7FFFFFFF) - 1"),
    Patch("a bin that is passed keeps its weight", "            target -= bins[chosen]\n", ""),
    Patch("temperature is not used", "w = exp_f32((x[i] - m) * scale)", "w = exp_f32(x[i] - m)"),
]


def check_everything(filter_logits, sizes=(130, 1000), large=40000):
    check_golden(filter_logits, GOLDEN + SUBNORMAL)
    check_not_valid(filter_logits)
    for vocab_size in sizes:
        check(filter_logits, *random_case(20, vocab_size))
    flat = torch.randn(2, large, generator=torch.Generator().manual_seed(2))
    check(filter_logits, flat, [(1.0, 30, 1.0, 0.0), (1.0, 0, 0.7, 0.0)])


def test_the_check_passes():
    check_everything(cpu.filter_logits)


@pytest.mark.parametrize("mutant", CPU_MUTANTS, ids=str)
def test_cpu_mutants_are_killed(mutant, tmp_path):
    with pytest.raises((AssertionError, ArithmeticError, IndexError)):
        check_everything(mutant.load(cpu, tmp_path).filter_logits)


KERNEL_MUTANTS = [
    Patch("top-p is not renormalised", "target = target * weight", "target = target * 1.0"),
    Patch("the threshold goes", "tl.where(x >= cut, x,", "tl.where(x > cut, x,"),
    Patch("one more than k", "            if weight >= target:", "            if weight > target:"),
    Patch("too few rounds", "ROUNDS = tl.constexpr(33)", "ROUNDS = tl.constexpr(6)"),
    Patch("two zeros", "tl.where(x == 0.0, 0.0, x).to", "x.to"),
    Patch("rows with a NaN are cut", "if (not_valid == 0.0) & (", "if (not_valid >= 0.0) & ("),
    Patch("top-k is off", "(top_k < vocab_size)", "(top_k < 2)"),
    Patch("greedy rows are cut", "if (temperature > 0.0) & (by_k", "if (temperature > -9.0) & (by_k"),
]


@pytest.mark.parametrize("mutant", KERNEL_MUTANTS, ids=str)
def test_kernel_mutants_are_killed(mutant, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "filter_logits_kernel", mutant.load(kernel, tmp_path).filter_logits_kernel)
    with pytest.raises(AssertionError):
        check_everything(launch.filter_logits, sizes=(3000,), large=5000)


def test_operator_and_opcheck():
    logits, rows = random_case(4, 200)
    expected = logits.clone()
    cpu.filter_logits(expected, *parameters(rows))
    opcheck(torch.ops.ascend_spec.filter_logits.default, (logits.clone(), *parameters(rows)))
    ascend_spec_ops.filter_logits(logits, *parameters(rows))
    assert torch.equal(logits, expected)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, torch.zeros(2, 3, dtype=torch.float64), "logits must be"),
        (0, torch.zeros(3, 2).t(), "contiguous"),
        (0, torch.zeros(1, 3).expand(2, 3), "overlap"),
        (1, torch.ones(2, dtype=torch.float64), "temperature must be"),
        (2, torch.ones(2, dtype=torch.int64), "top_k must be"),
        (3, torch.ones(3), "top_p must be"),
        (4, torch.ones(4)[::2], "min_p must be"),
    ],
)
def test_wrong_arguments_are_named(place, value, message):
    arguments = [torch.zeros(2, 3), *parameters([(1.0, 1, 0.5, 0.1)] * 2)]
    arguments[place] = value
    with pytest.raises(RuntimeError, match=message):
        ascend_spec_ops.filter_logits(*arguments)
