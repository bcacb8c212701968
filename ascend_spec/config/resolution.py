"""Which method is meant, which class holds its contract, and why: the second and third layer of dispatch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple

from ascend_spec.config import checks
from ascend_spec.config.checkpoint import ModelFacts, read_model_facts
from ascend_spec.config.embedded import refused_by_engine, refused_target
from ascend_spec.config.errors import Finding, nearest, quoted, shortened, wrong
from ascend_spec.config.methods import BUILT_IN
from ascend_spec.config.methods.custom_class import is_dotted_path
from ascend_spec.config.methods.mtp import LEGACY_NAMES, family_of, is_whole_model
from ascend_spec.config.parallel import check_parallel
from ascend_spec.config.registry import method_class, registered_speculative_methods
from ascend_spec.config.speculative import SpeculativeConfig
from ascend_spec.config.speculator import SpeculatorConfig
from ascend_spec.config.target import TargetConfig

#: names of the n-gram method where vLLM takes a model's
NGRAM_MODELS = ("ngram", "[ngram]")
#: where one of them is wrong, nothing is known of the method
NAMING = frozenset({"method", "ascend_spec", "ascend_spec.method", "custom_method", "model"})
Contract = type[SpeculatorConfig]


@dataclass
class Verdict:
    """What became of a configuration: a contract if there is one, and every finding."""

    speculator: SpeculatorConfig | None = None
    why: list[str] = field(default_factory=list)
    """How method and class were found, a sentence a step."""
    errors: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)


def judge(
    config: SpeculativeConfig,
    target: TargetConfig | None,
    *,
    embedded: bool = False,
    ignore: Set[str] = frozenset(),
) -> Verdict:
    """Resolve and check everything, and stop at nothing.

    Args:
        target: None while it is not known: what depends on it is not judged.
        embedded: whether what the embedded engine cannot do is an error.
        ignore: fields that are already known to be wrong; findings about them are left out.
    """
    verdict = Verdict()
    found = None if ignore & NAMING else _find(config, target, verdict)
    if found is not None:
        with _hooks_of(found, verdict):
            verdict.speculator = speculator = _speculator(found, config, target, verdict)
            config = speculator.config
            verdict.errors += speculator.check()
            verdict.errors += checks.check_contract(speculator)
            verdict.warnings += checks.warn_contract(speculator)
            if embedded:
                verdict.errors += refused_by_engine(speculator)
            if target is not None:
                verdict.errors += checks.check_target(speculator, target)
                verdict.warnings += checks.warn_target(speculator, target)
    elif target is not None:  # whatever the method is, its drafts must fit
        verdict.errors += checks.check_rows(SpeculatorConfig(config, target), target)
    if target is not None:
        verdict.errors += check_parallel(target)
        verdict.errors += refused_target(target) if embedded else ()
    awaits_target = (
        target is None
        and verdict.speculator is not None
        and verdict.speculator.model == "target"
        and verdict.speculator.draft is None
    )
    verdict.errors += checks.check_alone(config, awaits_target=awaits_target)
    verdict.warnings += checks.warn_alone(config)
    verdict.errors = [
        found for found in dict.fromkeys(verdict.errors) if not ignore & {found.field, *found.depends_on}
    ]
    return verdict


class _Found(NamedTuple):
    """A method whose contract is known."""

    name: str
    contract: Contract
    draft: ModelFacts | None = None
    """Of the checkpoint that the method was inferred from."""


def _find(config: SpeculativeConfig, target: TargetConfig | None, verdict: Verdict) -> _Found | None:
    """The method that is meant, or None and an error in ``verdict``."""
    name = _named(config, verdict)
    if verdict.errors:
        return None
    if name is not None:
        contract = method_class(name)
        if contract is None:
            verdict.errors.append(_unknown(config, name))
        return None if contract is None else _Found(name, contract)
    if config.model is None:
        verdict.errors.append(_model_missing(None, target))
        return None
    draft = _draft_facts(config.model, verdict)
    if verdict.errors:
        return None
    contract = _inferred(draft, verdict)
    return _Found(contract.method, contract, draft)


@contextmanager
def _hooks_of(found: _Found, verdict: Verdict) -> Iterator[None]:
    """Around calls of a contract: one from outside that raises is an error of the configuration."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if found.name in BUILT_IN:
            raise
        place = f"{found.contract.__module__}.{found.contract.__qualname__}"
        reason = f"{type(error).__name__}: {shortened(str(error))[1:-1]}"
        message = f"The contract of method {found.name!r}, {place}, failed ({reason})."
        verdict.errors.append(Finding("method", f"{message} Correct its package, or choose another method."))


