"""The draw in float64, and how near it was to falling another way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from ascend_spec_ops.uniforms import STREAM_BLOCK, STREAM_LANE
from ascend_spec_ops.uniforms.reference import gumbel_of, random_bits
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


def residual(
    log_p: torch.Tensor, log_q: torch.Tensor | None, draft: int, log_scale: float = 0.0
) -> torch.Tensor:
    """Log-weights of ``max(scale * p - q, 0)``; ``log_q`` None: q is one-hot at ``draft``.

    p itself where nothing is left, which happens with probability 0 and by rounding alone.
    """
    if log_q is None:
        weights = log_p.clone()
        if draft < len(weights):
            weights[draft] = -math.inf
    else:
        weights = ((log_p + log_scale).exp() - log_q.exp()).clamp(min=0).log()
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
