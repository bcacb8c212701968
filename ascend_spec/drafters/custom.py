"""A drafter of the user's own: method ``custom_class``, whose ``model`` is the dotted path of the class."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from ascend_spec.config import Plan
from ascend_spec.drafters.drafter import Drafter


class CustomDrafter:
    """Makes the user's drafter, and holds its class to what :class:`Drafter` says before anything is decoded.

    The class needs two methods: ``from_plan(plan)``, a class method, and ``propose(batch)``. One that has
    ``follow(batch)`` too is a :class:`KVDrafter`. Its own options come from ``speculator_options``, which stand in
    ``plan.config``.
    """

    @classmethod
    def from_plan(cls, plan: Plan) -> Drafter:
        """
        Raises:
            ValueError: no such class, or one without a method that it needs; or whatever its ``from_plan`` raises.
        """
        path = str(plan.config.model)
        drafter_class = imported(path)
        _check_calls(
            path, getattr(drafter_class, "from_plan", None), "from_plan(cls, plan)", "a class method"
        )
        drafter: Drafter = drafter_class.from_plan(plan)
        _check_calls(path, getattr(drafter, "propose", None), "propose(self, batch)", "a method")
        if hasattr(drafter, "follow"):
            _check_calls(path, drafter.follow, "follow(self, batch)", "a method")
        return drafter


def imported(path: str) -> Any:
    """The class of a dotted path.

    Raises:
        ValueError: it cannot be imported, or is no class.
    """
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"'model' was given as {path!r}, the dotted path of a drafter class, which cannot be imported ({error}): "
            "correct it, or put the folder of its module on PYTHONPATH"
        ) from error
    if not isinstance(found, type):
        raise ValueError(
            f"'model' was given as {path!r}, which is a {type(found).__name__}; it must be a class"
        )
    return found


def _check_calls(path: str, method: Any, wanted: str, what: str) -> None:
    """That ``method`` is there and can be called with one argument."""
    problem = None if callable(method) else "has none"
    if problem is None:
        try:
            inspect.signature(method).bind(None)
        except TypeError as error:
            problem = f"has one that cannot be called so ({error})"
        except ValueError:
            pass  # compiled, without a signature
    if problem is not None:
        raise ValueError(
            f"'model' was given as {path!r}; a drafter class needs {what} {wanted}, and this one {problem}: see "
            "ascend_spec.drafters.Drafter"
        )
