"""The contract with vLLM: a speculative configuration means here what vLLM's own classes make of it.

vLLM's Python runs in an environment of its own, without a GPU and without weights (``vllm_oracle``). Where this
project differs, the difference stands in ``vllm_differences`` with its reason; one that is gone must be struck.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from vllm_bounds import BOUNDS
from vllm_cases import DOCUMENTED, TESTED
from vllm_checkpoints import DRAFTS, TARGETS, write_checkpoints
from vllm_differences import DIFFERENCES

from ascend_spec.config import ConfigError, Plan, TargetConfig, load_speculative_config, resolve

ROOT = Path(__file__).parents[2]
CASES = {case.name: case for case in DOCUMENTED + TESTED + BOUNDS}
SAME = (
    "method",
    "num_speculative_tokens",
    "num_lookahead_tokens",
    "num_prefill_lookahead_tokens",
    "num_hash_lookahead_tokens",
    "uniform_decode_query_len",
    "max_num_new_slots_for_drafting",
    "use_eagle_block_drop",
)
DRAFT = ("max_model_len", "max_position_embeddings", "tensor_parallel_size", "enable_expert_parallel")
Answer = dict[str, Any]


@pytest.fixture(scope="session")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cases and vLLM's answers lie. vLLM is asked once, by the first of pytest's processes."""
    python = os.environ.get("ASCEND_SPEC_VLLM_PYTHON", str(ROOT / ".venv-vllm" / "bin" / "python"))
    if shutil.which(python) is None:
        pytest.skip(f"no vLLM at {python}: `make setup-vllm` creates it")
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "vllm-contract"
    with FileLock(f"{directory}.lock"):
        if not (directory / "answers.json").exists():
            _ask(python, directory)
    return directory


def _ask(python: str, directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "checkpoints").mkdir(parents=True)
    paths = write_checkpoints(directory / "checkpoints")
    cases = json.dumps([case.located(paths) for case in CASES.values()])
    (directory / "cases.json").write_text(cases)
    done = subprocess.run(
        [python, str(Path(__file__).with_name("vllm_oracle.py")), str(directory / "answers.json")],
        input=cases,
        text=True,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CACHE_ROOT": str(directory / "cache")},
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="session")
def answers(asked: Path) -> dict[str, Answer]:
    return json.loads((asked / "answers.json").read_text())


@pytest.fixture(scope="session")
def cases(asked: Path) -> dict[str, dict[str, Any]]:
    """The cases with paths for the names of checkpoints."""
    return {case["name"]: case for case in json.loads((asked / "cases.json").read_text())}


def ours(case: dict[str, Any], runner: str) -> Answer:
    """What this project makes of a case, in the words of ``vllm_oracle``."""
    facts = {**case["engine"], "runner": runner}
    try:
        target = TargetConfig.from_directory(case["target"], **facts)
    except ValueError as error:
        return {"accepted": False, "error": str(error)}
    try:
        config = load_speculative_config(case["config"], **case["arguments"])
        if config is None:
            return {"accepted": True, "method": None}
        plan = resolve(config, target)
    except ConfigError as error:
        return {"accepted": False, "error": str(error)}
    return {"accepted": True, **_values(plan)}


def _values(plan: Plan) -> Answer:
    values = {name: getattr(plan, name) for name in SAME}
    values["parallel_drafting"] = plan.config.parallel_drafting
    values["max_model_len"] = plan.target.max_model_len
    if plan.method in ("dflash", "dspark"):
        values["max_num_draft_seqs"] = plan.max_num_draft_seqs
    if plan.method in ("ngram", "ngram_gpu"):
        values["prompt_lookup"] = [plan.config.prompt_lookup_min, plan.config.prompt_lookup_max]
    if plan.draft_model is not None:
        values["draft"] = {name: getattr(plan.draft_model, name) for name in DRAFT}
    if plan.synthetic_acceptance_rates is not None:
        values["synthetic_acceptance_rates"] = list(plan.synthetic_acceptance_rates)
    if plan.fly_window_size is not None:
        values["fly_window_size"] = plan.fly_window_size
    if plan.num_speculative_tokens_by_batch_size is not None:
        values["num_speculative_tokens_by_batch_size"] = list(plan.num_speculative_tokens_by_batch_size)
    return values


