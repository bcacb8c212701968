"""Draft models with another vocabulary than the target's: the law, greedy text, and drafts that are accepted."""

from __future__ import annotations

import copy
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_fixtures import TINY_VOCAB, ScriptedModel, tiny_llama, tiny_model
from gemma3 import gemma3_path
from scipy import stats
from smollm2 import smollm2_path
from toy_tokenizers import byte_level, sentencepiece
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from ascend_spec.cli import main
from ascend_spec.config import ConfigError
from ascend_spec.drafters import DraftModelDrafter, heterogeneous
from ascend_spec.drafters.heterogeneous import SharedVocabModel, SlemDrafter
from ascend_spec.drafters.vocab import VocabMapping, Vocabulary
from ascend_spec.engine import LLM
from ascend_spec.models import CausalLM
from ascend_spec.types import DraftBatch, SamplingParams
from ascend_spec_ops import verify

#: one character each, so that a text has one tokenization; one of two bytes and one of three
LETTERS = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123 \n.,()é≥")[:TINY_VOCAB]
#: pieces of several characters, which overlap
PIECES = [*LETTERS[:40], *(a + b for a in "abcd" for b in "abcdef")]
PROMPTS = [
    [3, 1, 4, 1, 5, 9, 2, 6],
    [2, 7],
    [1] * 20,
    [8, 2, 8, 1, 8, 2],
    [60, 33, 41],
    list(range(30)),
    [63, 62, 5],
]
NUM_EXTRA = 5


def vocabulary(tokenizer: Any) -> Vocabulary:
    return Vocabulary.of(tokenizer, tokenizer.get_vocab_size())


def ids_of(num_tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(TINY_VOCAB, (num_tokens,), generator=torch.Generator().manual_seed(seed)).int()


@pytest.fixture(scope="module")
def order() -> list[int]:
    """Which of the target's tokens each of the twin's is."""
    return torch.randperm(TINY_VOCAB, generator=torch.Generator().manual_seed(4)).tolist()


def twin(order: list[int], num_extra: int = 0) -> LlamaForCausalLM:
    """The target with its tokens in another order, and behind them some that it would often say, and may not."""
    model = copy.deepcopy(tiny_llama())
    model.resize_token_embeddings(TINY_VOCAB + num_extra, mean_resizing=False)
    for name in ("embed_tokens.weight", "lm_head.weight"):
        ours = next(weight for key, weight in tiny_llama().named_parameters() if key.endswith(name))
        theirs = next(weight for key, weight in model.named_parameters() if key.endswith(name))
        with torch.no_grad():
            theirs[:TINY_VOCAB] = ours[order]
            theirs[TINY_VOCAB:] = 3 * ours[1]
    return model


def save(path: Path, model: LlamaForCausalLM, tokenizer: Any) -> str:
    model.save_pretrained(path)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory, order: list[int]) -> dict[str, str]:
    """Model directories: a target whose tokens are letters and one whose tokens are pieces, and their drafts."""
    folder = tmp_path_factory.mktemp("models")
    theirs, extra = [LETTERS[i] for i in order], [f"<{i}>" for i in range(NUM_EXTRA)]
    return {
        "letters": save(folder / "letters", tiny_llama(), sentencepiece(LETTERS)),
        "pieces": save(folder / "pieces", tiny_llama(), sentencepiece(PIECES, as_replace=False)),
        "tli": save(folder / "tli", twin(order, NUM_EXTRA), byte_level([*theirs, *extra])),
        "slem": save(folder / "slem", twin(order), byte_level(theirs)),
    }


def engine(target: str, draft: str | None, num_drafts: int = 4, method: str = "tli", **options: Any) -> LLM:
    config = options.pop("config", {})
    if draft is None:
        return LLM(target, **options)
    ours = {"heterogeneous_vocab_method": method, "on_error": "raise"}
    config = {"method": "draft_model", "model": draft, "use_heterogeneous_vocab": True, **config}
    return LLM(
        target,
        speculative_config=config | {"num_speculative_tokens": num_drafts, "ascend_spec": ours},
        **options,
    )


