"""Packing: rows, slots and lengths of mixed batches, padding to buckets, and expansion row by row."""

from __future__ import annotations

import pytest
import torch
from engine_fixtures import TINY_VOCAB, tiny_model

from ascend_spec.config import Bucket
from ascend_spec.scorer import BatchExpansionScorer, MQAScorer
from ascend_spec.types import Draft, ScheduledRequest

BLOCK, MAX_LEN, SLOTS, K = 4, 32, 4, 3
TABLE_BLOCKS = -(-(MAX_LEN + K) // BLOCK)


def pool(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and block tables of all slots; blocks are permuted, so that a wrong table shows."""
    generator = torch.Generator().manual_seed(seed)
    token_ids = torch.randint(1, TINY_VOCAB, (SLOTS + 1, MAX_LEN), generator=generator).int()
    blocks = torch.randperm(SLOTS * TABLE_BLOCKS, generator=generator).int().view(SLOTS, TABLE_BLOCKS)
    return token_ids, torch.cat([blocks, blocks.new_zeros(1, TABLE_BLOCKS)])


def decode(slot: int, num_tokens: int, num_drafts: int, **kwargs) -> ScheduledRequest:
    return ScheduledRequest(f"r{slot}", slot, num_tokens - 1, num_tokens, 1, num_drafts, **kwargs)


def chunk(slot: int, computed: int, new: int, num_tokens: int) -> ScheduledRequest:
    return ScheduledRequest(f"r{slot}", slot, computed, num_tokens, new)


MIXED = [decode(2, 10, 3), decode(0, 5, 0), decode(1, 9, 1), chunk(3, 4, 5, 12)]
FINAL_CHUNK = [decode(1, 9, 2), chunk(3, 4, 8, 12), chunk(0, 0, 3, 7)]


def drafts(seed: int = 1) -> Draft:
    generator = torch.Generator().manual_seed(seed)
    return Draft(torch.randint(1, TINY_VOCAB, (SLOTS, K), generator=generator).int())


def scorer(cls=MQAScorer):
    return cls(BLOCK, MAX_LEN, K)


def test_a_mixed_batch_row_by_row():
    token_ids, table = pool()
    draft = drafts()
    plan = scorer().pack(MIXED, token_ids, table, draft)
    rows = [(2, 9, None), (2, 10, 0), (2, 11, 1), (2, 12, 2), (0, 4, None), (1, 8, None), (1, 9, 0)]
    rows += [(3, position, None) for position in range(4, 9)]
    ids = [token_ids[s, p] if j is None else draft.token_ids[s, j] for s, p, j in rows]
    assert plan.input_ids.tolist() == [int(i) for i in ids]
    assert plan.positions.tolist() == [p for _, p, _ in rows]
    assert plan.attention.slot_mapping.tolist() == [int(table[s, p // 4]) * 4 + p % 4 for s, p, _ in rows]
    assert plan.attention.query_start_loc.tolist() == [0, 4, 5, 7, 12]
    assert plan.attention.seq_lens.tolist() == list(plan.attention.seq_lens_cpu) == [13, 5, 10, 9]
    # the unfinished prompt draws nothing, so it has no logits row and no place in the sampler's batch
    assert plan.spec.logits_indices.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert plan.spec.num_draft_tokens == (3, 0, 1)
    assert plan.spec.cu_num_draft_tokens.tolist() == [3, 3, 4]
    assert plan.spec.draft_token_ids.tolist() == [*draft.token_ids[2].tolist(), int(draft.token_ids[1, 0])]
    assert plan.sample_positions.tolist() == [10, 5, 9]
    assert plan.slots.tolist() == [2, 0, 1]


def test_a_chunk_that_ends_its_prompt_has_its_last_row_sampled():
    plan = scorer().pack(FINAL_CHUNK, *pool(), drafts())
    assert plan.spec.logits_indices.tolist() == [0, 1, 2, 10]
    assert plan.spec.num_draft_tokens == (2, 0)
    assert plan.sample_positions.tolist() == [9, 12]


def test_a_batch_of_unfinished_prompts_samples_nothing():
    plan = scorer().pack([chunk(0, 0, 3, 7)], *pool())
    assert plan.spec.num_draft_tokens == ()
    assert plan.spec.logits_indices.tolist() == []


def test_empty_draft_slots_reach_the_sampler_but_not_the_model():
    token_ids, table = pool()
    draft = Draft(torch.tensor([[-1, -1, -1], [5, -1, -1], [-1, -1, -1], [-1, -1, -1]], dtype=torch.int32))
    plan = scorer().pack([decode(0, 5, 2), decode(1, 6, 1)], token_ids, table, draft)
    assert plan.spec.draft_token_ids.tolist() == [-1, -1, 5]
    assert (plan.input_ids >= 0).all()
    assert [slot < 0 for slot in plan.attention.slot_mapping.tolist()] == [False, True, True, False, False]


def test_draft_logits_follow_their_drafts():
    logits = torch.randn(SLOTS, K, TINY_VOCAB)
    draft = Draft(drafts().token_ids, logits, torch.tensor([0.5, 0.6, 0.7, 0.8]))
    for bucket in (None, Bucket(4, 3)):
        plan = scorer().pack(MIXED[:3], *pool(), draft, bucket)
        real = plan.spec.draft_token_ids >= 0
        assert torch.equal(plan.spec.draft_logits[real], torch.cat([logits[2], logits[1, :1]]))
        torch.testing.assert_close(plan.spec.draft_temperature[:3], torch.tensor([0.7, 0.5, 0.6]))


# ---------------------------------------------------------------------------------- through a real model
@pytest.fixture(scope="module")
def model():
    return tiny_model()


def logits_of(model, plan, token_ids, table):
    """Logits of ``plan`` over a cache in which every committed token is already computed."""
    caches = model.allocate_kv_cache(SLOTS * TABLE_BLOCKS, BLOCK)
    history = [chunk(slot, 0, MAX_LEN - K - 2, MAX_LEN) for slot in range(SLOTS)]
    for step in (scorer().pack(history, token_ids, table), plan):
        logits = model.forward(
            step.input_ids, step.positions, caches, step.attention, step.spec.logits_indices
        )
    return logits


@pytest.mark.parametrize("requests", [MIXED, FINAL_CHUNK, MIXED[:1], [decode(0, 1, 0)]])
def test_expansion_gives_the_same_logits(model, requests):
    token_ids, table = pool()
    plans = [
        scorer(cls).pack(requests, token_ids, table, drafts()) for cls in (MQAScorer, BatchExpansionScorer)
    ]
    assert plans[1].attention.query_lens_cpu == (1,) * len(plans[0].input_ids)
    logits = [logits_of(model, plan, token_ids, table) for plan in plans]
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=1e-4)
    assert torch.equal(logits[0].argmax(1), logits[1].argmax(1))


def test_an_expansion_one_position_off_would_show(model):
    token_ids, table = pool()
    plan = scorer(BatchExpansionScorer).pack(MIXED, token_ids, table, drafts())
    right = logits_of(model, plan, token_ids, table)
    shifted = [max(n - 1, 1) for n in plan.attention.seq_lens_cpu]
    object.__setattr__(plan.attention, "seq_lens_cpu", tuple(shifted))
    object.__setattr__(plan.attention, "seq_lens", torch.tensor(shifted, dtype=torch.int32))
    assert (logits_of(model, plan, token_ids, table) - right).abs().max() > 1e-2


def test_a_tree_cannot_be_expanded():
    from dataclasses import replace

    from ascend_spec.scorer.batch_expansion import expand

    plan = scorer().pack(MIXED, *pool(), drafts())
    with pytest.raises(ValueError, match="tree mask"):
        expand(replace(plan.attention, mask=torch.ones(12, 5, dtype=torch.bool)))


@pytest.mark.parametrize("cls", [MQAScorer, BatchExpansionScorer])
@pytest.mark.parametrize("bucket", [Bucket(3, 3), Bucket(4, 3), Bucket(8, 3)])
def test_padding_changes_no_logits_and_writes_no_cache(model, cls, bucket):
    token_ids, table = pool()
    requests = MIXED[:3]
    plain = scorer().pack(requests, token_ids, table, drafts())
    padded = scorer(cls).pack(requests, token_ids, table, drafts(), bucket)
    assert len(padded.input_ids) == bucket.num_rows
    assert padded.spec.num_draft_tokens == (bucket.num_drafts,) * bucket.num_requests
    written = [slot for slot in padded.attention.slot_mapping.tolist() if slot >= 0]
    assert sorted(written) == sorted(plain.attention.slot_mapping.tolist())
    assert padded.slots.tolist()[3:] == [SLOTS] * (bucket.num_requests - 3)
    logits = logits_of(model, padded, token_ids, table)
    kept = [0, 1, 2, 3, 4, 8, 9]  # three requests of four rows; the second has no draft, the third has one
    torch.testing.assert_close(logits[kept], logits_of(model, plain, token_ids, table), atol=1e-4, rtol=1e-4)
    assert logits.isfinite().all()


def test_padded_lengths_pair_up_and_are_neutral():
    plan = scorer().pack(MIXED[:3], *pool(), drafts(), Bucket(8, 3))
    attention = plan.attention
    assert attention.query_start_loc.tolist() == list(range(0, 33, 4))
    assert attention.query_start_loc[-1] == len(plan.input_ids)
    assert attention.seq_lens.tolist()[3:] == [0] * 5
    assert len(attention.seq_lens) == len(attention.query_lens_cpu) == len(attention.block_table) == 8


def test_empty_slots_beyond_max_model_len_stay_inside_tables(model):
    """The last token there may be, in a bucket of three drafts: rows past the end are not written."""
    token_ids, table = pool()
    plan = scorer().pack([decode(0, MAX_LEN - 1, 0)], token_ids, table, None, Bucket(1, 3))
    assert plan.positions.tolist() == [MAX_LEN - 2, MAX_LEN - 1, 0, 0]
    assert [slot >= 0 for slot in plan.attention.slot_mapping.tolist()] == [True, False, False, False]
    assert plan.attention.seq_lens.tolist() == [MAX_LEN + 2]
    alone = scorer().pack([decode(0, MAX_LEN - 1, 0)], token_ids, table)
    logits = [logits_of(model, p, token_ids, table)[0] for p in (plan, alone)]
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)
