"""The configuration: what is accepted, what it becomes, and what an error says."""

from __future__ import annotations

import json

import pytest

from ascend_spec.config import (
    SPECULATORS,
    ConfigError,
    SpeculativeConfig,
    load_speculative_config,
    speculator_config,
)

K = {"num_speculative_tokens": 4}


def test_none_is_no_speculation():
    assert load_speculative_config(None) is None


def test_text_and_dictionary_are_the_same():
    fields = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    config = load_speculative_config(fields)
    assert isinstance(config, SpeculativeConfig)
    assert load_speculative_config(json.dumps(fields)) == config
    assert (config.method, config.num_speculative_tokens) == ("ngram", 3)
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == (2, 4)
    assert config.ascend_spec.rejection_sample_method == "standard"


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"method": "ngram"},
        {"method": None},
        {"method": "[ngram]"},
        {"model": "ngram"},
        {"model": "[ngram]"},
        {"method": "ngram", "model": "ngram"},
        {"method": None, "model": None},
    ],
)
def test_ngram_is_meant(named):
    assert load_speculative_config({**K, **named}).method == "ngram"


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ({}, 5, 5),
        ({"prompt_lookup_min": 2}, 2, 2),
        ({"prompt_lookup_max": 7}, 7, 7),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 7}, 2, 7),
        ({"prompt_lookup_min": 3, "prompt_lookup_max": 3}, 3, 3),
        ({"prompt_lookup_min": None, "prompt_lookup_max": 6}, 6, 6),
    ],
)
def test_lookup_bounds(given, low, high):
    config = load_speculative_config({**K, **given})
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == (low, high)


def test_hyphens_are_underscores():
    config = load_speculative_config(
        {
            "num-speculative-tokens": 2,
            "prompt-lookup-max": 3,
            "ascend-spec": {"rejection-sample-method": "standard"},
        }
    )
    assert (config.num_speculative_tokens, config.prompt_lookup_max) == (2, 3)


def test_none_counts_as_not_given_at_every_depth():
    given = {**K, "prompt_lookup_max": None, "ascend_spec": {"rejection_sample_method": None}}
    assert load_speculative_config(given) == load_speculative_config(K)


def test_config_cannot_be_changed():
    config = load_speculative_config(K)
    with pytest.raises(ValueError):
        config.num_speculative_tokens = 9


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({}, ["'num_speculative_tokens' is missing", "an integer above 0", "Add it"]),
        ({"num_speculative_tokens": 0}, ["given as 0", "above 0"]),
        ({"num_speculative_tokens": "4"}, ["given as '4'", "an integer above 0"]),
        ({"num_speculative_tokens": True}, ["given as True"]),
        ({"num_speculative_tokens": 2.5}, ["given as 2.5"]),
        ({**K, "method": "magic"}, ["'method' was given as 'magic'", 'one of "ngram"']),
        ({**K, "method": 3}, ["'method' was given as 3"]),
        ({**K, "method": "eagle3", "model": "some/head"}, ["'eagle3'", 'one of "ngram"']),
        ({**K, "model": "some/head"}, ["'some/head'", "Remove 'model'"]),
        ({**K, "method": "ngram", "model": "some/head"}, ["'some/head'", "'ngram' uses none"]),
        ({**K, "prompt_lookup_min": 0}, ["'prompt_lookup_min' was given as 0", "above 0"]),
        ({**K, "prompt_lookup_max": -1}, ["'prompt_lookup_max' was given as -1"]),
        ({**K, "prompt_lookup_min": 5, "prompt_lookup_max": 4}, ["as 5", "as 4", "must not be larger"]),
        (
            {**K, "draft_tensor_parallel_size": 2},
            ["'draft_tensor_parallel_size' was given", "num_speculative_tokens"],
        ),
        ({**K, "ascend_spec": {"tree": 1}}, ["'ascend_spec.tree' was given", "rejection_sample_method"]),
        (
            {**K, "ascend_spec": {"rejection_sample_method": "block"}},
            ["'ascend_spec.rejection_sample_method' was given as 'block'", '"standard"'],
        ),
        ({**K, "ascend_spec": 3}, ["'ascend_spec' was given as 3", "a dictionary"]),
        ({**K, "num-speculative-tokens": 4}, ["'num_speculative_tokens' was given twice"]),
        ("{'method': 'ngram'}", ["not JSON", "single quotes"]),
        ("[1]", ["given [1]", "JSON object"]),
        ("", ["not JSON"]),
        ("[" * 100_000, ["not JSON"]),
        ('{"num_speculative_tokens": ' + "1" * 5000 + "}", ["not JSON", "1'..."]),
        (4, ["given 4", "JSON object"]),
    ],
)
def test_error_says_what_was_given_and_what_is_allowed(given, parts):
    with pytest.raises(ConfigError) as caught:
        load_speculative_config(given)
    message = str(caught.value)
    assert "\n" not in message
    assert "pydantic" not in message
    assert all(part in message for part in parts), message


def test_every_finding_is_reported():
    with pytest.raises(ConfigError) as caught:
        load_speculative_config({"num_speculative_tokens": 0, "prompt_lookup_max": 0, "colour": "red"})
    assert all(
        name in str(caught.value) for name in ("num_speculative_tokens", "prompt_lookup_max", "colour")
    )


def test_every_method_has_a_contract_of_its_name():
    config = load_speculative_config(K)
    for method in SPECULATORS:
        assert speculator_config(config.model_copy(update={"method": method})).method == method


def test_ngram_contract():
    contract = speculator_config(load_speculative_config(K))
    assert not contract.needs_host_tokens
    assert contract.num_lookahead_tokens == 0