def texts(llm: LLM, prompts: list[list[int]], **params: Any) -> list[tuple[int, ...]]:
    given = [SamplingParams(**{"temperature": 0.0, "max_tokens": 24, **params}) for _ in prompts]
    return [tuple(output.token_ids) for output in llm.generate(prompts, given)]


# ---- the distribution
def test_the_draft_is_renormalised_on_what_is_shared():
    mapping = VocabMapping.of(
        vocabulary(byte_level(["x", "b", "y", "a"])), vocabulary(sentencepiece(["a", "b", "c", "d"]))
    )
    q = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    logits = mapping.to_target_logits(q.log())
    assert torch.allclose(logits.softmax(1), torch.tensor([[0, 3 / 7, 0, 4 / 7]]))
    assert logits.isneginf().tolist() == [[True, False, True, False]]


class FixedModel(ScriptedModel):
    """The same distribution after every token."""

    def __init__(self, probs: list[float]):
        super().__init__([], len(probs), 64)
        self.row = torch.tensor(probs).log()

    def forward(self, input_ids, positions, kv_caches, attn_metadata, logits_indices):
        assert int(input_ids.max()) < len(self.row), "an id that the draft model does not have"
        return self.row.repeat(len(logits_indices), 1)


P = [0.3, 0.05, 0.25, 0.1, 0.2, 0.1]
Q = [0.35, 0.2, 0.15, 0.05, 0.25]
OURS, THEIRS = ["a", "b", "c", "d", "e", "f"], ["e", "x", "a", "y", "c"]
ROWS, K = 40_000, 2


def slots(num_slots: int, wanted: int, temperature: float = 1.0) -> DraftBatch:
    """Requests of one token each, which have nothing but the first draft's row to compute."""
    ones = torch.ones(num_slots, dtype=torch.int32)
    return DraftBatch(
        token_ids=torch.zeros((num_slots, 64), dtype=torch.int32),
        num_tokens=ones,
        num_speculative_tokens=wanted * ones,
        num_computed_tokens=ones - 1,
        restarted=ones.bool(),
        block_table=torch.zeros((num_slots, 4), dtype=torch.int32),
        temperature=temperature * ones.float(),
        seeds=torch.arange(num_slots),
    )


def unrenormalised(logits: torch.Tensor) -> torch.Tensor:
    """The draft's own probabilities, what is not shared given to a token that is never drafted."""
    shared = ~logits.isneginf()
    mapped = logits.exp().masked_fill(~shared, 0)
    mapped[..., OURS.index("b")] = 1 - mapped.sum(-1)
    return mapped.log()


@pytest.mark.parametrize("rule", ["standard", "block"])
@pytest.mark.parametrize("mutant", [False, True])
def test_the_law_of_sampled_drafts(rule, mutant):
    mapping = VocabMapping.of(vocabulary(byte_level(OURS)), vocabulary(sentencepiece(THEIRS)))
    drafter = DraftModelDrafter(
        SharedVocabModel(FixedModel(Q), mapping), K, draft_sample_method="probabilistic", rule=rule
    )
    drafter.allocate_kv_cache(4, 16)
    batch = slots(ROWS, K)
    draft = drafter.propose(batch)
    shared = torch.tensor([OURS.index(piece) for piece in THEIRS if piece in OURS])
    assert torch.isin(draft.token_ids, shared).all(), "only shared tokens are drafted"
    q = unrenormalised(draft.logits) if mutant else draft.logits
    output = verify(
        torch.tensor(P).log().repeat(ROWS * (K + 1), 1),
        draft.token_ids.flatten(),
        torch.arange(1, ROWS + 1, dtype=torch.int32) * K,
        batch.temperature,
        batch.seeds,
        batch.num_tokens.long(),
        K,
        q.flatten(0, 1).contiguous(),
        draft.temperature,
        rule,
    )
    assert (output[:, 0] >= 1).all()
    smallest = 1.0
    for place in (1, 2):
        tokens = output[output[:, 0] >= place, place]
        counts = torch.bincount(tokens.long(), minlength=len(P)).double()
        smallest = min(
            smallest, stats.chisquare(counts, torch.tensor(P, dtype=torch.float64) * counts.sum()).pvalue
        )
    assert (smallest < 1e-9) if mutant else (smallest > 1e-3)


