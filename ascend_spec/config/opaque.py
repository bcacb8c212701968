"""Dictionaries that are handed on unread: they are printed, hashed and sent to other processes, so all that is in
them must be JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ascend_spec.config.errors import Finding, shortened, wrong

#: fields whose values are other people's dictionaries: their keys are left alone
OPAQUE = ("draft_parallel_config", "draft_load_config", "draft_model_config", "speculator_options")
#: Aliases make a few lines of YAML into an endless value, and Python's dictionaries can hold themselves.
MOST_VALUES, MOST_LEVELS = 2**20, 64
Path = tuple[str, ...]


def check_json(field: str, options: Mapping[Any, Any]) -> Iterator[Finding]:
    """The first thing under each key of ``options`` that JSON does not have, by its dotted path."""
    for key, value in options.items():
        found = _bad_key((field,), key) or _first_bad((field, key), value)
        if found is not None:
            yield found


def _first_bad(path: Path, value: Any) -> Finding | None:
    waiting = [(path, value)]
    for _ in range(MOST_VALUES):
        if not waiting:
            return None
        path, value = waiting.pop()
        if isinstance(value, dict | list | tuple) and len(path) > MOST_LEVELS:
            return _too_much(path[:2], f"more than {MOST_LEVELS} levels")
        if isinstance(value, dict):
            for key in value:
                if bad := _bad_key(path, key):
                    return bad
            waiting += [((*path, key), item) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [((*path, str(index)), item) for index, item in enumerate(value)]
        elif not _is_plain(value):
            allowed = "a text, a finite number of at most 64 bits, true, false, null, a list or a dictionary"
            return wrong(dotted(path), value, allowed)
    return _too_much(path[:2], f"more than {MOST_VALUES} values")


def _is_plain(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) < 2**64
    return value is None or isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))


def _bad_key(path: Path, key: Any) -> Finding | None:
    if isinstance(key, str):
        return None
    message = (
        f"The key {shortened(key)} was given in '{dotted(path)}'; keys must be names. Correct or remove it."
    )
    return Finding(dotted(path), message)


def _too_much(path: Path, what: str) -> Finding:
    return Finding(dotted(path), f"'{dotted(path)}' was given with {what}. Shorten it.")


def dotted(path: Path) -> str:
    """As it stands in an error: one line, not endless."""
    return shortened(".".join(path))[1:-1]
