"""Drafters guess the next tokens. A new one is a file here, named by its contract in
``ascend_spec.config.methods``."""

from __future__ import annotations

import importlib

from ascend_spec.config import Plan
from ascend_spec.drafters.draft_model import DraftModelDrafter
from ascend_spec.drafters.drafter import Drafter, KVDrafter
from ascend_spec.drafters.heterogeneous import SharedVocabModel, SlemDrafter
from ascend_spec.drafters.ngram import NgramDrafter
from ascend_spec.drafters.suffix import SuffixDrafter
from ascend_spec.drafters.vocab import VocabMapping, Vocabulary

__all__ = [
    "DraftModelDrafter",
    "Drafter",
    "KVDrafter",
    "NgramDrafter",
    "SharedVocabModel",
    "SlemDrafter",
    "SuffixDrafter",
    "VocabMapping",
    "Vocabulary",
    "create_drafter",
]


def create_drafter(plan: Plan) -> Drafter | None:
    """The drafter of the planned method; None: nothing is planned.

    Raises:
        ValueError: the class that a method's contract names cannot be had, or is not what the contract says.
    """
    name = plan.speculator.speculator_class
    if name is None:
        return None
    module, _, attribute = name.partition(":")
    try:
        drafter_class = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"method {plan.name!r} names {name!r} as its drafter, which cannot be imported ({error}): correct "
            "speculator_class in its contract, written 'module:Class'"
        ) from error
    drafter = drafter_class.from_plan(plan)
    if plan.speculator.uses_draft_kv_cache and not hasattr(drafter, "follow"):
        raise ValueError(
            f"method {plan.name!r} has K/V of its own, but {type(drafter).__name__} has no follow, which keeps it in "
            "step with the target's: see KVDrafter"
        )
    return drafter