def test_nothing_is_drafted_where_the_draft_can_say_nothing_that_is_shared():
    mapping = VocabMapping.of(vocabulary(byte_level(OURS)), vocabulary(sentencepiece(THEIRS)))
    for method, temperature in (("greedy", 0.0), ("probabilistic", 1.0)):
        model = SharedVocabModel(FixedModel([0.0, 0.5, 0.0, 0.5, 0.0]), mapping)
        drafter = DraftModelDrafter(model, K, draft_sample_method=method)
        drafter.allocate_kv_cache(4, 16)
        assert (drafter.propose(slots(3, K, temperature)).token_ids == -1).all()


# ---- at start
def test_few_shared_tokens_are_warned_of_and_none_is_an_error(caplog):
    def shared(ours: list[str], theirs: list[str]) -> SharedVocabModel:
        mapping = VocabMapping.of(vocabulary(byte_level(ours)), vocabulary(byte_level(theirs)))
        return SharedVocabModel(FixedModel([1 / len(theirs)] * len(theirs)), mapping)

    many = [chr(0x4E00 + i) for i in range(heterogeneous.FEW_SHARED_TOKENS)]
    with caplog.at_level(logging.WARNING, "ascend_spec"):
        shared(many, many)
        assert not caplog.records
        shared(many, many[1:])
    assert [record.getMessage() for record in caplog.records] == [
        "target and draft model have 99 shared tokens: 100.0% of the draft's 99, 99.0% of the target's 100; hardly a "
        'draft will be accepted. Use another draft model, or "ascend_spec": {"heterogeneous_vocab_method": "slem"}'
    ]
    with pytest.raises(ValueError, match=r"have no token in common.*slem"):
        shared(["a", "b"], ["c"])


def test_a_mapping_of_another_model_is_refused():
    mapping = VocabMapping.of(vocabulary(byte_level(OURS)), vocabulary(byte_level(THEIRS)))
    with pytest.raises(ValueError, match="from 5 tokens was given for a draft model of 6"):
        SharedVocabModel(FixedModel(P), mapping)


# ---- text
@pytest.mark.parametrize("method", ["tli", "slem"])
@pytest.mark.parametrize("target", ["letters", "pieces"])
def test_greedy_text_is_that_without_speculation(paths, target, method):
    plain = texts(engine(paths[target], None), PROMPTS)
    for num_drafts in (1, 4):
        for options in ({"max_num_batched_tokens": 16}, {"max_model_len": 64, "num_kv_blocks": 8}):
            llm = engine(paths[target], paths[method], num_drafts, method, **options)
            assert texts(llm, PROMPTS) == plain
            assert (llm.metrics.num_preemptions > 0) == ("num_kv_blocks" in options)
            assert texts(llm, PROMPTS[:1]) == plain[:1]
            assert llm.metrics.num_draft_tokens > 0


def accepted(llm: LLM) -> tuple[int, int]:
    return llm.metrics.num_accepted_tokens, llm.metrics.num_draft_tokens


@pytest.mark.parametrize("method", ["tli", "slem"])
def test_every_draft_of_a_twin_is_accepted(paths, method):
    llm = engine(paths["letters"], paths[method], 4, method)
    texts(llm, PROMPTS)
    num_accepted, num_drafts = accepted(llm)
    assert num_accepted == num_drafts > 50


def wrong_ids(monkeypatch):
    monkeypatch.setattr(VocabMapping, "to_draft", lambda self, ids, positions: ids)


def unmapped(monkeypatch):
    def mutant(self, logits):
        return logits[:, : self.draft_token_ids.numel()]

    monkeypatch.setattr(VocabMapping, "to_target_logits", mutant)


