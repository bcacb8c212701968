"""The command line: what it prints, and how every kind of bad input ends."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import tiny_models
import transformers
from engine_fixtures import ScriptedModel
from rich.console import Console
from smollm2 import smollm2_path
from test_models_loading import write_gguf
from tokenizers import Tokenizer, models, pre_tokenizers

from ascend_spec.cli import main
from ascend_spec.cli.demo import DEFAULT_CONFIG
from ascend_spec.cli.hardware import VERIFIED
from ascend_spec.cli.race import Lane, Result, race, summarize
from ascend_spec.cli.view import LiveView, View
from ascend_spec.engine import LLM
from ascend_spec.types import SamplingParams
from ascend_spec_ops import selection

NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}'
PROMPT = "w5 w6 w7 w8 w5 w6 w7"
LONG = "w5 " * 200
FIGURES = {
    "plain_tokens_per_s",
    "spec_tokens_per_s",
    "speedup",
    "mean_accepted_length",
    "identical",
    "acceptance_per_position",
}


@pytest.fixture(autouse=True)
def quiet_transformers():
    """The command line sets this by the environment, which comes too late when tests import it first."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def save_tokenizer(path: Path) -> None:
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(160)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(path)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("tiny")
    tiny_models.build(tiny_models.config("llama")).save_pretrained(path)
    save_tokenizer(path)
    return str(path)


@pytest.fixture
def fails(capsys):
    """Runs a command that must end in one paragraph, which holds all of some words, and exit code 2."""

    def run(*argv: str, says: tuple[str, ...]) -> None:
        assert main(argv) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("ascend-spec: error: ")
        assert err.count("\n") == 1
        for words in says:
            assert words in err

    return run


# ------------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{", ("'{' was given", "JSON", '"method"')),
        ("[1]", ("[1]", "JSON object")),
        ('{"method": "crystal-ball", "num_speculative_tokens": 3}', ("'crystal-ball'", '"ngram"')),
        ('{"method": "ngram", "num_speculative_tokens": 0}', ("given as 0", "integer from 1")),
        ('{"method": "ngram", "num_speculative_tokens": -2}', ("given as -2", "integer from 1")),
        ('{"method": "ngram", "num_speculative_tokens": "many"}', ("'many'", "integer from 1")),
        (
            '{"model": "ngram", "num_speculative_tokens": 3, "prompt_lookup": 2}',
            ("'prompt_lookup'", "prompt_lookup_m"),
        ),
    ],
)
@pytest.mark.parametrize("command", [("demo",), ("generate", "--model", "none", "--prompt", "x")])
def test_bad_config(fails, command, config, says):
    fails(*command, "--speculative-config", config, says=says)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["sing"], ("'sing'", "demo")),
        (["demo", "--max-tokens", "0"], ("'0' was given", "1 or more")),
        (["demo", "--max-tokens", "many"], ("'many' was given", "1 or more")),
        (["demo", "--prompts-per-kind", "9"], ("9", "1, 2, 3")),
        (["generate", "--prompt", "x"], ("--model",)),
        (["generate", "--model", "x"], ("--prompt", "--prompts-file")),
        (["generate", "--model", "x", "--prompt", "x", "--prompts-file", "y"], ("not allowed with",)),
        (["generate", "--model", "x", "--prompt", "x", "--num-kv-blocks", "0"], ("'0' was given",)),
    ],
)
def test_bad_usage(fails, argv, says):
    fails(*argv, says=says)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--prompt", ""], ("empty prompt", "at least one token")),
        (["--prompt", LONG], ("200 tokens", "at most 127", "shorten")),
        (["--prompt", PROMPT, "--max-model-len", "999"], ("999", "2 to 128")),
        (["--prompt", PROMPT, "--num-kv-blocks", "2"], ("2 blocks of 16", "raise num_kv_blocks")),
        (["--prompt", PROMPT, "--temperature", "-1"], ("temperature=-1.0", "0 (greedy)")),
        (["--prompt", PROMPT, "--min-tokens", "999"], ("min_tokens=999",)),
        (["--prompt", PROMPT, "--stop", ""], ("stop=('',)", "not empty")),
        (["--prompt", PROMPT, "--chat"], ("chat template", "drop --chat")),
        (["--prompts-file", "missing.txt"], ("missing.txt", "No such file")),
    ],
)
def test_bad_request(fails, tiny, options, says):
    fails("generate", "--model", tiny, *options, says=says)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("\n \n", ("holds no prompt",)),
        ('{"prompt": "w5"}\n{"prompt": 5}\n', ("line 2", "'prompt'")),
        ('{"prompt": "w5"}\n{"prompt": \n', ("line 2", "JSON lines")),
        ('{"text": "w5"}\n', ("line 1", "'prompt'")),
    ],
)
def test_bad_prompts_file(fails, tmp_path, content, says):
    (tmp_path / "prompts").write_text(content)
    fails("generate", "--model", "none", "--prompts-file", str(tmp_path / "prompts"), says=says)