def disagreements(vllm: Answer, ours: Answer) -> dict[str, tuple[Any, Any]]:
    """By name, what vLLM says and what this project says, where that isn't the same."""
    if vllm["accepted"] != ours["accepted"]:
        return {"accepted": (vllm.get("error", True), ours.get("error", True))}
    if not vllm["accepted"]:
        return {}
    names = (vllm.keys() | ours.keys()) - {"runner"}
    return {name: (vllm.get(name), ours.get(name)) for name in names if vllm.get(name) != ours.get(name)}


def judged(case: dict[str, Any], answer: Answer) -> tuple[Answer, dict[str, tuple[Any, Any]]]:
    """What this project makes of a case, and where that isn't what vLLM makes of it."""
    runner = answer.get("runner") or case["engine"]["runner"] or "v2"
    # vLLM chooses a runner for what it takes the method to be; where that is another one, none is asked of ours
    mine = ours(case, "embedded" if case["name"] in DIFFERENCES else runner)
    return mine, disagreements(answer, mine)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, cases: dict[str, dict[str, Any]], answers: dict[str, Answer]) -> None:
    mine, found = judged(cases[name], answers[name])
    if name not in DIFFERENCES:
        assert not found
        return
    assert found, "both say the same: strike it from the differences"
    difference = DIFFERENCES[name]
    expected = (difference.method, difference.num_speculative_tokens)
    assert (mine.get("method"), mine.get("num_speculative_tokens")) == expected, mine


def test_differences_are_of_cases() -> None:
    assert DIFFERENCES.keys() <= CASES.keys()


def test_every_checkpoint_is_one_for_vllm(
    cases: dict[str, dict[str, Any]], answers: dict[str, Answer]
) -> None:
    """A refusal says something only of a checkpoint that vLLM takes otherwise."""
    accepted: set[str] = set()
    for name, case in CASES.items():
        if answers[name]["accepted"]:
            accepted |= {case.target, (case.config or {}).get("model") or case.arguments.get("spec_model")}
    dropped = {"medusa-tiny", "llama-tiny-accelerator"}
    assert {*TARGETS, *DRAFTS} - accepted == dropped | {"my-eagle-eagle3", "dspark_qwen3_tiny_no_block"}


# ---- the test can fail
@pytest.mark.parametrize(
    "name", [*SAME, "max_num_draft_seqs", "synthetic_acceptance_rates", "fly_window_size"]
)
def test_every_value_counts(
    name: str, cases: dict[str, dict[str, Any]], answers: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"method": "none", "synthetic_acceptance_rates": (0.5,)}.get(name, -1)
    monkeypatch.setattr(Plan, name, property(lambda plan: wrong))
    case = {"fly_window_size": "fly/K 2", "synthetic_acceptance_rates": "synthetic/length 1"}.get(
        name, "docs/dflash"
    )
    assert name in judged(cases[case], answers[case])[1]


def _silent(*_: Any, **__: Any) -> list[Any]:
    return []


