"""Synthetic acceptance: rates that are given, or made from a mean length."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ascend_spec.config.errors import Finding, wrong
from ascend_spec.config.speculative import SpeculativeConfig


def check_synthetic(config: SpeculativeConfig) -> Iterator[Finding]:
    """Exactly one of rates and length, in their ranges."""
    rates, length, drafts = (
        config.synthetic_acceptance_rates,
        config.synthetic_acceptance_length,
        config.num_speculative_tokens,
    )
    if (rates is None) == (length is None):
        yield Finding(
            "synthetic_acceptance_rates",
            f'The rule "synthetic" was given {"both" if rates is not None else "neither"} of '
            "'synthetic_acceptance_rates' and 'synthetic_acceptance_length'; it needs exactly one. "
            f"{'Remove' if rates is not None else 'Add'} one.",
            ("synthetic_acceptance_length",),
        )
        return
    if length is not None and drafts is not None and not 1 <= length <= drafts + 1:
        yield wrong(
            "synthetic_acceptance_length",
            length,
            f"from 1 to num_speculative_tokens + 1, which is {drafts + 1}",
            depends_on=("num_speculative_tokens",),
        )
    if rates is None:
        return
    if drafts is not None and len(rates) != drafts:
        yield wrong(
            "synthetic_acceptance_rates",
            list(rates),
            f"{drafts} numbers, as many as num_speculative_tokens",
            depends_on=("num_speculative_tokens",),
        )
    if not all(0 <= rate <= 1 for rate in rates):
        yield wrong("synthetic_acceptance_rates", list(rates), "numbers from 0 to 1")
    elif any(later > earlier for earlier, later in pairwise(rates)):
        yield wrong("synthetic_acceptance_rates", list(rates), "numbers that do not increase")


def conditional_rates(rates: tuple[float, ...]) -> tuple[float, ...]:
    """Of each draft, given that those before it were accepted, from ``rates`` of all up to it."""
    before = (1.0, *rates)
    return tuple(rate / earlier if earlier else 0.0 for earlier, rate in zip(before, rates, strict=False))


def synthetic_rates(config: SpeculativeConfig) -> tuple[float, ...]:
    """Unconditional rates by position, of a checked configuration.

    A mean length becomes the schedule of least variance: sure acceptance up to its whole part, the fraction
    after it, nothing beyond.
    """
    if config.synthetic_acceptance_rates is not None:
        return config.synthetic_acceptance_rates
    assert config.synthetic_acceptance_length is not None
    assert config.num_speculative_tokens is not None
    accepted = config.synthetic_acceptance_length - 1
    return tuple(min(1.0, max(0.0, accepted - i)) for i in range(config.num_speculative_tokens))
