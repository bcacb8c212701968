"""The accept walk of every rule in float64: how many drafts of one request are kept, and what follows them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch

from ascend_spec_ops.uniforms import STREAM_ACCEPT, STREAM_ROUND
from ascend_spec_ops.uniforms.reference import exponential, word
from ascend_spec_ops.verify.reference_draw import Outcome, argmax, draw, is_valid


class Last(Enum):
    """Where the last token of a request comes from; a greedy request gets the argmax whatever this says."""

    DRAW = "p"
    RESIDUAL = "max(scale * p - q, 0)"
    ARGMAX = "the largest p"
    NOTHING = "a row that was looked at is not valid"


@dataclass(frozen=True)
class Walk:
    count: int
    """Drafts that are kept; the last token comes from this row."""
    last: Last
    log_scale: float = 0.0
    """Of p in the residual."""


@dataclass
class Request:
    """What the walks read. ``drafts`` ends before the first one that does not count."""

    rows: torch.Tensor
    drafts: list[int]
    temperature: float
    seed: int
    position: int
    draft_rows: torch.Tensor | None
    draft_temperature: float
    outcome: Outcome

    def is_valid(self, j: int) -> bool:
        return is_valid(self.rows[j])

    def log_p(self, j: int) -> torch.Tensor:
        return torch.log_softmax(self.rows[j] / (self.temperature if self.temperature > 0 else 1.0), 0)

    def log_q(self, j: int) -> torch.Tensor | None:
        """None: the draft is deterministic."""
        if self.draft_rows is None:
            return None
        return torch.log_softmax(self.draft_rows[j] / self.draft_temperature, 0)

    def of_draft(self, j: int) -> tuple[float, float]:
        """Log-probabilities of draft j under p and q; -inf for an id outside the vocabulary."""
        draft, log_q = self.drafts[j], self.log_q(j)
        if draft >= self.rows.shape[1]:
            return -math.inf, -math.inf
        return float(self.log_p(j)[draft]), 0.0 if log_q is None else float(log_q[draft])

    def threshold_at(self, j: int) -> float:
        return exponential(word(self.seed, self.position + j, STREAM_ACCEPT, 0))

    def threshold_in_round(self, j: int) -> float:
        return exponential(word(self.seed, self.position, STREAM_ROUND, j))

    def accepts(self, j: int, threshold: float) -> bool:
        """The ordinary test: the argmax of a greedy request, else u < p / q."""
        if self.temperature <= 0:
            return argmax(self.rows[j]) == self.drafts[j]
        log_p, log_q = self.of_draft(j)
        if math.isfinite(log_p) and math.isfinite(log_q):
            self.outcome.decide(threshold - (log_q - log_p))
        return accepts(threshold, log_p, log_q)


def accepts(threshold: float, log_p: float, log_q: float) -> bool:
    """u < p / q with ``u = exp(-threshold)``. A draft that q cannot give is no draft of q: rejected."""
    return log_q > -math.inf and threshold > log_q - log_p


def log_or_minus_inf(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def prefix(request: Request, keeps: Callable[[int], bool], rejected: Last) -> Walk:
    """The drafts before the first that ``keeps`` refuses. A row that is not valid ends the walk there."""
    for j in range(len(request.drafts)):
        if not request.is_valid(j):
            return Walk(j, Last.NOTHING)
        if not keeps(j):
            return Walk(j, rejected)
    return Walk(len(request.drafts), Last.DRAW)


def standard(request: Request) -> Walk:
    return prefix(request, lambda j: request.accepts(j, request.threshold_at(j)), Last.RESIDUAL)


def block(request: Request) -> Walk:
    if request.temperature <= 0:
        return standard(request)
    num_drafts, log_p_i, kept = len(request.drafts), 0.0, Walk(0, Last.RESIDUAL)
    gaps = []
    for i in range(1, num_drafts + 1):
        if not request.is_valid(i - 1):
            return Walk(0, Last.NOTHING)
        log_p, log_q = request.of_draft(i - 1)
        if not (math.isfinite(log_p) and math.isfinite(log_q)):
            break
        log_p_i = min(0.0, log_p_i + log_p - log_q)
        threshold = request.threshold_in_round(i - 1)
        if i < num_drafts:
            if not request.is_valid(i):
                return Walk(0, Last.NOTHING)
            mass = residual_mass(request, i, log_p_i)
            log_h = log_block_rate(log_p_i, mass)
            u, rest = math.exp(-threshold), -math.expm1(log_p_i)
            # both sides of u < h on a scale on which float32 is right to 1e-6: h itself is not where p = q
            gap = mass * (1 - u) - u * rest if rest > 0 else math.inf
        else:
            log_h, gap = log_p_i, threshold + log_p_i
        gaps.append(gap)
        if accepts(threshold, log_h, 0.0):
            kept = Walk(i, Last.RESIDUAL if i < num_drafts else Last.DRAW, log_p_i)
    # the tests before the last success have no say
    for gap in gaps[max(kept.count - 1, 0) :]:
        request.outcome.decide(gap)
    return kept if num_drafts else Walk(0, Last.DRAW)


def residual_mass(request: Request, i: int, log_scale: float) -> float:
    """``sum max(scale * p - q, 0)`` over row i."""
    log_p, log_q = request.log_p(i), request.log_q(i)
    if log_q is None:
        return math.exp(log_scale) * (1 - math.exp(request.of_draft(i)[0]))
    return float(((log_p + log_scale).exp() - log_q.exp()).clamp(min=0).sum())


def log_block_rate(log_p_i: float, mass: float) -> float:
    """``log h_i``, with ``h_i = mass / (mass + 1 - p_i)`` and 0 / 0 = 1."""
    rest = -math.expm1(log_p_i)
    if rest == 0:
        return 0.0
    return -math.log1p(rest / mass) if mass > 0 else -math.inf


def typical(request: Request, epsilon: float, delta: float) -> Walk:
    if request.temperature <= 0:
        return standard(request)

    def keeps(j: int) -> bool:
        log_p, log_p_draft = request.log_p(j), request.of_draft(j)[0]
        entropy = -float((log_p.exp() * (log_p.exp() + 1e-5).log()).sum())
        limit = min(log_or_minus_inf(epsilon), log_or_minus_inf(delta) - entropy)
        if math.isfinite(log_p_draft):
            request.outcome.decide(log_p_draft - limit)
        return log_p_draft > limit

    return prefix(request, keeps, Last.ARGMAX)


def synthetic(request: Request, *rates: float) -> Walk:
    def keeps(j: int) -> bool:
        if not all(map(math.isfinite, request.of_draft(j))):
            return False
        log_rate = log_or_minus_inf(rates[j])
        request.outcome.decide(request.threshold_at(j) + log_rate)
        return accepts(request.threshold_at(j), log_rate, 0.0)

    return prefix(request, keeps, Last.RESIDUAL)


def fly(request: Request, window: float, entropy_threshold: float, top_k: float) -> Walk:
    deferred = None
    for j in range(len(request.drafts)):
        if not request.is_valid(j):
            return Walk(0, Last.NOTHING)
        if request.accepts(j, request.threshold_in_round(j)):
            if deferred is not None and j == deferred + window:
                deferred = None
        elif deferred is not None:
            return Walk(deferred, Last.RESIDUAL)
        elif not defers(request, j, int(window), entropy_threshold, int(top_k)):
            return Walk(j, Last.RESIDUAL)
        else:
            deferred = j
    return Walk(len(request.drafts), Last.DRAW)


def defers(request: Request, j: int, window: int, entropy_threshold: float, top_k: int) -> bool:
    """Whether a rejection at j may be overlooked if the next ``window`` drafts are accepted."""
    if j + window >= len(request.drafts) or not all(map(math.isfinite, request.of_draft(j))):
        return False
    log_p = request.log_p(j)
    largest = log_p.topk(min(top_k, len(log_p))).values
    entropy = -sum(math.exp(x) * x for x in largest.tolist() if x > -math.inf)
    request.outcome.decide(entropy - entropy_threshold)
    return entropy >= entropy_threshold


def coupled(request: Request) -> Walk:
    if request.temperature <= 0:
        return standard(request)

    def keeps(j: int) -> bool:
        token = draw(request.log_p(j), request.seed, request.position + j, request.outcome)
        return token == request.drafts[j]

    return prefix(request, keeps, Last.DRAW)


#: The walk of every rule, called with the request and the rule's options.
WALKS: dict[str, Callable[..., Walk]] = {
    "standard": standard,
    "block": block,
    "typical": typical,
    "synthetic": synthetic,
    "fly": fly,
    "coupled": coupled,
}
