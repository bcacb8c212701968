"""What a user writes: every way of writing it, and what is read. What is refused: ``test_config_wrong``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ascend_spec.config import ConfigError, SpeculativeConfig, load, load_speculative_config

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
FULL = {
    **NGRAM,
    "num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 32, 0]],
    "rejection_sample_method": "synthetic",
    "synthetic_acceptance_rates": [1, 0.5, 0],
    "enforce_eager": True,
    "draft_load_config": {"load_format": "dummy", "some-key": None},
    "ascend_spec": {"match": "recent", "posterior_alpha": 0.5},
}
YAML = """
# what a file may look like
method: ngram
num-speculative-tokens: 3
prompt-lookup-min: 2
prompt_lookup_max: 4
num_speculative_tokens_per_batch_size:
  - [1, 8, 3]
  - [9, 32, 0]
rejection_sample_method: synthetic
synthetic_acceptance_rates: [1, 0.5, 0]
enforce_eager: true
draft_load_config: {load_format: dummy, some-key: null}
ascend-spec:
  match: recent
  posterior-alpha: 0.5
"""


def read(value: Any, **separate: Any) -> SpeculativeConfig:
    config = load_speculative_config(value, **separate)
    assert config is not None
    return config


def hyphened(fields: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in fields.items()}


# ---- ways of writing
def test_none_is_no_speculation() -> None:
    assert load_speculative_config(None) is None
    assert load_speculative_config(None, spec_method=None, spec_model=None, spec_tokens=None) is None


def test_a_dictionary() -> None:
    config = read(FULL)
    assert (config.method, config.num_speculative_tokens) == ("ngram", 3)
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == (2, 4)
    assert config.num_speculative_tokens_per_batch_size == ((1, 8, 3), (9, 32, 0))
    assert config.synthetic_acceptance_rates == (1, 0.5, 0)
    assert config.enforce_eager is True
    assert config.draft_load_config == {"load_format": "dummy", "some-key": None}, "not ours: left as it is"
    assert config.ascend_spec.match == "recent"
    assert config.ascend_spec.posterior_alpha == 0.5
    assert config.rule == "synthetic"


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(FULL),
        json.dumps(FULL, indent=2),
        f"  {json.dumps(FULL)}\n",
        YAML,
        json.dumps(hyphened({**FULL, "ascend_spec": hyphened(FULL["ascend_spec"])})),
        str(FULL).replace("True", "true").replace("None", "null"),  # quotes of the wrong kind: YAML
        json.dumps(FULL).replace('"', ""),  # quotes that a shell took away: YAML too
    ],
    ids=["json", "indented", "padded", "yaml", "hyphens", "single quotes", "no quotes"],
)
def test_text_is_read_as_the_dictionary_it_says(text: str) -> None:
    assert read(text) == read(FULL)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", json.dumps(FULL)),
        ("config.yaml", YAML),
        ("config.yml", json.dumps(FULL)),
        ("with a blank.json", "\ufeff" + json.dumps(FULL)),
        ("marked.yaml", "\ufeff" + YAML),
    ],
)
def test_a_file(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read(str(tmp_path / name)) == read(FULL)
    assert read(f" {tmp_path / name}\n") == read(FULL)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read(f"~/{name}") == read(FULL)
    monkeypatch.chdir(tmp_path)
    assert read(name) == read(FULL)


@pytest.mark.parametrize("text", ["", "[1]", "ngram", "\n"])
def test_a_file_that_holds_something_else_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(
        ConfigError, match=r"The file '.*config.yaml' was given, which is no JSON object\. Write"
    ):
        load_speculative_config(str(tmp_path / "config.yaml"))


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    for path, reason in ((tmp_path / "config.json", "utf-8"), (tmp_path, "Is a directory")):
        named = path if path.suffix else path.rename(tmp_path.with_suffix(".json"))
        with pytest.raises(ConfigError, match=rf"which cannot be read \(.*{reason}"):
            load_speculative_config(str(named))


# ---- keys
def test_hyphens_are_underscores_at_every_depth() -> None:
    config = read({"method": "ngram", "num-speculative-tokens": 2, "ascend-spec": {"posterior-alpha": 0.5}})
    assert config.num_speculative_tokens == 2
    assert config.ascend_spec.posterior_alpha == 0.5


def test_none_counts_as_not_given_at_every_depth() -> None:
    given = {**NGRAM, "model": None, "xpress_topc": None, "ascend_spec": {"rejection_sample_method": None}}
    assert read(given) == read(NGRAM)
    assert read({**NGRAM, "ascend_spec": None}) == read(NGRAM)
    assert read({**NGRAM, "tensor_parallel_size": None}) == read(NGRAM), "a field of vLLM's own"
    assert read({**NGRAM, "num-speculative-tokens": None}) == read(NGRAM), "given once, and once not given"


def test_defaults_may_be_given() -> None:
    defaults = {
        name: field.get_default()
        for name, field in SpeculativeConfig.model_fields.items()
        if name != "ascend_spec"
    }
    ours = SpeculativeConfig().ascend_spec.model_dump()
    assert read({**defaults, **NGRAM, "ascend_spec": ours}) == read(NGRAM)


def test_auto_is_no_attention_backend_and_case_does_not_matter() -> None:
    assert read({**NGRAM, "attention_backend": "auto"}).attention_backend is None
    assert read({**NGRAM, "attention_backend": "flash_attn"}).attention_backend == "FLASH_ATTN"


# ---- the older separate arguments
def test_separate_arguments() -> None:
    assert read(None, spec_method="ngram", spec_tokens=3) == read(
        {"method": "ngram", "num_speculative_tokens": 3}
    )
    assert read(None, spec_model="ngram", spec_tokens=3).model == "ngram"
    assert read({"prompt_lookup_min": 2}, spec_method="ngram", spec_tokens=3).prompt_lookup_min == 2
    assert read('{"prompt_lookup_min": 2}', spec_method="ngram", spec_tokens=3).prompt_lookup_min == 2


def test_a_separate_argument_beside_a_field_that_is_not_given() -> None:
    assert read({"method": None, "num_speculative_tokens": 3}, spec_method="ngram").method == "ngram"


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("method", "spec_method", "ngram"),
        ("num_speculative_tokens", "spec_tokens", 3),
        ("model", "spec_model", "x"),
    ],
)
def test_both_ways_exclude_each_other(name: str, argument: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load_speculative_config({**NGRAM, name: value}, **{argument: value})
    assert [finding.field for finding in caught.value.findings] == [name]
    assert argument in str(caught.value)


# ---- what must be said
def test_neither_method_nor_model_is_an_error() -> None:
    with pytest.raises(ConfigError, match="Neither 'method' nor 'model' was given") as caught:
        load_speculative_config({"num_speculative_tokens": 3})
    assert [finding.field for finding in caught.value.findings] == ["model"]


@pytest.mark.parametrize(
    "named", [{"method": "ngram"}, {"method": "[ngram]"}, {"model": "ngram"}, {"model": "[ngram]"}]
)
def test_one_of_them_is_enough(named: dict[str, str]) -> None:
    read({**named, "num_speculative_tokens": 3})


def test_lookup_bounds_may_be_equal() -> None:
    read({**NGRAM, "prompt_lookup_min": 4})


# ---- what is read
def test_a_configuration_cannot_be_changed() -> None:
    config = read(FULL)
    with pytest.raises(ValidationError):
        config.num_speculative_tokens = 9  # type: ignore[misc]
    with pytest.raises(ValidationError):
        config.ascend_spec.match = "earliest"  # type: ignore[misc]


def test_the_input_is_neither_changed_nor_held() -> None:
    given = json.loads(json.dumps(FULL))
    config = read(given)
    assert given == FULL
    given["num_speculative_tokens_per_batch_size"][0][2] = 99
    given["synthetic_acceptance_rates"].clear()
    given["ascend_spec"]["match"] = "earliest"
    given["draft_load_config"].clear()
    assert config == read(FULL)


def test_a_configuration_is_read_as_itself() -> None:
    config = read(FULL)
    assert read(config.model_dump()) == config
    assert read(config.model_dump(exclude_defaults=True)) == config
    assert read(config.model_dump_json()) == config


def test_reading_a_file_only_by_its_suffix_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "SUFFIXES", (".json",))
    with pytest.raises(ConfigError):
        test_a_file("config.yaml", YAML, tmp_path, monkeypatch)
