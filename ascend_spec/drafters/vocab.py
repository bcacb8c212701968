"""Two vocabularies side by side: which token of one is the same piece of text as which token of the other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Vocabulary:
    """What the tokens of one tokenizer spell.

    Bytes and not characters, since a token may end in the middle of one; as they stand within a text: what a
    decoder takes away at the beginning of one is still there.
    """

    backend: Any
    """The tokenizer, of the package tokenizers."""
    pieces: tuple[bytes | None, ...]
    """By id; empty for special tokens, which are no text, and None where the tokenizer has no token: logits may
    be wider than it."""
    specials: dict[str, int]
    """Special tokens by their names."""
    byte_token_ids: frozenset[int]
    """Tokens that stand for a byte that no other token spells, ``<0x0A>`` and the like."""
    first_token_id: int | None
    """What a text begins with by itself; None: nothing."""
    unknown_token_id: int
    """What stands for anything that has no token: of the ids for unknown, for the end, and 0, the first there is."""

    @classmethod
    def of(cls, tokenizer: Any, vocab_size: int) -> Vocabulary:
        """Read a tokenizer.

        Args:
            tokenizer: a fast tokenizer of transformers, or one of the package tokenizers.
            vocab_size: width of the model's logits; tokens beyond it do not count.

        Raises:
            ValueError: a tokenizer that is neither, or whose tokens are written in a way that is not known here:
                byte-level and SentencePiece's are.
        """
        backend = _backend(tokenizer)
        words = json.loads(backend.to_str())
        spell = _Spelling(words["decoder"])
        special_ids = {token["id"] for token in words["added_tokens"] if token["special"]}
        pieces: list[bytes | None] = [None] * vocab_size
        specials, byte_token_ids = {}, set()
        for token, id_ in backend.get_vocab().items():
            if id_ >= vocab_size:
                continue
            if id_ in special_ids:
                specials[token], pieces[id_] = id_, b""
            else:
                pieces[id_] = spell(token)
                if spell.has_byte_tokens and BYTE_TOKEN.fullmatch(token):
                    byte_token_ids.add(id_)
        named = (getattr(tokenizer, "unk_token_id", None), getattr(tokenizer, "eos_token_id", None))
        usable = [id_ for id_ in named if id_ is not None and id_ < vocab_size]
        return cls(
            backend=backend,
            pieces=tuple(pieces),
            specials=specials,
            byte_token_ids=frozenset(byte_token_ids),
            first_token_id=_first_token_id(backend),
            unknown_token_id=(usable or [0])[0],
        )

    def decode(self, token_ids: Iterable[int]) -> bytes:
        """What tokens spell together; special ones nothing."""
        return b"".join(self.pieces[id_] or b"" for id_ in token_ids)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, nothing before or behind it."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def names(self) -> dict[tuple[str, bytes], int]:
        """Of each token that means something, what it means and the first id that means it. A token that spells a
        byte comes behind one that is written as that character: models use the latter."""
        last = len(self.pieces)
        order = sorted(range(last), key=lambda id_: id_ + last * (id_ in self.byte_token_ids))
        found: dict[tuple[str, bytes], int] = {}
        for id_ in order:
            if piece := self.pieces[id_]:
                found.setdefault(("text", piece), id_)
        for name, id_ in sorted(self.specials.items(), key=lambda item: item[1]):
            found.setdefault(("special", name.encode()), id_)
        return found


@dataclass(frozen=True)
class VocabMapping:
    r"""The tokens that a target and a draft model have in common, one to one.

    Tokens are the same if they spell the same bytes, whatever a vocabulary writes for a space or a byte. Special
    tokens are no text: they are the same if they have the same name.

    >>> from tokenizers import Tokenizer, decoders, models
    >>> from ascend_spec.drafters import VocabMapping, Vocabulary
    >>> ours = Tokenizer(models.BPE({"a": 0, "\u0120a": 1, "b": 2}, []))  # byte-level: \u0120 is a space
    >>> ours.decoder = decoders.ByteLevel()
    >>> theirs = Tokenizer(models.BPE({"\u2581a": 0, "c": 1, "a": 2}, []))  # and here it is \u2581
    >>> theirs.decoder = decoders.Metaspace()
    >>> mapping = VocabMapping.of(Vocabulary.of(ours, 3), Vocabulary.of(theirs, 3))
    >>> mapping.draft_token_ids.tolist()
    [2, 0, -1]
    """

    draft_token_ids: torch.Tensor
    """``[V_target]`` int32, the draft's token for each of the target's; -1: it has none."""
    target_token_ids: torch.Tensor
    """``[V_draft]`` int32, the inverse."""
    unknown_token_id: int = 0
    """The draft's, read in place of a token that it does not have."""
    first_token_id: int | None = None
    """The draft's, with which its texts begin; None: they begin with no token of their own."""

    @classmethod
    def of(cls, target: Vocabulary, draft: Vocabulary) -> VocabMapping:
        """Match two vocabularies, on the host; see :meth:`to`."""
        to_draft = torch.full((len(target.pieces),), -1, dtype=torch.int32)
        to_target = torch.full((len(draft.pieces),), -1, dtype=torch.int32)
        ours, theirs = target.names(), draft.names()
        pairs = [(id_, theirs[name]) for name, id_ in ours.items() if name in theirs]
        if pairs:
            ids = torch.tensor(pairs, dtype=torch.int32)
            to_draft[ids[:, 0].long()], to_target[ids[:, 1].long()] = ids[:, 1], ids[:, 0]
        return cls(to_draft, to_target, draft.unknown_token_id, draft.first_token_id)

    def to(self, device: torch.device | str) -> VocabMapping:
        """The same on another device."""
        return VocabMapping(
            self.draft_token_ids.to(device),
            self.target_token_ids.to(device),
            self.unknown_token_id,
            self.first_token_id,
        )

    @cached_property
    def intersection(self) -> torch.Tensor:
        """``[V_draft]`` bool, which of the draft's tokens the target has."""
        return self.target_token_ids >= 0

    @cached_property
    def num_shared(self) -> int:
        return int(self.intersection.sum())

    def __str__(self) -> str:
        ours, theirs = self.draft_token_ids.numel(), self.target_token_ids.numel()
        return (
            f"{self.num_shared} shared tokens: {self.num_shared / theirs:.1%} of the draft's {theirs}, "
            f"{self.num_shared / ours:.1%} of the target's {ours}"
        )

    @cached_property
    def shared(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Two times ``[num_shared]`` int64: the draft's ids, and the target's of the same tokens."""
        draft_ids = self.intersection.nonzero()[:, 0]
        return draft_ids, self.target_token_ids[draft_ids].long()

    def to_draft(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The target's tokens as the draft is shown them: it must read one of its own for each.

        Args:
            token_ids: ``[T]`` integers.
            positions: ``[T]`` integers; at 0 stands what the draft's texts begin with, if anything: models that
                were trained with it write nonsense without.

        Returns:
            ``[T]`` int32.
        """
        found = self.draft_token_ids[token_ids]
        found = torch.where(found < 0, self.unknown_token_id, found)
        return (
            found if self.first_token_id is None else torch.where(positions == 0, self.first_token_id, found)
        )

    def to_target_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """The draft's logits ``[n, V_draft]`` over the target's vocabulary, ``[n, V_target]``: ``-inf`` for tokens
        that it does not have. Their softmax is the draft's distribution, renormalised on what is shared."""
        draft_ids, target_ids = self.shared
        found = logits.new_full((logits.shape[0], self.draft_token_ids.numel()), -torch.inf)
        return found.index_copy_(1, target_ids, logits[:, draft_ids])


def _backend(tokenizer: Any) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(backend, "to_str"):
        raise ValueError(
            f"a {type(tokenizer).__name__} was given as tokenizer; to compare vocabularies a fast one is needed, "
            "with a tokenizer.json: convert it, or use models of one vocabulary"
        )
    if backend.truncation or backend.padding:  # of a text nothing may be missing, and nothing added
        backend = type(backend).from_str(backend.to_str())
        backend.no_truncation()
        backend.no_padding()
    return backend


class _Spelling:
    """From the text that a vocabulary has for a token to the bytes that the token stands for, as its decoder has
    it."""

    def __init__(self, decoder: dict[str, Any] | None) -> None:
        steps = list(_steps(decoder))
        kinds = {step["type"] for step in steps}
        marks = [step["replacement"] for step in steps if step["type"] == "Metaspace"]
        marks += [
            step["pattern"]["String"]
            for step in steps
            if step["type"] == "Replace" and step["content"] == " " and "String" in step["pattern"]
        ]
        self.space = marks[0] if marks else ""
        self.is_byte_level = "ByteLevel" in kinds
        self.has_byte_tokens = "ByteFallback" in kinds
        if not (self.is_byte_level or marks):
            raise ValueError(
                f"a tokenizer decodes with {', '.join(sorted(kinds)) or 'nothing'}; vocabularies can be compared "
                "that are byte-level or mark spaces as SentencePiece does: use models of one vocabulary"
            )

    def __call__(self, token: str) -> bytes:
        if self.is_byte_level:
            known = _byte_level()
            if all(letter in known for letter in token):
                return bytes(known[letter] for letter in token)
            return token.encode()  # an added token, in plain letters
        if self.has_byte_tokens and (byte := BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        return token.replace(self.space, " ").encode()


def _steps(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder


@cache
def _byte_level() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones of Latin-1 are themselves, the others follow from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _first_token_id(backend: Any) -> int | None:
    bare = backend.encode("a", add_special_tokens=False).ids
    dressed = backend.encode("a").ids
    return dressed[0] if dressed[:1] != bare[:1] else None
