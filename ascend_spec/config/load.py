"""From what a user writes (JSON, YAML, a dictionary, older separate arguments) to a checked configuration."""

from __future__ import annotations

import json
import os
from collections import Counter
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ascend_spec.config.errors import ConfigError, Finding, from_pydantic, shortened, wrong
from ascend_spec.config.options import AscendSpecConfig, Checked
from ascend_spec.config.resolution import judge
from ascend_spec.config.speculative import SpeculativeConfig
from ascend_spec.config.target import TargetConfig

EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 4}'
SUFFIXES = (".json", ".yaml", ".yml")
#: the one field with fields of its own
OURS = "ascend_spec"
#: fields whose values are other people's dictionaries: their keys are left alone
OPAQUE = ("draft_parallel_config", "draft_load_config", "draft_model_config", "speculator_options")


def load_speculative_config(
    value: str | dict[str, Any] | None,
    *,
    spec_method: str | None = None,
    spec_model: str | None = None,
    spec_tokens: int | None = None,
    target: TargetConfig | None = None,
    embedded: bool = False,
) -> SpeculativeConfig | None:
    """The checked configuration; no configuration (no speculation) stays ``None``.

    Without ``target`` everything is judged that can be judged without it; :func:`resolve` judges the rest.

    Args:
        value: an object as JSON or YAML text, the path of a .json, .yaml or .yml file, or a dictionary.
            Hyphens in keys count as underscores, and a key whose value is ``None`` counts as not given.
        spec_method, spec_model, spec_tokens: ``method``, ``model`` and ``num_speculative_tokens`` as vLLM's
            older separate arguments.
        target: the model that the configuration is for, if it is known: errors about both come at once.
        embedded: refuse what the embedded engine cannot do, too.

    Raises:
        ConfigError: all that is wrong, in one paragraph: what was given, what is allowed and what to do.
    """
    separate = {"method": spec_method, "model": spec_model, "num_speculative_tokens": spec_tokens}
    if value is None and all(given is None for given in separate.values()):
        return None
    fields, findings = _fields(value)
    for name, given in separate.items():
        if given is not None and name in fields:
            argument = {"method": "spec_method", "model": "spec_model"}.get(name, "spec_tokens")
            findings.append(
                Finding(
                    name,
                    f"'{name}' was given in the config and as {argument} too; they exclude each other. "
                    "Remove one.",
                )
            )
        elif given is not None:
            fields[name] = given
    config, more, meant = _validated(fields)
    findings += more
    bad = {finding.field for finding in findings} | (meant - config.model_fields_set)
    # what remains is judged too, so that one run shows all that is wrong; not what a bad field entails
    verdict = judge(config, target, embedded=embedded, ignore=bad)
    findings += verdict.errors
    if findings:
        raise ConfigError(findings)
    return config


def _fields(value: Any) -> tuple[dict[str, Any], list[Finding]]:
    if value is None:
        return {}, []
    if isinstance(value, str):
        value = _parse(value)
    elif not isinstance(value, dict):
        raise _unreadable(shortened(value), "which is no JSON object")
    findings: list[Finding] = []
    fields = _underscored(value, "", findings)
    if isinstance(fields.get(OURS), dict):
        fields[OURS] = _underscored(fields[OURS], f"{OURS}.", findings)
    for name in OPAQUE:
        findings += _repeated(fields.get(name), f"{name}.")
    return fields, findings


class _Object(dict):
    """An object of JSON or YAML text, which remembers what a dictionary cannot hold."""

    repeated: tuple[str, ...] = ()
    """Keys that stood in it more than once."""


def _object(pairs: list[tuple[Any, Any]]) -> _Object:
    value = _Object(pairs)
    counts = Counter(key for key, _ in pairs)
    value.repeated = tuple(str(key) for key, count in counts.items() if count > 1)
    return value


class _YAMLLoader(yaml.SafeLoader):
    """Plain values only. Merge keys and values that hold themselves are refused."""


def _yaml_object(loader: _YAMLLoader, node: yaml.MappingNode) -> _Object:
    return _object(loader.construct_pairs(node, deep=True))


_YAMLLoader.add_constructor("tag:yaml.org,2002:map", _yaml_object)


def _parse(text: str) -> dict[Any, Any]:
    source = shortened(text)
    path = text.strip()
    if path.endswith(SUFFIXES) and "\n" not in path:
        source = f"The file {shortened(path)}"
        text = _read(path, source)
    value = _json_or_yaml(text, source)
    if not isinstance(value, dict):
        raise _unreadable(source, "which is no JSON object")
    return value