def _speculator(
    found: _Found, config: SpeculativeConfig, target: TargetConfig | None, verdict: Verdict
) -> SpeculatorConfig:
    """The method's contract under this configuration; without its draft model, and an error in ``verdict``, where
    none was given."""
    name, contract, draft = found
    model = config.model or contract.default_model(config, target)
    if contract.model != "none" and model is not None:
        draft = draft or _draft_facts(model, verdict)
        if found.draft is None and model == config.model:
            _check_declared(found, draft, verdict)
        draft = contract.adapt_draft_model_config(draft)
    elif contract.model == "required" or (contract.model == "target" and target is not None):
        verdict.errors.append(_model_missing(name, target))
    base, custom = name, None
    if name not in BUILT_IN:
        base, custom = contract.base_method or "custom_class", name
        verdict.why.append(f"{name!r} is a registered method, carried by {base!r}")
    named = config.model_copy(update={"method": base, "custom_method": custom, "model": model})
    filled = contract.configure(named, draft)
    changes = {
        field: getattr(filled, field)
        for field in SpeculativeConfig.model_fields
        if getattr(filled, field) != getattr(named, field)
    }
    verdict.warnings += _overruled(name, config, changes)
    return _specialized(contract(filled, target, draft, frozenset(changes)), verdict)


def _overruled(name: str, config: SpeculativeConfig, changes: Mapping[str, object]) -> Iterator[Finding]:
    """What the user gave and the method sets otherwise."""
    for field_name, value in changes.items():
        given = getattr(config, field_name)
        if field_name in config.model_fields_set and given is not None:
            yield Finding(
                field_name,
                f"'{field_name}' was given as {shortened(given)}, but with method {name!r} and this checkpoint it is "
                f"always {shortened(value)}.",
            )


def _specialized(speculator: SpeculatorConfig, verdict: Verdict) -> SpeculatorConfig:
    special = speculator.specialize()
    # a registered class inherits the hook of what it derives from, and stays what it is
    if not issubclass(special, type(speculator)):
        return speculator
    if special is not type(speculator):
        verdict.why.append(f"with this configuration its contract is {special.__name__}")
    return special(speculator.config, speculator.target, speculator.draft, speculator.derived)


def _named(config: SpeculativeConfig, verdict: Verdict) -> str | None:
    """The method that is named outright, by a field or by a model's name that stands for one."""
    ours, custom, method, model = config.ascend_spec.method, config.custom_method, config.method, config.model
    if custom is not None and not _check_custom(config, verdict):
        return None
    if ours is not None:
        rival = f" and wins over 'method' {method!r}" if method not in (None, ours) else ""
        verdict.why.append(f"'ascend_spec.method' was given as {ours!r}{rival}")
        return ours
    if custom is not None:
        return custom
    if method in LEGACY_NAMES:
        verdict.why.append(f"'method' {method!r} is an older name of 'mtp'")
        verdict.warnings.append(Finding("method", f"'method' {method!r} is deprecated: write 'mtp'."))
        return "mtp"
    if method is not None:
        verdict.why.append(f"'method' was given as {method!r}")
        return "ngram" if method in NGRAM_MODELS else method
    if model in NGRAM_MODELS:
        verdict.why.append(f"'model' {model!r} stands for the n-gram method")
        return "ngram"
    if is_dotted_path(model) and not os.path.exists(str(model)):
        verdict.why.append(f"'model' {model!r} is the dotted path of a class")
        return "custom_class"
    return None


