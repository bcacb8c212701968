"""Numbers that are known of the rules, as checks of an implementation of ``verify``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import laws
import torch


def one(
    verify: laws.Verify,
    probabilities: Sequence[Sequence[float]],
    drafts: list[int],
    rule: str,
    options: Sequence[float],
    temperature: float = 1.0,
) -> list[int]:
    """The tokens of one request."""
    out = verify(
        torch.tensor(probabilities, dtype=torch.float64).log().float(),
        torch.tensor(drafts, dtype=torch.int32),
        torch.tensor([len(drafts)], dtype=torch.int32),
        torch.tensor([temperature]),
        torch.tensor([5]),
        torch.tensor([17]),
        len(drafts),
        None,
        None,
        rule,
        list(options),
    )[0].tolist()
    return out[1 : 1 + out[0]]


#: distribution, and its entropy with 1e-5 inside the logarithm
ENTROPIES = [
    ([0.1] * 10, 2.302485),
    ([0.5, 0.5], 0.693127),
    ([0.7, 0.2, 0.1], 0.801789),
    ([0.25] * 4, 1.386254),
]


def check_typical_thresholds(verify: laws.Verify) -> None:
    for p, entropy in ENTROPIES:
        draft = len(p) - 1
        for factor, accepted in ((1 - 1e-5, True), (1 + 1e-5, False)):
            delta = factor * p[draft] * math.exp(entropy)
            tokens = one(verify, [p, p], [draft], "typical", (1.0, delta))
            assert (len(tokens) == 2) == accepted, (p, factor)
    # epsilon binds below H = log(delta / epsilon); with the two exchanged the limit would be 0.068
    for probability, accepted in ((0.0901, True), (0.0899, False), (0.08, False)):
        p = [1 - probability, probability]
        assert (len(one(verify, [p, p], [1], "typical", (0.09, 0.3))) == 2) == accepted, probability


def check_typical_is_strict(verify: laws.Verify) -> None:
    """A probability that equals epsilon to the last bit: 1."""
    assert one(verify, [[1.0, 0.0]] * 2, [0], "typical", (1.0, 1.0)) == [0]


def check_typical_replacement(verify: laws.Verify) -> None:
    """One of three accepted: the argmax of the second row follows."""
    rows = [[0.1, 0.9, 0.0], [0.95, 0.01, 0.04], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    assert one(verify, rows, [1, 2, 2], "typical", (0.09, 0.3)) == [1, 0]


#: which drafts are accepted natively, the window, whether entropies are high, and how many are accepted
PATTERNS = [
    ("101111", 3, True, 6),
    ("101101", 3, True, 1),
    ("10111", 3, True, 5),
    ("10111", 4, True, 1),
    ("01110111", 3, True, 8),
    ("0111011", 3, True, 4),
    ("101111", 3, False, 1),
    ("010111", 2, True, 0),
]


def check_fly_patterns(verify: laws.Verify) -> None:
    agreed = [1.0, 0.0, 0.0, 0.0]
    for pattern, window, high, accepted in PATTERNS:
        for temperature, rejected in ((0.0, [0.26, 0.25, 0.24, 0.25]), (1.0, [0.34, 1e-14, 0.33, 0.33])):
            refused = rejected if high else [0.98, 1e-14, 0.01, 0.01]
            rows = [agreed if bit == "1" else refused for bit in pattern] + [agreed]
            drafts = [0 if bit == "1" else 1 for bit in pattern]
            tokens = one(verify, rows, drafts, "fly", (window, 0.3, 3), temperature)
            assert len(tokens) == accepted + 1, (pattern, window, high, temperature, tokens)
            assert tokens[:-1] == drafts[:accepted]


#: distribution, and ``-sum p log p`` over its three largest
LARGEST_ENTROPIES = [
    ([1 / 3] * 3, 1.0986),
    ([0.001] * 1000, 0.0207),
    ([0.5, 0.5], 0.6931),
    ([0.9, 0.1], 0.3251),
    ([0.95, 0.05], 0.1985),
    ([0.98, 0.01, 0.01], 0.1119),
]


def check_fly_entropies(verify: laws.Verify) -> None:
    for p, entropy in LARGEST_ENTROPIES:
        sure = [1.0] + [0.0] * (len(p) - 1)
        for threshold, accepted in ((entropy - 1e-4, 2), (entropy + 1e-4, 0)):
            tokens = one(verify, [p, sure, sure], [1, 0], "fly", (1, threshold, 3), 0.0)
            assert len(tokens) == accepted + 1, (p[:3], threshold)


def check_fly_never_takes_the_impossible(verify: laws.Verify) -> None:
    p, sure = [0.5, 0.0, 0.5], [1.0, 0.0, 0.0]
    for temperature in (0.0, 1.0):
        for draft in (1, 3):
            assert len(one(verify, [p, sure, sure], [draft, 0], "fly", (1, 0.0, 3), temperature)) == 1


def check_synthetic_rates(verify: laws.Verify, num_rows: int = 4000) -> None:
    """Conditional rates of the unconditional .9, .6, .3: 2.8 tokens a step, greedy and sampled, whatever p."""
    rates = torch.tensor([0.9, 2 / 3, 0.5])
    reached = torch.cat([torch.ones(1), rates.cumprod(0), torch.zeros(1)])
    law = reached[:-1] - reached[1:]
    for temperature in (0.0, 1.0):
        out = verify(
            torch.tensor([[0.0, 3.0]]).expand(num_rows * 4, -1),
            torch.zeros(num_rows * 3, dtype=torch.int32),
            torch.arange(1, num_rows + 1, dtype=torch.int32) * 3,
            torch.full((num_rows,), temperature),
            torch.arange(num_rows),
            torch.arange(num_rows) % 61,
            3,
            None,
            None,
            "synthetic",
            rates.tolist(),
        )
        laws.assert_law(torch.bincount(out[:, 0] - 1, minlength=4), law, "accepted drafts")
        if temperature == 0:
            last = out[torch.arange(num_rows), out[:, 0].long()]
            assert (last == 1).all(), "a rejected greedy row gives the argmax"
    sure = one(verify, [[0.6, 0.4]] * 3, [1, 1], "synthetic", (1.0, 0.0), 0.0)
    assert sure == [1, 0], "a rate of 1 always accepts, and a rate of 0 never"
    for temperature in (0.0, 1.0):
        masked = one(verify, [[0.5, 0.0, 0.5]] * 2, [1], "synthetic", (1.0,), temperature)
        assert len(masked) == 1, "what a mask forbids is emitted at no rate"


CHECKS = [
    check_typical_thresholds,
    check_typical_is_strict,
    check_typical_replacement,
    check_fly_patterns,
    check_fly_entropies,
    check_fly_never_takes_the_impossible,
    check_synthetic_rates,
]
