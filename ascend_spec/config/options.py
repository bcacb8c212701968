"""Options that vLLM has no word for, under the key ``ascend_spec``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(min_length=1)]
#: every number of things is below it
MOST = 2**31 - 1


class Checked(BaseModel):
    """What a user writes: nothing unknown, nothing of another type, nothing that changes later."""

    # strict: "4" or true for a number is a mistake better found at start than guessed at
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class AscendSpecConfig(Checked):
    """Nested in the JSON of ``--speculative-config`` here; ``additional_config["ascend_spec"]`` inside vLLM."""

    method: Name | None = Field(
        default=None,
        description="the name of a method that vLLM has no word for, such as medusa: it wins over 'method'",
    )
    rejection_sample_method: Name | None = Field(
        default=None,
        description="the name of an acceptance rule: it wins over vLLM's field of the same name",
    )
    posterior_threshold: float = Field(
        default=0.09, gt=0, le=1, description="a number above 0, at most 1: typical acceptance's epsilon"
    )
    posterior_alpha: float = Field(
        default=0.3, gt=0, le=1, description="a number above 0, at most 1: typical acceptance's delta"
    )
    disable_by_batch_size: int | None = Field(
        default=None,
        ge=2,
        le=MOST,
        description=f"an integer from 2 to {MOST}: once as many requests run, theirs are never speculated on again",
    )
    match: Literal["earliest", "recent"] = Field(
        default="earliest",
        description='"earliest" or "recent": which of the longest n-gram matches is taken; vLLM itself takes the '
        "earliest in its V1 runner, the most recent in V2",
    )
    suffix_memory_path: Name | None = Field(
        default=None, description="the path of a file that suffix decoding's global memory is kept in"
    )
    heterogeneous_vocab_method: Literal["tli", "slem"] = Field(
        default="tli", description='"tli" (token-level intersection) or "slem" (string-level exact match)'
    )
    on_error: Literal["continue", "raise", "disable"] = Field(
        default="continue",
        description='"continue", "raise" or "disable": when a drafter fails, its step has no drafts, or the engine '
        "ends, or there is no speculation from then on, nor if the drafter cannot load, which otherwise ends the start",
    )
    mqa_attention: bool = Field(
        default=False,
        description="true or false: inside vLLM, whether this project's attention judges drafts on the target's "
        "layers, and not vLLM's own; the embedded engine always uses it",
    )
