"""Rung 7: the joint law of everything emitted, by enumeration.

``verify_one`` is run with its two random parts replaced by scripted ones: an accept test takes the branch the
script says and multiplies the path's probability by the measure of thresholds that lead there (found by
bisection of the real ``accepts``), and a draw branches over its law. What is left is the walk itself and the
residual, and their law is computed to 1e-12.
"""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import pytest
import torch

from ascend_spec_ops.verify import reference


def probability_of_acceptance(accepts, log_p: float, log_q: float) -> float:
    """The measure under Exp(1) of the thresholds that ``accepts`` takes; it must be monotone."""
    if not accepts(1e6, log_p, log_q):
        return 0.0
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if accepts(middle, log_p, log_q) else (middle, high)
    return math.exp(-high)


def laws_of_one_step(monkeypatch, rows, drafts, q_rows) -> dict[tuple[int, ...], float]:
    """Law of the tokens of one call of ``verify_one``, given the drafts."""
    real_accepts = reference.accepts
    result: dict[tuple[int, ...], float] = {}
    scripts: list[list[bool]] = [[]]
    while scripts:
        script = scripts.pop()
        taken: list[bool] = []
        path = [1.0]
        final: list[torch.Tensor] = []

        def accepts(threshold, log_p, log_q, script=script, taken=taken, path=path):
            rate = probability_of_acceptance(real_accepts, log_p, log_q)
            if len(taken) < len(script):
                choice = script[len(taken)]
            else:
                choice = True
                scripts.append([*taken, False])
            taken.append(choice)
            path[0] *= rate if choice else 1 - rate
            return choice

        def draw(log_weights, seed, position, outcome, final=final):
            final.append(log_weights.softmax(0))
            return 0

        with monkeypatch.context() as m:
            m.setattr(reference, "accepts", accepts)
            m.setattr(reference, "draw", draw)
            outcome = reference.verify_one(rows, drafts, 1.0, 0, 0, q_rows, 1.0)
        for token, probability in enumerate(final[0].tolist()):
            key = (*outcome.tokens[:-1], token)
            result[key] = result.get(key, 0.0) + path[0] * probability
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


def joint_law(monkeypatch, p, q, vocab_size, num_drafts, sampled) -> dict[tuple[int, ...], float]:
    """Law of the first ``num_drafts + 1`` tokens: one step, then the target alone."""
    law: dict[tuple[int, ...], float] = {}
    for drafts in itertools.product(range(vocab_size), repeat=num_drafts):
        probability = math.prod(float(q[drafts[:i]][d]) for i, d in enumerate(drafts))
        if probability == 0:
            continue
        contexts = [drafts[:i] for i in range(num_drafts + 1)]
        q_rows = log_rows(q, contexts[:-1]) if sampled and num_drafts else None
        step = laws_of_one_step(monkeypatch, log_rows(p, contexts), list(drafts), q_rows)
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


SHAPES = [(2, 0), (2, 1), (2, 3), (3, 2), (4, 1), (4, 2), (3, 3)]


@pytest.mark.parametrize("sampled", [False, True], ids=["one-hot", "sampled"])
@pytest.mark.parametrize(("vocab_size", "num_drafts"), SHAPES)
def test_joint_law_is_the_targets(monkeypatch, vocab_size, num_drafts, sampled):
    rng = random.Random(vocab_size * 10 + num_drafts)
    p, q = random_table(rng, vocab_size, num_drafts), random_table(rng, vocab_size, num_drafts)
    law = joint_law(monkeypatch, p, q, vocab_size, num_drafts, sampled)
    assert_exact(law, p, vocab_size, num_drafts + 1)


def test_golden_pair(monkeypatch):
    """p = [.1 .2 .3 .4], q reversed: 3/5 of the drafts are accepted, the residual is [0 0 1/4 3/4]."""
    p = {(): [Fraction(i, 10) for i in (1, 2, 3, 4)]}
    q = {(): [Fraction(i, 10) for i in (4, 3, 2, 1)]}
    log_p, log_q = log_rows(p, [()])[0], log_rows(q, [()])[0]
    rates = [
        probability_of_acceptance(reference.accepts, a, b)
        for a, b in zip(log_p.tolist(), log_q.tolist(), strict=True)
    ]
    assert sum(float(b) * r for b, r in zip(q[()], rates, strict=True)) == pytest.approx(0.6, abs=1e-12)
    assert reference.residual(log_p, log_q, 0).softmax(0).tolist() == pytest.approx(
        [0, 0, 0.25, 0.75], abs=1e-12
    )


MUTANTS = {
    "the draft is not checked": ("accepts", lambda threshold, log_p, log_q: True),
    "p and q change places": ("accepts", lambda threshold, log_p, log_q: threshold > log_p - log_q),
    "the residual is p": ("residual", lambda log_p, log_q, draft: log_p),
    "the residual of a sampled draft is p without it": (
        "residual",
        lambda log_p, log_q, draft: log_p.index_fill(0, torch.tensor([draft]), -math.inf),
    ),
    "the residual is the absolute difference": (
        "residual",
        lambda log_p, log_q, draft: (log_p.exp() - log_q.exp()).abs().log(),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_have_another_law(monkeypatch, name):
    rng = random.Random(0)
    p, q = random_table(rng, 3, 2), random_table(rng, 3, 2)
    function, mutant = MUTANTS[name]
    monkeypatch.setattr(reference, function, mutant)
    law = joint_law(monkeypatch, p, q, 3, 2, sampled=True)
    with pytest.raises(AssertionError):
        assert_exact(law, p, 3, 3)
