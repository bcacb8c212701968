"""Verification in float64, one request at a time: the definition of right."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from ascend_spec_ops.uniforms import STREAM_ACCEPT, STREAM_BLOCK, STREAM_LANE
from ascend_spec_ops.uniforms.reference import exponential, gumbel_of, random_bits, word
from ascend_spec_ops.verify import VOCAB_BLOCK


@dataclass
class Outcome:
    """The tokens of one request, and how far its closest decision was from falling the other way."""

    tokens: list[int] = field(default_factory=list)
    margin: float = math.inf

    def decide(self, gap: float) -> None:
        self.margin = min(self.margin, abs(gap))


def is_valid(row: torch.Tensor) -> bool:
    """A row that can be sampled: no NaN, no +inf, at least one finite logit."""
    return bool(torch.isfinite(row.max()))


def argmax(row: torch.Tensor) -> int:
    """The lowest id among the largest."""
    return int((row == row.max()).nonzero()[0])


def accepts(threshold: float, log_p: float, log_q: float) -> bool:
    """u < p / q with ``u = exp(-threshold)``. A draft that q cannot give is no draft of q: rejected."""
    return log_q > -math.inf and threshold > log_q - log_p


def residual(log_p: torch.Tensor, log_q: torch.Tensor | None, draft: int) -> torch.Tensor:
    """Log-weights of ``max(p - q, 0)``; ``log_q`` None: q is one-hot at ``draft``.

    p itself where nothing is left, which happens with probability 0 and by rounding alone.
    """
    if log_q is None:
        weights = log_p.clone()
        if draft < len(weights):
            weights[draft] = -math.inf
    else:
        weights = (log_p.exp() - log_q.exp()).clamp(min=0).log()
    return weights if is_valid(weights) else log_p


def draw(log_weights: torch.Tensor, seed: int, position: int, outcome: Outcome) -> int:
    """The two-level Gumbel draw; see the package's docstring."""
    num_blocks = -(-len(log_weights) // VOCAB_BLOCK)
    padded = torch.full((num_blocks * VOCAB_BLOCK,), -math.inf, dtype=torch.float64)
    padded[: len(log_weights)] = log_weights
    blocks = padded.view(num_blocks, VOCAB_BLOCK)

    def noise(stream: int, num: int) -> torch.Tensor:
        return gumbel_of(random_bits(torch.tensor([seed]), torch.tensor([position]), stream, num))[0]

    block = _winner(blocks.logsumexp(1) + noise(STREAM_BLOCK, num_blocks), outcome)
    return block * VOCAB_BLOCK + _winner(blocks[block] + noise(STREAM_LANE, VOCAB_BLOCK), outcome)


def _winner(scores: torch.Tensor, outcome: Outcome) -> int:
    if len(scores) > 1:
        first, second = scores.topk(2).values.tolist()
        outcome.decide(first - second)
    return argmax(scores)


def verify_one(
    logits: torch.Tensor,
    drafts: list[int],
    temperature: float,
    seed: int,
    position: int,
    draft_logits: torch.Tensor | None = None,
    draft_temperature: float = 0.0,
) -> Outcome:
    """One request: ``logits`` ``[len(drafts) + 1, V]`` float64; no tokens if a deciding row is not valid."""
    outcome = Outcome()
    # a greedy request never looks at q
    sampled = draft_logits is not None and draft_temperature > 0 and temperature > 0
    for j, row in enumerate(logits):
        if not is_valid(row):
            return Outcome()
        draft = drafts[j] if j < len(drafts) else -1
        log_q = None
        if draft >= 0 and sampled:
            assert draft_logits is not None
            log_q = torch.log_softmax(draft_logits[j] / draft_temperature, 0)
            draft = draft if is_valid(draft_logits[j]) else -1
        if temperature <= 0:
            best = argmax(row)
            outcome.tokens.append(best)
            if best == draft:
                continue
            return outcome
        log_p = torch.log_softmax(row / temperature, 0)
        weights = log_p
        if draft >= 0:
            threshold = exponential(word(seed, position + j, STREAM_ACCEPT, 0))
            log_p_draft = float(log_p[draft]) if draft < len(log_p) else -math.inf
            log_q_draft = 0.0 if log_q is None else float(log_q[draft]) if draft < len(log_p) else -math.inf
            if math.isfinite(log_p_draft) and math.isfinite(log_q_draft):
                outcome.decide(threshold - (log_q_draft - log_p_draft))
            if accepts(threshold, log_p_draft, log_q_draft):
                outcome.tokens.append(draft)
                continue
            weights = residual(log_p, log_q, draft)
        outcome.tokens.append(draw(weights, seed, position + j, outcome))
        return outcome
    return outcome


def verify_with_margins(
    logits, draft_token_ids, cu_num_draft_tokens, temperature, seeds, positions, max_spec_len,
    draft_logits=None, draft_temperature=None,
) -> tuple[torch.Tensor, list[float]]:  # fmt: skip
    """The operator's result, and for each request the margin of its closest decision."""
    ends = cu_num_draft_tokens.tolist()
    out = torch.full((len(ends), max_spec_len + 2), -1, dtype=torch.int32)
    margins = []
    for b, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        outcome = verify_one(
            logits[start + b : end + b + 1].double(),
            draft_token_ids[start:end].tolist(),
            float(temperature[b]),
            int(seeds[b]),
            int(positions[b]),
            None if draft_logits is None else draft_logits[start:end].double(),
            0.0 if draft_temperature is None else float(draft_temperature[b]),
        )
        out[b, 0] = len(outcome.tokens)
        out[b, 1 : 1 + len(outcome.tokens)] = torch.tensor(outcome.tokens, dtype=torch.int32)
        margins.append(outcome.margin)
    return out, margins


def verify(*args, **kwargs) -> torch.Tensor:
    """The operator."""
    return verify_with_margins(*args, **kwargs)[0]
