"""Rung 7: every mutant is rejected by what the test that it names runs."""

from __future__ import annotations

import random
from pathlib import Path

import laws
import mutants
import pytest
import test_enumeration as enumeration

from ascend_spec_ops.uniforms import STREAM_LANE
from ascend_spec_ops.verify import verify


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, id=mutant.name, marks=[pytest.mark.full] if mutant.full else [])
        for mutant in mutants.MUTANTS
    ],
)
def test_a_law_rejects(mutant, tmp_path, monkeypatch):
    broken = mutants.load(mutant, tmp_path)
    arguments = (broken.verify,) if callable(mutant.check) else (broken, monkeypatch)
    check = mutant.check if callable(mutant.check) else check_block_by_enumeration
    with pytest.raises(AssertionError):
        check(*arguments)


def check_block_by_enumeration(broken, monkeypatch) -> None:
    modules = enumeration.Reference(broken.reference, broken.reference_rules)
    enumeration.assert_sun(enumeration.sun_step(monkeypatch, modules))
    rng = random.Random(33)
    p, q = enumeration.random_table(rng, 3, 3), enumeration.random_table(rng, 3, 3)
    law = enumeration.joint_law(monkeypatch, p, q, 3, 3, True, "block", modules)
    enumeration.assert_exact(law, p, 3, 4)


def test_copies_that_are_not_patched_pass(tmp_path, monkeypatch):
    """Else a mutant might be rejected for the way it is loaded."""
    line = "def is_valid("
    for file in ("cpu_draw", "reference_draw"):
        copy = mutants.load(mutants.Mutant("none", file, line, line, "", ""), tmp_path)
        for check in mutants.golden.CHECKS[:-1]:
            check(copy.verify)
    check_block_by_enumeration(copy, monkeypatch)


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_the_test_that_a_mutant_names_exists(mutant):
    file, name = mutant.test.split("::")
    assert f"def {name}(" in (Path(__file__).parent / file).read_text()


def test_every_known_mistake_has_a_mutant():
    """Number 5, drafts cut behind the back of q, and the drafter's half of 33 are mistakes of a caller: below."""
    assert {mutant.number for mutant in mutants.MUTANTS} >= {1, 2, 3, 4, 6, 7, 8, 15, 16, 17, 18, 33}


def test_drafts_truncated_behind_the_back_of_q():
    """Mutant 5: drafts come from the two likeliest tokens, and the full q is handed over."""
    with pytest.raises(AssertionError, match="first token"):
        laws.check_truncated_drafts_law(verify, q_given_is_q_used=False)


def test_draft_noise_without_a_stream_of_its_own():
    """Mutant 33: the drafter draws with the noise that the target's draw uses too."""
    with pytest.raises(AssertionError, match="first token"):
        laws.check_own_drafts_law(verify, stream=STREAM_LANE)
