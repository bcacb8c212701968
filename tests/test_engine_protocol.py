"""Who runs when, target or draft, and whether the draft's K/V keeps up: in the engine, and between ranks."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import protocol_checks as checks
import protocol_ranks
import pytest
import torch
from engine_fixtures import ScriptedModel, tiny_model
from protocol_checks import GREEDY, LONG, NEW, K

from ascend_spec.engine import LLM
from ascend_spec.engine import llm as llm_module
from ascend_spec.engine.pool import TokenPool
from ascend_spec.engine.protocol import SpecDecodeControl, decide_step
from ascend_spec.engine.request import Request
from ascend_spec.runtime import DeviceFacts
from ascend_spec.types import Draft, ScheduledRequest

STATIC = DeviceFacts(block_size=4, host_readable=False, static_shapes=True)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


DECODING = [
    checks.chunks,
    checks.rejection,
    checks.full_acceptance,
    checks.mixed,
    checks.over_limit,
    checks.every_k_zero,
    checks.no_drafts_found,
    checks.preemption,
    checks.reused_slot,
    checks.left_out,
    checks.failing_drafter,
    checks.failing_step,
]


@pytest.mark.parametrize("facts", [None, STATIC], ids=["exact", "static"])
@pytest.mark.parametrize("check", DECODING)
def test_the_draft_keeps_up_and_the_text_is_plain_decodings(model, check, facts):
    check(model, facts)


@pytest.mark.parametrize("check", [checks.empty, checks.prompts_only])
def test_order_of_calls(model, check):
    check(model)


def test_the_engines_sequence_is_the_protocols(model):
    checks.sequence(model)


def test_a_request_that_is_computed_anew_is_shown_as_new():
    """Beyond the boundary of a longrope model all K/V is computed again, the draft's too."""
    model = ScriptedModel([n % 50 for n in range(64)], vocab_size=50, max_model_len=64)
    model.info = replace(model.info, longrope_boundary=12)
    calls: list[checks.Call] = []
    drafter = checks.RecordingKVDrafter(lambda history, wanted: [(history[-1] + 1) % 50][:wanted], calls)
    config = {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_max": 3}
    llm = LLM(model, speculative_config=config, drafter=drafter, max_num_batched_tokens=8)
    llm.add_request(list(range(6)), GREEDY)
    while llm.has_unfinished_requests:
        finished = llm.step()
    assert list(finished[0].token_ids) == list(range(6, 18))
    chunks = [call.slots[0] for call in calls if call.name == "follow"]
    assert chunks == [list(range(8))]


def test_a_drafter_without_kv_is_not_told_of_it(model):
    seen = []

    class Plain:
        def propose(self, batch):
            seen.append((batch.num_computed_tokens, batch.restarted))
            return Draft(torch.full((batch.token_ids.shape[0], K), -1, dtype=torch.int32))

    config = {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_max": 3}
    llm = LLM(model, speculative_config=config, drafter=Plain(), max_num_batched_tokens=10)
    llm.generate([LONG], GREEDY)
    assert set(seen) == {(None, None)}
    assert len(seen) == NEW  # nobody is asked about a chunk of a prompt


# ------------------------------------------------------------------------------- defects these checks would catch
def follow_first(control, target, propose, follow, propose_ahead):
    if control.draft_follows:
        follow()
    output = target()
    if control.num_lookahead_slots:
        propose(control.num_lookahead_slots)
    return output


def changed_kv_state(**changes):
    original = TokenPool.add_kv_state

    def add_kv_state(self, batch, scheduled, running):
        told = original(self, batch, scheduled, running)
        return replace(told, **{name: change(told) for name, change in changes.items()})

    return add_kv_state


def never_marks(self, scheduled, control):
    most = control.num_lookahead_slots
    return [replace(item, num_drafts=min(item.num_drafts, most)) for item in scheduled]


limited = LLM._limited


def keeps_the_drafts(self, scheduled, control):
    limited(self, scheduled, control)
    return scheduled


def disables_newcomers(scheduled, **options):
    control = decide_step(scheduled, **options)
    if any(item.speculation_disabled for item in scheduled):
        return replace(control, disable_all_speculation=True, no_spec=True, num_lookahead_slots=0)
    return control


@contextlib.contextmanager
def trusting(self, slots):
    with contextlib.suppress(RuntimeError):
        yield
    for request in self.scheduler.running:
        request.known_to_drafter |= request.slot in slots


def follows_everybody(self, scheduled, control):
    self.drafter.follow(self._draft_batch({item.slot for item in scheduled}, 0, scheduled))


MUTANTS = {
    "the draft follows before the target": (llm_module, "run_step", follow_first, [checks.mixed, checks.chunks]),
    "K = 0 is not followed": (
        SpecDecodeControl, "draft_follows", property(lambda c: c.run_spec_proposer_for_prefill), [checks.every_k_zero]
    ),
    "chunks are not followed": (LLM, "_follow", lambda *args: None, [checks.chunks, checks.mixed]),
    "the limit is forgotten when the batch shrinks": (LLM, "_limited", never_marks, [checks.over_limit]),
    "drafts in hand are judged over the limit": (
        LLM, "_limited", keeps_the_drafts, [checks.over_limit, checks.every_k_zero]
    ),
    "new requests beside old ones get no drafts": (llm_module, "decide_step", disables_newcomers, [checks.over_limit]),
    "requests proposed for are followed too": (
        LLM, "_follow", follows_everybody, [checks.prompts_only, checks.mixed, checks.over_limit, checks.sequence]
    ),
    "a restart is not shown": (
        TokenPool, "add_kv_state", changed_kv_state(restarted=lambda b: torch.zeros_like(b.restarted)),
        [checks.reused_slot, checks.failing_drafter],
    ),
    "K/V is trusted after a failed call": (LLM, "_drafting", trusting, [checks.failing_drafter]),
    "everything is a restart": (
        TokenPool, "add_kv_state", changed_kv_state(restarted=lambda b: torch.ones_like(b.restarted)),
        [checks.chunks, checks.rejection, checks.full_acceptance],
    ),
    "rejected drafts count as computed": (
        TokenPool, "add_kv_state", changed_kv_state(num_computed_tokens=lambda b: b.num_tokens),
        [checks.rejection, checks.chunks],
    ),
    "preemption leaves the draft as it is": (
        Request, "restart", lambda self: setattr(self, "num_computed_tokens", 0), [checks.preemption]
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "check"), [(name, check) for name in MUTANTS for check in MUTANTS[name][3]])
def test_mutants_are_caught(model, name, check, monkeypatch):
    where, attribute, broken, _ = MUTANTS[name]
    monkeypatch.setattr(where, attribute, broken)
    with pytest.raises(AssertionError):
        check(model)


# -------------------------------------------------------------------------------------------------- the decision
def request(num_computed=4, num_tokens=5, num_new=1, num_drafts=0, disabled=False) -> ScheduledRequest:
    return ScheduledRequest(
        "", 0, num_computed, num_tokens, num_new, num_drafts, speculation_disabled=disabled
    )


DECODE, ZERO, PROMPT = request(num_drafts=2), request(), request(0, 5, 5)
DISABLED = request(disabled=True)


@pytest.mark.parametrize(
    ("scheduled", "num_running", "lookahead", "limit", "expected"),
    [
        ([], 0, K, 2, SpecDecodeControl()),
        ([PROMPT], 1, K, None, SpecDecodeControl(1, K, True, False, True)),
        ([DECODE], 1, K, 2, SpecDecodeControl(1, K, False, False, False)),
        ([DECODE, PROMPT], 2, K, None, SpecDecodeControl(2, K, False, False, True)),
        ([ZERO], 1, K, None, SpecDecodeControl(1, K, True, False, False)),
        ([ZERO, PROMPT], 2, K, None, SpecDecodeControl(2, K, True, False, True)),
        ([DECODE], 1, 0, None, SpecDecodeControl(1, 0, True, False, False)),
        ([DECODE, DECODE], 2, K, 2, SpecDecodeControl(2, 0, True, True, False)),
        ([DECODE, PROMPT], 2, K, 2, SpecDecodeControl(2, 0, True, True, True)),
        ([DECODE], 2, K, 2, SpecDecodeControl(1, 0, True, True, False)),  # one was left out by the budget
        ([DISABLED], 1, K, 2, SpecDecodeControl(1, 0, True, True, False)),
        ([DISABLED, DECODE], 2, K, 3, SpecDecodeControl(2, K, False, False, False)),
        ([DISABLED, PROMPT], 2, K, 3, SpecDecodeControl(2, K, True, False, True)),
    ],
)
def test_decision_and_its_message(scheduled, num_running, lookahead, limit, expected):
    control = decide_step(
        scheduled, num_running=num_running, num_lookahead_slots=lookahead, disable_by_batch_size=limit
    )
    assert control == expected
    message = control.to_tensor()
    assert (message.dtype, message.shape) == (torch.int64, (5,))
    assert SpecDecodeControl.from_tensor(message) == control
    assert bool(message.any()) == bool(scheduled)


@pytest.mark.parametrize(
    "message",
    [
        [1, 3, 0, 0],
        [1, 3, 0, 0, 0, 0],
        [1, 3, 2, 0, 0],
        [-1, 3, 0, 0, 0],
        [1, -3, 1, 0, 0],
        [0, 3, 0, 0, 0],  # an empty batch that proposes
        [0, 0, 1, 0, 0],
        [1, 0, 0, 0, 0],  # speculates without draft steps
        [1, 3, 1, 1, 0],  # disabled, and proposes
        [1, 0, 0, 1, 0],
    ],
)
def test_a_damaged_message_is_refused(message):
    with pytest.raises(ValueError, match=r"control message|contradicts itself"):
        SpecDecodeControl.from_tensor(torch.tensor(message))
    with pytest.raises(ValueError, match=r"\[5\] torch.float32 was given; it must be \[5\] int64"):
        SpecDecodeControl.from_tensor(torch.zeros(5))


# -------------------------------------------------------------------------------------------------- two ranks
@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    """What each of two ranks recorded, by case and mutant."""
    script, store = Path(protocol_ranks.__file__), tmp_path_factory.mktemp("ranks") / "store"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(store)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    return [json.loads(stdout) for stdout, _ in outputs]


def check_ranks(ranks: list[dict], name: str, case: protocol_ranks.Case) -> None:
    """Both made the expected calls and agree on all lengths; the draft lacks at most a last accepted draft."""
    driver, other = (rank[name] for rank in ranks)
    assert driver == other
    assert [step["calls"] for step in driver] == list(case.calls)
    for rows, step in zip(case.steps, driver, strict=True):
        for row in rows:
            if row.slot not in case.disabled:
                lag = 1 if row.accepted == protocol_ranks.K else 0
                assert step["draft"][row.slot] == step["target"][row.slot] - lag


@pytest.mark.parametrize("name", protocol_ranks.CASES)
def test_ranks_agree(ranks, name):
    check_ranks(ranks, name, protocol_ranks.CASES[name])


@pytest.mark.parametrize("name", protocol_ranks.MUTANTS)
def test_mutants_of_ranks_are_caught(ranks, name):
    mutant = protocol_ranks.MUTANTS[name]
    with pytest.raises(AssertionError):
        check_ranks(ranks, name, protocol_ranks.CASES[mutant.case])
    if mutant.hangs:
        assert any("imed out" in str(rank[name]) for rank in ranks)
    else:
        assert all(isinstance(rank[name], list) for rank in ranks)