def test_bad_model(fails, tmp_path):
    def check(path: Path, *says: str) -> None:
        fails("generate", "--model", str(path), "--prompt", PROMPT, says=(str(path), *says))

    check(tmp_path / "nowhere", "does not exist", "Download")
    bare = tmp_path / "bare"
    tiny_models.build(tiny_models.config("llama")).save_pretrained(bare)
    check(bare, "has no tokenizer", "tokenizer.json")
    check(tmp_path, "without config.json")
    save_tokenizer(bare)
    weights = bare / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    check(bare, "could not be read", "ownload it again")
    bare.joinpath("config.json").unlink()
    check(bare, "without config.json")
    whole = tmp_path / "whole.gguf"
    write_gguf(whole, tiny_models.build(tiny_models.config("llama")))
    cut = tmp_path / "cut.gguf"
    for size in (6, 100, whole.stat().st_size // 2):
        cut.write_bytes(whole.read_bytes()[:size])
        check(cut, f"{size} bytes", "download it again")


@pytest.mark.parametrize("name", ["mamba", "t5"])
def test_refused_architecture(fails, tmp_path, name):
    sizes = {
        "mamba": {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 160},
        "t5": {"d_model": 16, "num_layers": 1, "num_heads": 1, "d_kv": 16, "d_ff": 16, "vocab_size": 160},
    }[name]
    config = transformers.AutoConfig.for_model(name, **sizes)
    kind = {"mamba": transformers.AutoModelForCausalLM, "t5": transformers.AutoModelForSeq2SeqLM}[name]
    kind.from_config(config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    fails("generate", "--model", str(tmp_path), "--prompt", PROMPT, says=(name, "paged K/V"))


# -------------------------------------------------------------------------------------------------- generate
def json_lines(capsys, *argv: str) -> tuple[int, list[dict]]:
    code = main(["generate", *argv, "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_text_is_streamed_and_the_same_with_speculation(capsys, tiny):
    argv = ["--model", tiny, "--prompt", PROMPT, "--max-tokens", "20"]
    assert main(["generate", *argv]) == 0
    plain, _ = capsys.readouterr()
    code, lines = json_lines(capsys, *argv, "--speculative-config", NGRAM)
    assert code == 0
    request, last = lines
    assert set(request) == {"prompt", "text", "token_ids", "finish_reason", "error"}
    assert request["text"] + "\n" == plain
    assert (request["prompt"], request["finish_reason"], request["error"]) == (PROMPT, "length", None)
    assert len(request["token_ids"]) == 20
    assert last["metrics"]["vllm:spec_decode_num_drafts"] > 0


def test_sampling_options(capsys, tiny):
    argv = ["--model", tiny, "--prompt", PROMPT, "--max-tokens", "12"]
    ids = [
        json_lines(capsys, *argv, "--temperature", "1", "--seed", seed)[1][0]["token_ids"]
        for seed in ("1", "1", "2")
    ]
    assert ids[0] == ids[1] != ids[2]
    greedy = json_lines(capsys, *argv)[1][0]["text"].split()
    stopped = json_lines(capsys, *argv, "--stop", greedy[2])[1][0]
    assert stopped["finish_reason"] == "stop"
    assert len(stopped["token_ids"]) <= 3
    delayed = json_lines(capsys, *argv, "--stop", greedy[2], "--min-tokens", "5")[1][0]
    assert len(delayed["token_ids"]) > 5


@pytest.mark.parametrize("as_json_lines", [False, True])
def test_a_bad_prompt_in_a_file_fails_alone(capsys, tmp_path, tiny, as_json_lines):
    prompts = [PROMPT, LONG.strip(), "w9 w9"]
    lines = [json.dumps({"prompt": prompt}) if as_json_lines else prompt for prompt in prompts]
    (tmp_path / "prompts").write_text("\n\n".join(lines) + "\n")
    argv = ["--model", tiny, "--prompts-file", str(tmp_path / "prompts"), "--max-tokens", "5"]
    code, (*requests, last) = json_lines(capsys, *argv)
    assert code == 1
    assert [request["prompt"] for request in requests] == prompts
    assert [request["finish_reason"] for request in requests] == ["length", "error", "length"]
    assert "200 tokens" in requests[1]["error"]
    assert "metrics" in last
    assert main(["generate", *argv]) == 1
    out, err = capsys.readouterr()
    assert all(request["text"] in out for request in requests)
    assert "200 tokens" in err


def test_chat_template(capsys, tmp_path, tiny):
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    tokenizer.chat_template = "w1 {{ messages[0]['content'] }} w2"
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((Path(tiny) / name).read_bytes())
    tokenizer.save_pretrained(tmp_path)
    chat = json_lines(capsys, "--model", str(tmp_path), "--prompt", "w5 w6", "--chat", "--max-tokens", "9")
    written = json_lines(capsys, "--model", tiny, "--prompt", "w1 w5 w6 w2", "--max-tokens", "9")
    plain = json_lines(capsys, "--model", tiny, "--prompt", "w5 w6", "--max-tokens", "9")
    assert chat[1][0]["token_ids"] == written[1][0]["token_ids"] != plain[1][0]["token_ids"]


@pytest.fixture
def endless(tmp_path):
    """A process that has begun to write and would go on for long."""
    config = tiny_models.config("llama")
    config.max_position_embeddings = 50_000
    tiny_models.build(config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    # jobs that a shell runs in the background ignore SIGINT, and what they start inherits that
    listen = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{listen}; from ascend_spec.cli import main; sys.exit(main())"]
    options = ["generate", "--model", tmp_path, "--prompt", PROMPT, "--max-tokens", "40000"]
    with subprocess.Popen(
        [*command, *options, "--num-kv-blocks", "3200"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.read(1)
        yield process
        process.kill()


def test_ctrl_c_ends_in_one_line(endless):
    endless.send_signal(signal.SIGINT)
    _, err = endless.communicate(timeout=30)
    assert (endless.returncode, err.decode()) == (130, "\nascend-spec: interrupted\n")


def test_a_closed_pipe_is_no_error(endless):
    endless.stdout.close()
    assert endless.stderr.read().decode() == ""
    assert endless.wait(timeout=30) == 0


# ------------------------------------------------------------------------------------------------------ demo
def test_demo_on_the_real_model(capsys):
    smollm2_path()  # skips without it
    assert main(["demo", "--json", "--max-tokens", "8", "--prompts-per-kind", "1"]) == 0
    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert set(figures) == FIGURES | {"kinds"}
    assert set(figures["kinds"]) == {"edit", "summary", "code", "chat"}
    for row in (figures, *figures["kinds"].values()):
        assert set(row) - {"kinds"} == FIGURES
        assert row["identical"] is True
        assert row["plain_tokens_per_s"] > 0
        assert row["spec_tokens_per_s"] > 0
    assert figures["mean_accepted_length"] > 1
    assert len(figures["acceptance_per_position"]) == DEFAULT_CONFIG["num_speculative_tokens"]
    assert "loading" in err.splitlines()[2]
    assert "the two texts are identical" in err


def test_demo_with_a_model_too_small_for_its_prompts(fails, capsys, tmp_path, tiny):
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((Path(tiny) / name).read_bytes())
    tokenizer.save_pretrained(tmp_path)
    assert main(["demo", "--model", str(tmp_path), "--json"]) == 2
    out, _ = capsys.readouterr()
    answer = json.loads(out)
    assert not answer["ok"]
    assert "at most 127 fit" in answer["errors"][0]["message"]


def scripted(script: list[int]) -> LLM:
    return LLM(ScriptedModel(script, vocab_size=32, max_model_len=64))


@pytest.mark.parametrize(("other", "identical"), [(4, True), (5, False)])
def test_a_race_compares_the_tokens(other, identical):
    lanes = Lane("plain", scripted([1, 2, 3, 4, 6, 7])), Lane("speculative", scripted([1, 2, 3, other, 6, 7]))
    result = race(*lanes, [1, 2], SamplingParams(temperature=0.0, max_tokens=4))
    assert lanes[0].token_ids == [3, 4, 6, 7]
    assert result.identical is identical
    assert result.num_tokens == (4, 4)
    assert min(result.seconds) > 0


def test_a_race_counts_its_own_drafts_only():
    script = [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 9]
    spec = Lane("speculative", LLM(ScriptedModel(script, 32, 64), speculative_config=NGRAM))
    params = SamplingParams(temperature=0.0, max_tokens=6)
    first, second = (race(Lane("plain", scripted(script)), spec, script[:6], params) for _ in range(2))
    # the prompt's step gives one token, a draft of three and its bonus four; the last step needs no draft
    for result in (first, second):
        assert (result.num_drafts, result.num_accepted_per_pos) == (1, (1, 1, 1))


def test_summary_of_results():
    figures = summarize(
        [
            Result((30, 30), (3.0, 1.0), True, num_drafts=10, num_accepted_per_pos=(8, 4)),
            Result((10, 10), (1.0, 1.0), False, num_drafts=10, num_accepted_per_pos=(2,)),
        ]
    )
    assert figures == {
        "plain_tokens_per_s": 10.0,
        "spec_tokens_per_s": 20.0,
        "speedup": 2.0,
        "mean_accepted_length": 1.7,
        "identical": False,
        "acceptance_per_position": [0.5, 0.2],
    }


@dataclass
class Shown:
    name: str = "speculative"
    token_ids: tuple[int, ...] = (1, 2)
    pieces: tuple[tuple[str, bool], ...] = (("drawn ", False), ("[drafted]", True))
    tokens_per_s: float = 12.5


def test_live_view_colours_accepted_drafts():
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80, height=24)
    view = LiveView(console)
    with view.prompt("edit 1 of 1", Shown("plain"), Shown()):
        view.update()
    picture = console.file.getvalue()
    assert "\x1b[32m[drafted]\x1b[0m" in picture
    assert "\x1b[32mdrawn" not in picture
    assert "speculative: 12.5 tokens/s" in picture
    assert "2 tokens" in picture


def test_plain_view_writes_lines():
    console = Console(file=io.StringIO(), width=40)
    view = View(console)
    with view.prompt("edit 1 of 1", Shown("plain"), Shown()):
        view.update()
    assert console.file.getvalue() == (
        "\n[edit 1 of 1]\ndrawn [drafted]\nplain: 12.5 tokens/s, speculative: 12.5 tokens/s\n"
    )


# ---------------------------------------------------------------------------------------------------- doctor
def test_doctor(capsys):
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["versions"]["torch"] != "not installed"
    rows = {(row["op"], row["device"], row["implementation"]): row["status"] for row in facts["selection"]}
    assert {op for op, _, _ in rows} == set(selection.table)
    assert rows["ngram_match", "cpu", "numba"] == "available"
    for (_, device, _), status in rows.items():
        assert status.startswith("available") == (facts["devices"][device] != "none")
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "ngram_match" in text
    assert "Ascend 910B3" in text


def test_doctor_says_why_an_implementation_is_missing(capsys, monkeypatch):
    broken = selection.Implementation("broken", "ascend_spec_ops.no_such_module:function")
    monkeypatch.setitem(selection.table["verify"], "cpu", [broken])
    assert main(["doctor", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["selection"]
    status = next(row["status"] for row in rows if row["implementation"] == "broken")
    assert status.startswith("unavailable: No module named")


def test_the_readme_says_what_doctor_says():
    readme = (Path(__file__).parents[1] / "README.md").read_text().replace("**", "")
    for target, what in VERIFIED:
        assert f"| {target} | {what} |" in readme
