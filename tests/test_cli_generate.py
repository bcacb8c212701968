"""Configs on the command lines of ``generate`` and ``demo``, and small courtesies of all commands."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
import tiny_models
from test_cli import quiet_transformers, save_tokenizer  # noqa: F401
from test_cli_config import run

from ascend_spec import __version__
from ascend_spec.cli import inputs, main
from ascend_spec.drafters import NgramDrafter


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("tiny")
    tiny_models.build(tiny_models.config("llama")).save_pretrained(path)
    save_tokenizer(path)
    return str(path)


def test_generate_says_how_it_went(capsys, tmp_path, tiny):
    file = tmp_path / "drafts.json"
    file.write_text('{"prompt_lookup_max": 3, "prompt_lookup_min": 1, "suffix_decoding_max_tree_depth": 9}')
    argv = ["generate", "--model", tiny, "--prompt", "w5 w6 w7 w5 w6", "--max-tokens", "20"]
    code, plain, err = run(capsys, *argv)
    assert code == 0
    assert re.fullmatch(r"20 tokens in \d+\.\d\d s, \d+\.\d tokens/s\n", err)
    spec = ["--speculative-config", file, "--spec-method", "ngram", "--spec-tokens", "4"]
    code, out, err = run(capsys, *argv, *spec)
    assert (code, out) == (0, plain)
    warning, line = err.splitlines()
    assert warning.startswith("ascend-spec: warning: 'suffix_decoding_max_tree_depth' has no effect")
    accepted = r"\d+% of \d+ draft tokens accepted, \d\.\d\d tokens a draft"
    assert re.fullmatch(rf"20 tokens in .* tokens/s; {accepted}", line)
    code, _, err = run(capsys, *argv, *spec, "--json")
    assert (code, err) == (0, warning + "\n")


def test_a_drafter_that_may_raise_gives_a_line(capsys, monkeypatch, tiny):
    def fails(self, batch):
        raise RuntimeError("no idea")

    monkeypatch.setattr(NgramDrafter, "propose", fails)
    argv = ["generate", "--model", tiny, "--prompt", "w5 w6", "--max-tokens", "4", "--speculative-config"]
    spec = {"method": "ngram", "num_speculative_tokens": 2, "ascend_spec": {"on_error": "raise"}}
    code, _, err = run(capsys, *argv, json.dumps(spec))
    assert code == 2
    assert "generation failed with RuntimeError: no idea; 'ascend_spec.on_error' is" in err
    assert "Traceback" not in err
    code, out, _ = run(capsys, *argv, json.dumps(spec), "--json")
    assert code == 2
    assert json.loads(out)["ok"] is False
    assert run(capsys, *argv, json.dumps({**spec, "ascend_spec": {}}))[0] == 0


def test_the_size_of_a_step_can_be_raised(capsys, tiny):
    """As the error about it says."""
    argv = [
        "generate",
        "--model",
        tiny,
        "--prompt",
        "w5 w6 w7",
        "--max-tokens",
        "3",
        "--max-num-batched-tokens",
    ]
    spec = ["--spec-method", "ngram", "--spec-tokens", "20"]
    code, out, err = run(capsys, *argv, "20", *spec)
    assert (code, out) == (2, "")
    assert "raise max_num_batched_tokens" in err
    code, plain, _ = run(capsys, *argv, "20")
    assert code == 0
    assert run(capsys, *argv, "21", *spec)[:2] == (0, plain)


@pytest.mark.parametrize("command", [["demo"], ["generate", "--model", "none", "--prompt", "x"]])
def test_the_engine_refuses_before_the_model_is_read(capsys, command):
    config = '{"method": "self_speculative", "num_speculative_tokens": 3, "kv_cache_dtype": "fp8"}'
    code, out, err = run(capsys, *command, "--speculative-config", config)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert len(lines) == 2
    assert "'self_speculative'" in lines[0]
    assert "'kv_cache_dtype'" in lines[1]


def check_a_bad_prompt_is_named_by_its_line(capsys, tmp_path, tiny):
    file = tmp_path / "prompts"
    file.write_text("w5 w6\n\n\n" + "w5 " * 200 + "\nw7\n")
    code, _, err = run(capsys, "generate", "--model", tiny, "--prompts-file", file, "--max-tokens", "2")
    assert code == 1
    assert "ascend-spec: error: line 4: prompt 'w5 w5" in err
    # a separator that JSON allows inside a text, and an editor does not end a line at
    file.write_text('{"prompt": "w5\u2028w6"}\n\n{"prompt": 7}\n', encoding="utf-8")
    code, _, err = run(capsys, "generate", "--model", tiny, "--prompts-file", file)
    assert code == 2
    assert "line 3 is '{\"prompt\": 7}'" in err


def test_a_bad_prompt_is_named_by_its_line(capsys, tmp_path, tiny):
    check_a_bad_prompt_is_named_by_its_line(capsys, tmp_path, tiny)


def test_without_a_command(capsys):
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    for command in ("demo", "generate", "check-config", "methods", "doctor"):
        assert re.search(rf"^ +{command}\b", err, flags=re.MULTILINE)


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"ascend-spec {__version__}\n"


# ----------------------------------------------------------------------------------------------------- mutants
def _blank_lines_do_not_count(monkeypatch):
    read = inputs.read_prompts
    monkeypatch.setattr(inputs, "read_prompts", lambda path: dict(enumerate(read(path).values(), 1)))


def _lines_end_at_every_separator(monkeypatch):
    class Path(pathlib.Path(".").__class__):
        def read_text(self, *args, **kwargs):
            return "\n".join(super().read_text(*args, **kwargs).splitlines())

    monkeypatch.setattr(inputs, "Path", Path)


@pytest.mark.parametrize("mutate", [_blank_lines_do_not_count, _lines_end_at_every_separator])
def test_mutants_are_found(monkeypatch, capsys, tmp_path, tiny, mutate):
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        check_a_bad_prompt_is_named_by_its_line(capsys, tmp_path, tiny)
