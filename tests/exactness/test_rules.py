"""Rung 7 for the rules beyond the standard one: known numbers, and laws over a million rows of the CPU path."""

from __future__ import annotations

import golden
import laws
import pytest
import rule_laws
import torch

from ascend_spec_ops import verify
from ascend_spec_ops.verify import reference

LOSSLESS = ("standard", "block", "coupled")


@pytest.mark.parametrize("check", golden.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("implementation", [reference.verify, verify], ids=["reference", "cpu"])
def test_known_numbers(implementation, check):
    check(implementation)


@pytest.mark.parametrize("kind", rule_laws.KINDS)
@pytest.mark.parametrize("rule", LOSSLESS)
def test_law(rule, kind):
    rule_laws.check_rule(verify, rule, rule_laws.make_chain(kind))


@pytest.mark.parametrize("kind", rule_laws.KINDS)
@pytest.mark.parametrize("rule", LOSSLESS)
def test_law_of_longer_rounds(rule, kind):
    chain = rule_laws.make_chain(kind, vocab_size=3, seed=1)
    rule_laws.check_rule(verify, rule, chain, num_drafts=4, num_tokens=5, num_rows=laws.NUM_ROWS // 5)


@pytest.mark.parametrize("deterministic", [True, False], ids=["one-hot", "sampled"])
@pytest.mark.parametrize("rule", ["block", "coupled"])
def test_law_over_three_blocks(rule, deterministic):
    chain = rule_laws.three_blocks(deterministic)
    rule_laws.check_rule(verify, rule, chain, num_tokens=2, num_rows=laws.NUM_ROWS // 10)


def test_block_accepts_eleven_ninths_where_standard_accepts_ten():
    standard, block = (rule_laws.check_rule(verify, rule, rule_laws.SUN) for rule in ("standard", "block"))
    error = 5 / laws.NUM_ROWS**0.5
    assert standard == pytest.approx(10 / 9, abs=error)
    assert block == pytest.approx(11 / 9, abs=error)
    assert rule_laws.expected_lengths(rule_laws.SUN, "block", 2).tolist() == pytest.approx(
        [1 / 3, 1 / 9, 5 / 9]
    )


@pytest.mark.parametrize("kind", rule_laws.KINDS)
@pytest.mark.parametrize("num_drafts", [1, 2, 3])
def test_block_never_accepts_less_than_standard(kind, num_drafts):
    for seed in range(5):
        chain = rule_laws.make_chain(kind, vocab_size=4, seed=seed)
        standard, block = (
            float(rule_laws.expected_lengths(chain, rule, num_drafts) @ torch.arange(num_drafts + 1).double())
            for rule in ("standard", "block")
        )
        assert block >= standard - 1e-12
        if num_drafts == 1 or chain.deterministic:
            assert block == pytest.approx(standard, abs=1e-12)


def test_nothing_left_of_the_residual_under_block():
    laws.check_nothing_left(lambda *a: verify(*a, rule="block"))


def test_own_noise_for_drafts_under_block():
    laws.check_own_drafts_law(lambda *a: verify(*a, rule="block"))
