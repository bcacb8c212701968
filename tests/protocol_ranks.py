"""Two ranks that run the worker protocol over gloo, with stubs for target and draft.

As a script (``protocol_ranks.py RANK STORE``) it is one of the ranks: it runs every case, then every mutant, and
prints what it called and how far the K/V of target and draft reached, as JSON. The stubs meet in a broadcast,
as a sharded forward meets in its collectives: ranks that are in different calls notice, or wait in vain.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from unittest.mock import patch

import torch
import torch.distributed as dist

from ascend_spec.engine import protocol
from ascend_spec.engine.protocol import SpecDecodeControl, decide_step
from ascend_spec.types import ScheduledRequest

K = 3
NUM_SLOTS = 4
TAGS = {"propose": 1, "target": 2, "follow": 3}
#: Seconds until a rank gives up on the others; the fewer for mutants that are meant to wait in vain.
PATIENCE, SHORT_PATIENCE = 120, 3


@dataclass(frozen=True)
class Row:
    """One request in one step."""

    slot: int
    new: int = 1
    drafts: int = 0
    accepted: int = 0
    prompt: int = 0
    """Of a request that begins in this step, or again: its length."""


@dataclass(frozen=True)
class Case:
    steps: tuple[tuple[Row, ...], ...]
    calls: tuple[str, ...]
    """What every rank must call, step by step: p(ropose), t(arget), f(ollow)."""
    limit: int | None = None
    disabled: frozenset[int] = frozenset()
    """Slots of requests that reach the limit: the draft need not follow them any more."""


def prompt(slot: int, length: int, chunk: int | None = None) -> Row:
    return Row(slot, new=chunk or length, prompt=length)


CASES = {
    "empty": Case(((), (prompt(0, 4),), (), (Row(0, drafts=K),)), ("", "tf", "", "pt")),
    "prompts only": Case(((prompt(0, 5), prompt(1, 9)),), ("tf",)),
    "decode": Case(
        ((prompt(0, 5), prompt(1, 2)), (Row(0, drafts=K, accepted=1), Row(1, drafts=2, accepted=2))),
        ("tf", "pt"),
    ),
    "rejection": Case(
        ((prompt(0, 5),), (Row(0, drafts=K),), (Row(0, drafts=K, accepted=1),), (Row(0, drafts=K),)),
        ("tf", "pt", "pt", "pt"),
    ),
    "full acceptance": Case(
        ((prompt(0, 5),), (Row(0, drafts=K, accepted=K),), (Row(0, drafts=K, accepted=K),), (Row(0),)),
        ("tf", "pt", "pt", "tf"),
    ),
    "mixed": Case(
        ((prompt(0, 5),), (Row(0, drafts=K, accepted=2), prompt(1, 8, 6)), (Row(0, drafts=1), Row(1, new=2))),
        ("tf", "ptf", "ptf"),
    ),
    "chunks": Case(((prompt(0, 9, 4),), (Row(0, new=4),), (Row(0),), (Row(0, drafts=K),)), ("tf", "tf", "tf", "pt")),
    "every K zero": Case(
        ((prompt(0, 5),), (Row(0, drafts=K, accepted=K),), (Row(0),), (Row(0),), (Row(0, drafts=K),)),
        ("tf", "pt", "tf", "tf", "pt"),
    ),
    "over the limit": Case(
        (
            (prompt(0, 5), prompt(1, 3)),
            (Row(0, drafts=K, accepted=1), Row(1, drafts=K)),
            (Row(0, drafts=K), Row(1, drafts=K), prompt(2, 4)),  # three: the limit
            (Row(0), Row(1)),  # fewer, and still without speculation
            (Row(0), prompt(3, 6)),  # a new request
            (Row(0), Row(3, drafts=K, accepted=2)),
            (Row(3, drafts=K),),
        ),
        ("tf", "pt", "t", "t", "tf", "pt", "pt"),
        limit=3,
        disabled=frozenset({0, 1, 2}),
    ),
    "preemption": Case(
        ((prompt(0, 5),), (Row(0, drafts=K, accepted=1),), (prompt(0, 7, 4),), (Row(0, new=3),), (Row(0, drafts=K),)),
        ("tf", "pt", "tf", "tf", "pt"),
    ),
}  # fmt: skip


@dataclass
class Rank:
    """A rank with its stubs. The driver knows the batch; the others learn of it inside the calls."""

    is_driver: bool
    group: dist.ProcessGroup | None
    limit: int | None = None
    target_kv: list[int] = field(default_factory=lambda: [0] * NUM_SLOTS)
    draft_kv: list[int] = field(default_factory=lambda: [0] * NUM_SLOTS)
    num_tokens: list[int] = field(default_factory=lambda: [0] * NUM_SLOTS)
    disabled: set[int] = field(default_factory=set)
    calls: str = ""
    rows: tuple[Row, ...] = ()
    scheduled: list[ScheduledRequest] = field(default_factory=list)

    def step(self, rows: tuple[Row, ...]) -> dict:
        self.calls = ""
        control = self.control(rows)
        protocol.run_step(control, self.target, self.propose, self.follow)
        for row, request in zip(self.rows, self.scheduled, strict=True):
            self.num_tokens[row.slot] += row.accepted + 1 if request.samples else 0
        return {"calls": self.calls, "target": self.target_kv[:], "draft": self.draft_kv[:]}

    def control(self, rows: tuple[Row, ...]) -> SpecDecodeControl:
        if not self.is_driver:
            return SpecDecodeControl.from_tensor(self.broadcast(torch.empty(5, dtype=torch.int64)))
        self.rows, self.scheduled = rows, [self.schedule(row) for row in rows]
        control = decide_step(
            self.scheduled,
            num_running=len(rows),
            num_lookahead_slots=K,
            disable_by_batch_size=self.limit,
        )
        if control.disable_all_speculation:
            self.disable(row.slot for row in rows)
        if control.no_spec:
            self.rows = tuple(replace(row, drafts=0, accepted=0) for row in rows)
        self.announce(control)
        return control

    def schedule(self, row: Row) -> ScheduledRequest:
        if row.prompt:
            self.num_tokens[row.slot], self.target_kv[row.slot] = row.prompt, 0
        return ScheduledRequest(
            request_id="", slot=row.slot, num_computed_tokens=self.target_kv[row.slot],
            num_tokens=self.num_tokens[row.slot], num_new_tokens=row.new, num_drafts=row.drafts,
            speculation_disabled=row.slot in self.disabled,
        )  # fmt: skip

    def disable(self, slots) -> None:
        self.disabled.update(slots)

    def announce(self, control: SpecDecodeControl) -> None:
        self.broadcast(control.to_tensor())

    def propose(self, num_draft_tokens: int) -> None:
        """The last committed token, then every draft but the last, are computed."""
        decodes = {r.slot: r.num_tokens for r in self.scheduled if r.decodes and not r.speculation_disabled}
        for slot, length in self.meet("propose", decodes):
            self.draft_kv[slot] = length + num_draft_tokens - 1

    def target(self) -> None:
        lengths = {
            row.slot: request.num_computed_tokens + row.new + row.accepted
            for row, request in zip(self.rows, self.scheduled, strict=True)
        }
        for slot, length in self.meet("target", lengths):
            self.target_kv[slot] = length
            self.draft_kv[slot] = min(self.draft_kv[slot], length)  # behind it stand rejected drafts

    def follow(self) -> None:
        speculates = any(row.drafts for row in self.rows)
        followed = {
            r.slot: self.target_kv[r.slot]
            for r in self.scheduled
            if not r.speculation_disabled and not (speculates and r.decodes)
        }
        for slot, length in self.meet("follow", followed):
            self.draft_kv[slot] = length

    def meet(self, call: str, lengths: dict[int, int]) -> list[tuple[int, int]]:
        """What the driver says of the slots that ``call`` is for, on every rank."""
        self.calls += call[0]
        mine = [TAGS[call], *(lengths.get(slot, -1) for slot in range(NUM_SLOTS))]
        tag, *told = self.broadcast(torch.tensor(mine)).tolist()
        assert tag == TAGS[call], f"this rank is in {call}, and the driver is not"
        return [(slot, length) for slot, length in enumerate(told) if length >= 0]

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        dist.broadcast(tensor, 0, group=self.group)
        return tensor


# ------------------------------------------------------------------------------------- defects, by name
def follow_first(control, target, propose, follow):
    """Target and draft the wrong way round in mixed batches."""
    if not control.no_spec and control.draft_follows:
        propose(control.num_lookahead_slots)
        follow()
        target()
    else:
        real_run_step(control, target, propose, follow)


real_run_step = protocol.run_step
only_for_prompts = property(lambda control: control.run_spec_proposer_for_prefill)


def announce_unless_empty(rank: Rank, control: SpecDecodeControl) -> None:
    if not control.is_empty:
        rank.broadcast(control.to_tensor())


def break_run_step() -> AbstractContextManager:
    return patch.object(protocol, "run_step", follow_first)


def break_draft_follows() -> AbstractContextManager:
    return patch.object(SpecDecodeControl, "draft_follows", only_for_prompts)


def break_disable() -> AbstractContextManager:
    return patch.object(Rank, "disable", lambda rank, slots: None)


def break_announce() -> AbstractContextManager:
    return patch.object(Rank, "announce", announce_unless_empty)


@dataclass(frozen=True)
class Mutant:
    case: str
    """That shows it."""
    driver: Callable[[], AbstractContextManager] = nullcontext
    other: Callable[[], AbstractContextManager] = nullcontext
    """What is broken on the driver, and on the other rank."""
    hangs: bool = False


MUTANTS = {
    "one rank swaps target and draft": Mutant("mixed", other=break_run_step, hangs=True),
    "every rank swaps target and draft": Mutant("mixed", break_run_step, break_run_step),
    "nobody follows when every K is zero": Mutant("every K zero", break_draft_follows, break_draft_follows),
    "requests over the limit are forgotten": Mutant("over the limit", break_disable),
    "an empty batch is not broadcast": Mutant("empty", break_announce, hangs=True),
}


def run_case(rank: int, case: Case, group: dist.ProcessGroup | None) -> list[dict] | str:
    """A record of every step; or what went wrong."""
    worker = Rank(rank == 0, group, case.limit)
    try:
        return [worker.step(rows if rank == 0 else ()) for rows in case.steps]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main(rank: int, store: str) -> None:
    patience = timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=patience)
    results = {name: run_case(rank, case, None) for name, case in CASES.items()}
    for name, mutant in MUTANTS.items():
        group = dist.new_group(timeout=timedelta(seconds=SHORT_PATIENCE) if mutant.hangs else patience)
        with mutant.driver() if rank == 0 else mutant.other():
            results[name] = run_case(rank, CASES[mutant.case], group)
        dist.barrier()
    print(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
