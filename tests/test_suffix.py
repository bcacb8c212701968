"""The suffix drafter: by itself against the reference, and in the engine."""

from __future__ import annotations

import doctest
import hashlib
import json
import random

import numpy as np
import pytest
import torch
from engine_fixtures import greedy_reference, tiny_model

from ascend_spec.drafters import SuffixDrafter, suffix_memory
from ascend_spec.drafters import suffix as suffix_module
from ascend_spec.engine import LLM
from ascend_spec.types import DraftBatch, SamplingParams
from ascend_spec_ops import suffix_extend
from ascend_spec_ops.suffix_match.reference import Candidate, SuffixTree

WIDTH = 80


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def batch(slots, wanted=4, away=()):
    """A batch of (request id, prompt, output) by slot; None: nobody's. Those ``away`` run, and are not asked for."""
    rows, lengths, prompts, ids = [], [], [], []
    for slot in slots:
        request_id, prompt, output = slot or (None, [], [])
        text = [*prompt, *output]
        rows.append(text + [7] * (WIDTH - len(text)))
        lengths.append(0 if request_id in away else len(text))
        prompts.append(len(prompt))
        ids.append(request_id)
    return DraftBatch(
        int32(rows), int32(lengths), int32([wanted] * len(rows)), None, None, int32(prompts), tuple(ids)
    )


def propose(drafter, *args, **kwargs):
    draft = drafter.propose(batch(*args, **kwargs))
    assert draft.token_ids.dtype == torch.int32
    return [[token for token in row if token >= 0] for row in draft.token_ids.tolist()]


def test_docstring_example():
    result = doctest.testmod(suffix_module)
    assert result.attempted > 0
    assert result.failed == 0


class Serving:
    """Requests that come, go on, wait and end, told to a drafter and to the reference."""

    def __init__(self, seed: int, drafter: SuffixDrafter) -> None:
        self.rng, self.drafter, depth = random.Random(seed), drafter, drafter.local.max_depth
        self.slots: list[tuple[str, list[int], list[int]] | None] = [None] * 4
        self.waiting: list[tuple[str, list[int], list[int]]] = []
        self.local: dict[str, SuffixTree] = {}
        self.memory = SuffixTree(depth)
        self.depth, self.count = depth, 0

    def step(self) -> None:
        rng = self.rng
        for slot in range(len(self.slots)):
            request, chance = self.slots[slot], rng.random()
            if request is None and chance < 0.5:
                self.slots[slot] = self.waiting.pop() if self.waiting else self._new()
            elif request is not None and chance < 0.1:
                self.waiting.append(request)
                self.slots[slot] = None
            elif request is not None and (chance < 0.2 or len(request[1]) + len(request[2]) > WIDTH - 8):
                self.slots[slot] = None
        away = {request[0] for request in self.slots if request and rng.random() < 0.2}
        for request in self.slots:
            if request and request[0] not in away:
                self._grow(request, [rng.randrange(3) for _ in range(rng.randint(1, 4))])
        wanted = rng.randint(0, 5)
        expected = [
            [] if request is None or request[0] in away else self._expected(request, wanted)
            for request in self.slots
        ]
        assert propose(self.drafter, self.slots, wanted, away) == expected

    def _new(self):
        self.count += 1
        request = (str(self.count), [self.rng.randrange(3) for _ in range(self.rng.randint(1, 9))], [])
        self.local[request[0]] = SuffixTree(self.depth)
        self.local[request[0]].extend(0, request[1])
        return request

    def _grow(self, request, tokens) -> None:
        request[2].extend(tokens)
        self.local[request[0]].extend(0, tokens)
        self.memory.extend(int(request[0]), tokens)

    def _expected(self, request, wanted) -> list[int]:
        context = [*request[1], *request[2]]
        own, others = (
            tree.speculate(context, wanted, min_token_prob=0.1)
            for tree in (self.local[request[0]], self.memory if self.drafter.shared else SuffixTree(1))
        )
        return list((others if others.score > own.score else own).token_ids)


@pytest.mark.parametrize("max_cached_requests", [-1, 0])
def test_drafts_are_those_of_the_reference(max_cached_requests):
    """Whoever comes back after waiting stands in the memory once."""
    for seed in range(40):
        serving = Serving(seed, SuffixDrafter(5, 6, max_cached_requests))
        for _ in range(15):
            serving.step()


