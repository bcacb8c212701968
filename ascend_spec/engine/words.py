"""Texts of a request, prompt and parameters, as the token ids that they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ascend_spec.engine.request import RequestError, read_token_ids


def encode_prompt(tokenizer: Any, prompt: str | Sequence[int]) -> list[int]:
    """The token ids of a prompt, text or token ids.

    Raises:
        RequestError: text that cannot be encoded, or that there is no tokenizer for.
    """
    if not isinstance(prompt, str):
        return read_token_ids(prompt)
    if tokenizer is None:
        raise RequestError(
            "a text prompt was given to an engine without a tokenizer: pass token ids, or give it one"
        )
    try:
        return list(tokenizer.encode(prompt))
    except Exception as error:  # a lone surrogate for instance; its neighbours in the batch go on
        raise RequestError(
            f"the tokenizer cannot encode the prompt {prompt[:80]!r} ({type(error).__name__}: {error}): "
            "take out what is not plain text"
        ) from error


def bad_words_token_ids(
    tokenizer: Any, words: Sequence[str], vocab_size: int, max_tokens: int
) -> tuple[tuple[int, ...], ...]:
    """Each word as it is spelt at the start of a text, and as it is after a space where that is other tokens, but
    no more of them: vLLM's rule. What the model has no ids for it cannot say, nor what is longer than the
    ``max_tokens`` of its output.

    Raises:
        RequestError: a word that the tokenizer makes nothing of.
    """
    found: list[tuple[int, ...]] = []
    for word in words:
        text = word.lstrip() or word
        bare, spaced = _encode(tokenizer, text), _encode(tokenizer, f" {text}")
        found.append(bare)
        if len(spaced) == len(bare) and spaced[:1] != bare[:1]:
            found.append(spaced)
    return tuple(dict.fromkeys(word for word in found if max(word) < vocab_size and len(word) <= max_tokens))


def _encode(tokenizer: Any, text: str) -> tuple[int, ...]:
    try:
        try:
            ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        except TypeError:  # a tokenizer of the caller's own, which knows no special tokens
            ids = tuple(tokenizer.encode(text))
    except Exception as error:
        raise RequestError(f"the bad word {text!r} cannot be encoded: {error}") from error
    if not ids:
        raise RequestError(
            f"the bad word {text!r} was given, which the tokenizer makes no tokens of: leave it out"
        )
    return ids
