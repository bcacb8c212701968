"""What a configuration's fields may mean together. Every check yields findings and stops at none.

``check_*`` yields errors, ``warn_*`` what will run, but perhaps not as meant.
"""

from __future__ import annotations

from collections.abc import Iterator

from ascend_spec.config import schedule
from ascend_spec.config.draft_model import check_draft_model, check_quantization, warn_draft_model
from ascend_spec.config.errors import Finding, allowed, nearest, quoted, shortened, wrong
from ascend_spec.config.kv import pool_shortfall
from ascend_spec.config.rules import RULES
from ascend_spec.config.speculative import SpeculativeConfig
from ascend_spec.config.speculator import SpeculatorConfig
from ascend_spec.config.synthetic import check_synthetic
from ascend_spec.config.target import TargetConfig

#: options that only some methods have: set for another one, they are an error
METHOD_OPTIONS = (
    "dspark_draft_topk", "draft_lm_head_quantization", "index_share_for_mtp_iteration", "xpress_topc",
    "speculator_options", "draft_model_config",
)  # fmt: skip
#: options that other methods have always ignored: set for one of those, they are a warning
IGNORED_OPTIONS = (
    "prompt_lookup_min", "prompt_lookup_max", "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob", "ascend_spec.match", "ascend_spec.suffix_memory_path",
    "ascend_spec.heterogeneous_vocab_method",
)  # fmt: skip
#: options of a draft model: of no use to a method without one
DRAFT_OPTIONS = (
    "model", "revision", "code_revision", "draft_tensor_parallel_size", "draft_parallel_config",
    "draft_load_config", "parallel_drafting", "disable_padded_drafter_batch", "quantization", "moe_backend",
    "attention_backend", "kv_cache_dtype", "use_local_argmax_reduction", "max_model_len", "enforce_eager",
)  # fmt: skip
#: vLLM's first model runner knows how to change K between steps for these alone
V1_DYNAMIC = ("ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash")


def given(config: SpeculativeConfig, name: str) -> bool:
    """Whether the user set a field to something else than its default."""
    outer, _, inner = name.partition(".")
    holder = config.ascend_spec if inner else config
    field = type(holder).model_fields[inner or outer]
    return getattr(holder, inner or outer) != field.get_default()


def value(config: SpeculativeConfig, name: str) -> object:
    outer, _, inner = name.partition(".")
    return getattr(config.ascend_spec, inner) if inner else getattr(config, outer)


# ---- what needs neither a method nor a target
def check_alone(config: SpeculativeConfig, *, awaits_target: bool = False) -> Iterator[Finding]:
    """``awaits_target``: how many drafts there are may still come from the target's checkpoint."""
    if config.num_speculative_tokens is None and not awaits_target:
        what = allowed(SpeculativeConfig.model_fields["num_speculative_tokens"].description)
        yield Finding(
            "num_speculative_tokens", f"'num_speculative_tokens' is missing; it must be {what}. Add it."
        )
    if config.num_speculative_tokens_per_batch_size is not None:
        yield from schedule.check_ranges(config.num_speculative_tokens_per_batch_size)
    yield from _check_rule(config)
    if config.use_local_argmax_reduction and config.draft_sample_method != "greedy":
        yield Finding(
            "use_local_argmax_reduction",
            "'use_local_argmax_reduction' was given as true together with 'draft_sample_method' "
            '"probabilistic"; it finds greedy drafts only. Remove one of them.',
        )
    if config.use_heterogeneous_vocab and config.use_local_argmax_reduction:
        yield Finding(
            "use_local_argmax_reduction",
            "'use_local_argmax_reduction' was given as true together with 'use_heterogeneous_vocab', which "
            "needs the draft's full logits. Remove one of them.",
        )


#: what :attr:`SpeculativeConfig.rule` is read from
RULE_FIELDS = ("rejection_sample_method", "ascend_spec", "ascend_spec.rejection_sample_method")


def _check_rule(config: SpeculativeConfig) -> Iterator[Finding]:
    rule = RULES.get(config.rule)
    if rule is None:
        yield wrong(
            "ascend_spec.rejection_sample_method",
            config.rule,
            f"one of {quoted(RULES)}",
            f"Change or remove it.{nearest(config.rule, RULES)}",
        )
        return
    for other in RULES.values():
        for option in other.options:
            if other is not rule and other.name == "synthetic" and given(config, option):
                yield Finding(
                    option,
                    f"'{option}' was given, but only the rule \"synthetic\" reads it, and the rule is "
                    f"{rule.name!r}. Remove it, or change 'rejection_sample_method'.",
                    RULE_FIELDS,
                )
    if rule.name == "synthetic":
        yield from check_synthetic(config)
    if rule.name == "fly":
        yield from _check_fly(config)


