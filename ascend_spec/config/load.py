"""From what a user writes (JSON, YAML, a dictionary, older separate arguments) to a checked configuration."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ascend_spec.config.errors import ConfigError, Finding, from_pydantic, shortened, wrong
from ascend_spec.config.opaque import OPAQUE, check_json
from ascend_spec.config.options import AscendSpecConfig, Checked
from ascend_spec.config.resolution import judge
from ascend_spec.config.speculative import SpeculativeConfig
from ascend_spec.config.target import TargetConfig

EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 4}'
SUFFIXES = (".json", ".yaml", ".yml")
#: the one field with fields of its own
OURS = "ascend_spec"
#: a field of vLLM's that only says that it is not to be given
RENAMED = "tensor_parallel_size"


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
            Hyphens in keys count as underscores, and a field whose value is ``None`` counts as not given.
            Whatever YAML reads is what JSON would: true, false, null, decimal numbers; all else is text.
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
        if isinstance(fields.get(name), dict):
            findings += check_json(name, fields[name])
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
    """YAML with the values of JSON alone, where YAML 1.1 makes 8 of 010, 90 of 1:30, and a truth of "on". Merge
    keys and values that hold themselves are refused."""


_YAMLLoader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.endswith((":null", ":bool", ":str", ":seq"))
}
_YAMLLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":null", ":merge"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _yaml_object(loader: _YAMLLoader, node: yaml.MappingNode) -> _Object:
    return _object(loader.construct_pairs(node, deep=True))


def _yaml_number(loader: _YAMLLoader, node: yaml.ScalarNode) -> Any:
    return json.loads(loader.construct_scalar(node))


_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z")
_YAMLLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(true|false)\Z", re.I), list("tTfF"))
_YAMLLoader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-0123456789"))
_YAMLLoader.add_constructor("tag:yaml.org,2002:map", _yaml_object)
for _kind in ("int", "float"):
    _YAMLLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _yaml_number)


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
    """Keys with underscores for hyphens, without fields whose value is None and keys that were given twice."""
    place = f" in '{OURS}'" if prefix else ""
    known = AscendSpecConfig.model_fields if prefix else {*SpeculativeConfig.model_fields, RENAMED}
    findings += [
        Finding(
            prefix.rstrip("."),
            f"The key {shortened(key)} was given{place}; keys must be names. Correct or remove it.",
        )
        for key in fields
        if not isinstance(key, str)
    ]
    findings += _repeated(fields, prefix)
    named = [
        (key.replace("-", "_"), value)
        for key, value in fields.items()
        if isinstance(key, str) and key not in getattr(fields, "repeated", ())
    ]
    given = [(name, value) for name, value in named if value is not None or name not in known]
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
    if RENAMED in fields:
        allowed = "left out: the draft's parallelism is 'draft_tensor_parallel_size'"
        findings.append(wrong(RENAMED, fields.pop(RENAMED), allowed, "Rename it."))
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
        path, given = prefix + _shown(name), fields.pop(name)
        meant = _meant(name.partition(":")[0], prefix)
        if meant is not None:
            all_meant.add(meant)
        message = f"'{path}' was given as {shortened(given)}, but there is no such field. "
        if ":" in name and given is None:  # what YAML makes of {name:value}
            message = (
                f"'{path}' was given as a name: there is no space after the colon, or a shell took the quotes "
                f"away. Write an object like {EXAMPLE}, in single quotes on a command line."
            )
        elif meant is not None:
            message = _misplaced(name, prefix, path, given) or message + _suggestion(meant, prefix)
        else:  # all the names once: they are many
            message += (
                "Remove it." if listed else f"Remove it. The fields are {', '.join(model.model_fields)}."
            )
            listed = True
        findings.append(Finding(path, message))
    return all_meant


def _misplaced(name: str, prefix: str, path: str, given: Any) -> str | None:
    """Of a name that is right in the wrong place; None: it is no name of the other place."""
    told = f"'{path}' was given as {shortened(given)}, "
    if prefix and name == OURS:
        return f"{told}inside another '{OURS}'. Put its options into the outer one."
    if prefix and name in SpeculativeConfig.model_fields:
        return (
            f"{told}but '{name}' is a field of the speculative config itself. Move it there, out of '{OURS}'."
        )
    if not prefix and name in AscendSpecConfig.model_fields:
        return f"{told}but '{name}' is an option of '{OURS}'. Move it there: {{\"{OURS}\": {{\"{name}\": ...}}}}."
    return None


def _suggestion(meant: str, prefix: str) -> str:
    inner = meant.removeprefix(f"{OURS}.")
    place = f"'{meant}'" if prefix or inner == meant else f"'{inner}' inside '{OURS}'"
    return f"Did you mean {place}? Correct or remove it."


def _meant(name: str, prefix: str) -> str | None:
    """The dotted path of the known field whose name is nearest, those beside an unknown one first."""
    outer = {field: field for field in SpeculativeConfig.model_fields}
    inner = {field: f"{OURS}.{field}" for field in AscendSpecConfig.model_fields}
    paths = {**outer, **inner} if prefix else {**inner, **outer}
    close = get_close_matches(name.lower().removeprefix(f"{OURS}."), paths, n=1)
    return paths[close[0]] if close else None
