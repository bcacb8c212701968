"""One kind of error for every wrong configuration: all that is wrong at once, a sentence or two each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from reprlib import Repr
from typing import Any, get_args

from pydantic import BaseModel, ValidationError


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth a warning."""

    field: str
    """Dotted path of the field that should change."""
    message: str
    """Whole sentences: what was given, what is allowed, what to do."""
    depends_on: tuple[str, ...] = ()
    """Other fields that it was concluded from: where one of them is wrong itself, nothing follows."""


class ConfigError(ValueError):
    """A configuration that cannot be honoured. The message is one paragraph with every finding.

    Attributes:
        findings: tuple of :class:`Finding`, in the order of the message.
    """

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("Speculative config: " + " ".join(finding.message for finding in self.findings))


def wrong(
    field: str, given: Any, allowed: str, todo: str = "Change it.", depends_on: tuple[str, ...] = ()
) -> Finding:
    """The usual finding: one field whose value is not allowed."""
    message = f"'{field}' was given as {shortened(given)}; it must be {allowed}. {todo}"
    return Finding(field, message, depends_on)


def allowed(description: str | None) -> str:
    """What a field may be: its description up to the colon, behind which it says what that means."""
    return str(description).partition(": ")[0]


def quoted(names: Iterable[str]) -> str:
    """Names as a list in an error."""
    return ", ".join(f'"{name}"' for name in names)


def nearest(name: object, known: Iterable[str]) -> str:
    """``" Did you mean 'x'?"`` if a known name is close, else nothing."""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(str(name).lower(), by_lower, n=1)
    return f" Did you mean '{by_lower[close[0]]}'?" if close else ""


class _Short(Repr):
    """Bounded in depth and breadth: aliases make a few lines of YAML into an endless value."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxdict = self.maxlist = self.maxtuple = 12
        self.maxstring = 200
        self.maxother = 60

    def repr1(self, x: Any, level: int) -> str:
        return self.repr_dict(x, level) if isinstance(x, dict) else super().repr1(x, level)


def shortened(value: Any) -> str:
    """``value`` as it is quoted in an error: one line, not endless."""
    try:
        text = " ".join(_Short().repr(value).splitlines())
    except (ValueError, RecursionError):  # an integer beyond Python's limit of digits, or endless nesting
        return "something too large to print"
    return text if len(text) <= 200 else f"{text[:200]}..."


def from_pydantic(error: ValidationError, model: type[BaseModel], fields: Mapping[str, Any]) -> list[Finding]:
    """One finding for each field whose value is not allowed. What a field allows begins its description.

    Args:
        fields: what was validated, with no other keys than ``model`` knows.
    """
    found: dict[str, Finding] = {}
    # pydantic copies the input into the error's text, which it cannot do with every input
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        finding = _finding(detail["loc"], model, fields)
        found.setdefault(finding.field, finding)
    return list(found.values())


def _finding(
    location: tuple[int | str, ...], model: type[BaseModel], fields: Mapping[str, Any], prefix: str = ""
) -> Finding:
    name = str(location[0])
    field, given = model.model_fields[name], fields[name]
    nested = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    if nested and len(location) > 1:
        return _finding(location[1:], field.annotation, given, f"{name}.")  # type: ignore[arg-type]
    # positions inside a value are left out: the field as a whole is described
    hint = nearest(given, choices(field.annotation)) if isinstance(given, str) else ""
    return wrong(prefix + name, given, allowed(field.description), f"Change it.{hint}")


def choices(annotation: Any) -> list[str]:
    """The texts that a type like ``Literal["a", "b"] | None`` allows."""
    arguments = get_args(annotation)
    texts = [each for each in arguments if isinstance(each, str)]
    return texts or [text for each in arguments for text in choices(each)]
