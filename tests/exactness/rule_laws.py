"""The law of every lossless rule over rounds of drafts: texts of a few tokens, decoded with the operator."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import laws
import torch

KINDS = ("one-hot", "sampled near", "sampled far", "truncated q")


@dataclass(frozen=True)
class Chain:
    """Target and drafter whose next token depends on the last one alone, or on nothing.

    Tables are logits ``[S, V]`` or ``[1, V]``; ``support`` ``[S]`` are the ids that either can give.
    """

    p: torch.Tensor
    q: torch.Tensor
    support: torch.Tensor
    deterministic: bool = False
    """The drafts are handed over without q."""

    def law(self, table: torch.Tensor) -> torch.Tensor:
        """``[S, S]`` probabilities of the next token after each."""
        return table.double().softmax(1)[:, self.support].expand(len(self.support), -1)

    def rows(self, table: torch.Tensor, contexts: torch.Tensor) -> torch.Tensor:
        return table.expand(len(contexts), -1) if len(table) == 1 else table[contexts]


def make_chain(kind: str, vocab_size: int = 5, seed: int = 0) -> Chain:
    g = torch.Generator().manual_seed(seed)
    p = 1.2 * torch.randn(vocab_size, vocab_size, generator=g)
    p[torch.arange(vocab_size), torch.randint(vocab_size, (vocab_size,), generator=g)] = -torch.inf
    noise = torch.randn(vocab_size, vocab_size, generator=g)
    q = 1.5 * noise if kind in ("sampled far", "truncated q") else p.clamp(min=-3) + 0.4 * noise
    if kind == "truncated q":
        q[q < q.topk(2, 1).values[:, 1:]] = -torch.inf
    return Chain(p, q, torch.arange(vocab_size), kind == "one-hot")


def three_blocks(deterministic: bool) -> Chain:
    p, q = laws.spread_logits(1), laws.spread_logits(2)
    return Chain(p[None], q[None], p.isfinite().nonzero()[:, 0], deterministic)


#: Two tokens without context on which token-level and block verification differ most: 10/9 and 11/9 drafts.
SUN = Chain(
    torch.tensor([[1 / 3, 2 / 3]]).log(), torch.tensor([[2 / 3, 1 / 3]]).log(), torch.arange(2)
)  # fmt: skip


def expected_lengths(chain: Chain, rule: str, num_drafts: int) -> torch.Tensor:
    """Law of the number of accepted drafts after token 0, by enumeration."""
    p, q = chain.law(chain.p).tolist(), chain.law(chain.q).tolist()
    reached = [1.0] + [0.0] * (num_drafts + 1)
    for drafts in itertools.product(range(len(p)), repeat=num_drafts):
        steps = list(zip((0, *drafts), drafts, strict=False))
        probability, alive = math.prod(q[a][b] for a, b in steps), 1.0
        for i, (a, b) in enumerate(steps):
            if probability == 0:
                break
            ratio = p[a][b] if chain.deterministic or rule == "coupled" else p[a][b] / q[a][b]
            alive = min(1.0, alive * ratio) if rule == "block" else alive * min(1.0, ratio)
            reached[i + 1] += probability * alive
    return torch.tensor([reached[i] - reached[i + 1] for i in range(num_drafts + 1)], dtype=torch.float64)


def decode(
    verify: laws.Verify, rule: str, chain: Chain, num_drafts: int, num_tokens: int, num_rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of ``num_tokens`` after token 0, round by round; how often each came, and how often the first round
    accepted how many drafts. Drafts and target know nothing of each other's random numbers."""
    size, g = len(chain.support), torch.Generator().manual_seed(8)
    q = chain.law(chain.q)
    index = torch.full((chain.p.shape[1],), -1)
    index[chain.support] = torch.arange(size)
    texts, accepted = torch.zeros(size**num_tokens), torch.zeros(num_drafts + 1)
    for seeds in laws.chunks(num_rows):
        text = torch.zeros(len(seeds), num_tokens + num_drafts + 2, dtype=torch.long)
        length = torch.ones(len(seeds), dtype=torch.long)  # token 0 included
        while len(active := (length <= num_tokens).nonzero()[:, 0]):
            contexts = [text[active, length[active] - 1]]
            for _ in range(num_drafts):
                contexts.append(torch.multinomial(q[contexts[-1]], 1, generator=g)[:, 0])
            rows, drafts = torch.stack(contexts, 1), torch.stack(contexts[1:], 1)
            ones = torch.ones(len(active))
            q_rows = chain.rows(chain.q, rows[:, :-1].flatten())
            out = verify(
                chain.rows(chain.p, rows.flatten()),
                chain.support[drafts].flatten().int(),
                torch.arange(1, len(active) + 1, dtype=torch.int32) * num_drafts,
                ones,
                seeds[active],
                seeds[active] % 89 + length[active],
                num_drafts,
                *((None, None) if chain.deterministic else (q_rows, ones)),
                rule,
            ).long()
            if length[0] == 1:
                accepted += torch.bincount(out[:, 0] - 1, minlength=num_drafts + 1)
            tokens = index[out[:, 1:].clamp(min=0)]
            assert (tokens[:, 0] >= 0).all(), "a token of no probability was emitted"
            places = length[active, None] + torch.arange(num_drafts + 1)
            text[active[:, None], places.clamp(max=text.shape[1] - 1)] = tokens
            length[active] += out[:, 0]
        flat = torch.zeros(len(seeds), dtype=torch.long)
        for i in range(1, num_tokens + 1):
            flat = flat * size + text[:, i]
        texts += torch.bincount(flat, minlength=len(texts))
    return texts, accepted


def check_rule(
    verify: laws.Verify,
    rule: str,
    chain: Chain,
    num_drafts: int = 2,
    num_tokens: int = 3,
    num_rows: int = laws.NUM_ROWS,
) -> float:
    """First token, texts, and accepted drafts against their laws; returns the mean number accepted."""
    texts, accepted = decode(verify, rule, chain, num_drafts, num_tokens, num_rows)
    p = chain.law(chain.p)
    law = p[0]
    laws.assert_law(texts.view(len(law), -1).sum(1), law, "first token")
    for _ in range(num_tokens - 1):
        law = (law.view(-1, len(p))[:, :, None] * p).flatten()
    laws.assert_law(texts, law, "text")
    lengths = expected_lengths(chain, rule, num_drafts)
    laws.assert_law(accepted, lengths, "accepted drafts")
    n = torch.arange(num_drafts + 1).double()
    mean = float((lengths * n).sum())
    deviation = math.sqrt(float((lengths * n**2).sum()) - mean**2)
    seen = float((accepted * n).sum() / accepted.sum())
    assert abs(seen - mean) <= 3 * deviation / math.sqrt(num_rows) + 1e-12, f"{seen} accepted, not {mean}"
    return seen
