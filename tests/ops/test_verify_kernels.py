"""Rung 2 for the rules of ``verify``: the interpreted kernels equal the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from verify_cases import Case, assert_equals_reference, make_case
from verify_rule_cases import peaked_case

from ascend_spec_ops.verify import RULES, launch

FORMS = pytest.mark.parametrize("sampled", [False, True], ids=["one-hot", "sampled"])
#: "standard" has its grid in test_verify.py
OTHER_RULES = [rule for rule in RULES if rule != "standard"]


@dataclass
class Everywhere:
    """A kernel that is the same function on every grid."""

    function: Callable[..., None]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self.function


def check(case: Case) -> None:
    assert_equals_reference(case, launch.verify(*case.arguments()))


@pytest.mark.parametrize("rule", OTHER_RULES)
@FORMS
@pytest.mark.parametrize(
    ("num_requests", "max_spec_len", "vocab_size", "dtype"),
    [
        (1, 0, 1, torch.float32),
        (3, 2, 17, torch.float16),
        (2, 3, 4097, torch.float32),
        pytest.param(5, 3, 4095, torch.bfloat16, marks=pytest.mark.full),
        pytest.param(1, 4, 50, torch.float32, marks=pytest.mark.full),
        pytest.param(2, 2, 20000, torch.bfloat16, marks=pytest.mark.full),
    ],
)
def test_shapes(rule, sampled, num_requests, max_spec_len, vocab_size, dtype):
    check(
        make_case(
            num_requests, max_spec_len, vocab_size, rule=rule, sampled=sampled, placeholders=True, dtype=dtype
        )
    )


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.full) for seed in (0, 2, 3))])
@pytest.mark.parametrize("rule", RULES)
@FORMS
def test_walks_that_stop_everywhere(rule, sampled, seed):
    check(peaked_case(rule, 14, 4, sampled=sampled, seed=seed))


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("fly", (1, 0.0, 1)),
        ("fly", (2, 0.3, 7)),
        ("fly", (3, 0.0, 9000)),
        ("fly", (4, 0.0, 3)),
        ("fly", (1, 1e9, 3)),
        ("typical", (0.5, 0.1)),
        ("typical", (1.0, 1.0)),
        ("typical", (0.02, 5.0)),
        ("synthetic", (1.0, 1.0, 1.0, 1.0)),
        ("synthetic", (0.0, 1.0, 1.0, 1.0)),
    ],
    ids=str,
)
def test_options(rule, options):
    if options == (3, 0.0, 9000):  # as many as there are tokens: the interpreter takes them one by one
        case = make_case(6, 4, 23, rule=rule, mixed=False)
    else:
        case = peaked_case(rule, 7, 4, sampled=True, seed=3)
    case.rule_options = options
    check(case)


@pytest.mark.parametrize("rule", RULES)
@FORMS
def test_rows_that_are_not_finite(rule, sampled):
    """In every place of a request, target rows and draft rows, so that some are looked at and some are not."""
    case = peaked_case(rule, 10, 3, sampled=sampled, seed=4)
    for b in range(1, 10):
        row = case.logits[4 * b + b % 4]
        if b % 3 == 0 and case.draft_logits is not None:
            row = case.draft_logits[3 * b + b % 2]
        poison = (torch.nan, torch.inf, -torch.inf)[b // 3 % 3]
        row[4150] = poison
        if poison < 0:
            row[:] = poison
    out = launch.verify(*case.arguments())
    assert_equals_reference(case, out)
    assert 0 < int((out[:, 0] == 0).sum()) < 9


@pytest.mark.parametrize("rule", RULES)
def test_neighbours_do_not_matter(rule):
    case = peaked_case(rule, 6, 3, sampled=True, seed=5)
    whole = launch.verify(*case.arguments())
    assert case.draft_logits is not None
    assert case.draft_temperature is not None
    for b in (0, 4):
        one = slice(b, b + 1)
        alone = Case(
            case.logits[4 * b : 4 * b + 4],
            case.draft_token_ids[3 * b : 3 * b + 3],
            torch.tensor([3], dtype=torch.int32),
            case.temperature[one],
            case.seeds[one],
            case.positions[one],
            3,
            case.draft_logits[3 * b : 3 * b + 3],
            case.draft_temperature[one],
            rule,
            case.rule_options,
        )
        assert torch.equal(launch.verify(*alone.arguments())[0], whole[b])


@pytest.mark.parametrize("rule", OTHER_RULES)
def test_rows_may_have_gaps(rule):
    case = peaked_case(rule, 4, 3, sampled=True, seed=6)
    expected = launch.verify(*case.arguments())
    for name in ("logits", "draft_logits"):
        rows = getattr(case, name)
        wide = torch.full((len(rows), rows.shape[1] + 300), torch.nan)
        wide[:, : rows.shape[1]] = rows
        setattr(case, name, wide[:, : rows.shape[1]])
    assert torch.equal(launch.verify(*case.arguments()), expected)


@pytest.mark.parametrize("rule", OTHER_RULES)
def test_rows_of_no_request(rule):
    """A batch that is padded to the size of a captured graph."""
    case = peaked_case(rule, 3, 2, sampled=True, seed=7)
    expected = launch.verify(*case.arguments())
    for name, value in (("logits", torch.nan), ("draft_logits", torch.nan), ("draft_token_ids", 0)):
        tensor = getattr(case, name)
        setattr(case, name, torch.cat([tensor, torch.full_like(tensor[:3], value)]))
    assert torch.equal(launch.verify(*case.arguments()), expected)


def test_standard_takes_as_many_launches_as_it_has_grids(monkeypatch):
    launches = []
    for name in [name for name in vars(launch) if name.endswith("_kernel")]:

        def record(*args, _name=name, **kwargs):
            launches.append(_name)

        monkeypatch.setattr(launch, name, Everywhere(record))
    launch.verify(*make_case(2, 2, 50, mixed=False).arguments())
    assert launches == ["block_statistics_kernel", "accept_kernel", "residual_mass_kernel", "draw_kernel"]
