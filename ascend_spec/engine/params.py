"""Whether a request's sampling parameters can be honoured: each message says what was given and what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any

from ascend_spec.engine.request import RequestError
from ascend_spec.samplers.packing import num_arguments
from ascend_spec.types import SamplingParams, StructuredOutputsParams

#: Least and largest temperature but 0: beyond, logits divided by it no longer fit float32.
TEMPERATURES = (1e-6, 1e6)
MAX_LOGPROBS = 20


def _number(low: float, high: float, *, above: bool = False) -> Callable[[Any], bool]:
    """From ``low`` (or only above it) to ``high``."""
    return lambda value: (
        isinstance(value, Real) and low <= float(value) <= high and (value != low or not above)
    )


def _integer(low: int, high: float) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Integral) and low <= int(value) <= high


INFINITY = float("inf")
#: field -> what holds of a good value, and how that is said
RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (
        lambda value: _number(0, 0)(value) or _number(*TEMPERATURES)(value),
        f"choose 0 (greedy) or {TEMPERATURES[0]:g} to {TEMPERATURES[1]:g}",
    ),
    "seed": (
        lambda value: value is None or isinstance(value, Integral),
        "choose an integer, or None for any",
    ),
    "max_tokens": (_integer(1, INFINITY), "choose an integer, 1 or more"),
    "top_k": (_integer(-1, INFINITY), "choose an integer, 1 or more, or 0 or -1 for all tokens"),
    "top_p": (_number(0, 1, above=True), "choose a number above 0, at most 1"),
    "min_p": (_number(0, 1), "choose a number from 0 to 1"),
    "repetition_penalty": (
        _number(1e-6, 1e6),
        "choose a number from 1e-06 to 1e+06",
    ),
    "presence_penalty": (_number(-2, 2), "choose a number from -2 to 2"),
    "frequency_penalty": (_number(-2, 2), "choose a number from -2 to 2"),
    "logprobs": (
        lambda value: value is None or _integer(0, MAX_LOGPROBS)(value),
        f"choose an integer from 0 to {MAX_LOGPROBS}, or None",
    ),
}


def check_params(params: SamplingParams, vocab_size: int, has_tokenizer: bool) -> None:
    """
    Raises:
        RequestError: the first thing that is wrong.
    """
    for message in _wrong(params, vocab_size, has_tokenizer):
        raise RequestError(message)


def _wrong(params: SamplingParams, vocab_size: int, has_tokenizer: bool) -> Iterator[str]:
    for name, (holds, allowed) in RANGES.items():
        value = getattr(params, name)
        if isinstance(value, bool) or not holds(value):
            yield f"{name}={value!r} was given; {allowed}"
    if not _integer(0, params.max_tokens)(params.min_tokens):
        yield f"min_tokens={params.min_tokens!r} was given; choose 0 to max_tokens={params.max_tokens}"
    if not isinstance(params.stop_token_ids, tuple | list):
        yield f"stop_token_ids={params.stop_token_ids!r} was given; pass a tuple of token ids"
    for token in params.stop_token_ids:
        if not _integer(0, vocab_size - 1)(token):
            yield f"stop token id {token!r} was given; the model's ids are 0 to {vocab_size - 1}"
    yield from _wrong_words("stop", "stop strings", params.stop, has_tokenizer)
    yield from _wrong_words("bad_words", "bad words", params.bad_words, has_tokenizer)
    yield from _wrong_tokens(params, vocab_size)
    yield from _wrong_structure(params.structured_outputs, has_tokenizer)
    processors = params.logits_processors
    if not (isinstance(processors, tuple | list) and all(map(callable, processors))):
        yield f"logits_processors={processors!r} was given; pass a tuple of callables"
    for processor in processors:
        if num_arguments(processor) not in (2, 3):
            yield (
                f"the logits processor {processor!r} was given; pass a function of (output_token_ids, logits) or of "
                "(prompt_token_ids, output_token_ids, logits)"
            )


def _wrong_structure(asked: Any, has_tokenizer: bool) -> Iterator[str]:
    if asked is None:
        return
    if not has_tokenizer:
        yield "structured_outputs was given to an engine without a tokenizer: pass one to LLM"
    if not isinstance(asked, StructuredOutputsParams):
        yield f"structured_outputs={asked!r:.200} was given; pass one of ascend_spec.types.StructuredOutputsParams"
    choice = asked.choice
    if choice is not None and not (
        isinstance(choice, tuple | list) and choice and all(isinstance(text, str) for text in choice)
    ):
        yield f"structured_outputs.choice={choice!r:.200} was given; pass a tuple of texts"
    if not isinstance(asked.json_object, bool):
        yield f"structured_outputs.json_object={asked.json_object!r:.200} was given; choose True or False"


def _wrong_words(name: str, what: str, words: Any, has_tokenizer: bool) -> Iterator[str]:
    if not (isinstance(words, tuple | list) and all(isinstance(word, str) and word for word in words)):
        yield f"{name}={words!r} was given; pass a tuple of strings that are not empty"
    if words and not has_tokenizer:
        yield f"{what} were given to an engine without a tokenizer: pass one to LLM"


def _wrong_tokens(params: SamplingParams, vocab_size: int) -> Iterator[str]:
    known = _integer(0, vocab_size - 1)
    bias, allowed = params.logit_bias, params.allowed_token_ids
    if bias is not None and not (
        isinstance(bias, Mapping) and all(known(t) and _number(-100, 100)(v) for t, v in bias.items())
    ):
        yield (
            f"logit_bias={bias!r:.200} was given; pass a dict from token ids, 0 to {vocab_size - 1}, to numbers from "
            "-100 to 100"
        )
    if allowed is not None and not (
        isinstance(allowed, tuple | list) and allowed and all(map(known, allowed))
    ):
        yield (
            f"allowed_token_ids={allowed!r:.200} was given; pass a tuple of at least one of the model's ids, 0 to "
            f"{vocab_size - 1}"
        )
