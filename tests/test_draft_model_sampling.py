"""Sampled drafts of a draft model: the text's law under the exact rules, and who shares whose random numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise, product

import pytest
import torch
from draft_model_checks import (
    PROMPTS,
    STATIC,
    BigramModel,
    draft_model,
    engine,
    spec_config,
    target_model,
)
from engine_fixtures import TINY_VOCAB, tiny_model
from scipy import stats

from ascend_spec.drafters import DraftModelDrafter
from ascend_spec.drafters import draft_model as draft_model_module
from ascend_spec.engine import LLM
from ascend_spec.runtime import Recorder
from ascend_spec.types import Draft, SamplingParams

TEMPERATURE, K = 0.7, 2
#: a broken drafter gives 1e-7 and less
SIGNIFICANCE = 1e-4
RISING = torch.tensor([0.1, 0.2, 0.3, 0.4])


@dataclass(frozen=True)
class Pair:
    """Probabilities by the token before, of target and draft, and how long texts are: the first token comes without
    drafts, and the last round has one draft fewer."""

    target: torch.Tensor
    draft: torch.Tensor
    new: int


#: ``two``: rounds of two drafts, the second of which says something of the first's fate. ``four``: where a draft is
#: rejected, two tokens are left to draw from
PAIRS = {
    "two": Pair(torch.tensor([[0.3, 0.7], [0.3, 0.7]]), torch.tensor([[0.7, 0.3], [0.7, 0.3]]), 5),
    "four": Pair(RISING.expand(4, 4), RISING.flip(0).expand(4, 4), 3),
    "bigrams": Pair(torch.tensor([[0.2, 0.8], [0.6, 0.4]]), torch.tensor([[0.7, 0.3], [0.4, 0.6]]), 5),
}
RULES = ("standard", "block", "coupled")


def probabilistic(rule: str, target, draft, **options) -> LLM:
    drafter = DraftModelDrafter(draft, K, draft_sample_method="probabilistic", rule=rule)
    config = spec_config(
        K, draft_sample_method="probabilistic", ascend_spec={"rejection_sample_method": rule}
    )
    return LLM(target, speculative_config=config, drafter=drafter, **options)


def p_value(rule: str, pair: Pair, num_texts: int, facts=None) -> float:
    """Of texts against the product of the target's own probabilities."""
    models = [BigramModel(table.log().contiguous()) for table in (pair.target, pair.draft)]
    llm = probabilistic(rule, *models, max_num_seqs=64, max_model_len=16, seed=5, facts=facts)
    params = SamplingParams(temperature=TEMPERATURE, max_tokens=pair.new)
    outputs = llm.generate([[0]] * num_texts, params)
    assert 0 < llm.metrics.num_accepted_tokens < llm.metrics.num_draft_tokens
    found = Counter(output.token_ids for output in outputs)
    law = (pair.target.double().log() / TEMPERATURE).softmax(-1)
    texts = list(product(range(len(law)), repeat=pair.new))
    expected = [num_texts * math.prod(float(law[a, b]) for a, b in pairwise((0, *text))) for text in texts]
    return float(stats.chisquare([found[text] for text in texts], expected).pvalue)


@pytest.mark.parametrize("facts", [None, STATIC], ids=["exact", "static"])
@pytest.mark.parametrize("pair", ["four", "bigrams"])
@pytest.mark.parametrize("rule", RULES)
def test_the_law_is_the_targets(rule, pair, facts, request):
    num_texts = 40000 if request.config.getoption("full") else 3000
    assert p_value(rule, PAIRS[pair], num_texts, facts=facts) > SIGNIFICANCE


# ---- alike models
@pytest.mark.parametrize("rule", RULES)
def test_a_model_that_drafts_for_itself_is_right_at_every_temperature(rule):
    llm = probabilistic(rule, target_model(), draft_model("same"))
    params = [
        SamplingParams(temperature=t, max_tokens=12, seed=n)
        for n, t in enumerate((0.0, 0.3, 0.7, 1.0, 1.3, 1.0, 0.0))
    ]
    llm.generate(PROMPTS, params)
    assert llm.metrics.num_accepted_tokens == llm.metrics.num_draft_tokens > 0


