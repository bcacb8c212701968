"""Texts that a request's parameters hold, as the token ids that they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def bad_words_token_ids(tokenizer: Any, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Each word as it is spelt at the start of a text, and as it is after a space where that is other tokens, but
    no more of them: vLLM's rule."""
    found: list[tuple[int, ...]] = []
    for word in words:
        bare = _encode(tokenizer, word.lstrip())
        spaced = _encode(tokenizer, f" {word.lstrip()}")
        found.append(bare)
        if len(spaced) == len(bare) and spaced[:1] != bare[:1]:
            found.append(spaced)
    return tuple(dict.fromkeys(word for word in found if word))


def _encode(tokenizer: Any, text: str) -> tuple[int, ...]:
    try:
        return tuple(tokenizer.encode(text, add_special_tokens=False))
    except TypeError:  # a tokenizer of the caller's own, which knows no special tokens
        return tuple(tokenizer.encode(text))
