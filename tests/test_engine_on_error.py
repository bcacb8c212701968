"""``on_error`` of the embedded engine: a drafter that cannot load, and one that fails once."""

from __future__ import annotations

import pytest
import torch
from engine_fixtures import TINY_VOCAB, greedy_reference, half_right, tiny_model

import ascend_spec.engine.llm
from ascend_spec.engine import LLM
from ascend_spec.metrics import FALLBACKS, NON_FINITE_LOGITS, STEPS_WITHOUT_DRAFTS
from ascend_spec.types import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
PROMPTS = [[5, 6], [11, 12, 13, 14, 15]]
FAILED = f'{FALLBACKS}{{reason="drafter failed: RuntimeError"}}'


class FailsOnce:
    """At its second proposal."""

    def __init__(self):
        self.inner = half_right([[*p, *greedy_reference(tuple(p), 20)] for p in PROMPTS], 2, TINY_VOCAB)
        self.calls = 0

    def propose(self, batch):
        self.calls += 1
        if self.calls == 2:
            raise RuntimeError("not now")
        return self.inner.propose(batch)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def engine(model, on_error, drafter=None):
    config = {"method": "ngram", "num_speculative_tokens": 2, "ascend_spec": {"on_error": on_error}}
    return LLM(model, speculative_config=config, drafter=drafter)


def texts(llm):
    return [list(output.token_ids) for output in llm.generate(PROMPTS, GREEDY)]


def references():
    return [greedy_reference(tuple(prompt), GREEDY.max_tokens) for prompt in PROMPTS]


def check_it_is_off(llm, drafter):
    """The drafter is not asked again, and its failure is counted once."""
    assert texts(llm) == references()
    assert llm.drafter is None
    assert drafter.calls == 2
    assert llm.metrics.prometheus()[FAILED] == 1


def test_one_failure(model, monkeypatch):
    drafter = FailsOnce()
    llm = engine(model, "continue", drafter)
    assert texts(llm) == references()
    assert drafter.calls > 2
    assert llm.metrics.prometheus()[STEPS_WITHOUT_DRAFTS] > 0
    for fault in (False, True):
        if fault:  # the failure is counted and forgotten
            reason = lambda self, error: self.metrics.fallbacks.update(["drafter failed: RuntimeError"])  # noqa: E731
            monkeypatch.setattr(LLM, "_drafter_failed", reason)
        drafter = FailsOnce()
        llm = engine(model, "disable", drafter)
        if fault:
            with pytest.raises(AssertionError):
                check_it_is_off(llm, drafter)
        else:
            check_it_is_off(llm, drafter)


def test_a_drafter_that_cannot_load(model, monkeypatch):
    def create(plan):
        raise RuntimeError("no table")

    monkeypatch.setattr(ascend_spec.engine.llm, "create_drafter", create)
    for on_error in ("continue", "raise"):
        with pytest.raises(RuntimeError, match="no table"):
            engine(model, on_error)
    llm = engine(model, "disable")
    assert texts(llm) == references()
    assert llm.metrics.prometheus()[FAILED] == 1
    assert llm.metrics.num_draft_tokens == 0


def test_logits_that_are_not_finite_are_counted():
    model = tiny_model()
    with torch.no_grad():
        model.hf_model.get_input_embeddings().weight[63] = float("nan")
    llm = LLM(model)
    llm.generate([PROMPTS[0], [1, 63], [63]], GREEDY)
    assert llm.metrics.prometheus()[NON_FINITE_LOGITS] == 2
