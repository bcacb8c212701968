"""What a rule is given: its numbers, and drafts that it can judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from config_fixtures import Checkpoints, Values, planned, restored_registry

from ascend_spec.config import RULES, ConfigError, SpeculatorConfig, register_speculative_method
from ascend_spec.config import plan as plan_module
from ascend_spec.config.synthetic import conditional_rates

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
OWN: Values = {"synthetic": {"synthetic_acceptance_rates": [0.9, 0.6, 0.3]}}


@pytest.fixture
def shelf(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def with_rule(rule: str, **changes: Any) -> Values:
    return {**NGRAM, **OWN.get(rule, {}), "ascend_spec": {"rejection_sample_method": rule}, **changes}


@pytest.mark.parametrize(
    ("rates", "conditional"),
    [
        ((0.9, 0.6, 0.3), (0.9, 2 / 3, 0.5)),
        ((1.0, 0.8, 0.0), (1.0, 0.8, 0.0)),
        ((0.0, 0.0), (0.0, 0.0)),
        ((1.0, 1.0), (1.0, 1.0)),
    ],
)
def test_conditional_rates(rates: tuple[float, ...], conditional: tuple[float, ...]) -> None:
    assert conditional_rates(rates) == pytest.approx(conditional)


OPTIONS: dict[str, tuple[float, ...]] = {
    "standard": (),
    "block": (),
    "coupled": (),
    "typical": (0.09, 0.3),
    "synthetic": (0.9, 2 / 3, 0.5),
    "fly": (2, 0.3, 3),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_engine_plans_every_rule_with_its_numbers(rule: str, shelf: Checkpoints) -> None:
    plan = planned(with_rule(rule), shelf.target(), embedded=True)
    assert plan.rule.name == rule
    assert plan.rule_options == pytest.approx(OPTIONS[rule])


def test_numbers_that_are_given_win(shelf: Checkpoints) -> None:
    ours = {"rejection_sample_method": "typical", "posterior_threshold": 0.2, "posterior_alpha": 0.4}
    assert planned({**NGRAM, "ascend_spec": ours}, shelf.target()).rule_options == (0.2, 0.4)
    fly = with_rule("fly", fly_window_size=1, fly_entropy_threshold=1.5, fly_entropy_top_k=2)
    assert planned(fly, shelf.target()).rule_options == (1, 1.5, 2)


def test_unconditional_rates_as_options_are_noticed(
    shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant 18: the rates of all drafts up to each, used as each one's own."""
    monkeypatch.setattr(plan_module, "conditional_rates", lambda rates: rates)
    with pytest.raises(AssertionError):
        test_the_engine_plans_every_rule_with_its_numbers("synthetic", shelf)


class Unknown(SpeculatorConfig):
    """Draws its drafts and forgets from what."""

    method = "unknown_q"
    base_method = "ngram"
    draft_distributions = ("unknown",)


class Private(SpeculatorConfig):
    """Draws its drafts with random numbers of its own."""

    method = "private_noise"
    base_method = "ngram"
    draft_distributions = ("one-hot", "sampled")


@pytest.mark.parametrize("rule", RULES)
def test_drafts_of_an_unknown_distribution(rule: str, shelf: Checkpoints) -> None:
    with restored_registry():
        register_speculative_method("unknown_q", Unknown)
        given = with_rule(rule, method="unknown_q")
        if not RULES[rule].needs_q:
            assert planned(given, shelf.target()).rule.name == rule
            return
        with pytest.raises(ConfigError) as caught:
            planned(given, shelf.target())
    assert f"The rule '{rule}' reads the distribution" in str(caught.value)
    assert '"typical", "coupled"' in str(caught.value)


def test_coupled_drafts_need_the_targets_noise(shelf: Checkpoints) -> None:
    with restored_registry():
        register_speculative_method("private_noise", Private)
        given = with_rule("coupled", method="private_noise")
        assert planned(given, shelf.target()).speculator.draft_distribution == "one-hot"
        with pytest.raises(ConfigError, match="cannot draw with the target's random numbers"):
            planned({**given, "draft_sample_method": "probabilistic"}, shelf.target())
