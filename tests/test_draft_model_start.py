"""What an engine with a draft model says at start: reached by configuration, and refused or warned of by name."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import draft_model_checks as checks
import pytest
from draft_model_checks import GREEDY, MASK, NEW, PROMPTS, engine, save, spec_config

from ascend_spec.config import ConfigError
from ascend_spec.config import draft_model as config_module
from ascend_spec.drafters import DraftModelDrafter
from ascend_spec.drafters import draft_model as draft_model_module
from ascend_spec.engine import LLM


@pytest.fixture(scope="module")
def shelf(tmp_path_factory) -> Path:
    """Directories: target, draft, wider (another vocabulary), and heads of files that are no models."""
    path = tmp_path_factory.mktemp("models")
    save(checks.hf_draft("same"), path / "target")
    save(checks.hf_draft("other"), path / "draft")
    config = json.loads((path / "draft" / "config.json").read_text())
    for name, changes in {"wider": {"vocab_size": 96}, "no-weights": {}}.items():
        (path / name).mkdir()
        (path / name / "config.json").write_text(json.dumps({**config, **changes}))
    return path


def start(shelf: Path, draft: str, **changes) -> LLM:
    return LLM(
        checks.CausalLM.load(shelf / "target"),
        speculative_config=json.dumps(spec_config(3, model=str(shelf / draft), **changes)),
    )


@pytest.mark.parametrize("parallel", [False, True])
def test_a_configuration_is_enough(shelf, parallel):
    changes = {}
    if parallel:
        name_mask(shelf / "draft", pard_token=MASK)
        changes = {"parallel_drafting": True}
    llm = start(shelf, "draft", **changes)
    assert isinstance(llm.drafter, DraftModelDrafter)
    assert (llm.drafter.mask_token_id, llm.drafter.samples) == (MASK if parallel else None, False)
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [list(out.token_ids) for out in outputs] == [
        checks.greedy_reference(tuple(prompt), NEW) for prompt in PROMPTS
    ]
    assert llm.metrics.num_draft_tokens > 0


def test_sampling_is_configured_too(shelf):
    rule = {"ascend_spec": {"rejection_sample_method": "coupled"}}
    drafter = start(shelf, "draft", draft_sample_method="probabilistic", **rule).drafter
    assert (drafter.samples, drafter.is_coupled) == (True, True)


def name_mask(directory: Path, **fields) -> None:
    config = json.loads((directory / "config.json").read_text())
    for name in ("dflash_config", *draft_model_module.MASK_TOKEN_FIELDS):
        config.pop(name, None)
    (directory / "config.json").write_text(json.dumps({**config, **fields}))


def test_where_the_mask_token_is_looked_for(shelf):
    fields: dict = {}
    for name in reversed(["dflash_config", *draft_model_module.MASK_TOKEN_FIELDS]):
        token = 50 + len(fields)
        fields[name] = {"mask_token_id": token} if name == "dflash_config" else token
        name_mask(shelf / "draft", **fields)
        assert start(shelf, "draft", parallel_drafting=True).drafter.mask_token_id == token
    name_mask(shelf / "draft")
    with pytest.raises(
        ValueError, match=r"'parallel_drafting' was given, but the config.json of .*draft' has none of"
    ):
        start(shelf, "draft", parallel_drafting=True)
    name_mask(shelf / "draft", pard_token=64)
    with pytest.raises(ValueError, match="mask_token_id=64 was given; the draft model's ids are 0 to 63"):
        start(shelf, "draft", parallel_drafting=True)


def test_another_vocabulary_is_refused(shelf, monkeypatch):
    with pytest.raises(ConfigError, match="whose vocabulary has 96 tokens; the target's has 64"):
        start(shelf, "wider")
    # and again by the weights: of a GGUF file there is no config.json to be asked before
    target = checks.CausalLM.load(shelf / "target")
    wider = type(
        "Wider",
        (),
        {
            "info": checks.ModelInfo(
                1, (1,), (1,), 96, 64, (), checks.torch.float32, checks.torch.device("cpu")
            )
        },
    )
    monkeypatch.setattr("ascend_spec.models.CausalLM.load", lambda *args: wider)
    with pytest.raises(ValueError, match="whose vocabulary has 96 tokens; the target's has 64"):
        LLM(target, speculative_config=spec_config(3, model=str(shelf / "draft")))


def test_a_path_that_is_no_model(shelf):
    with pytest.raises(ConfigError, match=r"a directory with a config\.json"):
        start(shelf, "nothing-here")
    with pytest.raises(ValueError, match="no-weights"):
        start(shelf, "no-weights")


def check_larger(shelf: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        LLM(
            checks.CausalLM.load(shelf / "draft"),
            speculative_config=spec_config(2, model=str(shelf / "target")),
        )
    assert "times as large as the target's" in caplog.text


def test_a_draft_that_is_larger_than_the_target_is_warned_of(shelf, caplog, monkeypatch):
    check_larger(shelf, caplog)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        start(shelf, "draft")
    assert "as large as" not in caplog.text
    monkeypatch.setattr(config_module.ModelFacts, "layer_weights", None)
    with pytest.raises(AssertionError):
        check_larger(shelf, caplog)


def test_a_method_that_reserves_nothing_takes_no_drafter_with_kv():
    with pytest.raises(
        ValueError, match="a drafter with K/V of its own was given, but method 'ngram' reserves no"
    ):
        engine("near", 2, config={"method": "ngram", "model": None})
