"""Structured output: which tokens keep a request's text what it must look like. The grammars are xgrammar's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ascend_spec.types import StructuredOutputsParams


class Grammar:
    """How far one request's output has come in its grammar."""

    def __init__(self, matcher: Any, words: int) -> None:
        self.matcher, self.words = matcher, words

    def accept(self, token_id: int) -> bool:
        """A token is committed. False: the grammar has no such token here."""
        return self.matcher.accept_token(token_id)

    @property
    def has_ended(self) -> bool:
        """A stop token came. Where there is none: the text is whole, and nothing can follow."""
        if self.matcher.stop_token_ids:
            return self.matcher.is_terminated()
        return self.matcher.is_completed() and not self.bitmasks(())[0].any()

    def bitmasks(self, drafts: Sequence[int]) -> np.ndarray:
        """``[n, words]`` int32: for each row of the request what may be drawn there, given the drafts before it.
        It ends with the row of the first draft that the grammar refuses, or with the last that has not ended:
        nothing that is drawn from later ones is emitted."""
        rows = torch.full((len(drafts) + 1, self.words), -1, dtype=torch.int32)
        followed = 0
        for row, draft in enumerate([*drafts, -1]):
            self.matcher.fill_next_token_bitmask(rows, row)
            if not _allows(rows[row], draft):
                break
            self.matcher.accept_token(draft)
            followed += 1
            if self.has_ended:
                break
        if followed:
            self.matcher.rollback(followed)
        return rows[: row + 1].numpy()


def _allows(bitmask: torch.Tensor, token_id: int) -> bool:
    """Asked of the mask: the matcher complains on stderr of special tokens and of ids that it does not have."""
    word, bit = divmod(token_id, 32)
    return 0 <= word < len(bitmask) and bool(int(bitmask[word]) >> bit & 1)


class GrammarCompiler:
    """Compiles what requests ask for, once each, for one tokenizer.

    Args:
        vocab_size: of the model.
        stop_token_ids: what ends a text; none: what the tokenizer says, if it says.

    Raises:
        ImportError: xgrammar is not installed.
        ValueError: a tokenizer that xgrammar cannot read.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, stop_token_ids: Sequence[int]) -> None:
        import xgrammar

        self.words = -(-vocab_size // 32)
        end = getattr(tokenizer, "eos_token_id", None)
        known = [*stop_token_ids] or ([] if end is None or end >= vocab_size else [end])
        added = getattr(tokenizer, "added_tokens_decoder", {})
        #: their texts are no text: decoding leaves them out
        self.special_ids = {token_id for token_id, token in added.items() if token.special}
        self.stop_token_ids = known
        try:
            read = xgrammar.TokenizerInfo.from_huggingface(
                tokenizer,
                vocab_size=vocab_size,
                stop_token_ids=known or [0],  # it would guess, and warn of it
            )
            vocab: list[bytes | str] = [""] * vocab_size
            for text, token_id in tokenizer.get_vocab().items():
                if token_id < vocab_size and token_id not in self.special_ids:
                    vocab[token_id] = text
            metadata = json.loads(read.dump_metadata()) | {"stop_token_ids": known}
            info = xgrammar.TokenizerInfo.from_vocab_and_metadata(vocab, json.dumps(metadata))
        except Exception as error:  # it raises what its C++ raises
            raise ValueError(
                f"xgrammar cannot read this tokenizer ({type(tokenizer).__name__}): {error}"
            ) from error
        self.compiler, self.matcher = xgrammar.GrammarCompiler(info), xgrammar.GrammarMatcher

    def compile(self, params: StructuredOutputsParams, stop_token_ids: Sequence[int] = ()) -> Grammar:
        """
        Args:
            stop_token_ids: of the request. Those that are special tokens may end the text too.

        Raises:
            ValueError: nothing, or more than one thing, is asked for; or what is asked for cannot be read.
        """
        asked = {
            name: getattr(params, name)
            for name in ("json", "regex", "choice", "grammar", "json_object")
            if getattr(params, name) not in (None, False, ())
        }
        if len(asked) != 1:
            raise ValueError(
                f"structured_outputs was given with {', '.join(asked) or 'nothing'}; give exactly one of json, regex, "
                "choice, grammar and json_object"
            )
        ((kind, value),) = asked.items()
        stops = [*self.stop_token_ids, *(token for token in stop_token_ids if token in self.special_ids)]
        try:
            matcher = self.matcher(self._compiled(kind, value), override_stop_tokens=stops or None)
            return Grammar(matcher, self.words)
        except Exception as error:
            raise ValueError(f"structured_outputs.{kind} cannot be compiled: {error}") from error

    def _compiled(self, kind: str, value: Any) -> Any:
        if kind == "json":
            return self.compiler.compile_json_schema(value if isinstance(value, str) else json.dumps(value))
        if kind == "regex":
            return self.compiler.compile_regex(value)
        if kind == "choice":
            return self.compiler.compile_grammar(f"root ::= {' | '.join(map(json.dumps, value))}")
        if kind == "grammar":
            return self.compiler.compile_grammar(value)
        return self.compiler.compile_builtin_json_grammar()
