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

    def accept(self, token_id: int) -> None:
        """A token was committed. Whatever follows the end of the grammar is no business of it."""
        if not self.matcher.is_terminated():
            self.matcher.accept_token(token_id)

    def bitmasks(self, drafts: Sequence[int]) -> np.ndarray:
        """``[n, words]`` int32: for each row of the request what may be drawn there, given the drafts before it.
        It ends with the row of the first draft that the grammar refuses: later ones are never drawn from."""
        rows = torch.full((len(drafts) + 1, self.words), -1, dtype=torch.int32)
        followed = 0
        for row, draft in enumerate([*drafts, -1]):
            if self.matcher.is_terminated():
                break  # it has ended; a request that goes on, without an end of sequence, is free from here
            self.matcher.fill_next_token_bitmask(rows, row)
            if draft < 0 or not self.matcher.accept_token(draft):
                break
            followed += 1
        if followed:
            self.matcher.rollback(followed)
        return rows[: followed + 1].numpy()


class GrammarCompiler:
    """Compiles what requests ask for, once each, for one tokenizer.

    Raises:
        ImportError: xgrammar is not installed.
        ValueError: a tokenizer that xgrammar cannot read.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, stop_token_ids: Sequence[int]) -> None:
        import xgrammar

        self.words = -(-vocab_size // 32)
        try:
            info = xgrammar.TokenizerInfo.from_huggingface(
                tokenizer, vocab_size=vocab_size, stop_token_ids=list(stop_token_ids) or None
            )
        except Exception as error:  # it raises what its C++ raises
            raise ValueError(
                f"xgrammar cannot read this tokenizer ({type(tokenizer).__name__}): {error}"
            ) from error
        self.compiler, self.matcher = xgrammar.GrammarCompiler(info), xgrammar.GrammarMatcher

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """
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
        try:
            return Grammar(self.matcher(self._compiled(kind, value)), self.words)
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
