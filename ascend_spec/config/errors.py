"""One kind of error for every wrong configuration, in one paragraph; pydantic's findings are put into it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError


class ConfigError(ValueError):
    """The message says what was given, what is allowed and what to do."""


def from_pydantic(error: ValidationError, model: type[BaseModel]) -> ConfigError:
    """Every finding as one sentence. What a field allows is its description."""
    sentences = (_sentence(finding, model) for finding in error.errors())
    return ConfigError("Speculative config: " + " ".join(sentences))


def _sentence(finding: Any, model: type[BaseModel]) -> str:
    *outer, name = finding["loc"] or ("",)
    for key in outer:
        annotation = model.model_fields[key].annotation
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        model = annotation
    path = ".".join([*outer, str(name)])
    if finding["type"] == "extra_forbidden":
        known = ", ".join(model.model_fields)
        return f"'{path}' was given, which is not supported; allowed here: {known}. Remove or correct it."
    if finding["type"] == "value_error":  # from our own validators, already whole sentences
        return str(finding["ctx"]["error"])
    allowed = model.model_fields[name].description
    if finding["type"] == "missing":
        return f"'{path}' is missing; it must be {allowed}. Add it."
    return f"'{path}' was given as {finding['input']!r}; it must be {allowed}. Change it."