CONFIG = "ascend_spec.config"
#: what is broken, with what, and the case that notices
MUTANTS: dict[str, tuple[str, Any, str]] = {
    "dflash: no slot for the bonus token": (
        "methods.dflash.DFlashConfig.num_lookahead_tokens",
        property(lambda self: self.num_speculative_tokens),
        "docs/dflash",
    ),
    "dspark: always from the anchor": (
        "methods.dspark.DSparkConfig.num_lookahead_tokens",
        property(lambda self: self.num_speculative_tokens),
        "slots/dspark fills in behind the anchor",
    ),
    "draft model: no lookahead": (
        "methods.draft_model.DraftModelSpeculatorConfig.num_lookahead_tokens",
        property(lambda self: 0),
        "docs/draft model, another vocabulary",
    ),
    "PARD: one slot": (
        "methods.draft_model.PardConfig.max_num_new_slots_for_drafting",
        property(lambda self: 1),
        "docs/PARD",
    ),
    "several MTP modules read one token ahead": (
        "methods.mtp.MultiModuleMTPConfig.num_prefill_lookahead_tokens",
        property(lambda self: 1),
        "K/MTP: its 3 layers",
    ),
    "MTP: any K": ("methods.mtp.MTPConfig.check", _silent, "K/MTP: no multiple of 3"),
    "n-grams: one default": ("methods.ngram.DEFAULT_PROMPT_LOOKUP", 4, "ngram/no bounds"),
    "dflash drops a block": ("methods.dflash.DFlashConfig.needs_eagle_block_drop", True, "docs/dflash"),
    "schedule: K not limited": (
        "schedule.dense_lookup",
        lambda ranges, drafts, seqs: (0, *[ranges[0][2]] * seqs),
        "schedule/K above the most",
    ),
    "schedule: unchecked": ("schedule.check_ranges", _silent, "schedule/overlapping"),
    "schedule: V1 can do all": ("checks.V1_DYNAMIC", ("ngram_gpu",), "schedule/V1: ngram_gpu"),
    "synthetic: unchecked": ("checks.check_synthetic", _silent, "synthetic/increasing rates"),
    "fly: unchecked": ("checks._check_fly", _silent, "fly/window K"),
    "budget: unchecked": ("checks.check_rows", _silent, "slots/a step has no room"),
    "watermarks: unchecked": ("checks._check_watermarking", _silent, "watermark/ngram"),
    "draft model: unchecked": ("checks.check_draft_model", _silent, "draft TP/neither"),
    "heads: undivided": ("draft_model.check_draft_ranks", _silent, "draft TP/heads do not divide"),
    "target: any ranks": ("resolution.check_parallel", _silent, "target TP/heads do not divide"),
    "target: experts everywhere": ("resolution.check_parallel", _silent, "target EP/dense target"),
    "quantization: any": ("checks.check_quantization", _silent, "fields/quantization that isn't"),
    "drafts: any K": (
        "speculator.SpeculatorConfig.check",
        _silent,
        "K/eagle that predicts 3: 4",
    ),
    "drafts: no default": (
        "speculator.SpeculatorConfig.configure",
        classmethod(lambda cls, config, draft: config),
        "K/draft_model that predicts 3: missing",
    ),
    "yarn only sizes a cache": (
        "checkpoint.CACHE_ONLY_ROPE_TYPES",
        frozenset({"default", "yarn"}),
        "length/yarn head, v1",
    ),
    "a draft is never longer than its longrope's original length": (
        "checkpoint.ModelFacts.derived_max_model_len",
        property(lambda self: self.max_position_embeddings and 64),
        "length/longrope draft model, given",
    ),
    "targets: any length": ("target.check_max_model_len", lambda *_: 0, "target/Llama-tiny-yarn, 513 tokens"),
    "longrope: all of its length": (
        "checkpoint.ModelFacts.max_model_len",
        property(lambda self: self.derived_max_model_len),
        "target/longrope",
    ),
    "older names of ropes are unknown": (
        "checkpoint.OLDER_ROPE_TYPES",
        {},
        "target/longrope by its older name",
    ),
    "runners: all the same": ("checks.check_runner", _silent, "runner/V2 has no PARD"),
    "slots in parallel: none": (
        "speculator.SpeculatorConfig.max_num_new_slots_for_drafting",
        property(lambda self: 0),
        "slots/parallel mtp",
    ),
    "linear rope changes with its length": (
        "checkpoint.CACHE_ONLY_ROPE_TYPES",
        frozenset({"default"}),
        "length/linear head, v1",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_noticed(
    mutant: str, cases: dict[str, dict[str, Any]], answers: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, replacement, name = MUTANTS[mutant]
    before, _ = judged(cases[name], answers[name])
    monkeypatch.setattr(f"{CONFIG}.{place}", replacement)
    after, found = judged(cases[name], answers[name])
    assert found
    assert after != before, "this case does not see the mutant"
