"""``ascend-spec suffix build``: a memory from text, which an engine begins with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_models
from test_cli import quiet_transformers, save_tokenizer  # noqa: F401

from ascend_spec.cli import main
from ascend_spec.drafters import suffix_memory


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("tiny")
    tiny_models.build(tiny_models.config("llama")).save_pretrained(path)
    save_tokenizer(path)
    return str(path)


def test_a_memory_from_text(capsys, tmp_path, tiny):
    texts = [tmp_path / "one", tmp_path / "two"]
    for file, text in zip(texts, ("w5 w6 w7", "w8 w9"), strict=True):
        file.write_text(text)
    output = tmp_path / "memory"
    argv = ["suffix", "build", "--corpus", *map(str, texts), "--model", tiny, "--output", str(output)]
    assert main([*argv, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["num_outputs"], said["num_tokens"]) == (2, 5)
    vocab_size = json.loads((Path(tiny) / "config.json").read_text())["vocab_size"]
    tokenizer = suffix_memory.Tokenizer.of_model(tiny, vocab_size)
    assert tokenizer.vocabulary is not None
    assert [len(each) for each in suffix_memory.load(output, tokenizer)] == [3, 2]

    content = output.read_bytes()
    assert main(argv) == 2  # the file is there
    assert "which exists" in capsys.readouterr().err
    assert output.read_bytes() == content

    config = json.dumps({"method": "suffix", "ascend_spec": {"suffix_memory_path": str(output)}})
    generate = ["generate", "--model", tiny, "--prompt", "w5 w6", "--max-tokens", "8"]
    assert main(generate) == 0
    plain = capsys.readouterr().out
    assert main([*generate, "--speculative-config", config]) == 0
    assert capsys.readouterr().out == plain
    assert len(suffix_memory.load(output, tokenizer)) == 3  # the answer is in it now


def test_bad_input(capsys, tmp_path, tiny):
    bad = tmp_path / "bad"
    bad.write_bytes(b"\xff\xfe\xff")
    for corpus, model, words in (
        ("none", tiny, "none"),
        (bad, tiny, "cannot be read"),
        (bad, "none", "none"),
    ):
        argv = ["suffix", "build", "--corpus", str(corpus), "--model", model, "--output", str(tmp_path / "m")]
        assert main(argv) == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "m").exists()
