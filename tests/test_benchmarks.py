"""The benchmarks run, and write the JSON that readers rely on. Nothing is said about times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {"date", "device", "device_name", "cpu", "threads", "load_average_before", "versions"}
ENVIRONMENT |= {"cores_busy_with_other_work"}
VARIANTS = ["plain", "plain_no_prepack", "transformers", "ngram", "transformers_lookup"]


def run(script: str, output: Path, *options: str) -> dict:
    command = [sys.executable, str(ROOT / "benchmarks" / script), "--output", str(output), *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert set(result) >= ENVIRONMENT
    assert result["threads"] == 1
    assert {"python", "torch", "numba"} <= set(result["versions"])
    return result


def test_verify(tmp_path):
    options = ("--batch", "1", "3", "--vocab-size", "5000", "--repeats", "2", "--threads", "1")
    result = run("verify.py", tmp_path / "new" / "verify.json", *options)
    assert [(case["rule"], case["mode"], case["batch"]) for case in result["cases"]] == [
        (rule, mode, batch)
        for rule in ("standard", "block", "typical", "synthetic", "fly", "coupled")
        for mode in ("one-hot", "sampled", "greedy")
        for batch in (1, 3)
    ]
    for case in result["cases"]:
        assert case["rows"] == case["batch"] * 5
        assert case["verify_ms"] > 0
        assert case["softmax_ms"] > 0
        assert case["ratio"] == pytest.approx(case["verify_ms"] / case["softmax_ms"], rel=0.1, abs=1e-3)
        assert case["read_bytes"] == 4 * 5000 * case["rows"] * (1.8 if case["mode"] == "sampled" else 1)
        assert 1 <= case["mean_emitted"] <= 5


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    """A random model that reads bytes."""
    path = tmp_path_factory.mktemp("model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        initializer_range=0.5,  # some tokens are likelier than others
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def test_decode(tmp_path, model_path):
    options = ("--model", str(model_path), "--max-tokens", "6", "--prompts-per-kind", "1", "--threads", "1")
    result = run("decode.py", tmp_path / "decode.json", *options, "--max-model-len", "4096", "--repeats", "2")
    assert list(result["variants"]) == VARIANTS
    prepacked = [name for name in VARIANTS if result["variants"][name]["prepacked_linears"]]
    assert prepacked == ["plain", "ngram"]
    assert {"edit", "summary", "code", "chat"} <= set(result["by_kind"])
    ratios = set(result["ratios"])
    assert {"ngram / plain", "plain / transformers", "ngram / transformers lookup"} <= ratios
    for kind, group in result["by_kind"].items():
        assert group["prompts"] == 1, kind
        assert set(group["ratios"]) == ratios
        assert list(group["tokens_per_second"]) == VARIANTS
    for prompt in result["prompts"]:
        assert all(len(seconds) == 2 for seconds in prompt["seconds"].values())
        assert prompt["same_text"]
        assert set(prompt["output_tokens"].values()) == {6}


def test_same_texts(tmp_path, model_path):
    options = ("--model", str(model_path), "--texts", "32", "--max-tokens", "24", "--controls", "2")
    result = run("same_texts.py", tmp_path / "coupled.json", *options, "--threads", "1")
    assert result["differing"] == []
    assert result["accepted_drafts"] > 0
    result = run(
        "same_texts.py", tmp_path / "standard.json", *options, "--threads", "1", "--rule", "standard"
    )
    assert not all(text["tie"] for text in result["differing"]), "it would be noticed"


SUFFIX = ("--batch", "1", "3", "--length", "60", "--steps", "3")


def test_suffix(tmp_path):
    """Ours alone."""
    result = run("suffix_arctic.py", tmp_path / "suffix.json", *SUFFIX, "--ours-only")
    assert [(case["kind"], case["batch"]) for case in result["cases"]] == [
        (kind, batch) for kind in ("edit", "warm", "cold") for batch in (1, 3)
    ]
    for case in result["cases"]:
        assert min(case["ours_add_ms"], case["ours_speculate_ms"], case["propose_ms"]) > 0
        assert case["tokens_per_step"]["ours"] >= 1
        assert "native_add_ms" not in case
    assert result["cases"][0]["tokens_per_step"]["ours"] > 1, "an edit goes on like its prompt"


@pytest.mark.skipif(not (ROOT / ".venv-arctic/.complete").exists(), reason="needs make setup-arctic")
def test_suffix_beside_arctic(tmp_path):
    result = run("suffix_arctic.py", tmp_path / "suffix.json", *SUFFIX)
    for case in result["cases"]:
        ours, native = (case[f"{name}_add_ms"] + case[f"{name}_speculate_ms"] for name in ("ours", "native"))
        assert case["ours / native"] == pytest.approx(ours / native, rel=0.01, abs=1e-3)
        assert case["tokens_per_step"]["arctic"] == case["tokens_per_step"]["native"]
        assert 0 <= case["rows_that_differ"] <= 0.5
