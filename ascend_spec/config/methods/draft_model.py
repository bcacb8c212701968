"""A smaller language model drafts token by token; PARD does it in one pass with mask tokens."""

from __future__ import annotations

from collections.abc import Iterator

from ascend_spec.config.errors import Finding
from ascend_spec.config.speculator import SpeculatorConfig


class DraftModelSpeculatorConfig(SpeculatorConfig):
    method = "draft_model"
    speculator_class = "ascend_spec.drafters.draft_model:DraftModelDrafter"
    model = "required"
    supported_options = frozenset({"use_heterogeneous_vocab", "ascend_spec.heterogeneous_vocab_method"})
    draft_distributions = ("one-hot", "sampled")
    shares_target_noise = True
    uses_draft_kv_cache = True
    draft_has_own_vocab = True
    warm_up = ("draft_inputs",)

    @property
    def num_lookahead_tokens(self) -> int:
        return self.num_speculative_tokens

    @property
    def max_num_new_slots_for_drafting(self) -> int:
        return 1  # it is not shifted against the target by a token, so one more goes in

    def specialize(self) -> type[SpeculatorConfig]:
        return PardConfig if self.config.parallel_drafting else type(self)

    def check(self) -> Iterator[Finding]:
        yield from super().check()
        by_text = self.config.ascend_spec.heterogeneous_vocab_method == "slem"
        if by_text and self.config.draft_sample_method == "probabilistic":
            yield Finding(
                "draft_sample_method",
                "'draft_sample_method' was given as \"probabilistic\" together with "
                "'ascend_spec.heterogeneous_vocab_method' \"slem\", whose drafts are certain. Remove one of them.",
            )
        if self.draft is None or self.target is None or self.config.use_heterogeneous_vocab:
            return
        draft, target = self.draft.vocab_size, self.target.model.vocab_size
        if draft is not None and target is not None and draft != target:
            yield Finding(
                "model",
                f"'model' was given as {self.draft.path!r}, whose vocabulary has {draft} tokens; the target's "
                f"has {target}. Use a draft model with the target's tokenizer, or set "
                "'use_heterogeneous_vocab' to true.",
            )


class PardConfig(DraftModelSpeculatorConfig):
    """All drafts in one pass: a mask token stands for each of them."""

    @property
    def max_num_new_slots_for_drafting(self) -> int:
        return self.num_speculative_tokens
