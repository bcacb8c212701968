"""DSpark: a head that samples a block in parallel with a Markov correction, and knows its own confidence."""

from __future__ import annotations

from collections.abc import Iterator

from ascend_spec.config.checkpoint import ModelFacts
from ascend_spec.config.errors import Finding, wrong
from ascend_spec.config.methods.dflash import BlockConfig, draft_vocab_size
from ascend_spec.config.speculative import SpeculativeConfig
from ascend_spec.config.speculator import filled

ARCHITECTURES = (
    "DSparkDraftModel", "DSparkV41DraftModel", "Gemma4DSparkModel", "K3DSparkModel", "MuseSparkDSparkModel",
    "Qwen3DSparkModel", "Qwen3OmniDSparkModel",
)  # fmt: skip
#: whose Markov projection can be narrowed to the best candidates
WITH_TOPK = ("Qwen3DSparkModel", "Qwen3OmniDSparkModel")


class DSparkConfig(BlockConfig):
    method = "dspark"
    model = "target"  # DeepSeek's checkpoints hold its weights
    default_drafts_from = "the checkpoint's block size"
    supported_options = frozenset({"dspark_draft_topk"})
    uses_separate_workspace_lane = True
    adaptive_verification_uses_draft_logits = False
    supports_pcp = True

    @classmethod
    def matches(cls, draft: ModelFacts) -> str | None:
        if draft.speculators_type == "dspark":
            return "its speculators_model_type is dspark"
        named = [name for name in draft.architectures if name in ARCHITECTURES]
        return f"its architecture is {named[0]}" if named else None

    @classmethod
    def path_hint(cls) -> str | None:
        return "dspark"

    @classmethod
    def configure(cls, config: SpeculativeConfig, draft: ModelFacts | None) -> SpeculativeConfig:
        block = None if draft is None else draft.get("block_size") or draft.get("dspark_block_size")
        return filled(config, num_speculative_tokens=block).model_copy(update={"parallel_drafting": True})

    @property
    def num_lookahead_tokens(self) -> int:
        # an anchor is itself the first position that predicts; else the bonus token has a query of its own
        anchor = self.draft is None or self.draft.get(
            "sample_from_anchor", self.draft.speculators_type is None
        )
        return self.num_speculative_tokens + (0 if anchor else 1)

    def check(self) -> Iterator[Finding]:
        given = self.config.dspark_draft_topk
        if given is None or self.draft is None or not self.draft.known:
            return
        if not (self.draft.speculators_type or any(name in WITH_TOPK for name in self.draft.architectures)):
            yield wrong(
                "dspark_draft_topk",
                given,
                f"left out unless the draft is one of {', '.join(WITH_TOPK)}",
                "Remove it.",
            )
        size = draft_vocab_size(self.draft)
        if size is not None and given > size:
            yield wrong(
                "dspark_draft_topk", given, f"at most the draft's vocabulary size, {size}", "Lower it."
            )
        if self.config.draft_tensor_parallel_size not in (None, 1):
            yield Finding(
                "dspark_draft_topk",
                f"'dspark_draft_topk' was given together with 'draft_tensor_parallel_size' "
                f"{self.config.draft_tensor_parallel_size}; it needs 1. Remove one of them.",
            )

    def hash_factors(self) -> tuple:
        return (self.config.enable_adaptive_verification, self.config.dspark_draft_topk)