def _check_fly(config: SpeculativeConfig) -> Iterator[Finding]:
    drafts, window = config.num_speculative_tokens, config.fly_window_size
    if drafts is not None and drafts < 2:
        yield Finding(
            "num_speculative_tokens",
            f"'num_speculative_tokens' is {drafts}; it must be at least 2 with the rule \"fly\". Raise it, or change "
            "the rule.",
        )
    elif drafts is not None and window is not None and window >= drafts:
        yield wrong(
            "fly_window_size",
            window,
            f"smaller than 'num_speculative_tokens', which is {drafts}",
            "Lower it.",
            ("num_speculative_tokens",),
        )


def warn_alone(config: SpeculativeConfig) -> Iterator[Finding]:
    most = config.num_speculative_tokens
    for first, last, wanted in config.num_speculative_tokens_per_batch_size or ():
        if most is not None and wanted > most:
            yield Finding(
                schedule.FIELD,
                f"'{schedule.FIELD}' asks for {wanted} drafts from batch size {first} to {last}, but there are at "
                f"most {most}, as 'num_speculative_tokens' says.",
            )
    rule = RULES.get(config.rule)
    if rule is None:
        return
    if config.ascend_spec.rejection_sample_method and given(config, "rejection_sample_method"):
        yield Finding(
            "rejection_sample_method",
            f"'ascend_spec.rejection_sample_method' {rule.name!r} wins over 'rejection_sample_method' "
            f"{config.rejection_sample_method!r}.",
        )
    if not rule.lossless:
        yield Finding(
            "rejection_sample_method",
            f"the rule {rule.name!r} ({rule.summary}) is lossy: output no longer has the target's distribution.",
        )
    for other in RULES.values():
        for option in other.options:
            if other is not rule and other.name != "synthetic" and given(config, option):
                yield Finding(option, f"'{option}' has no effect: only the rule {other.name!r} reads it.")


# ---- what the method says
def check_contract(speculator: SpeculatorConfig) -> Iterator[Finding]:
    config, name = speculator.config, method_name(speculator)
    for option in METHOD_OPTIONS:
        if value(config, option) is not None and option not in speculator.supported_options:
            yield Finding(
                option, f"'{option}' was given, but method {name!r} does not support it. Remove it."
            )
    if config.use_heterogeneous_vocab and not speculator.draft_has_own_vocab:
        yield Finding(
            "use_heterogeneous_vocab",
            f"'use_heterogeneous_vocab' was given as true, but method {name!r} drafts in the target's "
            'vocabulary; only "draft_model" has one of its own. Remove it.',
        )
    if config.draft_sample_method == "probabilistic" and "sampled" not in speculator.draft_distributions:
        yield Finding(
            "draft_sample_method",
            f"'draft_sample_method' was given as \"probabilistic\", but the drafts of method {name!r} are "
            "deterministic. Remove it.",
        )
    adaptive = config.enable_adaptive_verification and speculator.adaptive_verification_uses_draft_logits
    if adaptive and config.use_local_argmax_reduction:
        yield Finding(
            "enable_adaptive_verification",
            "'enable_adaptive_verification' was given as true together with 'use_local_argmax_reduction', "
            "but it needs the draft logits, which are never put together then. Remove one of them.",
        )
    if config.quantization is not None and speculator.model != "none":
        yield from check_quantization(config.quantization)
    yield from _check_rule_fits(speculator)


def _check_rule_fits(speculator: SpeculatorConfig) -> Iterator[Finding]:
    name, rule = method_name(speculator), RULES.get(speculator.config.rule)
    if rule is None:
        return
    if not speculator.proposes_draft_tokens and rule.name == "fly":
        yield Finding(
            "rejection_sample_method",
            f"'rejection_sample_method' was given as \"fly\", but method {name!r} proposes no drafts to judge. "
            "Remove it.",
        )
    if rule.needs_q and speculator.draft_distribution == "unknown":
        others = quoted(known.name for known in RULES.values() if not known.needs_q)
        yield Finding(
            "rejection_sample_method",
            f"The rule {rule.name!r} reads the distribution that drafts were drawn from, which method {name!r} does "
            f"not know; the rules that don't are {others}. Change the rule or the method.",
        )
    if (
        rule.name == "coupled"
        and speculator.draft_distribution == "sampled"
        and not speculator.shares_target_noise
    ):
        yield Finding(
            "draft_sample_method",
            '\'draft_sample_method\' was given as "probabilistic" with the rule "coupled", but the drafter of method '
            f'{name!r} cannot draw with the target\'s random numbers. Use "greedy", or change the rule.',
        )
    if speculator.proposes_tree and not rule.takes_trees:
        trees = quoted(known.name for known in RULES.values() if known.takes_trees)
        yield Finding(
            "rejection_sample_method",
            f"The rule {rule.name!r} judges chains, but method {name!r} proposes trees; the rules for trees are "
            f"{trees}. Change the rule or the method.",
        )


