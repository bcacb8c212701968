"""Two vocabularies side by side: what tokens spell, and which are the same."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest
import torch
from gemma3 import gemma3_path
from hypothesis import given, settings
from hypothesis import strategies as st
from smollm2 import smollm2_path
from tokenizers import Tokenizer, decoders, models
from toy_tokenizers import add_plain, byte_level, sentencepiece
from transformers import PreTrainedTokenizerFast

from ascend_spec.drafters import vocab
from ascend_spec.drafters.vocab import VocabMapping, Vocabulary

KINDS = (byte_level, sentencepiece, lambda pieces: sentencepiece(pieces, as_replace=False))


def vocabulary(tokenizer: Tokenizer, vocab_size: int | None = None) -> Vocabulary:
    return Vocabulary.of(tokenizer, tokenizer.get_vocab_size() if vocab_size is None else vocab_size)


def pairs(mapping: VocabMapping) -> dict[int, int]:
    """Of the target's ids, the draft's."""
    return {i: id_ for i, id_ in enumerate(mapping.draft_token_ids.tolist()) if id_ >= 0}


def check(mapping: VocabMapping, target: list[bytes], draft: list[bytes]) -> None:
    """The laws: one to one, there and back, the same bytes, and nothing left out."""
    there = pairs(mapping)
    back = {i: id_ for i, id_ in enumerate(mapping.target_token_ids.tolist()) if id_ >= 0}
    assert {id_: i for i, id_ in there.items()} == back, "not one to one, or the way back is another"
    for ours, theirs in there.items():
        assert target[ours] == draft[theirs], "a pair does not spell the same"
    shared = set(target) & set(draft)
    assert mapping.num_shared == len(there) == len(shared), "something that both have was left out"
    assert mapping.intersection.tolist() == [i in back for i in range(len(draft))]


def mapping_of(kinds: tuple[int, int], ours: list[str], theirs: list[str]) -> VocabMapping:
    return VocabMapping.of(vocabulary(KINDS[kinds[0]](ours)), vocabulary(KINDS[kinds[1]](theirs)))


PIECES = st.lists(st.text("ab éĠ", min_size=1, max_size=4), min_size=1, max_size=30, unique=True)


@settings(max_examples=60, deadline=None)
@given(st.tuples(st.integers(0, 2), st.integers(0, 2)), PIECES, PIECES)
def test_what_is_mapped_spells_the_same(kinds, ours, theirs):
    check(mapping_of(kinds, ours, theirs), [s.encode() for s in ours], [s.encode() for s in theirs])


WORDS = [" the", "a", "\n", " é", "é", "ab", "  "]
OTHERS = ["x", "a", "é", " the", "\n", "ba", " é", "  "]


@pytest.mark.parametrize("kinds", [(a, b) for a in range(3) for b in range(3)])
def test_tokens_of_all_kinds_are_compared_by_bytes(kinds):
    assert pairs(mapping_of(kinds, WORDS, OTHERS)) == {0: 3, 1: 1, 2: 4, 3: 6, 4: 2, 6: 7}


def as_written(self, token):
    return token.encode()


def shifted(mapping):
    return replace(mapping, target_token_ids=mapping.target_token_ids.roll(1))


@pytest.mark.parametrize(
    "mutant", ["markers are letters", "ids are shifted", "one pair is missing", "two tokens go to one"]
)
def test_the_laws_find_a_mapping_that_is_wrong(mutant, monkeypatch):
    if mutant == "markers are letters":
        monkeypatch.setattr(vocab._Spelling, "__call__", as_written)
    mapping = mapping_of((0, 1), WORDS, OTHERS)
    if mutant == "ids are shifted":
        mapping = shifted(mapping)
    elif mutant == "one pair is missing":
        mapping.draft_token_ids[0] = mapping.target_token_ids[3] = -1
    elif mutant == "two tokens go to one":
        mapping.draft_token_ids[5] = 1
    with pytest.raises(AssertionError):
        check(mapping, [s.encode() for s in WORDS], [s.encode() for s in OTHERS])


def test_a_byte_token_gives_way_to_the_character():
    target = vocabulary(byte_level(["a", "\n"]))
    draft = vocabulary(sentencepiece(["<0x61>", "<0x0A>", "a"]))
    assert draft.pieces == (b"a", b"\n", b"a")
    assert pairs(VocabMapping.of(target, draft)) == {0: 2, 1: 1}
    assert pairs(VocabMapping.of(draft, target)) == {2: 0, 1: 1}


def test_half_a_character_is_the_same_in_both_kinds():
    letter = "é".encode()[:1]
    tokenizer = Tokenizer(models.BPE({"Ã": 0, "©": 1}, []))  # how byte-level vocabularies write C3 and A9
    tokenizer.decoder = decoders.ByteLevel()
    target, draft = vocabulary(tokenizer), vocabulary(sentencepiece(["x", "<0xA9>", "<0xC3>"]))
    assert target.pieces[0] == letter
    assert pairs(VocabMapping.of(target, draft)) == {0: 2, 1: 1}


def test_something_that_looks_like_a_byte_is_text_where_bytes_are_not_written_so():
    assert vocabulary(byte_level(["<0x61>"])).pieces == (b"<0x61>",)


def test_special_tokens_are_the_same_by_name_and_never_text():
    target = vocabulary(byte_level(["a", "<eos>"], specials=["<pad>", "<bos>"]))
    draft = vocabulary(sentencepiece(["<bos>", "a"], specials=["<eos>", "<pad>"]))
    assert target.pieces == (b"a", b"<eos>", b"", b"")
    assert pairs(VocabMapping.of(target, draft)) == {0: 1, 2: 3}


def test_added_tokens_that_are_text_are_read_as_the_decoder_reads_them():
    target = vocabulary(add_plain(byte_level(["a"]), "  ", "<b>"))
    draft = vocabulary(add_plain(sentencepiece(["a"]), "▁▁", "<b>"))
    assert target.pieces == draft.pieces == (b"a", b"  ", b"<b>")


def test_logits_are_wider_or_narrower_than_a_tokenizer():
    words = ["a", "b", "c", "d"]
    wide, narrow = vocabulary(byte_level(words), 7), vocabulary(sentencepiece(words), 3)
    assert wide.pieces[4:] == (None, None, None)
    for target, draft in ((wide, narrow), (narrow, wide)):
        mapping = VocabMapping.of(target, draft)
        assert len(mapping.draft_token_ids) == len(target.pieces)
        assert len(mapping.target_token_ids) == len(draft.pieces)
        assert pairs(mapping) == {0: 0, 1: 1, 2: 2}


def test_what_a_draft_reads_in_place_of_the_targets_tokens():
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=sentencepiece(["a", "b"], specials=["<bos>", "<unk>", "<eos>"], bos="<bos>"),
        unk_token="<unk>",
        eos_token="<eos>",
    )
    draft = Vocabulary.of(tokenizer, 5)
    assert (draft.first_token_id, draft.unknown_token_id) == (2, 3)
    assert Vocabulary.of(tokenizer, 3).unknown_token_id == 0, "an id that the model does not have"
    mapping = VocabMapping.of(vocabulary(byte_level(["b", "x", "a"])), draft)
    ids, positions = torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, 2, 3])
    assert mapping.to_draft(ids, positions).tolist() == [2, 3, 0, 1]
    bare = replace(mapping, first_token_id=None)
    assert bare.to_draft(ids, positions).tolist() == [1, 3, 0, 1]


def test_an_end_is_not_taken_for_a_beginning():
    tokenizer = sentencepiece(["a", "b"], specials=["<eos>"], bos="<eos>")
    tokenizer.post_processor = type(tokenizer.post_processor)(
        single="$A <eos>", special_tokens=[("<eos>", 2)]
    )
    assert vocabulary(tokenizer).first_token_id is None


def test_no_text_is_cut_short_and_none_is_padded():
    tokenizer = byte_level(["a", "b"])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=5)
    found = vocabulary(tokenizer)
    assert found.encode("abab") == [0, 1, 0, 1]
    assert tokenizer.truncation["max_length"] == 2, "the caller's is as it was"


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.BPEDecoder()])
def test_a_tokenizer_of_another_kind_is_refused(decoder):
    tokenizer = Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    if decoder is not None:
        tokenizer.decoder = decoder
    with pytest.raises(ValueError, match=r"a tokenizer decodes with .*: use models of one vocabulary"):
        vocabulary(tokenizer)


def test_a_slow_tokenizer_is_refused():
    with pytest.raises(ValueError, match=r"a list was given as tokenizer.*a fast one is needed"):
        Vocabulary.of([], 4)


def test_the_real_tokenizer_spells_what_it_read():
    from ascend_spec.models import load_tokenizer

    found = Vocabulary.of(load_tokenizer(smollm2_path()), 49152)
    text = "def add(a, b):\n    return a + b  # ≥ 0 für alle 😀\n\n\tx"
    assert found.decode(found.encode(text)) == text.encode()
    assert (found.first_token_id, found.unknown_token_id) == (None, 0)


def test_the_example_is_right():
    assert doctest.testmod(vocab).failed == 0


@pytest.mark.full
def test_two_real_vocabularies():
    from ascend_spec.models import load_tokenizer

    target = Vocabulary.of(load_tokenizer(smollm2_path()), 49152)
    draft = Vocabulary.of(load_tokenizer(gemma3_path()), 262144)
    assert draft.first_token_id == 2, "Gemma's texts begin with <bos>"
    mapping = VocabMapping.of(target, draft)
    assert mapping.num_shared == 46145
    assert "93.9% of the target's 49152" in str(mapping)
    for ours, theirs in pairs(mapping).items():
        assert target.pieces[ours] == draft.pieces[theirs]
    text = " the é\n\tx"
    assert draft.decode(draft.encode(text)) == text.encode()
