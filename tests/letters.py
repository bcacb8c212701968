"""A tiny model that speaks letters: one token a letter, with a tokenizer that transformers and xgrammar know."""

from __future__ import annotations

import string
from dataclasses import replace

from engine_fixtures import TINY_VOCAB, tiny_model
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from ascend_spec.models import CausalLM

LETTERS = (string.ascii_lowercase + " " + string.digits + '{}[]":,.-' + string.ascii_uppercase)[
    : TINY_VOCAB - 2
]
UNKNOWN, END = TINY_VOCAB - 2, TINY_VOCAB - 1


def letter_tokenizer(end: str | None = "</s>") -> PreTrainedTokenizerFast:
    """The last two ids are special. ``end``: the text of the one that ends a text; None: no such token."""
    vocab = {letter: i for i, letter in enumerate(LETTERS)} | {"<unk>": UNKNOWN, end or "<tool>": END}
    fast = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    fast.decoder = decoders.Fuse()
    fast.add_special_tokens([AddedToken(end or "<tool>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=fast, eos_token=end, unk_token="<unk>")


def letter_model(eos_token_ids: tuple[int, ...] = (END,)) -> CausalLM:
    model = tiny_model()
    model.info = replace(model.info, eos_token_ids=eos_token_ids)
    return model


def ids_of(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def speculative(k: int, rule: str = "standard") -> dict:
    return {"method": "ngram", "num_speculative_tokens": k, "ascend_spec": {"rejection_sample_method": rule}}