def warn_contract(speculator: SpeculatorConfig) -> Iterator[Finding]:
    config, name = speculator.config, method_name(speculator)
    for option in IGNORED_OPTIONS:
        if given(config, option) and option not in speculator.supported_options:
            yield Finding(option, f"'{option}' has no effect with method {name!r}.")
    if config.disable_eagle_block_drop and not speculator.needs_eagle_block_drop:
        yield Finding(
            "disable_eagle_block_drop", f"'disable_eagle_block_drop' has no effect with method {name!r}."
        )
    if speculator.model == "none" and config.method != "custom_class":  # which may read what it likes
        for option in DRAFT_OPTIONS:
            if _is_idle(speculator, option):
                yield Finding(
                    option, f"'{option}' has no effect with method {name!r}, which has no draft model."
                )


def _is_idle(speculator: SpeculatorConfig, option: str) -> bool:
    """Whether an option of draft models was given to a method that has none, and nobody else reads it."""
    config, target = speculator.config, speculator.target
    if option == "model":  # which may name the method
        return config.model not in (None, speculator.default_model(config, target), "ngram", "[ngram]")
    if option == "enforce_eager" and (target is None or target.runner == "embedded"):
        return False  # the embedded engine's own graphs heed it
    return given(config, option)


def method_name(speculator: SpeculatorConfig) -> str:
    """As the user knows it."""
    return str(speculator.config.custom_method or speculator.config.method)


# ---- what the target says
def check_target(speculator: SpeculatorConfig, target: TargetConfig) -> Iterator[Finding]:
    if speculator.model != "none":
        yield from check_draft_model(speculator, target)
    yield from check_rows(speculator, target)
    yield from _check_slots(speculator, target)
    yield from check_runner(speculator, target.runner)
    if target.num_kv_blocks is not None:
        shortfall = pool_shortfall(target.num_kv_blocks, target, speculator.num_lookahead_tokens)
        if shortfall is not None:
            yield Finding("num_kv_blocks", f"{shortfall[0].upper()}{shortfall[1:]}.")
    if speculator.proposes_tree and not target.attention_takes_trees:
        yield Finding(
            "method",
            f"Method {method_name(speculator)!r} proposes trees, but the attention of this device takes chains "
            "only. Choose another method.",
        )
    if target.prefill_context_parallel_size > 1 and not speculator.supports_pcp:
        yield Finding(
            "method",
            f"Method {method_name(speculator)!r} does not support prefill context parallelism, which was given "
            f"as {target.prefill_context_parallel_size}. Set that to 1, or choose another method.",
        )
    if target.watermarking:
        yield from _check_watermarking(speculator)


def check_rows(speculator: SpeculatorConfig, target: TargetConfig) -> Iterator[Finding]:
    """Whether a request's rows with all its drafts fit: they need no more of a method than its lookahead."""
    drafts, lookahead = speculator.num_speculative_tokens, speculator.num_lookahead_tokens
    longest = target.model.derived_max_model_len
    can_grow = longest is None or target.max_model_len < longest
    limits = [
        (drafts + 1, target.max_model_len, "max_model_len", "raise max_model_len" if can_grow else ""),
        (
            max(drafts, lookahead) + 1,
            target.max_num_batched_tokens,
            "max_num_batched_tokens",
            "raise max_num_batched_tokens",
        ),
    ]
    if target.max_query_len is not None:
        what = "the device's limit of query rows a request"
        limits.append((drafts + 1, target.max_query_len, what, "use another device"))
    for needed, limit, what, other in limits:
        if needed > limit:
            most = limit - 1 - (needed - 1 - drafts)
            lower = "set" if "num_speculative_tokens" in speculator.derived else "lower"
            todo = [f"{lower} 'num_speculative_tokens' to {most}"] * (most > 0) + [other] * bool(other)
            yield Finding(
                "num_speculative_tokens",
                f"{_stated(speculator, 'num_speculative_tokens')}, which takes {needed} tokens a request; {what} "
                f"is {limit}. {(' or '.join(todo) or 'use no speculation').capitalize()}.",
            )


def _check_slots(speculator: SpeculatorConfig, target: TargetConfig) -> Iterator[Finding]:
    slots = speculator.max_num_new_slots_for_drafting * target.max_num_seqs
    if slots >= target.max_num_batched_tokens and target.runner != "embedded":
        yield Finding(
            "num_speculative_tokens",
            f"{_stated(speculator, 'num_speculative_tokens')}, which takes {slots} drafting slots for "
            f"{target.max_num_seqs} requests, and max_num_batched_tokens is {target.max_num_batched_tokens}: "
            "nothing could be scheduled. Lower 'num_speculative_tokens' or max_num_seqs, or raise "
            "max_num_batched_tokens.",
        )


