"""The parts of vLLM that the adapters hold on to, looked at before anything is changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any


class SeamError(RuntimeError):
    """A part of vLLM that we hold on to is not there, or is not what it was."""


def check_seams(
    owner: Any, paths: Iterable[str] = (), replaced: dict[str, Callable[..., Any]] | None = None
) -> None:
    """
    Args:
        owner: an instance or a class of vLLM.
        paths: dotted paths of attributes that it must have.
        replaced: of methods, what stands in for them, and must take arguments of the same names.

    Raises:
        SeamError: with all that is missing or takes other arguments.
    """
    name = owner.__name__ if isinstance(owner, type) else type(owner).__name__
    found = [*_missing(owner, name, [*paths, *(replaced or ())]), *_other(owner, name, replaced or {})]
    if found:
        raise SeamError(
            f"{'; '.join(found)}. Remove 'ascend_spec' from --additional-config, or use a vLLM version of the "
            "support table."
        )


def _missing(owner: Any, name: str, paths: Iterable[str]) -> Iterator[str]:
    missing = [path for path in paths if not _has(owner, path)]
    if missing:
        yield f"{name} has no {', '.join(missing)}, which ascend-spec holds on to"


def _has(owner: Any, path: str) -> bool:
    try:
        attrgetter(path)(owner)
    except AttributeError:
        return False
    return True


def _other(owner: Any, name: str, replaced: dict[str, Callable[..., Any]]) -> Iterator[str]:
    for path, ours in replaced.items():
        if not _has(owner, path):
            continue
        expected, found = _arguments(ours), _arguments(attrgetter(path)(owner))
        if found != expected:
            yield (
                f"{name}.{path} of this vLLM takes ({', '.join(found)}); ascend-spec replaces it where it takes "
                f"({', '.join(expected)})"
            )


def _arguments(method: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(method).parameters if name != "self"]
