"""What a method declares of itself: the facts that scheduler, cache and step need before a drafter exists.

A drafter has no flags of its own; whoever needs one reads it here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from ascend_spec.config.checkpoint import ModelFacts
from ascend_spec.config.errors import Finding
from ascend_spec.config.speculative import SpeculativeConfig
from ascend_spec.config.target import TargetConfig

Distribution = Literal["one-hot", "sampled", "unknown"]
DraftModel = Literal["none", "required", "target"]


@dataclass(frozen=True)
class SpeculatorConfig:
    """The contract of a method: class attributes hold for every configuration, properties for this one.

    A method is a subclass in :mod:`ascend_spec.config.methods` (see there), or one that a plugin registers
    with :func:`ascend_spec.config.register_speculative_method`.
    """

    config: SpeculativeConfig
    """Resolved: ``num_speculative_tokens`` is set."""
    target: TargetConfig | None = None
    """None while the target is not known yet."""
    draft: ModelFacts | None = None
    """Of the draft model or head, after :meth:`adapt_draft_model_config`; None: the method has none."""
    derived: frozenset[str] = field(default=frozenset(), compare=False)
    """Fields of ``config`` whose values are not the user's, but :meth:`configure`'s."""

    method: ClassVar[str]
    """Its name."""
    base_method: ClassVar[str | None] = None
    """The method that carries it where its own name means nothing; None: its own name."""
    speculator_class: ClassVar[str | None] = None
    """``module:attribute`` of what makes the drafter from a Plan, imported lazily; None: not built yet."""
    supported_options: ClassVar[frozenset[str]] = frozenset()
    """Of the options that only some methods know (``METHOD_OPTIONS``), those that this one does."""
    model: ClassVar[DraftModel] = "none"
    """Whether it has a draft model: none, one that must be given, or the target's own checkpoint as default."""
    # no fact of the method: how errors name what says K where num_speculative_tokens was left out
    default_drafts_from = "the checkpoint's n_predict"
    uses_target_hidden_states: ClassVar[bool] = False
    uses_aux_hidden_states: ClassVar[bool] = False
    """Of layers below the last too, which changes the target's graph."""
    uses_separate_workspace_lane: ClassVar[bool] = False
    prefer_dense_token_history: ClassVar[bool] = False
    """It reads the whole history each step."""
    proposes_draft_tokens: ClassVar[bool] = True
    proposes_tree: ClassVar[bool] = False
    draft_distributions: ClassVar[tuple[Distribution, ...]] = ("one-hot",)
    """What its drafts can be drawn from: deterministic, a distribution it gives, or one that nobody knows."""
    shares_target_noise: ClassVar[bool] = False
    """Its sampled drafts are drawn with the random numbers that the target's draw at their position takes."""
    warm_up: ClassVar[tuple[str, ...]] = ()
    """Operators that its drafter calls, to be compiled at start."""
    needs_host_tokens: ClassVar[bool] = False
    """True: it proposes after the step's tokens are on the host; False: from device tensors, before."""
    uses_draft_kv_cache: ClassVar[bool] = False
    """It has K/V of its own, which must be kept in step with the target's."""
    needs_eagle_block_drop: ClassVar[bool] = False
    """K/V of a position depends on the next token: a shared prefix ends one block earlier."""
    shares_target_positions: ClassVar[bool] = False
    """It is fed the target's positions, however long its own checkpoint was trained for."""
    draft_has_own_vocab: ClassVar[bool] = False
    adaptive_verification_uses_draft_logits: ClassVar[bool] = True
    supports_watermarking: ClassVar[bool] = False
    supports_pcp: ClassVar[bool] = False

    # ---- what this configuration makes of it
    @property
    def num_speculative_tokens(self) -> int:
        return self.config.num_speculative_tokens or 0

    @property
    def num_lookahead_tokens(self) -> int:
        """KV slots to reserve beyond the target's rows of a request: what the drafter writes there."""
        return 0

    @property
    def num_prefill_lookahead_tokens(self) -> int:
        """Tokens beyond a prefill chunk that the drafter reads: no chunk may end within them."""
        return 1 if self.uses_target_hidden_states else 0

    @property
    def max_num_new_slots_for_drafting(self) -> int:
        """Query slots a request needs in the drafter's batch beyond the one it has: drafting in parallel, one
        for each draft but the first."""
        return self.num_speculative_tokens - 1 if self.config.parallel_drafting else 0

    @property
    def uniform_decode_query_len(self) -> int:
        """Target rows of a request whose drafts are complete."""
        return 1 + self.num_speculative_tokens

    @property
    def draft_max_position_embeddings(self) -> int | None:
        """What the draft's rotary cache is sized for; None: it has none, or does not say.

        Raised to the target's longest length where it is fed the target's positions and the length only sizes a
        cache.
        """
        own = self.draft.max_position_embeddings if self.draft else None
        if own is None or self.target is None or not self.shares_target_positions:
            return own
        assert self.draft is not None
        return max(own, self.target.max_model_len) if self.draft.rope_only_sizes_cache else own

    @property
    def max_model_len(self) -> int | None:
        """The longest sequence that is drafted for, in tokens; None: not known before the target is."""
        given = self.config.max_model_len if self.draft else None
        ours = self.target.max_model_len if self.target else None
        limits = (given, self.draft_max_position_embeddings, ours)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def draft_distribution(self) -> Distribution:
        wanted: Distribution = "sampled" if self.config.draft_sample_method == "probabilistic" else "one-hot"
        return wanted if wanted in self.draft_distributions else self.draft_distributions[0]

    # ---- hooks, in the order in which they are called
    @classmethod
    def matches(cls, draft: ModelFacts) -> str | None:
        """Why a checkpoint declares itself to be of this method ("its model_type is 'x'"), or None."""
        return None

    @classmethod
    def path_hint(cls) -> str | None:
        """What the last part of a checkpoint's path holds if nothing else tells, in lower case."""
        return None

    @classmethod
    def default_model(cls, config: SpeculativeConfig, target: TargetConfig | None) -> str | None:
        """The draft model if none was given."""
        if cls.model == "target" and target is not None:
            return target.model_weights or target.model.path
        return None

    @classmethod
    def adapt_draft_model_config(cls, draft: ModelFacts) -> ModelFacts:
        """The checkpoint's config as the drafter reads it."""
        return draft

    @classmethod
    def configure(cls, config: SpeculativeConfig, draft: ModelFacts | None) -> SpeculativeConfig:
        """Fill in what was left out."""
        return filled(config, num_speculative_tokens=draft.get("n_predict")) if draft else config

    def specialize(self) -> type[SpeculatorConfig]:
        """The class that this configuration makes of it; its own if nothing special."""
        return type(self)

    def check(self) -> Iterator[Finding]:
        """What is wrong with the configuration from this method's point of view; here, what is wrong with K where
        a checkpoint was trained to predict several tokens at a time."""
        at_a_time = self.draft.get("n_predict") if self.draft else None
        wanted = self.num_speculative_tokens
        if at_a_time and wanted > at_a_time and wanted % at_a_time:
            below = wanted - wanted % at_a_time
            yield Finding(
                "num_speculative_tokens",
                f"'num_speculative_tokens' was given as {wanted}; this checkpoint predicts {at_a_time} tokens at a "
                f"time, so it must be at most {at_a_time} or a multiple of it. Use {below} or {below + at_a_time}.",
            )

    def hash_factors(self) -> tuple:
        """What changes the target's graph and only this method knows."""
        return ()


def filled(config: SpeculativeConfig, **values: object) -> SpeculativeConfig:
    """``config`` with ``values`` for the fields that were left out."""
    missing = {name: value for name, value in values.items() if getattr(config, name) is None}
    return config.model_copy(update=missing) if missing else config