def test_a_request_that_waits_counted_twice_is_noticed(monkeypatch):
    monkeypatch.setattr(SuffixDrafter, "_resumed", lambda *_: (-1, 0))
    with pytest.raises(AssertionError):
        test_drafts_are_those_of_the_reference(-1)


def test_prompts_in_the_memory_are_noticed(monkeypatch):
    def extend(texts, begins, ends, *, shared_begins, **trees):
        suffix_extend(texts, begins, ends, shared_begins=begins, **trees)

    monkeypatch.setattr(suffix_module, "suffix_extend", extend)
    with pytest.raises(AssertionError):
        test_drafts_are_those_of_the_reference(-1)


def test_an_id_that_is_used_again_is_a_new_request():
    """Seen again at once, with another text and with a longer one; what ended is remembered."""
    for other in ([8, 9], [8] * 20):
        drafter = SuffixDrafter(4)
        propose(drafter, [("a", [1, 2, 3], [4, 5, 6, 7])])
        assert propose(drafter, [("a", other, [4, 5])]) == [[6, 7]]
        assert drafter.num_cached_requests == 2


def test_first_ended_first_forgotten():
    drafter = SuffixDrafter(4, max_cached_requests=3)
    for name, output in (("a", [1, 2, 3]), ("b", [4, 5, 6]), ("c", [7, 8, 9])):
        propose(drafter, [(name, [0], output)])
    assert propose(drafter, [("d", [20], [1, 2])]) == [[]]  # the fourth drove out the first
    assert propose(drafter, [("d", [20], [1, 2, 4, 5])]) == [[6]]
    assert drafter.num_cached_requests == 3


def test_maps_of_requests_are_empty_after_their_end():
    drafter = SuffixDrafter(2, max_cached_requests=8)
    sizes = set()
    for number in range(1000):
        propose(drafter, [(str(number), [1, 2, 3], [number % 5, 2, 3])])
        if number > 100:
            sizes.add((drafter.local.nbytes, drafter.shared.nbytes))
    drafter.release(())
    assert drafter.num_active_requests == len(drafter.local) == 0
    assert drafter.num_cached_requests == len(drafter._last) == len(drafter._ended) == 8
    assert len(sizes) == 1


def test_drafts_end_with_the_row():
    drafter = SuffixDrafter(4)
    text = list(range(40)) * 2
    assert propose(drafter, [("a", text[:70], text[70:78])]) == [[38, 39]]


@pytest.mark.parametrize("token", [-1, -(2**31), 2**31 - 1])
def test_ids_outside_the_vocabulary_do_no_harm(token):
    drafter = SuffixDrafter(4)
    drafts = propose(drafter, [("a", [1, token, 2, 3, 1], [token, 2])])
    assert drafts == [[3, 1, token] if token > 0 else [3, 1]]


def test_a_batch_without_ids_is_refused():
    with pytest.raises(ValueError, match="request_ids"):
        SuffixDrafter(1).propose(DraftBatch(int32([[1]]), int32([1]), int32([1])))
    with pytest.raises(ValueError, match="without a request id"):
        SuffixDrafter(1).propose(
            DraftBatch(int32([[1]]), int32([1]), int32([1]), None, None, int32([1]), (None,))
        )


def test_reference_is_empty_where_nothing_is_known():
    assert SuffixTree(3).speculate([1, 2, 3], 4) == Candidate()


# ---- the memory as a file
def remembering(path, vocab_size=64, vocabulary="a"):
    tokenizer = suffix_memory.Tokenizer(vocab_size, vocabulary)
    return SuffixDrafter(4, memory_path=str(path), tokenizer=tokenizer)


def test_a_memory_that_is_saved_is_there_the_next_time(tmp_path):
    path = tmp_path / "memory"
    first = remembering(path)
    propose(first, [("a", [0], [1, 2, 3, 4]), ("b", [0], [])])
    propose(first, [("a", [0], [1, 2, 3, 4])])
    del first  # it is saved with those that run still
    second = remembering(path)
    assert second.num_cached_requests == 2
    assert propose(second, [("a", [9], [1, 2])]) == [[3, 4]]
    second.save()
    assert [output.tolist() for output in suffix_memory.load(path, suffix_memory.Tokenizer())] == [
        [1, 2, 3, 4], [], [1, 2],
    ]  # fmt: skip