@pytest.mark.parametrize("mutate", [wrong_ids, unmapped])
def test_a_twin_whose_ids_are_mixed_up_is_noticed(paths, mutate, monkeypatch):
    mutate(monkeypatch)
    llm = engine(paths["letters"], paths["tli"], 4)
    texts(llm, PROMPTS)
    num_accepted, num_drafts = accepted(llm)
    assert num_accepted < num_drafts / 2


def test_coupled_sampling_gives_what_plain_sampling_gives(paths):
    params = {"temperature": 1.0, "seed": 5}
    plain = texts(engine(paths["letters"], None), PROMPTS, **params)
    config = {"draft_sample_method": "probabilistic"}
    llm = engine(paths["letters"], paths["tli"], 4, config=config)
    assert texts(llm, PROMPTS, **params) != plain, "a rule of its own random numbers"
    ours = {"rejection_sample_method": "coupled", "on_error": "raise"}
    config |= {"method": "draft_model", "model": paths["tli"], "use_heterogeneous_vocab": True}
    llm = LLM(
        paths["letters"], speculative_config=config | {"num_speculative_tokens": 4, "ascend_spec": ours}
    )
    assert texts(llm, PROMPTS, **params) == plain
    num_accepted, num_drafts = accepted(llm)
    assert num_accepted == num_drafts, "the twin draws the same tokens from the same numbers"


# ---- by text
def slem(order: list[int], num_slots: int = 2, **options: Any) -> SlemDrafter:
    target, draft = sentencepiece(LETTERS), byte_level([LETTERS[i] for i in order])
    model = CausalLM.from_module(twin(order))
    drafter = SlemDrafter(model, vocabulary(target), vocabulary(draft), 3, max_num_seqs=num_slots, **options)
    drafter.allocate_kv_cache(0, 16)
    return drafter


def history(rows: list[torch.Tensor], wanted: list[int], restarted: bool) -> DraftBatch:
    token_ids = torch.zeros((len(rows), 128), dtype=torch.int32)
    for slot, row in enumerate(rows):
        token_ids[slot, : len(row)] = row
    num_tokens = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    return DraftBatch(
        token_ids=token_ids,
        num_tokens=num_tokens,
        num_speculative_tokens=torch.tensor(wanted, dtype=torch.int32),
        num_computed_tokens=(num_tokens - 1).clamp(min=0),
        restarted=torch.full((len(rows),), restarted),
    )


def compare_with_fresh(order: list[int]) -> None:
    """Rounds in which nothing, some or all drafts were accepted, rows that want none, and rows left out."""
    old = slem(order)
    rows, first = [ids_of(9, 1), ids_of(5, 2)], True
    for turn in range(8):
        batch = history(rows, [3, turn % 3], restarted=first)
        if turn == 4:
            old.follow(batch)
        drafts = old.propose(batch).token_ids
        assert (
            drafts.tolist()
            == slem(order).propose(replace(batch, restarted=torch.tensor([True] * 2))).token_ids.tolist()
        )
        first = False
        rows = [
            torch.cat([row, drafts[s, : (turn + s) % 4].clamp(min=0), ids_of(2, turn)])
            for s, row in enumerate(rows)
        ]


def test_drafts_by_text_are_those_of_a_fresh_drafter(order):
    compare_with_fresh(order)


def test_kv_of_what_was_not_accepted_is_noticed(order, monkeypatch):
    right = SlemDrafter._replace_tokens
    monkeypatch.setattr(
        SlemDrafter, "_replace_tokens", lambda self, slot, ids: right(self, slot, ids) * 0 + len(ids)
    )
    with pytest.raises(AssertionError):
        compare_with_fresh(order)


def test_a_slot_of_another_request_begins_anew(order):
    drafter = slem(order)
    drafter.propose(history([ids_of(9, 1), ids_of(5, 2)], [3, 3], restarted=True))
    other = history([ids_of(9, 1)[:4], ids_of(6, 3)], [3, 3], restarted=True)
    assert drafter.propose(other).token_ids.tolist() == slem(order).propose(other).token_ids.tolist()


