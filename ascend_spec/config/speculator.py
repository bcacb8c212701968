"""What a method declares of itself: the facts that engine, cache and step need before a drafter exists.

A drafter has no flags of its own; whoever needs one reads it here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ascend_spec.config.speculative import SpeculativeConfig


@dataclass(frozen=True)
class SpeculatorConfig:
    """The contract of a method under one configuration."""

    method: str
    needs_host_tokens: bool
    """True: it proposes after the step's tokens are on the host; False: from device tensors, before."""
    num_lookahead_tokens: int
    """KV slots a request needs beyond those of its rows in the target, in tokens."""


def _ngram(config: SpeculativeConfig) -> SpeculatorConfig:
    return SpeculatorConfig(method="ngram", needs_host_tokens=False, num_lookahead_tokens=0)


#: method -> its contract under a configuration. The known methods are the keys.
SPECULATORS: dict[str, Callable[[SpeculativeConfig], SpeculatorConfig]] = {"ngram": _ngram}


def speculator_config(config: SpeculativeConfig) -> SpeculatorConfig:
    """The contract of the configured method."""
    return SPECULATORS[config.method](config)
