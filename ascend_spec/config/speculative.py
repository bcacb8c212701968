"""The vocabulary of speculative decoding: vLLM's fields by vLLM's names, ours under ``ascend_spec``.

Only what works is a field; every other key is refused by name.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ascend_spec.config.speculator import SPECULATORS

#: vLLM's value of both n-gram bounds when neither is given
DEFAULT_PROMPT_LOOKUP = 5
#: names of the n-gram method where vLLM takes a model's
NGRAM_MODELS = ("ngram", "[ngram]")


class _Checked(BaseModel):
    # strict: "4" or true for a number is a mistake better found at start than guessed at
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class AscendSpecConfig(_Checked):
    """Options that vLLM doesn't have."""

    rejection_sample_method: Literal["standard"] = Field(
        default="standard", description='"standard", token-by-token rejection sampling (lossless)'
    )


class SpeculativeConfig(_Checked):
    """How drafts are made and judged; see :func:`ascend_spec.config.load_speculative_config`."""

    method: str = Field(description="a method's name in double quotes")
    num_speculative_tokens: int = Field(gt=0, description="an integer above 0, the most drafts in a step")
    prompt_lookup_min: int = Field(gt=0, description="an integer above 0, the shortest n-gram in tokens")
    prompt_lookup_max: int = Field(gt=0, description="an integer above 0, the longest n-gram in tokens")
    ascend_spec: AscendSpecConfig = Field(
        default=AscendSpecConfig(), description="a dictionary of the options that vLLM doesn't have"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: dict) -> dict:
        fields = {key: value for key, value in given.items() if value is not None}
        fields["method"] = _method(fields.get("method"), fields.pop("model", None))
        either = fields.get("prompt_lookup_min", fields.get("prompt_lookup_max", DEFAULT_PROMPT_LOOKUP))
        fields.setdefault("prompt_lookup_min", either)
        fields.setdefault("prompt_lookup_max", either)
        return fields

    @model_validator(mode="after")
    def _check_lookup(self) -> SpeculativeConfig:
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low > high:
            raise ValueError(
                f"'prompt_lookup_min' was given as {low} and 'prompt_lookup_max' as {high}; the first "
                "must not be larger. Lower it, or raise the second."
            )
        return self


def _method(method: object, model: object) -> object:
    """The method that is meant. A model names one only in vLLM's way of writing n-gram."""
    if method is None and (model is None or model in NGRAM_MODELS):
        return "ngram"
    known = ", ".join(f'"{name}"' for name in sorted(SPECULATORS))
    if method is None:
        raise ValueError(
            f"'model' was given as {model!r} without 'method', but no method that uses a model is supported; "
            f"methods: {known}. Remove 'model' or set 'method'."
        )
    if method in NGRAM_MODELS:
        method = "ngram"
    if isinstance(method, str) and method not in SPECULATORS:
        raise ValueError(f"'method' was given as {method!r}; it must be one of {known}. Change or remove it.")
    if model is not None and model not in NGRAM_MODELS:
        raise ValueError(f"'model' was given as {model!r}, but method {method!r} uses none. Remove 'model'.")
    return method
