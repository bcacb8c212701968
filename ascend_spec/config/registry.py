"""Methods from outside: registered by a call, or by the entry-point group ``ascend_spec.methods``."""

from __future__ import annotations

import logging
from functools import cache
from importlib import metadata

from ascend_spec.config.errors import nearest, quoted
from ascend_spec.config.methods import BUILT_IN
from ascend_spec.config.methods.mtp import LEGACY_NAMES
from ascend_spec.config.speculator import SpeculatorConfig

logger = logging.getLogger(__name__)
ENTRY_POINTS = "ascend_spec.methods"
_registered: dict[str, type[SpeculatorConfig]] = {}


def register_speculative_method(name: str, config_cls: type[SpeculatorConfig]) -> None:
    """Make a method known under ``name``; registering the same class again changes nothing.

    Its drafter is named by the class's ``speculator_class``; where only built-in names mean something, as in
    vLLM, its ``base_method`` carries it (``custom_class`` if it names none).

    Raises:
        ValueError: a built-in name, a name taken by another class, or a class that is no SpeculatorConfig.
    """
    if not (isinstance(config_cls, type) and issubclass(config_cls, SpeculatorConfig)):
        raise ValueError(
            f"{config_cls!r} was given as the contract of method {name!r}; it must be a subclass of "
            "ascend_spec.config.SpeculatorConfig. Derive it from that class."
        )
    if not isinstance(name, str) or not name:
        raise ValueError(f"{name!r} was given as a method's name; it must be a text that is not empty.")
    if name in BUILT_IN or name in LEGACY_NAMES:
        raise ValueError(f"{name!r} is a built-in speculative method. Choose another name.")
    base = config_cls.base_method
    if base is not None and base not in BUILT_IN:
        raise ValueError(
            f"method {name!r} was given base_method {base!r}; it must be a built-in one: {quoted(BUILT_IN)}."
            f"{nearest(base, BUILT_IN)}"
        )
    taken = _registered.get(name)
    if taken is not None and taken is not config_cls:
        raise ValueError(
            f"{name!r} is taken by {taken.__module__}.{taken.__qualname__}. Choose another name, or remove "
            "the package that registers it."
        )
    _registered[name] = config_cls


def registered_speculative_methods() -> list[str]:
    """Names of the methods from outside, sorted."""
    _load_entry_points()
    return sorted(_registered)


def method_class(name: str) -> type[SpeculatorConfig] | None:
    """The contract of a built-in or registered method; None: there is no such name."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    _load_entry_points()
    return _registered.get(name)


@cache
def _load_entry_points() -> None:
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        try:
            register_speculative_method(entry.name, entry.load())
        except (Exception, SystemExit) as error:  # a broken package must not take the others with it
            reason = f"{type(error).__name__}: {error}"
            logger.warning("method %r of entry point %s is left out: %s", entry.name, entry.value, reason)
