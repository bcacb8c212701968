"""Rung 7: the joint law of everything emitted, by enumeration.

``verify_one`` is run with its two random parts replaced by scripted ones: an accept test takes the branch the
script says and multiplies the path's probability by the measure of thresholds that lead there (found by
bisection of the real ``accepts``), and a draw takes every token in turn, the same one whenever a position is
drawn again. What is left is the walk of the rule and the residual, and their law is computed to 1e-12.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field
from fractions import Fraction
from types import ModuleType

import pytest
import torch

from ascend_spec_ops.verify import reference, reference_rules


def probability_of_acceptance(accepts, log_p: float, log_q: float) -> float:
    """The measure under Exp(1) of the thresholds that ``accepts`` takes; it must be monotone."""
    if not accepts(1e6, log_p, log_q):
        return 0.0
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if accepts(middle, log_p, log_q) else (middle, high)
    return math.exp(-high)


@dataclass
class Path:
    """One run under a script: which branch every choice took, and how probable that is."""

    script: list[int]
    pending: list[list[int]]
    taken: list[int] = field(default_factory=list)
    probability: float = 1.0
    drawn: dict[int, int] = field(default_factory=dict)

    def choose(self, rates: list[float]) -> int:
        """The branch of the script, or beyond its end the first that is possible; the others wait their turn."""
        if len(self.taken) < len(self.script):
            choice = self.script[len(self.taken)]
        else:
            choice, *others = [i for i, rate in enumerate(rates) if rate > 0]
            self.pending += [[*self.taken, other] for other in others]
        self.taken.append(choice)
        self.probability *= rates[choice]
        return choice

    def draw(self, log_weights, seed, position, outcome) -> int:
        if position not in self.drawn:
            self.drawn[position] = self.choose(log_weights.softmax(0).tolist())
        return self.drawn[position]


@dataclass
class Reference:
    """The modules of the reference, or of a mutant of it."""

    reference: ModuleType = reference
    rules: ModuleType = reference_rules


REFERENCE = Reference()


def laws_of_one_step(
    monkeypatch, rows, drafts, q_rows, rule="standard", modules=REFERENCE
) -> dict[tuple[int, ...], float]:
    """Law of the tokens of one call of ``verify_one``, given the drafts."""
    real_accepts = modules.rules.accepts
    result: dict[tuple[int, ...], float] = {}
    scripts: list[list[int]] = [[]]
    while scripts:
        path = Path(scripts.pop(), scripts)

        def accepts(threshold, log_p, log_q, path=path):
            rate = probability_of_acceptance(real_accepts, log_p, log_q)
            return path.choose([rate, 1 - rate]) == 0

        with monkeypatch.context() as m:
            m.setattr(modules.rules, "accepts", accepts)
            m.setattr(modules.rules, "draw", path.draw)
            m.setattr(modules.reference, "draw", path.draw)
            outcome = modules.reference.verify_one(rows, drafts, 1.0, 0, 0, q_rows, 1.0, rule)
        key = tuple(outcome.tokens)
        result[key] = result.get(key, 0.0) + path.probability
    return result


def random_table(rng: random.Random, vocab_size: int, depth: int) -> dict[tuple[int, ...], list[Fraction]]:
    """A distribution over the next token for every context of up to ``depth`` tokens; zeros occur."""
    table = {}
    for length in range(depth + 1):
        for context in itertools.product(range(vocab_size), repeat=length):
            weights = [rng.randint(0, 6) for _ in range(vocab_size)]
            if not any(weights):
                weights[rng.randrange(vocab_size)] = 1
            table[context] = [Fraction(w, sum(weights)) for w in weights]
    return table


def log_rows(table, contexts) -> torch.Tensor:
    return torch.tensor([[float(x) for x in table[c]] for c in contexts], dtype=torch.float64).log()


def joint_law(
    monkeypatch, p, q, vocab_size, num_drafts, sampled, rule="standard", modules=REFERENCE
) -> dict[tuple[int, ...], float]:
    """Law of the first ``num_drafts + 1`` tokens: one step, then the target alone."""
    law: dict[tuple[int, ...], float] = {}
    for drafts in itertools.product(range(vocab_size), repeat=num_drafts):
        probability = math.prod(float(q[drafts[:i]][d]) for i, d in enumerate(drafts))
        if probability == 0:
            continue
        contexts = [drafts[:i] for i in range(num_drafts + 1)]
        q_rows = log_rows(q, contexts[:-1]) if sampled and num_drafts else None
        rows = log_rows(p, contexts)
        step = laws_of_one_step(monkeypatch, rows, list(drafts), q_rows, rule, modules)
        for tokens, share in step.items():
            for rest in itertools.product(range(vocab_size), repeat=num_drafts + 1 - len(tokens)):
                text = (*tokens, *rest)
                tail = math.prod(float(p[text[:i]][text[i]]) for i in range(len(tokens), num_drafts + 1))
                law[text] = law.get(text, 0.0) + probability * share * tail
    return law


def assert_exact(law, p, vocab_size, length) -> None:
    for text in itertools.product(range(vocab_size), repeat=length):
        exact = math.prod(p[text[:i]][text[i]] for i in range(length))
        assert law.get(text, 0.0) == pytest.approx(float(exact), abs=1e-12), text


SHAPES = [(2, 0), (2, 1), (2, 3), (3, 2), (4, 1), (4, 2), (3, 3), (4, 3)]


@pytest.mark.parametrize("sampled", [False, True], ids=["one-hot", "sampled"])
@pytest.mark.parametrize(("vocab_size", "num_drafts"), SHAPES)
@pytest.mark.parametrize("rule", ["standard", "block", "coupled"])
def test_joint_law_is_the_targets(monkeypatch, rule, vocab_size, num_drafts, sampled):
    rng = random.Random(vocab_size * 10 + num_drafts)
    p, q = random_table(rng, vocab_size, num_drafts), random_table(rng, vocab_size, num_drafts)
    law = joint_law(monkeypatch, p, q, vocab_size, num_drafts, sampled, rule)
    assert_exact(law, p, vocab_size, num_drafts + 1)


def test_golden_pair(monkeypatch):
    """p = [.1 .2 .3 .4], q reversed: 3/5 of the drafts are accepted, the residual is [0 0 1/4 3/4]."""
    p = {(): [Fraction(i, 10) for i in (1, 2, 3, 4)]}
    q = {(): [Fraction(i, 10) for i in (4, 3, 2, 1)]}
    log_p, log_q = log_rows(p, [()])[0], log_rows(q, [()])[0]
    rates = [
        probability_of_acceptance(reference_rules.accepts, a, b)
        for a, b in zip(log_p.tolist(), log_q.tolist(), strict=True)
    ]
    assert sum(float(b) * r for b, r in zip(q[()], rates, strict=True)) == pytest.approx(0.6, abs=1e-12)
    assert reference.residual(log_p, log_q, 0).softmax(0).tolist() == pytest.approx(
        [0, 0, 0.25, 0.75], abs=1e-12
    )


def sun_step(monkeypatch, modules=REFERENCE) -> dict[tuple[int, ...], float]:
    """Law of one step of block verification with p = (1/3, 2/3) and q = (2/3, 1/3) in every context."""
    p, q = (torch.tensor([row] * 3, dtype=torch.float64).log() for row in ([1 / 3, 2 / 3], [2 / 3, 1 / 3]))
    law: dict[tuple[int, ...], float] = {}
    for drafts in itertools.product(range(2), repeat=2):
        probability = math.prod([2 / 3, 1 / 3][d] for d in drafts)
        step = laws_of_one_step(monkeypatch, p, list(drafts), q[:2], "block", modules)
        for tokens, share in step.items():
            law[tokens] = law.get(tokens, 0.0) + probability * share
    return law


def assert_sun(law) -> None:
    lengths = [sum(share for tokens, share in law.items() if len(tokens) == n + 1) for n in range(3)]
    assert lengths == pytest.approx([1 / 3, 1 / 9, 5 / 9], abs=1e-12)
    first = sum(share for tokens, share in law.items() if tokens[0] == 0)
    assert first == pytest.approx(1 / 3, abs=1e-12)


def test_block_verification_of_the_golden_pair(monkeypatch):
    """11/9 drafts are accepted, where token-level verification accepts 10/9."""
    assert_sun(sun_step(monkeypatch))


MUTANTS = {
    "the draft is not checked": ("accepts", lambda threshold, log_p, log_q: True),
    "p and q change places": ("accepts", lambda threshold, log_p, log_q: threshold > log_p - log_q),
    "the residual is p": ("residual", lambda log_p, log_q, draft, log_scale: log_p),
    "the residual of a sampled draft is p without it": (
        "residual",
        lambda log_p, log_q, draft, log_scale=0.0: log_p.index_fill(0, torch.tensor([draft]), -math.inf),
    ),
    "the residual is the absolute difference": (
        "residual",
        lambda log_p, log_q, draft, log_scale=0.0: (log_p.exp() - log_q.exp()).abs().log(),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_have_another_law(monkeypatch, name):
    rng = random.Random(0)
    p, q = random_table(rng, 3, 2), random_table(rng, 3, 2)
    function, mutant = MUTANTS[name]
    monkeypatch.setattr(reference_rules if function == "accepts" else reference, function, mutant)
    law = joint_law(monkeypatch, p, q, 3, 2, sampled=True)
    with pytest.raises(AssertionError):
        assert_exact(law, p, 3, 3)
