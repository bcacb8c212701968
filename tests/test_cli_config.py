"""The command ``check-config``: what it prints, what it takes, and how every kind of bad input ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import MISSING, fields, replace
from inspect import signature

import pytest
from config_fixtures import Checkpoints

from ascend_spec.cli import check_config, generate, main, report
from ascend_spec.cli.errors import CommandError
from ascend_spec.config import BUILT_IN, ConfigError, TargetConfig, load_speculative_config, resolve

NGRAM = '{"method": "ngram", "num_speculative_tokens": 3}'
RANGES = [[1, 8, 4], [9, 32, 3], [33, 128, 2]]


@pytest.fixture
def shelf(tmp_path):
    return Checkpoints(tmp_path)


@pytest.fixture
def example(shelf):
    """An EAGLE-3 head with K by batch size and a quantised head, as text; and its target."""
    config = {
        "method": "eagle3",
        "model": shelf["eagle3"],
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": RANGES,
        "draft_lm_head_quantization": "fp8",
        "draft_tensor_parallel_size": 1,
        "disable_eagle_block_drop": False,
    }
    return json.dumps(config), shelf["llama"]


def run(capsys, *argv: str) -> tuple[int, str, str]:
    code = main([str(word) for word in argv])
    return (code, *capsys.readouterr())


def checked(capsys, *argv: str) -> dict:
    code, out, err = run(capsys, "check-config", *argv, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def errors(capsys, *argv: str) -> list[dict[str, str]]:
    """Of a config that is refused: the same on stderr, one a line, as in the JSON object."""
    code, out, err = run(capsys, "check-config", *argv, "--json")
    assert (code, err) == (2, "")
    refusal = json.loads(out)
    assert set(refusal) == {"ok", "errors"}
    assert refusal["ok"] is False
    assert all(set(found) == {"field", "message"} for found in refusal["errors"])
    code, out, err = run(capsys, "check-config", *argv)
    assert (code, out) == (2, "")
    assert err.splitlines() == [f"ascend-spec: error: {found['message']}" for found in refusal["errors"]]
    return refusal["errors"]


# -------------------------------------------------------------------------------------------------- the report
OPTIONS = ["-tp", "2", "--max-num-seqs", "128", "--max-num-batched-tokens", "2048", "--runner", "v2"]
OPTIONS += ["--graph-mode", "full", "--enable-prefix-caching", "--dtype", "bfloat16"]


def check_the_worked_example(capsys, example):
    config, target = example
    found = checked(capsys, config, "--model", target, *OPTIONS)
    plan = resolve(
        load_speculative_config(config),
        TargetConfig.from_directory(
            target,
            tensor_parallel_size=2,
            max_num_seqs=128,
            max_num_batched_tokens=2048,
            runner="v2",
            graph_mode="full",
            enable_prefix_caching=True,
            dtype="bfloat16",
        ),
    )
    assert found["method"]["name"] == "eagle3"
    assert found["method"]["contract"] == "Eagle3Config"
    assert found["method"]["why"] == list(plan.why)
    assert found["num_speculative_tokens"] == 4
    assert found["contract"]["uses_aux_hidden_states"] is True
    assert found["contract"]["num_lookahead_tokens"] == 4
    assert found["rule"]["name"] == "standard"
    assert found["rule"]["lossless"] is True
    steps = found["steps"]
    assert steps["num_speculative_tokens_by_batch_size"] == RANGES
    assert (steps["num_prefill_lookahead_tokens"], steps["num_hash_lookahead_tokens"]) == (1, 1)
    assert steps["use_eagle_block_drop"] is True
    assert found["draft_model"]["tensor_parallel_size"] == 1
    assert found["draft_model"]["architectures"] == ["LlamaForCausalLMEagle3"]
    # the target: 4 layers of one of 2 KV heads of 8 values, two bytes each; the draft: 1 layer of both
    assert found["kv"]["target_bytes_per_token"] == 4 * 2 * 1 * 8 * 2
    assert found["kv"]["draft_bytes_per_token"] == 1 * 2 * 2 * 8 * 2
    assert found["kv"]["bytes_per_request"] == (128 + 64) * 16 * 5
    assert found["kv"]["total_bytes"] == 128 * found["kv"]["bytes_per_request"]
    assert found["start"]["graph_mode"] == "full"
    assert [tuple(bucket) for bucket in found["start"]["graph_buckets"]] == [
        (bucket.num_requests, bucket.num_drafts) for bucket in plan.graph_buckets
    ]
    assert found["start"]["graph_hash"] == plan.compute_hash()
    assert found["warnings"] == []


def test_the_worked_example(capsys, example):
    check_the_worked_example(capsys, example)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_report_fits_the_screen(capsys, monkeypatch, example, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    config, target = example
    found = checked(capsys, config, "--model", target, *OPTIONS)
    code, out, err = run(capsys, "check-config", config, "--model", target, *OPTIONS)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= columns
    assert out.startswith("Partly OK: eagle3, 4 drafts a step, lossless (standard)\n")
    for words in (
        found["start"]["graph_hash"],  # in one piece, to be copied
        "1 to 8: 4; 9 to 32: 3; 33 to 128: 2",
        "1 request with 0, 1, 2, 3, 4 drafts",
        "2, 4, 8, 16, 32, 64, 128 requests with 0, 1, 2, 4 drafts",
        f"{found['kv']['total_bytes']:,} bytes",
        "num_prefill_lookahead_tokens",
        "'method' was given as 'eagle3'",
        "the embedded engine: cannot run it",
        "vLLM's V1 runner: cannot run it",
        "vLLM's V2 runner: can run it",
    ):
        assert words in out
    assert "warnings" not in out


def test_a_config_alone(capsys):
    found = checked(capsys, NGRAM)
    assert found["judged"] == "the config alone"
    assert found["config"]["prompt_lookup_max"] == 5  # filled in
    assert found["embedded_engine"] == {"ok": True, "errors": []}
    _, out, _ = run(capsys, "check-config", NGRAM)
    assert "Judged alone: give --model" in out
    assert out.startswith("OK: ngram, 3 drafts a step, lossless (standard)\n")
    for title in report.PLACES.values():
        assert f"{title}: can run it" in out
    assert "prompt_lookup_max" in out


def test_k_may_come_from_a_target_that_is_not_known_yet(capsys, shelf):
    found = checked(capsys, '{"method": "mtp"}')
    assert found["num_speculative_tokens"] is None
    assert found["contract"]["num_lookahead_tokens"] == "K"
    assert "K from the target's checkpoint" in run(capsys, "check-config", '{"method": "mtp"}')[1]
    found = checked(capsys, '{"method": "mtp"}', "--model", shelf["deepseek-3"])
    assert found["num_speculative_tokens"] == 3
    assert found["contract"]["num_prefill_lookahead_tokens"] == 3
    (error,) = errors(capsys, '{"method": "mtp"}', "--model", shelf["llama"])[:1]
    assert error["field"] in ("method", "num_speculative_tokens")


def test_the_keys_are_always_the_same(capsys, example):
    config, target = example
    reports = [
        checked(capsys, NGRAM),
        checked(capsys, '{"method": "mtp"}'),
        checked(capsys, NGRAM, "--model", target),
        checked(capsys, config, "--model", target, *OPTIONS),
    ]
    for found in reports:
        assert set(found) == {
            "ok", "judged", "method", "config", "num_speculative_tokens", "contract", "rule", "steps",
            "draft_model", "target", "kv", "start", "warnings", "embedded_engine", "vllm_v1", "vllm_v2",
        }  # fmt: skip
        for key in ("method", "config", "contract", "rule", *report.PLACES):
            assert set(found[key]) == set(reports[0][key])
    for key in ("steps", "target", "kv", "start"):
        assert reports[0][key] is None
        assert set(reports[2][key]) == set(reports[3][key])
    assert reports[2]["draft_model"] is None


# ----------------------------------------------------------------------------------------------------- options
@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--max-model-len", "48"], "max_model_len", 48),
        (["--max-num-seqs", "5"], "max_num_seqs", 5),
        (["--max-num-batched-tokens", "99"], "max_num_batched_tokens", 99),
        (["--block-size", "32"], "block_size", 32),
        (["--num-kv-blocks", "77"], "num_kv_blocks", 77),
        (["--num-gpu-blocks-override", "78"], "num_kv_blocks", 78),
        (["--tensor-parallel-size", "2"], "tensor_parallel_size", 2),
        (["-tp", "2"], "tensor_parallel_size", 2),
        (["--tp", "2"], "tensor_parallel_size", 2),
        (["--pipeline-parallel-size", "2"], "pipeline_parallel_size", 2),
        (["-pp", "2"], "pipeline_parallel_size", 2),
        (["--pp", "2"], "pipeline_parallel_size", 2),
        (["--data-parallel-size", "2"], "data_parallel_size", 2),
        (["-dp", "2"], "data_parallel_size", 2),
        (["--dp", "2"], "data_parallel_size", 2),
        (["--num-threads", "3"], "num_threads", 3),
        (["--threads", "3"], "num_threads", 3),
        (["--dtype", "bfloat16"], "dtype", "bfloat16"),
        (["--dtype", "half"], "dtype", "float16"),
        (["--dtype", "float"], "dtype", "float32"),
        (["--dtype", "auto"], "dtype", "float32"),
        (["--runner", "v2"], "dtype", "bfloat16"),
        (["--runner", "v2"], "runner", "v2"),
        (["--graph-mode", "full"], "graph_mode", "full"),
        (["--quantization", "fp8"], "quantization", "fp8"),
        (["-q", "fp8"], "quantization", "fp8"),
        (["--enforce-eager"], "enforce_eager", True),
        (["--no-enforce-eager"], "enforce_eager", False),
        (["--enable-prefix-caching"], "enable_prefix_caching", True),
        (["--enable-expert-parallel"], "enable_expert_parallel", True),
        (["-ep"], "enable_expert_parallel", True),
        (["--kv-connector", "SomeConnector"], "has_kv_connector", True),
        (["--kv-transfer-config", "{}"], "has_kv_connector", True),
    ],
)
def test_every_option_reaches_the_target(capsys, shelf, argv, field, value):
    plain = checked(capsys, NGRAM, "--model", shelf["mixtral"])["target"]
    given = checked(capsys, NGRAM, "--model", shelf["mixtral"], *argv)["target"]
    assert given[field] == value
    assert {name for name in plain if plain[name] != given[name]} <= {field, "runner", "dtype"}


@pytest.mark.parametrize("argv", [["--prefill-context-parallel-size", "2"], ["-pcp", "2"], ["--pcp", "2"]])
def test_context_parallelism_reaches_the_checks(capsys, shelf, argv):
    (found,) = errors(capsys, NGRAM, "--model", shelf["llama"], *argv)
    assert "prefill context parallelism" in found["message"]


def test_watermarking_reaches_the_checks(capsys, shelf):
    found = errors(capsys, NGRAM, "--model", shelf["llama"], "--watermarking")
    assert any("watermarking" in each["message"] for each in found)


def test_the_defaults_that_help_names_are_the_targets(capsys):
    with pytest.raises(SystemExit):
        main(["check-config", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for field in fields(TargetConfig):
        option = f"--{field.name.replace('_', '-')}"
        if field.default is MISSING or type(field.default) is not int or option not in text:
            continue
        if field.name != "num_threads":  # of this machine
            assert re.search(rf"{option}\b[^[]*?default {field.default}\b", text), option


def test_separate_arguments(capsys, tmp_path):
    found = checked(capsys, "--spec-method", "ngram", "--spec-tokens", "2")
    assert (found["method"]["name"], found["num_speculative_tokens"]) == ("ngram", 2)
    mixed = checked(capsys, '{"prompt_lookup_max": 3}', "--spec-model", "[ngram]", "--spec-tokens", "2")
    assert mixed["method"]["name"] == "ngram"
    assert mixed["config"]["prompt_lookup_min"] == 3
    (twice,) = errors(capsys, NGRAM, "--spec-tokens", "2")
    assert twice["field"] == "num_speculative_tokens"
    file = tmp_path / "drafts.yaml"
    file.write_text("method: ngram\nnum-speculative-tokens: 6\n")
    assert checked(capsys, file)["num_speculative_tokens"] == 6


# ------------------------------------------------------------------------------------------------------ errors
BAD = '{"method": "ngram", "num_speculative_tokens": -1, "fly_window": 3, "ascend_spec": {"match": "first"}}'


def check_every_finding_has_a_line(capsys):
    found = errors(capsys, BAD)
    assert {each["field"] for each in found} == {"num_speculative_tokens", "fly_window", "ascend_spec.match"}
    code, out, err = run(capsys, "generate", "--model", "none", "--prompt", "x", "--speculative-config", BAD)
    assert (code, out) == (2, "")
    lines = [f"ascend-spec: error: speculative config: {each['message']}" for each in found]
    assert err.splitlines() == lines


def test_every_finding_has_a_line(capsys):
    check_every_finding_has_a_line(capsys)


def test_errors_about_config_and_target_come_at_once(capsys, shelf):
    config = '{"method": "ngram", "num_speculative_tokens": 70, "dspark_draft_topk": 3}'
    found = errors(capsys, config, "--model", shelf["llama"])
    assert any("max_model_len" in each["message"] for each in found)
    assert "dspark_draft_topk" in {each["field"] for each in found}
    found = errors(capsys, config, "--model", "nowhere")
    assert found[0]["field"] == "--model"
    assert "dspark_draft_topk" in {each["field"] for each in found}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, ("'{path}'", "config.json")),
        ("", ("cannot be read as JSON",)),
        ("[1]", ("[1]", "directory")),
        ('{"model_type": "llama"}', ("max_position_embeddings", "max_model_len")),
    ],
)
def test_a_bad_model(capsys, tmp_path, content, says):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    (found,) = errors(capsys, NGRAM, "--model", tmp_path)
    assert found["field"] == "--model"
    for words in says:
        assert words.format(path=tmp_path) in found["message"]


def test_a_gguf_file_is_no_directory(capsys):
    (found,) = errors(capsys, NGRAM, "--model", "some/model.gguf")
    assert "GGUF" in found["message"]
    assert "directory" in found["message"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], ("no config was given", "--spec-method")),
        ([NGRAM, "-tp", "2"], ("--tensor-parallel-size", "add --model")),
        ([NGRAM, "--kv-connector", "x"], ("--kv-connector", "add --model")),
        ([NGRAM, "--no-enforce-eager"], ("--enforce-eager", "add --model")),
        ([NGRAM, "--model", "x", "--embedded", "--runner", "v1"], ("--embedded", "--runner v1")),
        ([NGRAM, "--model", "x", "--tp", "0"], ("'0' was given", "1 or more")),
        ([NGRAM, "--model", "x", "--runner", "v3"], ("'v3'", "embedded")),
        ([NGRAM, "--spec-tokens", "many"], ("'many'",)),
        ([NGRAM, "other"], ("other",)),
    ],
)
def test_wrong_usage(capsys, argv, says):
    code, out, err = run(capsys, "check-config", *argv)
    assert (code, out) == (2, "")
    assert err.startswith("ascend-spec: error: ")
    assert err.count("\n") == 1
    for words in says:
        assert words in err


@pytest.mark.parametrize("method", [*BUILT_IN, "deepseek_mtp", "nothing", ""])
@pytest.mark.parametrize("name", ["eagle3", "medusa", "deepseek-3", "nowhere", "/nowhere"])
def test_no_combination_ends_in_a_traceback(capsys, shelf, method, name):
    model = name if "nowhere" in name else shelf[name]
    for argv in ([], ["--model", shelf["deepseek"]], ["--model", shelf["llama"], "-tp", "3", "--embedded"]):
        config = json.dumps({"method": method, "model": model, "num_speculative_tokens": 3})
        code, out, err = run(capsys, "check-config", config, *argv)
        assert code in (0, 2)
        assert bool(out) == (code == 0)
        assert all(line.startswith("ascend-spec: error: ") for line in err.splitlines())


def check_the_embedded_engine_has_its_say(capsys, example):
    config, target = example
    found = checked(capsys, config, "--model", target)["embedded_engine"]
    assert found["ok"] is False
    fields_refused = {each["field"] for each in found["errors"]}
    assert {"method", "draft_lm_head_quantization", "draft_tensor_parallel_size"} <= fields_refused
    assert errors(capsys, config, "--model", target, "--embedded") == found["errors"]
    assert checked(capsys, NGRAM, "--model", target, "--embedded")["embedded_engine"]["ok"] is True


def test_the_embedded_engine_has_its_say(capsys, example):
    check_the_embedded_engine_has_its_say(capsys, example)


def test_neither_torch_nor_transformers_is_imported(example):
    config, target = example
    program = (
        "import sys; from ascend_spec.cli import main; code = main(sys.argv[1:]);"
        "heavy = {'torch', 'transformers', 'numba', 'numpy'} & set(sys.modules);"
        "sys.exit(code or ', '.join(heavy) or None)"
    )

    def process(program: str, *argv: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True)
        return done.returncode, done.stderr

    for argv in (["check-config", config, "--model", target], ["methods"], ["methods", "--markdown"]):
        assert process(program, *argv) == (0, "")
    assert process(f"import numpy; {program}", "methods") == (1, "numpy\n")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB (1,024 bytes)"),
        (3 * 2**30 + 2**29, "3.5 GiB (3,758,096,384 bytes)"),
        (None, "unknown: the config.json does not say"),
    ],
)
def test_sizes(num_bytes, text):
    assert report.size(num_bytes) == text


# ----------------------------------------------------------------------------------------------------- mutants
def _the_first_finding_only(monkeypatch):
    def load(*args, **kwargs):
        try:
            return load_speculative_config(*args, **kwargs)
        except ConfigError as error:
            raise ConfigError(error.findings[:1]) from None

    monkeypatch.setattr(check_config, "load_speculative_config", load)


def _all_in_one_line(monkeypatch):
    @contextmanager
    def judging_input(*kinds):
        try:
            yield
        except ValueError as error:
            raise CommandError(" ".join(str(error).split())) from error

    monkeypatch.setattr(generate, "judging_input", judging_input)


def _ranges_from_zero(monkeypatch):
    ranges = check_config.ranges
    monkeypatch.setattr(check_config, "ranges", lambda table: ranges([0, *table]))


def _one_rank(monkeypatch):
    target_of = check_config.target_of
    monkeypatch.setattr(
        check_config, "target_of", lambda args: replace(target_of(args), tensor_parallel_size=1)
    )


def _no_graphs(monkeypatch):
    target_of = check_config.target_of
    monkeypatch.setattr(check_config, "target_of", lambda args: replace(target_of(args), graph_mode="none"))


def _nothing_is_refused(monkeypatch):
    monkeypatch.setattr(check_config, "_refused", lambda args, target: ())


def _embedded_is_ignored(monkeypatch):
    load = check_config._load
    monkeypatch.setattr(
        check_config, "_load", lambda args, target, *, embedded: load(args, target, embedded=False)
    )


@pytest.mark.parametrize(
    ("mutate", "check"),
    [
        (_the_first_finding_only, check_every_finding_has_a_line),
        (_all_in_one_line, check_every_finding_has_a_line),
        (_ranges_from_zero, check_the_worked_example),
        (_one_rank, check_the_worked_example),
        (_no_graphs, check_the_worked_example),
        (_nothing_is_refused, check_the_embedded_engine_has_its_say),
        (_embedded_is_ignored, check_the_embedded_engine_has_its_say),
    ],
)
def test_mutants_are_found(request, monkeypatch, mutate, check):
    given = {name: request.getfixturevalue(name) for name in signature(check).parameters}
    check(**given)
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        check(**given)
