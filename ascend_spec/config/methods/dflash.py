"""DFlash: a non-causal head fills a block of mask tokens from the target's hidden states."""

from __future__ import annotations

from collections.abc import Iterator

from ascend_spec.config.checkpoint import ModelFacts
from ascend_spec.config.errors import Finding, wrong
from ascend_spec.config.methods.eagle import HiddenStateConfig
from ascend_spec.config.speculative import SpeculativeConfig
from ascend_spec.config.speculator import SpeculatorConfig

XPRESS = ("Qwen3XPressModel", "DFlashQwen3XPressModel")


class BlockConfig(HiddenStateConfig):
    """What the methods that draft a whole block in a pass of its own have in common."""

    uses_aux_hidden_states = True
    supports_watermarking = True

    @property
    def max_num_new_slots_for_drafting(self) -> int:
        return 0  # the rows of the block are in no batch of the target's


class DFlashConfig(BlockConfig):
    method = "dflash"

    @classmethod
    def matches(cls, draft: ModelFacts) -> str | None:
        if draft.speculators_type in ("dflash", "dflash2"):
            return f"its speculators_model_type is {draft.speculators_type}"
        named = [name for name in draft.architectures if "DFlash" in name or name in XPRESS]
        named += [name for name in draft.architectures if name == "MuseGlimmerAssistantModel"]
        return f"its architecture is {named[0]}" if named else None

    @classmethod
    def path_hint(cls) -> str | None:
        return "dflash"

    @classmethod
    def configure(cls, config: SpeculativeConfig, draft: ModelFacts | None) -> SpeculativeConfig:
        return super().configure(config, draft).model_copy(update={"parallel_drafting": True})

    @property
    def num_lookahead_tokens(self) -> int:
        return self.num_speculative_tokens + 1  # the bonus token has a query of its own

    def specialize(self) -> type[SpeculatorConfig]:
        if self.draft is None or not self.draft.known:  # then its option tells
            return XPressConfig if self.config.xpress_topc is not None else type(self)
        return XPressConfig if any(name in XPRESS for name in self.draft.architectures) else type(self)

    def hash_factors(self) -> tuple:
        layers = self.draft.get("eagle_aux_hidden_state_layer_ids") if self.draft else None
        return tuple(layers or ())


class XPressConfig(DFlashConfig):
    """DFlash with a refiner on top, which scores the best candidates again."""

    supported_options = frozenset({"xpress_topc"})

    def check(self) -> Iterator[Finding]:
        yield from super().check()
        given = self.config.xpress_topc
        size = draft_vocab_size(self.draft)
        if given is not None and size is not None and given > size:
            yield wrong("xpress_topc", given, f"at most the draft's vocabulary size, {size}", "Lower it.")

    def hash_factors(self) -> tuple:
        return (*super().hash_factors(), self.config.xpress_topc)


def draft_vocab_size(draft: ModelFacts | None) -> int | None:
    """Of a head that may know fewer tokens than its target."""
    return None if draft is None else draft.get("draft_vocab_size") or draft.vocab_size
