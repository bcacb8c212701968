"""Sampled text of a real (tiny) model: the engine with drafts against the engine without, as two samples of one law."""

from __future__ import annotations

from collections import Counter

import pytest
from engine_fixtures import TINY_VOCAB, FunctionDrafter, greedy_reference, tiny_model
from scipy import stats

from ascend_spec.engine import LLM
from ascend_spec.types import SamplingParams

PROMPT = [8, 9, 10, 8, 9]
NEW = 4
#: a broken rule gives 1e-20 and less
SIGNIFICANCE = 1e-4


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def drafts(history: list[int], wanted: int) -> list[int]:
    """Greedy continuations, which a sampled text follows for a while."""
    return greedy_reference(tuple(history), wanted)


def texts(model, rule: str | None, num_texts: int, seed: int) -> list[tuple[int, ...]]:
    options: dict = {}
    if rule is not None:
        ours = {"rejection_sample_method": rule}
        options = {
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "ascend_spec": ours},
            "drafter": FunctionDrafter(drafts, 3),
        }
    llm = LLM(model, seed=seed, max_num_seqs=64, **options)
    params = SamplingParams(temperature=0.6, top_k=12, top_p=0.95, max_tokens=NEW)
    outputs = llm.generate([PROMPT] * num_texts, params)
    assert (llm.metrics.num_accepted_tokens > 0) == (rule is not None)
    return [output.token_ids for output in outputs]


def p_value(one: list[tuple[int, ...]], other: list[tuple[int, ...]]) -> float:
    """Of the smallest of the tests on the token at each place and on the pairs of the first two; Bonferroni."""
    views = [lambda text, i=i: text[i] for i in range(NEW)] + [lambda text: text[:2]]
    smallest = 1.0
    for view in views:
        first, second = Counter(map(view, one)), Counter(map(view, other))
        keys = [key for key in first | second if first[key] + second[key] >= 20]
        rest = [sum(c.values()) - sum(c[key] for key in keys) for c in (first, second)]
        table = [[*(c[key] for key in keys), left + 1] for c, left in zip((first, second), rest, strict=True)]
        smallest = min(smallest, stats.chi2_contingency(table).pvalue)
    return smallest * len(views)


@pytest.mark.parametrize("rule", ["standard", "block", "coupled"])
def test_exact_rules(model, rule, request):
    num_texts = 6000 if request.config.getoption("full") else 1500
    plain = texts(model, None, num_texts, seed=1)
    assert p_value(plain, texts(model, None, num_texts, seed=2)) > SIGNIFICANCE
    assert p_value(plain, texts(model, rule, num_texts, seed=3)) > SIGNIFICANCE


def test_a_lossy_rule_is_seen(model):
    assert TINY_VOCAB > 12
    assert p_value(texts(model, None, 800, seed=1), texts(model, "typical", 800, seed=3)) < 1e-9
