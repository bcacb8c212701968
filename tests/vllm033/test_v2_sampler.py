"""What the draw in the V2 runner makes of vLLM's tensors, without vLLM: each request judged by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ascend_spec_ops
from ascend_spec.config import RULES
from ascend_spec.vllm.metrics import Metrics
from ascend_spec.vllm.v2_sampler import V2Verify

VOCAB, K, SLOTS = 37, 4, 9
OPTIONS = {
    "standard": (), "block": (), "typical": (0.02, 0.9), "synthetic": (0.9, 0.7, 0.5, 0.2),
    "fly": (1.0, 0.1, 3.0), "coupled": (),
}  # fmt: skip


class Step:
    """A step of the runner: requests of ``counts`` drafts in random slots; all of it is seeded."""

    def __init__(
        self, counts: list[int], seed: int = 0, sampled_drafts: bool = True, rule: str = "standard"
    ) -> None:
        draw = torch.Generator().manual_seed(seed)
        rows = [count + 1 for count in counts]
        num_rows = sum(rows)
        self.counts = counts
        self.plan = SimpleNamespace(rule=RULES[rule], rule_options=OPTIONS[rule], num_speculative_tokens=K)
        self.slots = torch.randperm(SLOTS, generator=draw)[: len(counts)]
        self.cu = torch.tensor([0, *torch.tensor(rows).cumsum(0).tolist()], dtype=torch.int32)
        self.logits = 2 * torch.randn(num_rows, VOCAB, generator=draw)
        self.tokens = torch.randint(VOCAB, (num_rows,), generator=draw, dtype=torch.int32)
        self.expanded = self.slots.repeat_interleave(torch.tensor(rows))
        self.local = torch.cat([torch.arange(row, dtype=torch.int32) for row in rows])
        starts = torch.randint(1, 1000, (len(counts),), generator=draw)
        self.positions = starts.repeat_interleave(torch.tensor(rows)) + self.local
        self.draft_logits = torch.randn(SLOTS, K, VOCAB + 3, generator=draw) if sampled_drafts else None
        temperature = torch.tensor([0.0, 0.5, 1.0, 2.0, 0.0, 0.7, 1.0, 1.3, 0.9])
        seeds = torch.randint(-(2**62), 2**62, (SLOTS,), generator=draw)
        self.states = SimpleNamespace(
            temperature=SimpleNamespace(gpu=temperature), seeds=SimpleNamespace(gpu=seeds)
        )
        self.sampler = SimpleNamespace(
            sampling_states=self.states, apply_sampling_params=self.apply_sampling_params
        )

    def apply_sampling_params(self, logits: torch.Tensor, expanded: torch.Tensor, *_: Any) -> torch.Tensor:
        """As vLLM's does it: rows of greedy requests are left alone."""
        temperature = self.states.temperature.gpu[expanded]
        return logits / torch.where(temperature == 0, 1.0, temperature)[:, None]

    def judged(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        metrics = Metrics(self.plan.rule, is_published=False)
        return V2Verify(self.sampler, self.plan, metrics)(
            self.logits, self.draft_logits, self.tokens, self.positions, self.cu, self.slots,
            self.slots.numpy(), self.expanded, self.local, None, self.tokens,
        )  # fmt: skip

    def expected(self, request: int) -> list[int]:
        """What the operator makes of one request, given by itself in its own words."""
        slot, count = int(self.slots[request]), self.counts[request]
        rows = slice(int(self.cu[request]), int(self.cu[request + 1]))
        temperature = self.states.temperature.gpu[slot : slot + 1]
        drafts = {}
        if self.draft_logits is not None:
            drafts = {
                "draft_logits": self.draft_logits[slot, :count, :VOCAB].contiguous(),
                "draft_temperature": temperature,
            }
        output = ascend_spec_ops.verify(
            self.logits[rows],
            self.tokens[rows][1:].contiguous(),
            torch.tensor([count], dtype=torch.int32),
            temperature,
            self.states.seeds.gpu[slot : slot + 1],
            self.positions[rows][:1] + 1,
            K,
            **drafts,
            rule=self.plan.rule.name,
            rule_options=self.plan.rule_options,
        )[0]
        return output[1 : 1 + int(output[0])].tolist()


COUNTS = [[4, 0, 2], [1], [0, 0, 3, 4, 1, 2], [4, 4, 4, 4, 4, 4, 4, 4]]


def check(step: Step) -> None:
    _, tokens, num_sampled = step.judged()
    assert tokens.dtype == torch.int64
    assert tokens.shape == (len(step.counts), K + 1)
    assert num_sampled.dtype == torch.int32
    for request, row in enumerate(tokens.tolist()):
        assert row[: int(num_sampled[request])] == step.expected(request)


@pytest.mark.parametrize("rule", OPTIONS)
@pytest.mark.parametrize("sampled_drafts", [True, False])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_each_request_is_judged_as_if_alone(counts: list[int], sampled_drafts: bool, rule: str) -> None:
    for seed in range(20):
        check(Step(counts, seed, sampled_drafts, rule))


def test_a_forbidden_draft_ends_its_request() -> None:
    """A grammar marks it with -1."""
    step = Step([3, 2])
    step.tokens[2] = -1
    step.states.temperature.gpu.zero_()
    step.tokens[1] = step.logits[0].argmax()
    _, _, num_sampled = step.judged()
    assert num_sampled[0] == 2


def test_logits_that_are_not_finite_cost_one_token() -> None:
    """The request goes on with the largest that is; its neighbours are untouched."""
    step = Step([2, 2])
    _, tokens, _ = step.judged()
    step.logits[0] = float("nan")
    step.logits[0, 5] = 1.0
    _, broken, num_sampled = step.judged()
    assert num_sampled[0] == 1
    assert broken[0, 0] == 5
    assert broken[1].tolist() == tokens[1].tolist()


# ---- the test can fail
MUTANTS = {
    "the last row's position": lambda step: setattr(step, "positions", step.positions + 1),
    "slots in another order": lambda step: setattr(step, "slots", step.slots.flip(0)),
    "places in the draft one too early": lambda step: setattr(step, "local", (step.local - 1).clamp(min=1)),
    "rows of a neighbour": lambda step: setattr(step, "tokens", step.tokens.roll(1)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_noticed(mutant: str) -> None:
    """The step is given wrongly to the draw, and rightly to the operator."""
    noticed = 0
    for seed in range(20):
        step = Step(COUNTS[-1], seed)
        wrong = Step(COUNTS[-1], seed)
        MUTANTS[mutant](wrong)
        step.judged = wrong.judged  # type: ignore[method-assign]
        try:
            check(step)
        except AssertionError:
            noticed += 1
    assert noticed > 10


@pytest.mark.parametrize("rule", [rule for rule in OPTIONS if rule != "standard"])
@pytest.mark.parametrize("change", ["another rule", "options from last to first"])
def test_a_wrong_rule_is_noticed(rule: str, change: str) -> None:
    """The draw judges by something else than the operator is told."""
    options = OPTIONS[rule]
    if change == "another rule":
        wrong = SimpleNamespace(rule=RULES["standard"], rule_options=(), num_speculative_tokens=K)
    elif len(options) > 1:
        last_first = (options[2], 0.9, 1.0) if rule == "fly" else options[::-1]
        wrong = SimpleNamespace(rule=RULES[rule], rule_options=last_first, num_speculative_tokens=K)
    else:
        return
    noticed = 0
    for seed in range(20):
        step, other = Step(COUNTS[-1], seed, rule=rule), Step(COUNTS[-1], seed, rule=rule)
        other.plan = wrong
        step.judged = other.judged  # type: ignore[method-assign]
        try:
            check(step)
        except AssertionError:
            noticed += 1
    assert noticed > 0
