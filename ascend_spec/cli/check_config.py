"""``ascend-spec check-config``: what a speculative config means for a target, or all that is wrong with it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Literal

from ascend_spec.cli.contracts import contract_facts, plain, symbolic_facts
from ascend_spec.cli.errors import CommandError
from ascend_spec.cli.report import print_report
from ascend_spec.config import (
    RULES,
    ConfigError,
    Finding,
    ModelFacts,
    Plan,
    SpeculativeConfig,
    SpeculatorConfig,
    TargetConfig,
    load_speculative_config,
    read_model_facts,
    resolve,
)
from ascend_spec.config.checks import check_runner, method_name
from ascend_spec.config.resolution import judge
from ascend_spec.vllm.refusals import refused as refused_in_vllm

DTYPES = {"float": "float32", "half": "float16"}


def run(args: argparse.Namespace) -> int:
    findings: list[Finding] = []
    target = config = None
    try:
        target = target_of(args)
    except ValueError as error:
        findings.append(Finding("--model", str(error)))
    try:
        config = _load(args, target, embedded=args.embedded)
    except ConfigError as error:
        findings += error.findings
    if findings:
        raise CommandError.of(findings)
    assert config is not None
    refused = {
        "embedded_engine": _refused(args, target),
        "vllm_v1": _refused_in_vllm(args, config, target, "v1"),
        "vllm_v2": _refused_in_vllm(args, config, target, "v2"),
    }
    report = _report(config, target, refused)
    if args.json:
        print(json.dumps(report))
    else:
        print_report(report)
    return 0


def target_of(args: argparse.Namespace) -> TargetConfig | None:
    """The target as the options describe it; None: there is no ``--model``.

    Raises:
        ValueError: no directory with a readable config.json.
        CommandError: options that mean nothing without a model, or that contradict each other.
    """
    names = {field.name for field in fields(TargetConfig)}
    given = {name: value for name, value in vars(args).items() if name in names and value is not None}
    path = given.pop("model", None)
    connector = args.kv_connector is not None
    if path is None:
        options = [name.replace("_", "-") for name in given] + ["kv-connector"] * connector
        if options:
            raise CommandError(
                f"--{options[0]} was given, which says how a target is run, but no target: add --model DIR"
            )
        return None
    if args.embedded and given.get("runner", "embedded") != "embedded":
        raise CommandError(
            f"--embedded and --runner {given['runner']} were given, which exclude each other: remove one"
        )
    if path.endswith(".gguf"):
        raise ValueError(
            f"{path!r} was given as the target model, a GGUF file; check-config reads a config.json. Pass the "
            "directory of the model that the file was made from."
        )
    given["dtype"] = _dtype(given, read_model_facts(path))
    given.setdefault("num_threads", len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    return TargetConfig.from_directory(path, has_kv_connector=connector, **given)


def _dtype(given: dict[str, Any], model: ModelFacts) -> str:
    """ "auto" is float32 in the embedded engine; in vLLM the checkpoint's, which runs float32 ones in bfloat16."""
    wanted = given.get("dtype", "auto")
    if wanted != "auto":
        return DTYPES.get(wanted, wanted)
    if given.get("runner", "embedded") == "embedded":
        return "float32"
    own = str(model.get("dtype") or model.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return "bfloat16" if own == "float32" else own


def _load(args: argparse.Namespace, target: TargetConfig | None, *, embedded: bool) -> SpeculativeConfig:
    config = load_speculative_config(
        args.config,
        spec_method=args.spec_method,
        spec_model=args.spec_model,
        spec_tokens=args.spec_tokens,
        target=target,
        embedded=embedded,
    )
    if config is None:
        raise CommandError(
            "no config was given: pass a JSON object, a file, or --spec-method and --spec-tokens"
        )
    return config


def _refused(args: argparse.Namespace, target: TargetConfig | None) -> Sequence[Finding]:
    """Why the embedded engine cannot run it."""
    try:
        _load(args, target and replace(target, runner="embedded"), embedded=True)
    except ConfigError as error:
        return error.findings
    return ()


def _refused_in_vllm(
    args: argparse.Namespace,
    config: SpeculativeConfig,
    target: TargetConfig | None,
    runner: Literal["v1", "v2"],
) -> Sequence[Finding]:
    """Why the plugin cannot run it in one of vLLM's runners, as far as options and target tell."""
    target = target and replace(target, runner=runner)
    if target is not None:
        try:
            _load(args, target, embedded=False)
        except ConfigError as error:
            return error.findings
    speculator = judge(config, target).speculator
    assert speculator is not None
    ours = config.ascend_spec.model_copy(update={"method": None})
    carried = judge(config.model_copy(update={"ascend_spec": ours}), target).speculator
    carrier = None if carried is None else carried.config.method
    found = [] if target is not None else check_runner(speculator, runner)
    return [*found, *refused_in_vllm(speculator, runner, carrier)]


def _listed(findings: Iterable[Finding]) -> list[dict[str, str]]:
    return [{"field": found.field, "message": found.message} for found in findings]


# ---- the report: the same keys for every config; None where it takes a target to know
def _report(
    config: SpeculativeConfig, target: TargetConfig | None, refused: Mapping[str, Sequence[Finding]]
) -> dict[str, Any]:
    plan = None if target is None else resolve(config, target)
    verdict = judge(config, None) if plan is None else plan
    speculator = verdict.speculator
    assert speculator is not None
    drafts = speculator.config.num_speculative_tokens
    return {
        "ok": True,
        "judged": "the config alone" if plan is None else "the config with its target",
        "method": {
            "name": method_name(speculator),
            "carried_by": speculator.config.method,
            "contract": type(speculator).__name__,
            "drafter": speculator.speculator_class,
            "why": list(verdict.why),
        },
        "config": {name: plain(value) for name, value in speculator.config.model_dump().items()},
        "num_speculative_tokens": drafts,
        "contract": contract_facts(speculator) if drafts else symbolic_facts(type(speculator)),
        "rule": _rule(speculator, plan),
        "steps": None if plan is None else _steps(plan),
        "draft_model": None if plan is None else _draft_model(plan),
        "target": None if plan is None else _target(plan.target),
        "kv": None if plan is None else _kv(plan),
        "start": None if plan is None else _start(plan),
        "warnings": _listed(dict.fromkeys(verdict.warnings)),
        **{place: {"ok": not found, "errors": _listed(found)} for place, found in refused.items()},
    }


def _rule(speculator: SpeculatorConfig, plan: Plan | None) -> dict[str, Any]:
    rule = RULES[speculator.config.rule]
    return {
        **{name: plain(value) for name, value in asdict(rule).items()},
        "synthetic_acceptance_rates": plan and plain(plan.synthetic_acceptance_rates),
        "fly_window_size": plan and plan.fly_window_size,
    }


def _steps(plan: Plan) -> dict[str, Any]:
    table = plan.num_speculative_tokens_by_batch_size
    return {
        "num_speculative_tokens_by_batch_size": None if table is None else ranges(table),
        "num_lookahead_tokens": plan.num_lookahead_tokens,
        "num_prefill_lookahead_tokens": plan.num_prefill_lookahead_tokens,
        "num_hash_lookahead_tokens": plan.num_hash_lookahead_tokens,
        "use_eagle_block_drop": plan.use_eagle_block_drop,
        "max_num_new_slots_for_drafting": plan.max_num_new_slots_for_drafting,
        "max_num_draft_seqs": plan.max_num_draft_seqs,
        "uniform_decode_query_len": plan.uniform_decode_query_len,
    }


def ranges(table: Sequence[int]) -> list[list[int]]:
    """K by batch size, from 1 up, as ``[first, last, K]``."""
    found: list[list[int]] = []
    for batch_size, drafts in enumerate(table[1:], 1):
        if found and found[-1][2] == drafts:
            found[-1][1] = batch_size
        else:
            found.append([batch_size, batch_size, drafts])
    return found


def _draft_model(plan: Plan) -> dict[str, Any] | None:
    draft = plan.draft_model
    if draft is None:
        return None
    shown = {field.name: getattr(draft, field.name) for field in fields(draft) if field.name != "facts"}
    return {
        **shown,
        "config_was_read": draft.facts.known,
        "architectures": list(draft.facts.architectures),
        "vocabulary": _vocabulary(plan) if plan.config.use_heterogeneous_vocab else None,
    }


def _vocabulary(plan: Plan) -> str:
    """What the draft model's has in common with the target's, or why that cannot be told."""
    from ascend_spec.drafters.heterogeneous import vocabularies
    from ascend_spec.drafters.vocab import VocabMapping

    try:
        return str(VocabMapping.of(*vocabularies(plan)))
    except (ValueError, OSError) as error:
        return f"unknown: {error}"


def _target(target: TargetConfig) -> dict[str, Any]:
    shown = {field.name: getattr(target, field.name) for field in fields(target)}
    return {**shown, "model": target.model.path, "architectures": list(target.model.architectures)}


def _kv(plan: Plan) -> dict[str, Any]:
    kv = plan.kv
    derived = ("blocks_per_request", "bytes_per_token", "bytes_per_request", "total_bytes")
    return {**asdict(kv), **{name: getattr(kv, name) for name in derived}}


def _start(plan: Plan) -> dict[str, Any]:
    return {
        "graph_mode": plan.graph_mode,
        "graph_buckets": [[bucket.num_requests, bucket.num_drafts] for bucket in plan.graph_buckets],
        "graph_hash": plan.compute_hash(),
        "warm_up": list(plan.warm_up),
        "num_threads": plan.num_threads,
    }
