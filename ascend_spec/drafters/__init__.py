"""Drafters guess the next tokens. A new one is a file here, a line in ``DRAFTERS``, and its contract in
``ascend_spec.config.SPECULATORS``."""

from __future__ import annotations

from collections.abc import Callable

from ascend_spec.config import SpeculativeConfig
from ascend_spec.drafters.drafter import Drafter
from ascend_spec.drafters.ngram import NgramDrafter

__all__ = ["DRAFTERS", "Drafter", "NgramDrafter", "create_drafter"]

#: method -> the drafter it means
DRAFTERS: dict[str, Callable[[SpeculativeConfig], Drafter]] = {"ngram": NgramDrafter.from_config}


def create_drafter(config: SpeculativeConfig) -> Drafter:
    """The drafter of the configured method."""
    return DRAFTERS[config.method](config)
