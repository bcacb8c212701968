"""The option ``on_error`` inside vLLM: drafters that cannot load, and one that fails while the engine serves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import vllm_cpu_cases as cases
from vllm_cpu_models import LAYERS


@pytest.fixture(scope="session")
def broken(models, tmp_path_factory) -> dict[str, str]:
    """Draft models whose weights are cut short, and not there."""
    folder = tmp_path_factory.mktemp("broken")
    made = {name: shutil.copytree(models["noisy"], folder / name) for name in ("corrupt", "missing")}
    weights = Path(made["corrupt"], "model.safetensors")
    weights.write_bytes(weights.read_bytes()[:3000])
    Path(made["missing"], "model.safetensors").unlink()
    return {name: str(path) for name, path in made.items()}


@pytest.fixture(scope="session")
def off(vllm, models):
    """What the target says without speculation."""
    return vllm("vllm_cpu_engine:generate", engine={"model": models["target"]}, batches=[cases.greedy()])[
        "outputs"
    ][0]


def engine(models, method="ngram", on_error=None, **changed):
    options = {} if on_error is None else {"on_error": on_error}
    config = {**cases.methods(models)[method], **changed}
    return {
        "model": models["target"],
        "speculative_config": config,
        "additional_config": {"ascend_spec": options},
    }


def generate(vllm, engine, **how):
    return vllm("vllm_cpu_on_error:generate", engine=engine, batch=cases.greedy(), **how)


def check_off(answer, off, error):
    """The text of speculation off, no draft, said once and counted, and no KV cache for a drafter."""
    assert answer["outputs"][0] == off
    assert answer["metrics"][0]["num_draft_tokens"] == 0
    said = [line for line in answer["log"] if "speculation is off" in line]
    assert len(said) == 1
    assert "the drafter failed" in said[0]
    assert answer["fallbacks"] == {f"drafter failed: {error}": 1}
    assert answer["layers"] == LAYERS


@pytest.mark.parametrize(
    ("method", "weights", "error"),
    [("draft_model", "corrupt", "SafetensorError"), ("draft_model", "missing", "RuntimeError")],
)
def test_a_drafter_of_vllms_that_cannot_load(vllm, models, broken, off, method, weights, error):
    model = {"model": broken[weights]}
    check_off(generate(vllm, engine(models, method, "disable", **model)), off, error)
    report = generate(vllm, engine(models, method, **model), fails=True)
    assert report["type"] == error
    assert report["error"]


def test_a_runner_that_still_speculates_is_noticed(vllm, models, broken):
    given = engine(models, "draft_model", "disable", model=broken["corrupt"])
    generate(vllm, given, fault="runner_still_speculates", fails=True)


def test_a_healthy_drafter_is_kept(vllm, models, off):
    answer = generate(vllm, engine(models, "draft_model", "disable"))
    assert answer["outputs"][0] == off
    assert answer["metrics"][0]["num_accepted_tokens"] > 0
    assert answer["layers"] == 2 * LAYERS
    assert answer["fallbacks"] == {}


def test_our_drafter_that_cannot_load(vllm, models, off):
    check_off(
        generate(vllm, engine(models, on_error="disable"), fault="ngram_does_not_load"), off, "ValueError"
    )
    for on_error in (None, "raise"):
        report = generate(vllm, engine(models, on_error=on_error), fault="ngram_does_not_load", fails=True)
        assert report["error"] == "no table"


def check_failed_once(answer, off):
    assert answer["outputs"][0] == off
    assert answer["fallbacks"] == {"drafter failed: RuntimeError": 1}
    return answer["metrics"][0]["num_draft_tokens"]


def test_our_drafter_that_fails_once(vllm, models, off):
    """With "continue" that costs a step's drafts, with "disable" all that would come after, with "raise" the engine."""
    fault = "ngram_fails_once"
    drafted = check_failed_once(generate(vllm, engine(models), fault=fault), off)
    disabled = generate(vllm, engine(models, on_error="disable"), fault=fault)
    assert check_failed_once(disabled, off) < drafted
    mutant = generate(vllm, engine(models, on_error="disable"), fault="never_off")
    assert check_failed_once(mutant, off) == drafted, "the comparison above can fail"
    report = generate(vllm, engine(models, on_error="raise"), fault=fault, fails=True)
    assert report["error"] == "not now"
