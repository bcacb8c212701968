"""An engine that is watched: who runs when, target or draft, and whether the draft's K/V keeps up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from engine_fixtures import TINY_VOCAB, always_wrong, greedy_reference, half_right, oracle

from ascend_spec.engine import LLM
from ascend_spec.engine import llm as llm_module
from ascend_spec.engine.protocol import decide_step, run_step
from ascend_spec.engine.request import Request
from ascend_spec.types import Draft, DraftBatch, SamplingParams

K, NEW = 3, 12
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW)
SHORT, MIDDLE, LONG = [5, 6], [11, 12, 13, 14, 15], [8, 9, 10] * 9


# --------------------------------------------------------------------------------------------- what is watched
@dataclass
class Call:
    name: str
    slots: dict[int, list[int]]
    """Slot -> tokens that the draft computed; of the target: [committed rows, draft rows]."""


@dataclass
class RecordingKVDrafter:
    """Drafts what ``guess`` does, and records its calls. Its K/V are the tokens it was computed from."""

    guess: Callable[[list[int], int], list[int]]
    calls: list[Call]
    kv: dict[int, list[int]] = field(default_factory=dict)
    num_beyond: dict[int, int] = field(default_factory=dict)
    """By slot, after its last call: K/V beyond what the target has."""
    fails: set[int] = field(default_factory=set)
    """Calls, by number, that it raises in."""
    num_calls: int = 0

    def propose(self, batch: DraftBatch) -> Draft:
        self.begin("propose")
        tokens = torch.full((batch.token_ids.shape[0], K), -1, dtype=torch.int32)
        for slot, history, wanted in self.slots(batch):
            drafts = self.guess(history, wanted) if wanted else []
            self.catch_up(batch, slot, history, len(history) if wanted else len(history) - 1)
            self.kv[slot] += drafts[:-1]  # the last one is never computed
            self.num_beyond[slot] = max(len(drafts), 1) if wanted else 0
            tokens[slot, : len(drafts)] = torch.tensor(drafts, dtype=torch.int32)
        return Draft(tokens)

    def follow(self, batch: DraftBatch) -> None:
        self.begin("follow")
        for slot, history, _ in self.slots(batch):
            self.catch_up(batch, slot, history, int(batch.num_computed_tokens[slot]))
            self.num_beyond[slot] = 0

    def begin(self, name: str) -> None:
        self.num_calls += 1
        if self.num_calls in self.fails:
            raise RuntimeError("this call fails")
        self.calls.append(Call(name, {}))

    def slots(self, batch: DraftBatch):
        assert batch.num_computed_tokens.dtype == torch.int32
        assert batch.restarted.dtype == torch.bool
        for slot, length in enumerate(batch.num_tokens.tolist()):
            if length:
                history = batch.token_ids[slot, :length].tolist()
                yield slot, history, int(batch.num_speculative_tokens[slot])

    def catch_up(self, batch: DraftBatch, slot: int, history: list[int], end: int) -> None:
        """The contract of :class:`KVDrafter`: what it may keep, then what is missing."""
        kept = self.kv.get(slot, [])[: int(batch.num_computed_tokens[slot])]
        kept = [] if batch.restarted[slot] else kept
        self.calls[-1].slots[slot] = history[len(kept) : end]
        self.kv[slot] = kept + history[len(kept) : end]


class Engine:
    """An engine with a recording drafter; after every step the draft's K/V is compared with the target's."""

    def __init__(
        self, model, guess: str = "half", prompts=(), facts=None, ranges=None, limit=None, **options
    ) -> None:
        texts = [[*prompt, *greedy_reference(tuple(prompt), NEW + 20)] for prompt in prompts]
        function = {
            "half": lambda: half_right(texts, K, TINY_VOCAB),
            "right": lambda: oracle(texts, K),
            "wrong": lambda: always_wrong(texts, K, TINY_VOCAB),
        }[guess]().function
        config = {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_max": 3}
        if limit:
            config["ascend_spec"] = {"disable_by_batch_size": limit}
        if ranges:
            config["num_speculative_tokens_per_batch_size"] = ranges
        self.calls: list[Call] = []
        self.drafter = RecordingKVDrafter(function, self.calls)
        self.llm = LLM(model, speculative_config=config, drafter=self.drafter, facts=facts, **options)
        self.run, self.llm.runner.run = self.llm.runner.run, self.run_target
        self.outputs: dict[str, list[int]] = {}

    def run_target(self, scheduled, draft):
        rows = {item.slot: [item.num_new_tokens, item.num_drafts] for item in scheduled}
        self.calls.append(Call("target", rows))
        return self.run(scheduled, draft)

    def add(self, *prompts, params=GREEDY) -> list[Request]:
        ids = [self.llm.add_request(prompt, params) for prompt in prompts]
        return [self.llm._live[request_id].request for request_id in ids]

    def step(self) -> list[Call]:
        self.calls.clear()
        for output in self.llm.step():
            assert output.error is None
            expected = greedy_reference(output.prompt_token_ids, len(output.token_ids))
            assert list(output.token_ids) == expected
        self.check_kv()
        return list(self.calls)

    def check_kv(self) -> None:
        """All that the target has computed, the draft has too, from the same tokens; after a proposal also the
        last token and its drafts but the last; and nothing else."""
        meant_to_fail = [call for call in self.drafter.fails if call <= self.drafter.num_calls]
        assert sum(self.llm.metrics.fallbacks.values()) == len(meant_to_fail)
        shown = {slot: call.name for call in self.calls[1:] for slot in call.slots}
        for request in self.llm.scheduler.running:
            if request.slot not in shown or not request.known_to_drafter:
                continue
            kv, num_beyond = self.drafter.kv[request.slot], self.drafter.num_beyond[request.slot]
            known = request.num_computed_tokens + min(num_beyond, 1)
            assert kv[:known] == request.token_ids[:known]
            assert len(kv) == request.num_computed_tokens + num_beyond

    def finish(self) -> list[list[Call]]:
        steps = []
        while self.llm.has_unfinished_requests:
            steps.append(self.step())
        return steps


def names(calls: list[Call]) -> list[str]:
    return [call.name for call in calls]


# ------------------------------------------------------------------------------------------------- the cases
def empty(model) -> None:
    engine = Engine(model)
    assert engine.step() == []


def prompts_only(model) -> None:
    """What is to be followed and proposed for is shown once: the proposal computes the prompt."""
    engine = Engine(model, "right", [SHORT, MIDDLE])
    engine.add(SHORT, MIDDLE)
    step = engine.step()
    assert names(step) == ["target", "propose"]
    assert step[0].slots == {0: [2, 0], 1: [5, 0]}
    assert [len(tokens) for tokens in step[1].slots.values()] == [3, 6]


def chunks(model, facts=None) -> None:
    engine = Engine(model, "half", [LONG], facts, max_num_batched_tokens=10)
    engine.add(LONG)
    steps = [engine.step() for _ in range(3)]
    assert [names(step) for step in steps] == [
        ["target", "follow"],
        ["target", "follow"],
        ["target", "propose"],
    ]
    assert [step[1].slots[0] for step in steps[:2]] == [LONG[:10], LONG[10:20]]
    assert steps[2][1].slots[0][:-1] == LONG[20:]
    engine.finish()


def rejection(model, facts=None) -> None:
    """All drafts are wrong: one token a step, which is all that the draft has to compute."""
    engine = Engine(model, "wrong", [MIDDLE], facts)
    engine.add(MIDDLE)
    engine.step()
    for step in engine.finish()[:-3]:
        assert names(step) == ["target", "propose"]
        assert step[0].slots == {0: [1, K]}
        assert len(step[1].slots[0]) == 1


def full_acceptance(model, facts=None) -> None:
    """The last draft, which the draft has proposed and not computed, comes before the token after it."""
    engine = Engine(model, "right", [MIDDLE], facts)
    (request,) = engine.add(MIDDLE)
    engine.step()
    for _ in range(2):
        step = engine.step()
        assert names(step) == ["target", "propose"]
        assert step[0].slots == {0: [1, K]}
        assert step[1].slots[0] == request.token_ids[-2:]
    engine.finish()


def mixed(model, facts=None) -> None:
    engine = Engine(model, "half", [MIDDLE, LONG], facts, max_num_batched_tokens=12)
    engine.add(MIDDLE)
    engine.step()
    engine.add(LONG)
    step = engine.step()
    assert names(step) == ["target", "follow", "propose"]
    (decode, drafts), (chunk, _) = step[0].slots.values()
    assert (decode, drafts > 0, chunk > 1) == (1, True, True)
    assert step[1].slots == {1: LONG[:chunk]}
    assert step[2].slots.keys() == {0}
    engine.finish()


def over_limit(model, facts=None) -> None:
    prompts = [SHORT, MIDDLE, LONG, [7, 8, 9], [20, 21, 22]]
    engine = Engine(model, "right", prompts, facts, limit=3)
    old = engine.add(SHORT) + engine.add(MIDDLE, params=replace(GREEDY, max_tokens=6))
    assert names(engine.step()) == ["target", "propose"]
    assert [request.num_drafts for request in old] == [3, 3]
    old += engine.add(LONG, params=replace(GREEDY, max_tokens=24))
    step = engine.step()
    assert names(step) == ["target"]  # drafts in hand are not judged
    assert step[0].slots == {0: [1, 0], 1: [1, 0], 2: [27, 0]}
    while len(engine.llm.scheduler.running) > 2:
        assert names(engine.step()) == ["target"]
    assert names(engine.step()) == ["target"]  # two are left, and they stay without drafts
    assert [request.speculation_disabled for request in old] == [True] * 3
    while old[0].finish_reason is None:
        assert names(engine.step()) == ["target"]
    # one of the old ones is there when a new one comes
    (new,) = engine.add([7, 8, 9])
    step = engine.step()
    assert names(step) == ["target", "propose"]
    assert step[1].slots.keys() == {new.slot}
    step = engine.step()
    assert step[0].slots == {old[2].slot: [1, 0], new.slot: [1, K]}
    assert step[1].slots.keys() == {new.slot}
    engine.finish()
    assert sum(new.accepted) > 0
    assert sum(sum(request.accepted) for request in old) == 0


def every_k_zero(model, facts=None) -> None:
    """One request is drafted for, two are not, then one is again."""
    engine = Engine(model, "right", [MIDDLE, [7, 8, 9]], facts, ranges=[(1, 1, K), (2, 8, 0)])
    engine.add(MIDDLE, params=replace(GREEDY, max_tokens=24))
    assert names(engine.step()) == ["target", "propose"]
    (second,) = engine.add([7, 8, 9], params=replace(GREEDY, max_tokens=5))
    step = engine.step()
    assert names(step) == ["target", "follow"]
    assert step[0].slots == {0: [1, 0], 1: [3, 0]}
    while second.num_output_tokens < 4:
        step = engine.step()
        assert names(step) == ["target", "follow"]
        assert step[0].slots == {0: [1, 0], 1: [1, 0]}
        assert [len(tokens) for tokens in step[1].slots.values()] == [1, 1]
    engine.step()
    assert names(engine.step()) == ["target", "propose"]
    step = engine.step()
    assert step[0].slots == {0: [1, K]}
    engine.finish()


def no_drafts_found(model, facts=None) -> None:
    """A drafter that proposes nothing is asked again, and its K/V is kept in step by being asked."""
    engine = Engine(model, "half", [MIDDLE], facts)
    engine.drafter.guess = lambda history, wanted: []
    engine.add(MIDDLE)
    for step in engine.finish():
        assert names(step) == ["target", "propose"]


def preemption(model, facts=None) -> None:
    prompts = [list(range(n, n + 9)) for n in range(1, 6)]
    engine = Engine(model, "half", prompts, facts, max_model_len=48, block_size=4, num_kv_blocks=18)
    engine.add(*prompts, params=replace(GREEDY, max_tokens=20))
    engine.finish()
    assert engine.llm.metrics.num_preemptions >= 2


def reused_slot(model, facts=None) -> None:
    """A long prompt in chunks, in the slot of a request that was longer than its first chunk."""
    engine = Engine(model, "half", [MIDDLE, LONG], facts, max_num_seqs=1, max_num_batched_tokens=8)
    engine.add(MIDDLE, LONG, MIDDLE)
    steps = engine.finish()
    assert {slot for step in steps for call in step for slot in call.slots} == {0}


def left_out(model, facts=None) -> None:
    """A budget of four rows for three requests: drafts wait, and are proposed anew from the same K/V."""
    engine = Engine(model, "half", [SHORT, MIDDLE, LONG], facts, max_num_batched_tokens=4)
    engine.add(SHORT, MIDDLE, LONG)
    engine.finish()


def failing_drafter(model, facts=None) -> None:
    engine = Engine(model, "half", [MIDDLE, LONG], facts, max_num_batched_tokens=9)
    engine.add(MIDDLE, LONG, LONG)
    engine.drafter.fails = {2, 3, 6, 10}
    engine.finish()
    assert sum(engine.llm.metrics.fallbacks.values()) == 4


def failing_step(model, facts=None) -> None:
    """The copy to the host fails after the draft has run: what the draft computed since is not trusted."""
    engine = Engine(model, "half", [MIDDLE], facts)
    (request,) = engine.add(MIDDLE)
    engine.step()
    run_target = engine.llm.runner.run

    class Lost:
        def tolist(self):
            raise RuntimeError("the device was lost")

    def run_and_lose(scheduled, draft):
        run_target(scheduled, draft)
        return Lost()

    engine.llm.runner.run = run_and_lose
    with pytest.raises(RuntimeError, match="lost"):
        engine.llm.step()
    assert not request.known_to_drafter
    engine.llm.runner.run = run_target
    step = engine.step()
    assert step[1].slots[0] == request.token_ids[: len(step[1].slots[0])]
    engine.finish()


def sequence(model) -> None:
    """The engine's calls are those of the protocol, with the boundary between steps half a period later."""
    controls = []

    def decide(*args, **kwargs):
        controls.append(decide_step(*args, **kwargs))
        return controls[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm_module, "decide_step", decide)
        engine = Engine(model, "half", [LONG], max_num_batched_tokens=10)
        engine.add(LONG)
        ours = [call.name for step in engine.finish() for call in step]
    calls: list[str] = []
    for control in controls:
        run_step(
            control,
            target=lambda: calls.append("target"),
            propose=lambda num_draft_tokens: calls.append("propose"),
            follow=lambda: calls.append("follow"),
        )
    # a follow right before a proposal is part of it
    theirs = [
        name
        for name, after in zip(calls, [*calls[1:], ""], strict=True)
        if (name, after) != ("follow", "propose")
    ]
    assert ours[: len(theirs)] == theirs
    assert len(ours) - len(theirs) <= 1  # a proposal for a step that never came
