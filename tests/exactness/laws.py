"""Laws that an implementation of ``verify`` must obey, as functions of it: tests run them on the real one,
and the mutant registry on broken ones."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from scipy import stats

from ascend_spec_ops import random_bits
from ascend_spec_ops.uniforms import STREAM_DRAFT_LANE
from ascend_spec_ops.uniforms.reference import gumbel_of

Verify = Callable[..., torch.Tensor]

#: rows of one chi-square test; a longer setting by environment
NUM_ROWS = int(os.environ.get("ASCEND_SPEC_CHI_SQUARE_ROWS", "1000000"))
#: seeds are fixed, so that a pass is a pass for ever; a broken law gives 1e-30 and less
SIGNIFICANCE = 1e-4


def assert_law(counts: torch.Tensor, law: torch.Tensor, what: str) -> None:
    """Chi-square of observed counts against probabilities; cells of no probability must be empty."""
    possible = law > 0
    assert counts[~possible].sum() == 0, f"{what}: impossible outcomes were seen"
    expected = law[possible].double() * counts.sum()
    p_value = stats.chisquare(counts[possible].double(), expected * counts.sum() / expected.sum()).pvalue
    assert p_value > SIGNIFICANCE, f"{what}: p = {p_value:.3g}"


def spread_logits(seed: int, vocab_size: int = 2 * 4096 + 100) -> torch.Tensor:
    """18 tokens with mass, in three blocks, at block edges, in the partial last block, and in lanes that share
    a Threefry call (2048 apart)."""
    ids = [0, 1, 7, 2047, 2055, 4094, 4095, 4096, 4097, 5000, 8190, 8191, 8192, 8193, 8200, 8222, 8290, 8291]
    g = torch.Generator().manual_seed(seed)
    row = torch.full((vocab_size,), -torch.inf)
    row[ids] = torch.randn(len(ids), generator=g)
    return row


def chunks(num_rows: int, size: int = 50_000):
    for start in range(0, num_rows, size):
        yield torch.arange(start, min(start + size, num_rows))


def draft_by_gumbel(
    q: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, stream: int
) -> torch.Tensor:
    """A drafter that draws from ``q`` ``[V]`` with the counter-based noise of ``stream``."""
    noise = gumbel_of(random_bits(seeds, positions, stream, len(q)))
    return (q.log() + noise).argmax(1).int()


def run(
    verify: Verify,
    p_logits: torch.Tensor,
    drafts: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    q_logits: torch.Tensor | None = None,
) -> torch.Tensor:
    """Verify ``drafts`` ``[B, K]``; every row has the same target logits ``[V]`` and draft logits ``[V]``."""
    num_requests, max_spec_len = drafts.shape
    cu = torch.arange(1, num_requests + 1, dtype=torch.int32) * max_spec_len
    ones = torch.ones(num_requests)
    draft = () if q_logits is None else (q_logits.expand(num_requests * max_spec_len, -1), ones)
    rows = p_logits.expand(num_requests * (max_spec_len + 1), -1)
    return verify(rows, drafts.flatten().int(), cu, ones, seeds, positions, max_spec_len, *draft)


def check_blocks_law(verify: Verify, sampled: bool, num_rows: int = NUM_ROWS) -> None:
    """First token, pair, and number of accepted drafts, with the mass spread over three blocks."""
    p_logits, q_logits = spread_logits(1), spread_logits(2)
    p, q = p_logits.double().softmax(0), q_logits.double().softmax(0)
    support = p.nonzero()[:, 0]
    g = torch.Generator().manual_seed(3)
    pairs = torch.zeros(len(support), len(support))
    accepted = torch.zeros(2)
    for seeds in chunks(num_rows):
        positions = seeds % 97
        drafts = support[torch.multinomial(q[support], len(seeds), replacement=True, generator=g)][:, None]
        out = run(verify, p_logits, drafts, seeds, positions, q_logits if sampled else None)
        accepted += torch.bincount(out[:, 0] - 1, minlength=2)
        first, second = out[:, 1].long(), out[:, 2].long()
        alone = out[:, 0] == 1
        nothing = torch.empty(int(alone.sum()), 0)
        second[alone] = run(verify, p_logits, nothing, seeds[alone], positions[alone] + 1)[:, 1].long()
        index = torch.full((len(p),), -1)
        index[support] = torch.arange(len(support))
        assert index[first].min() >= 0, "a token of no probability was emitted"
        assert index[second].min() >= 0, "a token of no probability was emitted"
        flat = index[first] * len(support) + index[second]
        pairs += torch.bincount(flat, minlength=pairs.numel()).view_as(pairs)
    law = p[support]
    rate = torch.minimum(p, q).sum() if sampled else (p * q).sum()
    assert_law(pairs.sum(1), law, "first token")
    assert_law(pairs.flatten(), torch.outer(law, law).flatten(), "pair")
    assert_law(accepted, torch.tensor([1 - rate, rate]), "accepted drafts")


def check_contextual_law(verify: Verify, sampled: bool, num_rows: int = NUM_ROWS) -> None:
    """The joint law of two tokens where the second row depends on the first token."""
    vocab_size = 5
    g = torch.Generator().manual_seed(5)
    first_row = torch.randn(vocab_size, generator=g)
    second_rows = 1.5 * torch.randn(vocab_size, vocab_size, generator=g)
    q_logits = torch.randn(vocab_size, generator=g)
    q = q_logits.softmax(0)
    pairs = torch.zeros(vocab_size, vocab_size)
    for seeds in chunks(num_rows):
        n = len(seeds)
        positions = seeds % 89
        drafts = torch.multinomial(q, n, replacement=True, generator=g)
        rows = torch.stack([first_row.expand(n, -1), second_rows[drafts]], 1).flatten(0, 1)
        cu = torch.arange(1, n + 1, dtype=torch.int32)
        ones = torch.ones(n)
        draft = (q_logits.expand(n, -1), ones) if sampled else ()
        out = verify(rows, drafts.int(), cu, ones, seeds, positions, 1, *draft).long()
        first, second = out[:, 1], out[:, 2]
        alone = second < 0
        no_drafts, no_counts = (
            torch.empty(0, dtype=torch.int32),
            torch.zeros(int(alone.sum()), dtype=torch.int32),
        )
        second[alone] = verify(
            second_rows[first[alone]],
            no_drafts,
            no_counts,
            ones[alone],
            seeds[alone],
            positions[alone] + 1,
            0,
        )[:, 1].long()
        pairs += torch.bincount(first * vocab_size + second, minlength=pairs.numel()).view_as(pairs)
    law = first_row.double().softmax(0)[:, None] * second_rows.double().softmax(1)
    assert_law(pairs.flatten(), law.flatten(), "joint law")


def check_own_drafts_law(verify: Verify, stream: int = STREAM_DRAFT_LANE, num_rows: int = NUM_ROWS) -> None:
    """Drafts drawn with our own counter-based noise at the same seed and position as the target's. The
    residual lies once on the low ids and once on the high ones."""
    rising = torch.tensor([0.1, 0.2, 0.3, 0.4])
    for p, q in ((rising, rising.flip(0)), (rising.flip(0), rising)):
        first = torch.zeros(4)
        for seeds in chunks(num_rows):
            positions = seeds % 83
            drafts = draft_by_gumbel(q, seeds, positions, stream)[:, None]
            out = run(verify, p.log(), drafts, seeds, positions, q.log())
            first += torch.bincount(out[:, 1], minlength=4)
        assert_law(first, p, "first token")


def check_fixed_draft_law(verify: Verify, num_rows: int = NUM_ROWS // 4) -> None:
    """The same deterministic draft for every row: its likeliest token, which takes much of its block along."""
    p_logits = spread_logits(4)
    p = p_logits.double().softmax(0)
    first = torch.zeros(len(p))
    for seeds in chunks(num_rows):
        out = run(verify, p_logits, p.argmax().expand(len(seeds), 1), seeds, seeds % 67)
        first += torch.bincount(out[:, 1], minlength=len(p))
    assert_law(first, p, "first token")


def check_truncated_drafts_law(verify: Verify, q_given_is_q_used: bool, num_rows: int = NUM_ROWS) -> None:
    """Drafts drawn from the two likeliest tokens of q. With the q they were drawn from the law holds; with
    the full q the output is [1/7, 2/7, 1/7, 3/7]."""
    p_logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    q_full = torch.tensor([0.4, 0.3, 0.2, 0.1])
    q_used = torch.tensor([4 / 7, 3 / 7, 0.0, 0.0])
    g = torch.Generator().manual_seed(6)
    first = torch.zeros(4)
    for seeds in chunks(num_rows):
        drafts = torch.multinomial(q_used, len(seeds), replacement=True, generator=g)[:, None]
        given = q_used if q_given_is_q_used else q_full
        out = run(verify, p_logits, drafts, seeds, seeds % 79, given.log())
        first += torch.bincount(out[:, 1], minlength=4)
    assert_law(first, p_logits.exp(), "first token")


def check_masked_drafts_law(verify: Verify, num_rows: int = NUM_ROWS) -> None:
    """Sampled drafts that the target cannot give, as under a grammar, are rejections and no empty slots. Drawn
    from p instead, the output would be [.52, .48, 0]."""
    p, q = torch.tensor([0.7, 0.3, 0.0]), torch.tensor([0.1, 0.3, 0.6])
    g = torch.Generator().manual_seed(7)
    first = torch.zeros(3)
    for seeds in chunks(num_rows):
        drafts = torch.multinomial(q, len(seeds), replacement=True, generator=g)[:, None]
        out = run(verify, p.log(), drafts, seeds, seeds % 101, q.log())
        first += torch.bincount(out[:, 1], minlength=3)
    assert_law(first, p, "first token")


def check_nothing_left(verify: Verify, num_rows: int = NUM_ROWS) -> None:
    """q is p with its logits shifted by a constant: exact in float32, but the log-sum-exp is rounded. Where it
    is rounded down, q is larger than p everywhere; some drafts are rejected although nothing is left of
    p - q. The token must then come from p, which never gives id 0."""
    p_logits = torch.tensor([-torch.inf, 0.375, -0.625, 0.0625])
    rejected = torch.zeros(4)
    for seeds in chunks(num_rows // 2):
        for draft in (1, 2):
            drafts = torch.full((len(seeds), 1), draft)
            out = run(verify, p_logits, drafts, seeds, seeds % 73, p_logits + 8192.0)
            rejected += torch.bincount(out[out[:, 0] == 1, 1], minlength=4)
    if rejected.sum() < 100:
        raise RuntimeError("too few drafts were rejected: this check proves nothing")
    assert_law(rejected, p_logits.softmax(0), "token after an empty residual")


def check_impossible_draft(verify: Verify, num_rows: int = NUM_ROWS) -> None:
    """A draft that the target cannot give is rejected by every u, also by the smallest."""
    p_logits = torch.tensor([-torch.inf, 0.0, 1.0])
    for seeds in chunks(num_rows):
        out = run(verify, p_logits, torch.zeros(len(seeds), 1), seeds, seeds % 71)
        assert (out[:, 0] == 1).all(), "a draft of no probability was accepted"
