"""Small tokenizers of both kinds, byte-level and SentencePiece's, whose tokens spell what one writes down."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors


def _letters(text: str) -> str:
    """As byte-level vocabularies write it."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(part for part, _ in level.pre_tokenize_str(text))


def _unigram(pieces: Sequence[str], *, byte_fallback: bool = False) -> Tokenizer:
    # the longer a piece, the better: fewer tokens win, and splits are not ambiguous
    scores = [(piece, -1.0 - 0.001 * i) for i, piece in enumerate(pieces)]
    return Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=byte_fallback))


def byte_level(pieces: Sequence[str], specials: Sequence[str] = ()) -> Tokenizer:
    """Ids in the order of ``pieces``, the text that each token spells; special tokens behind them."""
    tokenizer = _unigram([_letters(piece) for piece in pieces])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def sentencepiece(
    pieces: Sequence[str], specials: Sequence[str] = (), *, bos: str | None = None, as_replace: bool = True
) -> Tokenizer:
    """The same, with "▁" for a space; pieces like ``<0x0A>`` stand for a byte. ``bos``: one of ``specials``, which
    texts begin with. ``as_replace``: spaces are marked as in Gemma, else as in Llama 2, with one before the text."""
    written = [piece.replace(" ", "▁") for piece in pieces]
    tokenizer = _unigram(written, byte_fallback=True)
    if as_replace:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        marks = decoders.Replace("▁", " ")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=False)
        marks = decoders.Metaspace("▁", prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Sequence([marks, decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(list(specials))
    if bos is not None:
        id_ = tokenizer.token_to_id(bos)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, id_)]
        )
    return tokenizer


def add_plain(tokenizer: Tokenizer, *texts: str) -> Tokenizer:
    """Added tokens that are text."""
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in texts])
    return tokenizer
