"""From what a user writes, JSON text or a dictionary, to a checked configuration."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from ascend_spec.config.errors import ConfigError, from_pydantic
from ascend_spec.config.speculative import SpeculativeConfig

EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 4}'


def load_speculative_config(value: str | dict[str, Any] | None) -> SpeculativeConfig | None:
    """The checked configuration; ``None`` (no speculation) stays ``None``.

    Args:
        value: a JSON object as text, or a dictionary. Hyphens in keys count as underscores, and a key whose
            value is ``None`` counts as not given.

    Raises:
        ConfigError: in one paragraph what was given, what is allowed and what to do.
    """
    if value is None:
        return None
    if isinstance(value, str):
        value = _parse(value)
    if not isinstance(value, dict):
        raise ConfigError(f"Speculative config: given {value!r}; it must be a JSON object, like {EXAMPLE}.")
    try:
        return SpeculativeConfig.model_validate(_underscored(value))
    except ValidationError as error:
        raise from_pydantic(error, SpeculativeConfig) from None


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (
        ValueError,
        RecursionError,
    ) as error:  # JSONDecodeError, a number or nesting beyond Python's limits
        raise ConfigError(
            f"Speculative config: given {shortened(text)}, which is not JSON ({error}); write an object like "
            f"{EXAMPLE}, in single quotes on a command line."
        ) from None


def shortened(text: str) -> str:
    """``text`` as it is quoted in an error."""
    return repr(text) if len(text) <= 200 else f"{text[:200]!r}..."


def _underscored(fields: dict[str, Any]) -> dict[str, Any]:
    """Keys with underscores for hyphens and without those whose value is None, at every depth; one option
    given twice is an error."""
    result: dict[str, Any] = {}
    for key, value in fields.items():
        name = str(key).replace("-", "_")
        if name in result:
            raise ConfigError(
                f"Speculative config: '{name}' was given twice, with hyphens and underscores. Remove one."
            )
        result[name] = _underscored(value) if isinstance(value, dict) else value
    return {name: value for name, value in result.items() if value is not None}