def test_a_memory_is_saved_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(suffix_module, "SAVE_EVERY", 2)
    drafter = remembering(tmp_path / "memory")
    for number in range(3):
        assert not (tmp_path / "memory").exists()
        propose(drafter, [(str(number), [0], [1])])
    assert list(tmp_path.iterdir()) == [tmp_path / "memory"]


def _cut(content):
    return content[:-5]


def _flip(content):
    return content[:-40] + bytes([content[-40] ^ 1]) + content[-39:]


def _newer(content):
    body = content[: -suffix_memory.DIGEST_BYTES].replace(b'"version": 1', b'"version": 2')
    return body + hashlib.sha256(body).digest()


@pytest.mark.parametrize(
    ("change", "tokenizer", "words"),
    [
        (_cut, (64, "a"), "checksum"),
        (_flip, (64, "a"), "checksum"),
        (_newer, (64, "a"), "version 2"),
        (lambda content: b"{}", (64, "a"), "no suffix memory"),
        (lambda content: b"", (64, "a"), "no suffix memory"),
        (lambda content: content, (65, "a"), "64 tokens, and not 65"),
        (lambda content: content, (64, "b"), "another tokenizer"),
    ],
)
def test_a_file_that_is_refused_is_left_alone(tmp_path, change, tokenizer, words):
    path = tmp_path / "memory"
    suffix_memory.save(path, [np.arange(4, dtype=np.int32)], suffix_memory.Tokenizer(64, "a"))
    content = change(path.read_bytes())
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        remembering(path, *tokenizer)
    assert path.read_bytes() == content


def test_a_path_without_its_directory_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no directory"):
        remembering(tmp_path / "none" / "memory")


def test_what_cannot_be_written_leaves_the_file_and_the_drafter(tmp_path, monkeypatch, caplog):
    path = tmp_path / "memory"
    drafter = remembering(path)
    drafter.save()
    content = path.read_bytes()
    propose(drafter, [("a", [0], [1, 2])])

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", full)
    drafter.save()
    assert "no space left" in caplog.text
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (content, [path])


def test_tokenizers_are_told_apart_by_their_words(tmp_path):
    words = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<s>"}]}
    found = []
    for name, content in (
        ("one", words),
        ("same", dict(reversed(words.items()))),
        ("other", {**words, "added_tokens": []}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(content))
        found.append(suffix_memory.Tokenizer.of_model(tmp_path / name, 3))
    assert found[0] == found[1]
    assert found[0].differs(found[2]) == "another tokenizer's vocabulary"
    assert found[0].differs(suffix_memory.Tokenizer.of_model(tmp_path, 3)) is None


# ---- in the engine
PROMPTS = [[5, 9, 5, 9, 5], [3, 4, 3, 4], [17] * 6, [1, 2, 3], list(range(20, 52)), [8], [9, 9, 8]]


@pytest.mark.parametrize("sizes", [{}, {"max_num_batched_tokens": 16}, {"num_kv_blocks": 14}], ids=str)
@pytest.mark.parametrize("num_drafts", [1, 4, 8])
def test_greedy_text_is_what_it_is_without_drafts(num_drafts, sizes):
    """Prompts in one chunk or in several, with room for all or for so few that some are preempted; and once more,
    when everything is in the memory."""
    config = {"method": "suffix", "num_speculative_tokens": num_drafts}
    llm = LLM(
        tiny_model(), speculative_config=config, max_model_len=96, block_size=8, max_num_seqs=7, **sizes
    )
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    expected = [greedy_reference(tuple(prompt), 24) for prompt in PROMPTS]
    for _ in range(2):
        outputs = llm.generate(PROMPTS, params)
        assert [list(output.token_ids) for output in outputs] == expected
        assert not any(output.error for output in outputs)
    assert not llm.metrics.fallbacks
    assert bool(llm.metrics.num_preemptions) == ("num_kv_blocks" in sizes)
    assert llm.metrics.num_accepted_tokens > 0
    llm.drafter.release(())
    assert llm.drafter.num_active_requests == 0
    # those that were preempted among them, once
    assert llm.drafter.num_cached_requests == 2 * len(PROMPTS)
