"""Two engines on one model, plain and speculative, decode the same prompts against each other's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from ascend_spec.engine import LLM, OutputChunk
from ascend_spec.types import SamplingParams


@dataclass
class Lane:
    """One engine's run on the current prompt."""

    name: str
    llm: LLM
    seconds: float = 0.0
    """Spent in steps so far, prompt included; what the display costs is not counted."""
    token_ids: list[int] = field(default_factory=list)
    pieces: list[tuple[str, bool]] = field(default_factory=list)
    """Text, and whether it comes from an accepted draft."""

    @property
    def tokens_per_s(self) -> float:
        return len(self.token_ids) / self.seconds if self.seconds else 0.0

    def start(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self.seconds, self.token_ids, self.pieces = 0.0, [], []
        self.llm.add_request(prompt, params, callback=self._take)

    def _take(self, chunk: OutputChunk) -> None:
        self.token_ids += chunk.token_ids
        self.pieces += chunk.pieces

    def step(self) -> None:
        begin = time.perf_counter()
        self.llm.step()
        self.seconds += time.perf_counter() - begin


@dataclass(frozen=True)
class Result:
    """What one prompt showed."""

    num_tokens: tuple[int, int]
    """plain, speculative"""
    seconds: tuple[float, float]
    identical: bool
    num_drafts: int
    num_accepted_per_pos: tuple[int, ...]


def race(
    plain: Lane,
    spec: Lane,
    prompt: Sequence[int],
    params: SamplingParams,
    watch: Callable[[], None] = lambda: None,
) -> Result:
    """Run both engines on one prompt. The one whose clock is behind takes the next step, so that they share
    whatever else the machine does, and a watcher, called after each step, sees them at their true speeds."""
    before = deepcopy(spec.llm.metrics)
    for lane in (plain, spec):
        lane.start(prompt, params)
    while running := [lane for lane in (plain, spec) if lane.llm.has_unfinished_requests]:
        min(running, key=lambda lane: lane.seconds).step()
        watch()
    after = spec.llm.metrics
    return Result(
        num_tokens=(len(plain.token_ids), len(spec.token_ids)),
        seconds=(plain.seconds, spec.seconds),
        identical=plain.token_ids == spec.token_ids,
        num_drafts=after.num_drafts - before.num_drafts,
        num_accepted_per_pos=tuple(
            new - old
            for new, old in zip_longest(
                after.num_accepted_tokens_per_pos, before.num_accepted_tokens_per_pos, fillvalue=0
            )
        ),
    )


def summarize(results: Iterable[Result]) -> dict[str, Any]:
    """The figures over some prompts; lengths and rates of acceptance are defined as vLLM does.

    ``mean_accepted_length`` is tokens per draft with the one from the target that follows it, and
    ``acceptance_per_position`` the share of drafts whose token at that position was accepted (a draft too
    short to have one counts as not accepted).
    """
    results = list(results)
    plain, spec = (
        sum(result.num_tokens[i] for result in results) / sum(result.seconds[i] for result in results)
        for i in (0, 1)
    )
    num_drafts = sum(result.num_drafts for result in results)
    per_pos = [sum(counts) for counts in zip_longest(*(r.num_accepted_per_pos for r in results), fillvalue=0)]
    return {
        "plain_tokens_per_s": round(plain, 2),
        "spec_tokens_per_s": round(spec, 2),
        "speedup": round(spec / plain, 3),
        "mean_accepted_length": round(1 + sum(per_pos) / num_drafts if num_drafts else 1.0, 3),
        "identical": all(result.identical for result in results),
        "acceptance_per_position": [round(count / max(num_drafts, 1), 3) for count in per_pos],
    }
