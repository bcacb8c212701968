"""Acceptance rules: what each one promises, and which options are its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """An acceptance rule as the configuration layer sees it; :mod:`ascend_spec_ops.verify` carries it out."""

    name: str
    lossless: bool
    """Whether output keeps the target's distribution."""
    in_vllm: bool
    """Whether vLLM has a word for it."""
    needs_q: bool
    """Whether it reads the distribution that drafts were drawn from."""
    options: tuple[str, ...] = ()
    """Fields that only this rule reads."""
    takes_trees: bool = False
    summary: str = ""


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("standard", True, True, True, takes_trees=True, summary="token-by-token rejection sampling"),
        Rule("block", True, True, True, summary="block verification: the drafts are judged together"),
        Rule(
            "synthetic", False, True, True,
            ("synthetic_acceptance_rates", "synthetic_acceptance_length"),
            summary="given acceptance rates, for load tests",
        ),
        Rule(
            "fly", False, True, True,
            ("fly_window_size", "fly_entropy_threshold", "fly_entropy_top_k"),
            summary="entropy-gated deferred verification",
        ),
        Rule(
            "typical", False, False, False,
            ("ascend_spec.posterior_threshold", "ascend_spec.posterior_alpha"),
            takes_trees=True, summary="typical acceptance",
        ),
        Rule("coupled", True, False, False, summary="each token is the target's own seeded draw"),
    )
}  # fmt: skip