def seeded_texts(llm: LLM) -> list[tuple[int, ...]]:
    params = [SamplingParams(temperature=0.8, top_k=20, max_tokens=12, seed=n) for n in range(len(PROMPTS))]
    return [output.token_ids for output in llm.generate(PROMPTS, params)]


def check_coupled() -> None:
    """The text is plain decoding's, and the draft often draws what the target will draw."""
    rate = {}
    for method in ("probabilistic", "greedy"):
        llm = engine("near", K, config={"ascend_spec": {"rejection_sample_method": "coupled"}})
        llm.drafter.samples, llm.drafter.is_coupled = method == "probabilistic", True
        assert seeded_texts(llm) == seeded_texts(LLM(target_model()))
        rate[method] = llm.metrics.acceptance_rate
    assert rate["probabilistic"] > 1.2 * rate["greedy"]


def test_under_coupled_the_draft_draws_with_the_targets_numbers():
    check_coupled()


def test_seeded_texts_repeat():
    texts = [seeded_texts(probabilistic("standard", target_model(), draft_model("near"))) for _ in range(2)]
    assert texts[0] == texts[1]


def test_only_what_the_rule_reads_is_returned():
    for rule, sampled in (("standard", True), ("block", True), ("coupled", False)):
        llm = probabilistic(rule, target_model(), draft_model("near"))
        llm.add_request([5, 6], SamplingParams(temperature=0.5, max_tokens=8))
        llm.add_request([5, 6], SamplingParams(temperature=0.0, max_tokens=8))
        llm.step()
        assert (llm.draft.logits is not None) == sampled
        if sampled:
            assert llm.draft.logits.shape == (8, K, 64)
            assert llm.draft.temperature[:2].tolist() == [0.5, 0.0]


# ---- defects these checks would catch
def changed_draft(change: Callable):
    original = DraftModelDrafter.propose
    return DraftModelDrafter, "propose", lambda self, batch: change(original(self, batch))


seeds_of_drafts = draft_model_module.draft_seeds
MUTANTS = {
    "33: drafts share the residual's random numbers": (
        (draft_model_module, "draft_seeds", lambda seeds, num_tokens: seeds),
        lambda: p_value("standard", PAIRS["four"], 14000),
    ),
    "q is given at another temperature": (
        changed_draft(lambda draft: replace(draft, temperature=draft.temperature * 2)),
        lambda: p_value("standard", PAIRS["two"], 3000),
    ),
    "rounds share random numbers where drafts are judged together": (
        (draft_model_module, "draft_seeds", lambda seeds, num_tokens: seeds_of_drafts(seeds, 0 * num_tokens)),
        lambda: p_value("block", PAIRS["two"], 5000),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name, monkeypatch):
    mutant, check = MUTANTS[name]
    assert check() > SIGNIFICANCE
    monkeypatch.setattr(*mutant)
    assert check() < SIGNIFICANCE / 100


def test_numbers_of_its_own_are_missed_under_coupled(monkeypatch):
    monkeypatch.setattr(
        DraftModelDrafter, "is_coupled", property(lambda self: False, lambda self, value: None), raising=False
    )
    with pytest.raises(AssertionError):
        check_coupled()


class NowAndThen:
    """Says what every second proposal was drawn from."""

    calls = 0

    def propose(self, batch):
        self.calls += 1
        tokens = torch.full((len(batch.num_tokens), K), 5, dtype=torch.int32)
        logits = torch.zeros(*tokens.shape, TINY_VOCAB)
        return Draft(tokens) if self.calls % 2 else Draft(tokens, logits, batch.temperature)


def test_drafts_whose_distribution_is_known_now_and_then():
    """A step is captured for each form."""
    config = spec_config(K, draft_sample_method="probabilistic")
    recorder = Recorder()
    llm = LLM(tiny_model(), speculative_config=config, drafter=NowAndThen(), facts=STATIC, capturer=recorder)
    outputs = llm.generate([[1, 2, 3]] * 3, SamplingParams(temperature=1.0, max_tokens=20, seed=1))
    assert [len(output.token_ids) for output in outputs] == [20] * 3
    assert recorder.num_replays > recorder.num_captures > 1