def test_a_text_that_is_too_long_for_the_draft_model_gets_no_drafts(order):
    drafter = slem(order, max_model_len=12)
    drafts = drafter.propose(history([ids_of(12), ids_of(10)], [3, 3], restarted=True)).token_ids
    assert drafts[0].tolist() == [-1, -1, -1]
    assert (drafts[1] >= 0).tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("context", "written", "expected"),
    [
        ("ab c", "a", ["a"]),
        ("ab c", "abab", ["ab", "ab"]),
        ("b", "b", ["b"]),
        ("a", "b", []),  # "ab" is one token, and the "a" of it stands there already
        ("ab", "<end>ab", []),
        ("ab", "a<end>ab", ["a"]),
        ("ab", "", []),
    ],
)
def test_what_was_written_is_cut_as_in_a_text(context, written, expected):
    target = vocabulary(sentencepiece(["a", "b", " ", "ab", " c", "c"], as_replace=False))
    draft = vocabulary(byte_level(["b", "a", "ab"], specials=["<end>"]))
    drafter = SlemDrafter(tiny_model(), target, draft, 3, max_num_seqs=1)
    found = drafter._for_target(target.encode(context), draft.backend.encode(written).ids)
    assert [target.pieces[i] for i in found] == [piece.encode() for piece in expected]


def test_a_character_that_is_half_there():
    target = vocabulary(sentencepiece(["<unk>", "x", "<0xE2>", "<0x89>", "<0xA5>", "y"]))
    draft = vocabulary(byte_level(["y", "≥", "x"]))
    drafter = SlemDrafter(tiny_model(), target, draft, 3, max_num_seqs=1)
    assert drafter._for_draft([1, 2]) == [2], "the draft model is not shown half a character"
    assert drafter._for_target([1, 2], [1, 0]) == [3, 4, 5], "what it writes begins with it again"
    assert drafter._for_target([1, 2], [0, 1]) == [], "or is something else"
    assert drafter._for_target([1], [1, 0]) == [2, 3, 4, 5]


# ---- what is refused
@pytest.mark.parametrize(
    ("method", "config", "message"),
    [
        ("tli", {"parallel_drafting": True}, "'parallel_drafting' was given as true together with"),
        ("slem", {"draft_sample_method": "probabilistic"}, "are certain"),
        ("tli", {"use_heterogeneous_vocab": False}, "set 'use_heterogeneous_vocab' to true"),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_models_are_read(paths, method, config, message):
    with pytest.raises(ConfigError, match=message):
        engine(paths["letters"], paths["tli"], 4, method, config=config)


def test_the_command_line_tells_what_is_shared(paths, tmp_path, capsys):
    config = {
        "method": "draft_model",
        "model": paths["tli"],
        "use_heterogeneous_vocab": True,
        "num_speculative_tokens": 2,
    }

    def told(target: str) -> str:
        main(["check-config", json.dumps(config), "--model", target, "--json"])
        return json.loads(capsys.readouterr().out)["draft_model"]["vocabulary"]

    assert told(paths["letters"]) == "64 shared tokens: 92.8% of the draft's 69, 100.0% of the target's 64"
    (tmp_path / "config.json").write_text(Path(paths["letters"], "config.json").read_text())
    assert told(str(tmp_path)).startswith(f"unknown: {tmp_path} has no tokenizer")


# ---- real models
@pytest.mark.full
@pytest.mark.parametrize("method", ["tli", "slem"])
def test_gemma_drafts_for_smollm2(method):
    prompts = [
        'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
        "Q: What is 2+2?\nA: 4\nQ: What is 3+3?\nA:",
    ]
    target, draft = str(smollm2_path()), str(gemma3_path())
    params = SamplingParams(temperature=0.0, max_tokens=24)
    plain = [output.token_ids for output in LLM(target, max_model_len=128).generate(prompts, params)]
    llm = engine(target, draft, 3, method, max_model_len=128)
    assert [output.token_ids for output in llm.generate(prompts, params)] == plain
    num_accepted, num_drafts = accepted(llm)
    assert num_accepted > num_drafts / 6, "Gemma speaks English too"