def _stated(speculator: SpeculatorConfig, name: str) -> str:
    """The value of a field, and where it comes from if not from the user."""
    meant = shortened(value(speculator.config, name))
    if name not in speculator.derived:
        return f"'{name}' was given as {meant}"
    source = speculator.default_drafts_from if name == "num_speculative_tokens" else "the checkpoint"
    return f"'{name}' comes to {meant} (from {source})"


def check_runner(speculator: SpeculatorConfig, runner: str) -> Iterator[Finding]:
    """vLLM's two model runners each lack something of the other."""
    config, method = speculator.config, speculator.config.method
    block = method in ("dflash", "dspark")
    only = {
        "v1": {
            "method": method == "dspark",
            "model": config.model is not None and "xpress_topc" in speculator.supported_options,
            "enable_adaptive_verification": config.enable_adaptive_verification,
            "draft_lm_head_quantization": config.draft_lm_head_quantization is not None,
        },
        "v2": {
            "method": method in ("suffix", "custom_class"),
            "parallel_drafting": config.parallel_drafting and not block,
            "use_heterogeneous_vocab": config.use_heterogeneous_vocab,
        },
    }
    for field, lacking in only.get(runner, {}).items():
        if lacking:
            other = "V2" if runner == "v1" else "V1"
            named = f"'method' was given as {method_name(speculator)!r}"
            yield Finding(
                field,
                f"{named if field == 'method' else _stated(speculator, field)}, which vLLM's "
                f"{runner.upper()} model runner does not have; its {other} runner does. Change it, or the runner "
                "(environment variable VLLM_USE_V2_MODEL_RUNNER).",
            )


def _check_watermarking(speculator: SpeculatorConfig) -> Iterator[Finding]:
    name, config = method_name(speculator), speculator.config
    if not speculator.supports_watermarking:
        yield Finding(
            "method", f"Method {name!r} does not support watermarking. Choose another, or turn that off."
        )
    if config.draft_sample_method != "probabilistic":
        yield wrong("draft_sample_method", config.draft_sample_method, '"probabilistic" with watermarking')
    if config.rule != "standard":
        yield wrong("rejection_sample_method", config.rule, '"standard" with watermarking')


def warn_target(speculator: SpeculatorConfig, target: TargetConfig) -> Iterator[Finding]:
    reason = dynamic_k_refusal(speculator, target)
    if reason is not None:
        yield Finding(
            schedule.FIELD,
            f"'{schedule.FIELD}' is turned off: {reason}; K is {speculator.num_speculative_tokens}.",
        )
    mode, reason = graph_mode(speculator, target)
    if reason is not None:
        yield Finding(schedule.FIELD, f"decode graphs are {mode}: {reason}.")
    limit = speculator.config.ascend_spec.disable_by_batch_size
    if limit is not None and limit > target.max_num_seqs:
        yield Finding(
            "ascend_spec.disable_by_batch_size",
            f"'ascend_spec.disable_by_batch_size' {limit} never takes effect: no batch has more than max_num_seqs, "
            f"{target.max_num_seqs} requests.",
        )
    length = speculator.max_model_len
    if length is not None and length < target.max_model_len:
        yield Finding(
            "max_model_len",
            f"the draft model reaches {length} tokens and the target {target.max_model_len}: longer requests "
            "go on without drafts.",
        )
    yield from warn_draft_model(speculator, target)


def dynamic_k_refusal(speculator: SpeculatorConfig, target: TargetConfig) -> str | None:
    """Why K cannot follow the batch size, if it was asked to."""
    if speculator.config.num_speculative_tokens_per_batch_size is None:
        return None
    if target.data_parallel_size > 1:
        return "with data parallelism, ranks would choose different K and wait for each other"
    if target.runner == "v1" and speculator.config.method not in V1_DYNAMIC:
        return f"vLLM's V1 runner cannot change K for method {method_name(speculator)!r}"
    return None


def graph_mode(speculator: SpeculatorConfig, target: TargetConfig) -> tuple[str, str | None]:
    """How decode steps are captured, and why not as asked."""
    if target.enforce_eager or (target.runner == "embedded" and speculator.config.enforce_eager):
        return "none", None
    dynamic = speculator.config.num_speculative_tokens_per_batch_size is not None
    if (
        dynamic
        and target.graph_mode == "full"
        and target.runner == "v1"
        and dynamic_k_refusal(speculator, target) is None
    ):
        return "piecewise", "vLLM's V1 runner cannot replay full graphs when K changes between steps"
    return target.graph_mode, None