def _json_or_yaml(text: str, source: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:  # a number or nesting beyond Python's limits too
        failure: Exception = error
    try:
        return yaml.load(text, _YAMLLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if not text.lstrip().startswith(("{", "[")):
            failure = error
    except Exception:  # PyYAML answers some tags that do not fit their value with whatever comes
        failure = ValueError("a tag does not fit its value")
    raise _unreadable(source, f"which is neither JSON nor YAML ({_reason(failure)})") from None


def _reason(failure: Exception) -> str:
    """What a parser says, without the piece of text that PyYAML adds to it."""
    if isinstance(failure, RecursionError):
        return "nested too deeply"
    if isinstance(failure, yaml.MarkedYAMLError) and failure.problem_mark is not None:
        mark = failure.problem_mark
        return f"{failure.problem}: line {mark.line + 1} column {mark.column + 1}"
    return " ".join(str(failure).split()).partition("; use sys.")[0]  # Python's advice on digits is not ours


def _read(path: str, source: str) -> str:
    try:
        return Path(os.path.expanduser(path)).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise _unreadable(
            source, f"which cannot be read ({reason})", "Correct its name, or write an object"
        ) from None


def _unreadable(source: str, problem: str, todo: str = "Write an object") -> ConfigError:
    message = f"{source} was given, {problem}. {todo} like {EXAMPLE}, in single quotes on a command line."
    return ConfigError([Finding("", message)])


def _underscored(fields: dict[Any, Any], prefix: str, findings: list[Finding]) -> dict[str, Any]:
    """Keys with underscores for hyphens, without those whose value is None or that were given twice."""
    place = f" in '{OURS}'" if prefix else ""
    findings += [
        Finding(
            prefix.rstrip("."),
            f"The key {shortened(key)} was given{place}; keys must be names. Correct or remove it.",
        )
        for key in fields
        if not isinstance(key, str)
    ]
    findings += _repeated(fields, prefix)
    given = [
        (key.replace("-", "_"), value)
        for key, value in fields.items()
        if isinstance(key, str) and value is not None and key not in getattr(fields, "repeated", ())
    ]
    counts = Counter(name for name, _ in given)
    both = ", with hyphens and with underscores"
    findings += [_twice(prefix + _shown(name), both) for name, count in counts.items() if count > 1]
    return {name: value for name, value in given if counts[name] == 1}


def _repeated(fields: Any, prefix: str) -> list[Finding]:
    return [_twice(prefix + _shown(name)) for name in getattr(fields, "repeated", ())]


def _twice(name: str, how: str = "") -> Finding:
    return Finding(name, f"'{name}' was given twice{how}. Remove one.")


def _shown(name: str) -> str:
    """A key as it stands in an error: one line, not endless."""
    return shortened(name)[1:-1]


def _validated(fields: dict[str, Any]) -> tuple[SpeculativeConfig, list[Finding], set[str]]:
    """The configuration of the good fields, what is wrong with the others, and the fields that unknown ones
    were meant for."""
    findings: list[Finding] = []
    if "tensor_parallel_size" in fields:
        given = fields.pop("tensor_parallel_size")
        findings.append(
            wrong(
                "tensor_parallel_size",
                given,
                "left out: the draft's parallelism is 'draft_tensor_parallel_size'",
                "Rename it.",
            )
        )
    meant = _take_unknown(fields, SpeculativeConfig, "", findings)
    if isinstance(fields.get(OURS), dict):
        meant |= _take_unknown(fields[OURS], AscendSpecConfig, f"{OURS}.", findings)
    try:
        return SpeculativeConfig.model_validate(fields), findings, meant
    except ValidationError as error:
        found = from_pydantic(error, SpeculativeConfig, fields)
    for finding in found:
        outer, _, inner = finding.field.partition(".")
        if inner:
            del fields[outer][inner]
        else:
            del fields[outer]
    return SpeculativeConfig.model_validate(fields), findings + found, meant


def _take_unknown(
    fields: dict[str, Any], model: type[Checked], prefix: str, findings: list[Finding]
) -> set[str]:
    """Remove what ``model`` has no field for, with a finding each; the fields that were meant, where a name is
    near."""
    all_meant: set[str] = set()
    listed = False
    for name in sorted(name for name in fields if name not in model.model_fields):
        path, given, meant = prefix + _shown(name), fields.pop(name), _meant(name, prefix)
        if meant is not None:
            all_meant.add(meant)
            place = f"'{meant}'" if prefix else f"'{meant.removeprefix(OURS + '.')}' inside '{OURS}'"
            hint = f"Did you mean {place if OURS + '.' in meant else repr(meant)}? Correct or remove it."
        else:  # all the names once: they are many
            hint = "Remove it." if listed else f"Remove it. The fields are {', '.join(model.model_fields)}."
            listed = True
        findings.append(
            Finding(path, f"'{path}' was given as {shortened(given)}, but there is no such field. {hint}")
        )
    return all_meant


def _meant(name: str, prefix: str) -> str | None:
    """The dotted path of the known field whose name is nearest, those beside an unknown one first."""
    outer = {field: field for field in SpeculativeConfig.model_fields}
    inner = {field: f"{OURS}.{field}" for field in AscendSpecConfig.model_fields}
    paths = {**outer, **inner} if prefix else {**inner, **outer}
    close = get_close_matches(name.lower().removeprefix(f"{OURS}."), paths, n=1)
    return paths[close[0]] if close else None