def _check_custom(config: SpeculativeConfig, verdict: Verdict) -> bool:
    """Whether ``custom_method`` is a registered method, and the other fields name none but it or its carrier: a
    resolved configuration has both."""
    name, ours, method = str(config.custom_method), config.ascend_spec.method, config.method
    known = registered_speculative_methods()
    contract = method_class(name)
    if name not in known or contract is None:
        allowed = f"a registered method ({quoted(known) or 'there is none'})"
        todo = f"Register it, or remove the field.{nearest(name, known)}"
        verdict.errors.append(wrong("custom_method", name, allowed, todo))
        return False
    carriers = (None, name, contract.base_method or "custom_class")
    rivals = {"ascend_spec.method": ours} if ours not in (None, name) else {}
    if method not in carriers:
        rivals["method"] = method
    for field_name, rival in rivals.items():
        verdict.errors.append(
            Finding(
                "custom_method",
                f"'custom_method' was given as {name!r} and '{field_name}' as {rival!r}, which is another method. "
                "Remove one.",
            )
        )
    verdict.why.append(f"'custom_method' was given as {name!r}")
    return not rivals


def _unknown(config: SpeculativeConfig, name: str) -> Finding:
    known = registered_speculative_methods()
    field_name = "ascend_spec.method" if config.ascend_spec.method is not None else "method"
    return wrong(
        field_name,
        name,
        f"one of the built-in methods {quoted(BUILT_IN)} or of the registered ones ({quoted(known) or 'none'})",
        f"Change or remove it.{nearest(name, [*BUILT_IN, *known, *LEGACY_NAMES])}",
    )


def _model_missing(name: str | None, target: TargetConfig | None) -> Finding:
    has_mtp = target is not None and family_of(target.model) is not None
    hint = " The target has MTP layers: 'method' \"mtp\" needs no other model." if has_mtp else ""
    if name is None:
        return Finding(
            "model",
            "Neither 'method' nor 'model' was given; a draft model is meant then, and it must be named. Set "
            f"'model' to its directory, or 'method' to one that needs none, like \"ngram\".{hint}",
        )
    return Finding(
        "model",
        f"'model' is missing; method {name!r} needs the directory of its draft model or head. Add it.{hint}",
    )


def _draft_facts(model: str, verdict: Verdict) -> ModelFacts:
    try:
        facts = read_model_facts(model)
    except ValueError as error:
        verdict.errors.append(Finding("model", f"'model' was given as {shortened(model)}: {error}."))
        return ModelFacts(model)
    if facts.known:
        return facts
    if model.startswith(("/", "./", "../", "~")):
        verdict.errors.append(
            wrong("model", model, "a directory with a config.json", "There is none: correct the path.")
        )
    else:
        verdict.warnings.append(
            Finding(
                "model",
                f"'model' {shortened(model)} is no directory here, so its config could not be read; what depends on it "
                "is judged when it is loaded.",
            )
        )
    return facts


def _declaration(draft: ModelFacts) -> tuple[Contract, str] | None:
    """The method that a checkpoint declares itself to be of, and how."""
    for contract in BUILT_IN.values():
        if draft.known and (reason := contract.matches(draft)):
            return contract, reason
    return None


def _inferred(draft: ModelFacts, verdict: Verdict) -> Contract:
    if declared := _declaration(draft):
        verdict.why.append(f"the method was inferred from the checkpoint: {declared[1]}")
        return declared[0]
    name = PurePath(draft.path).name.lower()
    for contract in BUILT_IN.values():
        hint = contract.path_hint()
        if hint is not None and hint in name:
            reason = f"the method was inferred from the name {name!r}, which holds {hint!r}"
            verdict.why.append(reason)
            verdict.warnings.append(Finding("method", f"{reason}: a guess. Set 'method' to be sure."))
            return contract
    verdict.why.append("no method was given, and nothing tells one: an independent draft model is meant")
    return BUILT_IN["draft_model"]


def _check_declared(found: _Found, draft: ModelFacts, verdict: Verdict) -> None:
    """The explicit method against what its checkpoint says."""
    contract = found.contract
    declared = _declaration(draft)
    if declared is None or contract is declared[0]:
        return
    if contract not in BUILT_IN.values() and issubclass(contract, declared[0]):
        return  # a registered method is of the kind that it derives from
    if declared[0].method == "mtp" and is_whole_model(draft):
        return  # a draft model may have MTP layers besides, and some heads come with their target's config
    verdict.errors.append(
        Finding(
            "method",
            f"'method' was given as {found.name!r}, but the checkpoint {draft.path!r} is of method "
            f"{declared[0].method!r} ({declared[1]}). Correct one of them.",
        )
    )
