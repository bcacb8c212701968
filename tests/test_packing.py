"""From requests to what is done to their rows of logits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ascend_spec.runtime import Upload
from ascend_spec.samplers import packing
from ascend_spec.samplers.packing import pack_processing, token_bitmask
from ascend_spec.samplers.processors import process_logits
from ascend_spec.types import (
    AttentionMetadata,
    Draft,
    SamplingParams,
    ScheduledRequest,
    SpecDecodeMetadata,
    StepPlan,
)

VOCAB = 70
DEVICE = Upload(torch.device("cpu"))


def request(slot: int, num_drafts: int, params: SamplingParams | None = None, **changes) -> ScheduledRequest:
    return ScheduledRequest(
        f"r{slot}", slot, 8, 9, 1, num_drafts, params=params or SamplingParams(temperature=0.0), **changes
    )


def pack(requests, counts=None, draft=None):
    return pack_processing(requests, counts or [r.num_drafts for r in requests], draft, VOCAB, DEVICE, {})


def test_nothing_asked_nothing_packed():
    plain = [request(0, 3), request(1, 0, SamplingParams(top_k=-1)), request(2, 2, banned_token_ids=(3,))]
    assert pack(plain) is None
    # greedy output does not depend on what the cuts leave, for they leave the likeliest
    assert pack([request(0, 1, SamplingParams(temperature=0.0, top_k=3, top_p=0.5, min_p=0.1))]) is None


def test_rows_know_their_request_and_their_place():
    todo = pack([request(0, 2, SamplingParams(top_k=5)), request(1, 0)], [2, 0, 1])
    assert todo.row_requests.tolist() == [0, 0, 0, 1, 2, 2]
    assert todo.row_offsets.tolist() == [0, 1, 2, 0, 0, 1]
    assert todo.cuts.top_k.tolist() == [5, 5, 5, 0, 0, 0]
    assert (todo.bitmask, todo.bad_words, todo.bias, todo.min_tokens, todo.penalties) == (None,) * 5
    assert todo.callbacks == ()


def processed(requests, counts) -> torch.Tensor:
    """What becomes of rows of zeros."""
    todo = pack(requests, counts)
    rows = sum(counts) + len(counts)
    logits, none = torch.zeros(rows, VOCAB), torch.empty(0, dtype=torch.int64)
    attention = AttentionMetadata(none, none, none, none, (), (), 0)
    spec = SpecDecodeMetadata(none.int(), tuple(counts), none.int(), none, max(counts))
    process_logits(logits, StepPlan(none, none, attention, spec, none, none, none, none, todo), none)
    return logits


@pytest.mark.parametrize("counts", [[2, 1, 0], [2, 2, 2, 2]])
def test_min_tokens_masks_the_first_rows_only(counts):
    requests = [
        request(0, 2, num_banned_rows=2, banned_token_ids=(7, 9, 11)),
        request(1, 1, banned_token_ids=(3,)),
        request(2, 0, num_banned_rows=4, banned_token_ids=(8,)),
    ]
    masked = processed(requests, counts)
    banned = [sorted(row.isneginf().nonzero().flatten().tolist()) for row in masked]
    third = counts[0] + counts[1] + 2
    assert banned[:2] == [[7, 9, 11], [7, 9, 11]]
    assert banned[third : third + counts[2] + 1] == [[8]] * (counts[2] + 1)
    assert sum(map(len, banned)) == 6 + counts[2] + 1


def test_a_bias_and_a_ban_of_one_token():
    """min_tokens wins: a bias does not make what is forbidden possible."""
    params = SamplingParams(logit_bias={7: 5.0, 4: -1.5, 5: 2.0})
    rows = processed([request(0, 1, params, num_banned_rows=1, banned_token_ids=(7,)), request(1, 0)], [1, 0])
    assert rows[0, 7] == float("-inf")
    assert rows[1, 7] == 5.0
    assert rows[:2, 4].tolist() == [-1.5, -1.5]
    assert rows.count_nonzero() == 6


def tables(todo) -> tuple[int, ...]:
    """The sizes of what is padded."""
    return (
        todo.bias.token_ids.shape[1],
        todo.min_tokens.token_ids.shape[1],
        *todo.bad_words.token_ids.shape[::2],
    )


def test_tables_have_few_sizes():
    seen = set()
    for size in range(1, 51):
        words = tuple(tuple(range(i, i + 1 + i % size)) for i in range(size))
        params = SamplingParams(logit_bias=dict.fromkeys(range(size), 1.0))
        banned = {"num_banned_rows": 1, "banned_token_ids": tuple(range(size))}
        todo = pack([request(0, 1, params, bad_words_token_ids=words, **banned), request(1, 0)], [1, 0])
        seen.add(tables(todo))
        assert todo.bias.values.count_nonzero() == size
        assert (todo.bad_words.token_ids[0] >= 0).sum() == size
    assert len(seen) <= 8


def test_sizes_that_are_not_rounded_are_noticed(monkeypatch):
    monkeypatch.setattr(packing, "_power_of_two", lambda size: size)
    with pytest.raises(AssertionError):
        test_tables_have_few_sizes()


class Counted(dict):
    reads = 0

    def values(self):
        self.reads += 1
        return super().values()


def check_tables_are_made_once(steps: int = 3) -> None:
    bias = Counted({1: 2.0, 3: 4.0})
    given = request(0, 1, SamplingParams(logit_bias=bias), bad_words_token_ids=((1, 2),))
    first, *others = [pack([replace(given, num_tokens=9 + step)]) for step in range(steps)]
    assert bias.reads == 1
    for todo in others:
        assert torch.equal(todo.bias.values, first.bias.values)
        assert torch.equal(todo.bad_words.token_ids, first.bad_words.token_ids)


def test_tables_are_made_once_a_request(monkeypatch):
    check_tables_are_made_once()
    monkeypatch.setattr(packing, "_once", lambda request, name, make: make(request))
    with pytest.raises(AssertionError):
        check_tables_are_made_once()


@pytest.mark.parametrize("ids", [(0,), (31,), (32, 69), tuple(range(VOCAB))])
def test_bits(ids):
    mask = token_bitmask(ids, 3)
    assert mask.dtype == np.int32
    assert [t for t in range(96) if int(mask[t // 32]) >> (t % 32) & 1] == list(ids)


class FakeGrammar:
    """A fake: allows token ``t`` at its row ``t``, for two rows."""

    def bitmasks(self, drafts):
        self.drafts = drafts
        return np.stack([token_bitmask([t], 3) for t in range(min(2, len(drafts) + 1))])


def test_grammar_and_allowed_tokens_are_both_kept():
    grammar = FakeGrammar()
    draft = Draft(torch.tensor([[5, 6, -1]], dtype=torch.int32))
    todo = pack([request(0, 3, SamplingParams(allowed_token_ids=(1, 40)), grammar=grammar)], draft=draft)
    assert grammar.drafts == [5, 6]
    assert todo.bitmask[0].tolist() == [0, 0, 0]  # 0 by the grammar, 1 and 40 by the request
    assert todo.bitmask[1].tolist() == token_bitmask([1], 3).tolist()
    assert todo.bitmask[2].tolist() == todo.bitmask[3].tolist() == token_bitmask([1, 40], 3).tolist()


def test_callbacks_see_the_drafts_before_their_row():
    seen = []

    def two(output, logits):
        seen.append(output)
        return logits

    def three(prompt, output, logits):
        seen.append((prompt, output))
        return logits

    params = SamplingParams(logits_processors=(two, three))
    given = request(0, 3, params, token_ids=[1, 2, 3], num_prompt_tokens=2)
    todo = pack([given], draft=Draft(torch.tensor([[5, 6, -1]], dtype=torch.int32)))
    assert [row for row, _ in todo.callbacks] == [0, 0, 1, 1, 2, 2]
    for _, call in todo.callbacks:
        call(torch.zeros(VOCAB))
    assert seen == [[3], ([1, 2], [3]), [3, 5], ([1, 2], [3, 5]), [3, 5, 6], ([1, 2], [3, 5, 6])]
