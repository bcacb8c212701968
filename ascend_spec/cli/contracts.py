"""A method's contract as data: what :class:`SpeculatorConfig` declares, read off it, so that a fact added there
is shown here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from ascend_spec.config import BUILT_IN, SpeculativeConfig, SpeculatorConfig, registered_speculative_methods
from ascend_spec.config import method_class as contract_of

_GIVEN = {field.name for field in fields(SpeculatorConfig)}
#: what holds for every configuration of a method
CLASS_FACTS = tuple(name for name in SpeculatorConfig.__annotations__ if name not in _GIVEN)
#: what a configuration decides
FACTS = tuple(name for name, value in vars(SpeculatorConfig).items() if isinstance(value, property))


def plain(value: Any) -> Any:
    """``value`` as JSON has it: sets as sorted lists, tuples as lists."""
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def class_facts(contract: type[SpeculatorConfig]) -> dict[str, Any]:
    """What a contract says whatever its configuration is. A plugin's may have no method's name of its own."""
    return {name: plain(getattr(contract, name, None)) for name in CLASS_FACTS}


def contract_facts(speculator: SpeculatorConfig) -> dict[str, Any]:
    """Every fact of a contract under its configuration."""
    return {**class_facts(type(speculator)), **{name: plain(getattr(speculator, name)) for name in FACTS}}


def symbolic_facts(contract: type[SpeculatorConfig]) -> dict[str, Any]:
    """The same where K is not known yet: counts are expressions in it."""
    return {**class_facts(contract), **{name: symbolic(contract, name) for name in FACTS}}


def contracts() -> list[tuple[str, type[SpeculatorConfig]]]:
    """Method and contract of all methods, each followed by the classes that some configurations or checkpoints
    make of it."""
    found = []
    for name in (*BUILT_IN, *registered_speculative_methods()):
        contract = contract_of(name)
        assert contract is not None
        found += [(name, contract)]
        found += [(name, special) for special in _special(contract) if name in BUILT_IN]
    return found


def _special(contract: type[SpeculatorConfig]) -> list[type[SpeculatorConfig]]:
    """Subclasses of the same method that stand beside it."""
    found = []
    for special in contract.__subclasses__():
        if special.method == contract.method and special.__module__ == contract.__module__:
            found += [special, *_special(special)]
    return found


def symbolic(contract: type[SpeculatorConfig], name: str) -> Any:
    """A fact as an expression in K, the number of drafts (``K + 1``), found by evaluating it."""

    def at(num_drafts: int) -> Any:
        return getattr(contract(SpeculativeConfig(num_speculative_tokens=num_drafts)), name)

    return expression_in_k(at)


def expression_in_k(function: Callable[[int], Any]) -> Any:
    """``function`` of K written out if it counts, as it is if it doesn't; ``?``: not linear, or it needs the
    checkpoint."""
    try:
        first, second, third = (function(k) for k in (2, 3, 7))
    except Exception:  # a plugin's contract may read a draft model that isn't there
        return "?"
    if not isinstance(first, int) or isinstance(first, bool):
        return first if first == second == third else "?"
    slope, offset = second - first, 3 * first - 2 * second
    if third != 7 * slope + offset:
        return "?"
    return _written(slope, offset)


def _written(slope: int, offset: int) -> str:
    if slope == 0:
        return str(offset)
    times = {1: "K", -1: "-K"}.get(slope, f"{slope}K")
    sign = "+" if offset > 0 else "-"
    return times if offset == 0 else f"{times} {sign} {abs(offset)}"
