"""What is decided before the first step, once: every consumer reads it here and derives nothing of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from ascend_spec.config import checks, schedule
from ascend_spec.config.buckets import Bucket, all_buckets, choose_bucket
from ascend_spec.config.draft_model import DraftModelConfig, draft_model_config
from ascend_spec.config.embedded import refused_target
from ascend_spec.config.errors import ConfigError, Finding
from ascend_spec.config.kv import KVPlan, plan_kv
from ascend_spec.config.parallel import check_parallel
from ascend_spec.config.resolution import Verdict, judge
from ascend_spec.config.rules import RULES, Rule
from ascend_spec.config.speculative import SpeculativeConfig
from ascend_spec.config.speculator import SpeculatorConfig
from ascend_spec.config.synthetic import conditional_rates, synthetic_rates
from ascend_spec.config.target import TargetConfig

#: operators that requests' sampling parameters call
PROCESSORS = ("filter_logits", "apply_penalties", "apply_token_bitmask")


class PlainDecoding(SpeculatorConfig):
    """The contract of no speculation: K is 0, and nobody proposes."""

    method = "none"
    proposes_draft_tokens = False


@dataclass(frozen=True)
class Plan:
    """One checked object for scheduler, KV manager, runner, drafter factory, warm-up and graph capture."""

    config: SpeculativeConfig
    """Resolved: nothing is left out that has a default."""
    target: TargetConfig
    speculator: SpeculatorConfig
    """The method's contract."""
    why: tuple[str, ...]
    """How method and contract were found."""
    warnings: tuple[Finding, ...]
    rule: Rule
    draft_model: DraftModelConfig | None
    num_speculative_tokens_by_batch_size: tuple[int, ...] | None
    """K by batch size, up to ``max_num_seqs``; None: always ``num_speculative_tokens``."""
    graph_mode: str
    graph_buckets: tuple[Bucket, ...]
    """Shapes of the decode steps that are captured, each when it is first met; none without graphs."""
    kv: KVPlan
    num_threads: int
    """CPU threads of this rank's kernels: ranks of one machine share its cores."""
    warm_up: tuple[str, ...]
    """Operators that are compiled at start, so that the first request does not wait for them."""

    @property
    def method(self) -> str:
        """The built-in method that carries it."""
        return str(self.config.method)

    @property
    def name(self) -> str:
        """The method as the user knows it."""
        return checks.method_name(self.speculator)

    @property
    def num_speculative_tokens(self) -> int:
        return self.speculator.num_speculative_tokens

    def num_speculative_tokens_for(self, batch_size: int) -> int:
        """The most drafts a request gets in a batch of so many requests."""
        table = self.num_speculative_tokens_by_batch_size
        return self.num_speculative_tokens if table is None else table[batch_size]

    def bucket_for(self, num_requests: int, num_drafts: int) -> Bucket:
        """The shape that a decode step of this size is padded to."""
        return choose_bucket(num_requests, num_drafts, self.target.max_num_seqs, self.num_speculative_tokens)

    @property
    def max_drafted_len(self) -> int:
        """The longest sequence, its drafts included, that the drafter can see; longer ones get no drafts."""
        return self.speculator.max_model_len or self.target.max_model_len

    @property
    def num_lookahead_tokens(self) -> int:
        return self.speculator.num_lookahead_tokens

    @property
    def num_prefill_lookahead_tokens(self) -> int:
        return self.speculator.num_prefill_lookahead_tokens

    @property
    def use_eagle_block_drop(self) -> bool:
        """Whether a shared prefix ends a block earlier, because the draft's K/V in its last one depends on the
        token after it."""
        return self.speculator.needs_eagle_block_drop and not self.config.disable_eagle_block_drop

    @property
    def num_hash_lookahead_tokens(self) -> int:
        """Tokens behind a block that its prefix-cache hash covers. Engines that share a KV store must agree."""
        covered = (
            self.target.enable_prefix_caching
            and self.use_eagle_block_drop
            and not self.config.disable_lookahead_block_hashes
            and not self.target.has_kv_connector
        )
        return self.num_prefill_lookahead_tokens if covered else 0

    @property
    def max_num_new_slots_for_drafting(self) -> int:
        return self.speculator.max_num_new_slots_for_drafting

    @property
    def max_num_draft_seqs(self) -> int:
        """Requests whose draft rows fit into one draft pass."""
        rows = max(1, self.num_lookahead_tokens if self.config.parallel_drafting else 1)
        return min(self.target.max_num_seqs, self.target.max_num_batched_tokens // rows)

    @property
    def uniform_decode_query_len(self) -> int:
        return self.speculator.uniform_decode_query_len

    @property
    def synthetic_acceptance_rates(self) -> tuple[float, ...] | None:
        """Unconditional, by position; None: another rule."""
        return synthetic_rates(self.config) if self.rule.name == "synthetic" else None

    @property
    def fly_window_size(self) -> int | None:
        """None: another rule."""
        if self.rule.name != "fly":
            return None
        return self.config.fly_window_size or min(6, self.num_speculative_tokens - 1)

    @property
    def rule_options(self) -> tuple[float, ...]:
        """The rule's numbers, as :func:`ascend_spec_ops.verify` takes them."""
        config = self.config
        if self.rule.name == "typical":
            return config.ascend_spec.posterior_threshold, config.ascend_spec.posterior_alpha
        if self.rule.name == "synthetic":
            return conditional_rates(synthetic_rates(config))
        if self.rule.name == "fly":
            assert self.fly_window_size is not None
            return self.fly_window_size, config.fly_entropy_threshold, config.fly_entropy_top_k
        return ()

    def compute_hash(self) -> str:
        """Of everything here that changes the target's graph from token ids to hidden states."""
        return hashlib.sha256(repr(self.hash_factors()).encode()).hexdigest()

    def hash_factors(self) -> tuple[Any, ...]:
        draft = self.draft_model
        options = [self.config.speculator_options or {}, self.config.draft_model_config or {}]
        return (
            self.speculator.uses_aux_hidden_states,
            self.config.custom_method,
            None if draft is None else (
                self.config.method, type(self.speculator).__qualname__, self.speculator.uses_target_hidden_states,
            ),
            canonical(options),
            self.speculator.hash_factors(),
            None if draft is None else (
                draft.model, draft.revision, draft.code_revision, draft.dtype, draft.quantization,
                draft.max_model_len, draft.max_position_embeddings, draft.tensor_parallel_size,
                draft.enable_expert_parallel, draft.moe_backend, draft.attention_backend, draft.kv_cache_dtype,
                canonical(draft.facts.values),
            ),
            self.config.ascend_spec.mqa_attention,
        )  # fmt: skip


def canonical(value: Any) -> Any:
    """``value`` with every dictionary, at any depth, as pairs in the order of their keys."""
    if isinstance(value, Mapping):
        pairs = ((repr(key), canonical(item)) for key, item in value.items())
        # by repr(key) alone: repr(item) would double the quotes in quotes at each level
        return tuple(sorted(pairs, key=itemgetter(0)))
    return tuple(map(canonical, value)) if isinstance(value, list | tuple) else value


def resolve(config: SpeculativeConfig | None, target: TargetConfig, *, embedded: bool = False) -> Plan:
    """Decide everything.

    Args:
        config: what the user wrote; None: no speculation.
        target: the model it is for, and how that is run.
        embedded: whether it is for the embedded engine, which refuses what it cannot do.

    Raises:
        ConfigError: all that is wrong, at once.
    """
    if config is None:
        plain = PlainDecoding(SpeculativeConfig(method=PlainDecoding.method), target)
        refused = refused_target(target) if embedded else ()
        verdict = Verdict(plain, errors=[*check_parallel(target), *refused])
    else:
        verdict = judge(config, target, embedded=embedded)
    if verdict.errors:
        raise ConfigError(verdict.errors)
    speculator = verdict.speculator
    assert speculator is not None
    config = speculator.config
    ranges = config.num_speculative_tokens_per_batch_size
    if checks.dynamic_k_refusal(speculator, target) is not None:
        ranges = None
    drafts = speculator.num_speculative_tokens
    mode, _ = checks.graph_mode(speculator, target)
    threads = max(1, target.num_threads // target.tensor_parallel_size)
    draft = draft_model_config(speculator, target)
    return Plan(
        config=config,
        target=target,
        speculator=speculator,
        why=tuple(verdict.why),
        warnings=tuple(dict.fromkeys(verdict.warnings)),
        rule=RULES[config.rule],
        draft_model=draft,
        num_speculative_tokens_by_batch_size=(
            None if ranges is None else schedule.dense_lookup(ranges, drafts, target.max_num_seqs)
        ),
        graph_mode=mode,
        graph_buckets=tuple(all_buckets(target.max_num_seqs, drafts)) if mode != "none" else (),
        kv=plan_kv(speculator, target, draft),
        num_threads=threads,
        warm_up=(f"verify:{config.rule}", *PROCESSORS, *speculator.warm_up),
    )
