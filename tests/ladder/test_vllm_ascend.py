"""What the V1 adapter holds on to, in the real Python of vllm-ascend and of the vLLM releases beside it.

No NPU is needed, and nothing of them is imported: the wheels are read as text. Every attribute that the adapter's
own sources read from vLLM's objects has to be there, and every call has to fit.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from config_fixtures import Checkpoints, planned
from ladder.wheel_source import PAIRS, Missing, Source, find_wheel, fits

from ascend_spec.config import Plan
from ascend_spec.vllm.metrics import Metrics
from ascend_spec.vllm.on_error import OnError
from ascend_spec.vllm.v1 import V1Adapter
from ascend_spec.vllm.v1_drafters import V1NgramProposer

ADAPTER = Path(__file__).parents[2] / "ascend_spec" / "vllm"
RUNNER = "vllm_ascend/worker/model_runner_v1.py"
WORKER = "vllm_ascend/worker/worker.py"
WRAPPER = "vllm/v1/worker/worker_base.py"
NGRAM = "vllm_ascend/spec_decode/ngram_proposer.py"
BASE_RUNNER = "vllm/v1/worker/gpu_model_runner.py"
OPTIONS = "vllm_ascend/ascend_config.py"

#: classes of the adapter in which these expressions have their meaning
CLASSES = ("V1Adapter", "V1Sampler")
#: expressions -> the class they stand for, with vllm-ascend and in vLLM alone
METADATA = "vllm/v1/spec_decode/metadata.py:SpecDecodeMetadata"
ROOTS = {
    "runner": (f"{RUNNER}:NPUModelRunner", f"{BASE_RUNNER}:GPUModelRunner"),
    "batch": (
        "vllm_ascend/worker/npu_input_batch.py:NPUInputBatch",
        "vllm/v1/worker/gpu_input_batch.py:InputBatch",
    ),
    "sampling": ("vllm/v1/sample/metadata.py:SamplingMetadata",) * 2,
    "drafts": (METADATA, METADATA),
    "sampler": ("vllm_ascend/sample/sampler.py:AscendSampler", "vllm/v1/sample/sampler.py:Sampler"),
    "stock": (
        "vllm_ascend/sample/rejection_sampler.py:AscendRejectionSampler",
        "vllm/v1/sample/rejection_sampler.py:RejectionSampler",
    ),
}
#: the same objects by their longer names
ALIASES = {
    "self.runner": "runner",
    "self.runner.input_batch": "batch",
    "runner.input_batch": "batch",
    "batch.sampling_metadata": "sampling",
    "spec_decode_metadata": "drafts",
    "self.runner.sampler": "sampler",
    "self.runner.rejection_sampler": "stock",
}
#: what the adapter adds, so that vLLM need not have it
OURS = {"ascend_spec"}


@cache
def source_of(ascend: str) -> Source | None:
    found = find_wheel("vllm_ascend", ascend), find_wheel("vllm", PAIRS[ascend])
    wheels = [zipfile.ZipFile(wheel) for wheel in found if wheel]
    return Source(wheels, PAIRS[ascend]) if len(wheels) == len(found) else None


@pytest.fixture(params=PAIRS)
def source(request: pytest.FixtureRequest) -> Source:
    found = source_of(request.param)
    if found is None:
        pytest.skip(
            f"no wheels of vllm-ascend {request.param} and its vLLM in .cache/wheels: `make setup-ascend`"
        )
    return found


# ---- what the adapter reads and calls
@cache
def adapter_nodes() -> list[ast.AST]:
    return [node for path in sorted(ADAPTER.glob("v1*.py")) for node in ast.walk(ast.parse(path.read_text()))]


def uses() -> Iterator[tuple[str, str, ast.Call | None]]:
    """(root, attribute, the call of it if it is called) for all that the adapter's classes use of vLLM's objects."""
    names = {**{root: root for root in ROOTS}, **ALIASES}
    classes = [node for node in adapter_nodes() if isinstance(node, ast.ClassDef) and node.name in CLASSES]
    assert len(classes) == len(CLASSES)
    for owner in classes:
        calls = {id(node.func): node for node in ast.walk(owner) if isinstance(node, ast.Call)}
        for node in ast.walk(owner):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in names and node.attr not in OURS:
                yield names[ast.unparse(node.value)], node.attr, calls.get(id(node))


def misfits(source: Source, column: int) -> list[str]:
    """All that the adapter uses and that is not there, or is called in another way."""
    found, members = [], {root: source.members(places[column]) for root, places in ROOTS.items()}
    for root, attribute, call in uses():
        place = ROOTS[root][column]
        if attribute not in members[root]:
            found.append(f"{place} has no {attribute}")
        elif call is not None and (reason := fits(call, source.signature(f"{place}.{attribute}"))):
            found.append(f"{place}.{attribute}: {reason}")
    return found


@pytest.mark.parametrize("column", [0, 1], ids=["vllm-ascend", "vllm"])
def test_everything_the_adapter_uses_is_there(source: Source, column: int):
    assert not misfits(source, column)


def test_uses_are_seen():
    used = {(root, attribute) for root, attribute, _ in uses()}
    assert {root for root, _ in used} == set(ROOTS)
    assert used >= {
        ("runner", "_sample"),
        ("runner", "seq_lens"),
        ("batch", "req_ids"),
        ("drafts", "max_spec_len"),
    }
    assert sum(call is not None for _, _, call in uses()) >= 5


MUTANTS_OF_USES: dict[str, tuple[str, str, str]] = {
    "a field renamed": ("vllm/v1/sample/metadata.py", "all_greedy", "every_greedy"),
    "a method renamed": (BASE_RUNNER, "_get_spec_decode_draft_probs", "_draft_probs_of"),
    "an argument more": (
        "vllm/v1/sample/sampler.py",
        "        token_ids: torch.Tensor,\n    ) -> LogprobsTensors:\n",
        "        token_ids: torch.Tensor,\n        vocab: int,\n    ) -> LogprobsTensors:\n",
    ),
    "an argument less": (
        "vllm/v1/sample/sampler.py",
        "        predict_bonus_token: bool,\n    ) -> torch.Tensor:\n        bad",
        "    ) -> torch.Tensor:\n        bad",
    ),
}


@pytest.mark.parametrize("label", MUTANTS_OF_USES)
def test_a_change_of_vllm_would_be_seen(source: Source, label: str):
    assert misfits(source.edited(*MUTANTS_OF_USES[label]), 0)


# ---- the n-gram drafter, called as vllm-ascend's runner calls it
def ngram_call(source: Source) -> ast.Call:
    """The runner's call of its drafter where that is the n-gram one."""
    for node in ast.walk(source.definition(f"{RUNNER}:NPUModelRunner.propose_draft_token_ids")):
        if (
            isinstance(node, ast.If)
            and ast.unparse(node.test) == "isinstance(self.drafter, AscendNgramProposer)"
        ):
            (call,) = (n for n in ast.walk(ast.Module(node.body, [])) if isinstance(n, ast.Call))
            assert ast.unparse(call.func) == "self.drafter.propose"
            return call
    raise Missing("the runner does not ask for an AscendNgramProposer")


def drafter_of(source: Source, runner: SimpleNamespace) -> SimpleNamespace:
    """An object with vllm-ascend's signature of ``propose`` and nothing behind it."""
    names = ", ".join(source.signature(f"{NGRAM}:AscendNgramProposer.propose").parameters)
    return SimpleNamespace(propose=eval(f"lambda {names}: None"), runner=runner)


def test_the_ngram_drafter_answers_the_runner(source: Source, tmp_path: Path):
    tokens = np.zeros((4, 64), np.int32)
    tokens[0, :6] = [7, 8, 9, 5, 7, 8]
    tokens[1, :4] = [1, 2, 3, 4]
    batch = SimpleNamespace(
        token_ids_cpu=tokens, num_tokens_no_spec=np.array([6, 4, 0, 0], np.int32), req_ids=["a", "b"]
    )
    runner = SimpleNamespace(input_batch=batch)
    names = {
        "self": runner,
        "valid_sampled_token_ids": [[8], [4]],
        "scheduler_output": SimpleNamespace(num_spec_tokens_to_schedule=2),
    }
    call = ngram_call(source)
    arguments = [eval(ast.unparse(argument), names) for argument in call.args]
    plan = ngram_plan(tmp_path)
    on_error = OnError(plan, Metrics(plan.rule, is_published=False))
    drafts = V1NgramProposer(drafter_of(source, runner), plan, on_error)(*arguments)
    k = 2 if len(arguments) == 4 else 3
    assert [list(row) for row in drafts] == [[9, 5, 7][:k], []]


def ngram_plan(directory: Path) -> Plan:
    config = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
    return planned(config, Checkpoints(directory).target())


def test_a_rank_without_a_drafter_is_left_alone(source: Source, tmp_path: Path):
    """On pipeline stages before the last one, vllm-ascend's ``runner.drafter`` is None."""
    set_up = source.definition(f"{RUNNER}:NPUModelRunner._set_up_drafter")
    assert any(
        isinstance(node, ast.AnnAssign) and ast.unparse(node).endswith("= None") for node in ast.walk(set_up)
    )
    runner = SimpleNamespace(drafter=None, device=torch.device("cpu"))
    adapter = V1Adapter(runner, ngram_plan(tmp_path))
    assert adapter.drafter != "ours"
    assert runner.drafter is None


# ---- seams: when and how our parts are reached
def wrapper_runs_the_worker(source: Source) -> None:
    """What we wrap makes the runner, with its drafter, and loads no model."""
    wrapper, init = f"{WRAPPER}:WorkerWrapperBase.init_device", f"{RUNNER}:NPUModelRunner.__init__"
    assert source.calls(wrapper, "self.worker.init_device")
    assert not source.calls(wrapper, "self.worker.load_model")
    assert "model_runner" in source.members(f"{WORKER}:NPUWorker")
    assert "self.model_runner = NPUModelRunner(" in ast.unparse(
        source.definition(f"{WORKER}:NPUWorker.init_device")
    )
    assert source.calls(init, "self._set_up_drafter")
    set_up = ast.unparse(source.definition(f"{RUNNER}:NPUModelRunner._set_up_drafter"))
    assert "self.drafter = self._get_drafter()" in set_up
    assert "self.rejection_sampler = AscendRejectionSampler(" in set_up


def sample_is_looked_up_on_the_runner(source: Source) -> None:
    """A ``_sample`` of the instance is the one that is called, with the two arguments ours takes."""
    (call,) = source.calls(f"{RUNNER}:NPUModelRunner", "self._sample")
    assert [ast.unparse(argument) for argument in call.args] == ["logits", "spec_decode_metadata"]
    assert not call.keywords


def grammar_masks_before_sampling(source: Source) -> None:
    (mask,) = source.calls(f"{RUNNER}:NPUModelRunner", "apply_grammar_bitmask")
    (sample,) = source.calls(f"{RUNNER}:NPUModelRunner", "self._sample")
    assert mask.lineno < sample.lineno


def patches_come_before_the_runner(source: Source) -> None:
    """vllm-ascend has patched vLLM's modules when the worker exists, whichever plugin was loaded first."""
    assert source.calls(f"{WORKER}:NPUWorker.__init__", "adapt_patch")
    assert "patch import worker" in ast.unparse(source.definition("vllm_ascend/utils.py:adapt_patch"))


def patches_leave_our_seams_alone(source: Source) -> None:
    """None of vllm-ascend's patches assigns to what we wrap or replace."""
    for file in source.files("vllm_ascend/patch/"):
        for node in ast.walk(source.tree(file)):
            for target in node.targets if isinstance(node, ast.Assign) else []:
                name = ast.unparse(target)
                assert not name.startswith("WorkerWrapperBase."), f"{file}: {name}"
                assert not name.endswith((".init_device", "._sample", ".propose")), f"{file}: {name}"


def our_options_are_ignored(source: Source) -> None:
    """vllm-ascend looks its own keys up in ``additional_config`` and goes over none of ours."""
    for node in ast.walk(source.tree(OPTIONS)):
        over = {ast.For: "iter", ast.comprehension: "iter", ast.keyword: "value"}.get(type(node))
        if over and not (isinstance(node, ast.keyword) and node.arg):
            read = ast.unparse(getattr(node, over)).removesuffix(".items()").removesuffix(".keys()")
            assert read != "additional_config", ast.unparse(node)
    assert source.calls(f"{OPTIONS}:AscendConfig", "additional_config.get")


def sampler_output_takes_tokens_and_logprobs(source: Source) -> None:
    node = source.definition("vllm/v1/outputs.py:SamplerOutput")
    fields = [statement for statement in ast.walk(node) if isinstance(statement, ast.AnnAssign)]
    required = [ast.unparse(statement.target) for statement in fields if statement.value is None]
    assert required == ["sampled_token_ids", "logprobs_tensors"]


def seq_lens_is_a_tensor(source: Source) -> None:
    """Not a pair of a CPU and a device buffer, so that the adapter's slice is on the device."""
    init = ast.unparse(source.definition(f"{BASE_RUNNER}:GPUModelRunner.__init__"))
    assert "self.seq_lens = torch.zeros(" in init


def drafts_are_argmax(source: Source) -> None:
    """vllm-ascend's draft models, EAGLE and MTP draw no drafts, whatever ``draft_sample_method`` says."""
    place = "vllm_ascend/spec_decode/llm_base_proposer.py"
    assert "draft_sample_method" not in source.text(place)
    compute = [n for n in ast.walk(source.tree(place)) if getattr(n, "name", "") == "compute_draft_token_ids"]
    assert compute
    assert all("greedy_sample(" in ast.unparse(node) for node in compute)


def verification_is_limited_to_16_rows(source: Source) -> None:
    """K is at most 15."""
    text = source.text("vllm_ascend/attention/attention_v1.py")
    assert "decode_threshold <= 16" in text


def processors_read_what_we_hand_them(source: Source) -> None:
    """The adapter calls the stock sampler's processors with a stand-in for vLLM's metadata."""
    place = "vllm_ascend/sample/rejection_sampler.py:AscendRejectionSampler.apply_logits_processors"
    parameter = list(source.signature(place).parameters)[2]
    nodes = ast.walk(source.definition(place))
    read = {n.attr for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n.value) == parameter}
    assert read
    assert read <= stand_in_fields()


def stand_in_fields() -> set[str]:
    """Fields of the object that ``V1Sampler._process`` passes for a SpecDecodeMetadata."""
    (process,) = (n for n in adapter_nodes() if isinstance(n, ast.FunctionDef) and n.name == "_process")
    made = [
        n for n in ast.walk(process) if isinstance(n, ast.Call) and ast.unparse(n.func) == "SimpleNamespace"
    ]
    return {f"{keyword.arg}" for call in made for keyword in call.keywords}


def second_runner_is_refused(source: Source) -> None:
    """The V2 adapter replaces two methods that the V2 runner of these versions does not have, and says so."""
    for place, name in (
        ("vllm/v1/worker/gpu/sample/sampler.py:Sampler", "_sample_random"),
        ("vllm/v1/worker/gpu/spec_decode/rejection_sampler.py:RejectionSampler", "_verify"),
    ):
        assert name not in source.members(place)


Check = Callable[[Source], None]
#: seam -> mutants of the wheels that its check rejects: file, piece, replacement
SEAMS: dict[Check, list[tuple[str, str, str]]] = {
    wrapper_runs_the_worker: [
        (WRAPPER, "self.worker.init_device()", "self.worker.start()"),
        (WORKER, "self.model_runner = NPUModelRunner(", "self.runner = NPUModelRunner("),
        (RUNNER, "self._set_up_drafter()", "pass"),
        (RUNNER, "self.drafter = self._get_drafter()", "self.proposer = self._get_drafter()"),
    ],
    sample_is_looked_up_on_the_runner: [
        (RUNNER, "self._sample(logits, spec_decode_metadata)", "sample(logits, spec_decode_metadata)"),
        (RUNNER, "self._sample(logits, spec_decode_metadata)", "self._sample(logits)"),
    ],
    grammar_masks_before_sampling: [
        (RUNNER, "    apply_grammar_bitmask(scheduler_output", "    mask(scheduler_output"),
        (RUNNER, "sampler_output = self._sample(", "sampler_output = self.draw("),
    ],
    patches_come_before_the_runner: [(WORKER, "        adapt_patch()\n", "")],
    patches_leave_our_seams_alone: [
        (
            "vllm_ascend/patch/worker/patch_rejection_sampler.py",
            "rs.rejection_sample =",
            "runner.GPUModelRunner._sample =",
        ),
        (
            "vllm_ascend/patch/worker/patch_rejection_sampler.py",
            "rs.rejection_sample =",
            "WorkerWrapperBase.init_worker =",
        ),
    ],
    our_options_are_ignored: [
        (
            OPTIONS,
            "        self._check_mooncake_c8_kv_cache_quant(vllm_config)\n",
            "        for key in additional_config: self.check(key)\n",
        ),
        (
            OPTIONS,
            "        self._check_mooncake_c8_kv_cache_quant(vllm_config)\n",
            "        self.check(**additional_config)\n",
        ),
    ],
    sampler_output_takes_tokens_and_logprobs: [
        (
            "vllm/v1/outputs.py",
            "    logprobs_tensors: LogprobsTensors | None\n",
            "    logprobs_tensors: LogprobsTensors | None\n    num_nans: dict\n",
        )
    ],
    seq_lens_is_a_tensor: [
        (BASE_RUNNER, "self.seq_lens = torch.zeros(", "self.seq_lens = self._make_buffer(")
    ],
    drafts_are_argmax: [("vllm_ascend/spec_decode/llm_base_proposer.py", "greedy_sample(", "random_sample(")],
    verification_is_limited_to_16_rows: [
        ("vllm_ascend/attention/attention_v1.py", "decode_threshold <= 16", "decode_threshold <= 64")
    ],
    processors_read_what_we_hand_them: [
        (
            "vllm_ascend/sample/rejection_sampler.py",
            "metadata.num_draft_tokens)\n",
            "metadata.num_drafts_of_requests)\n",
        )
    ],
    second_runner_is_refused: [
        ("vllm/v1/worker/gpu/spec_decode/rejection_sampler.py", "def __call__(", "def _verify(")
    ],
}


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.__name__)
def test_seam(source: Source, seam: Check):
    seam(source)


@pytest.mark.parametrize(
    ("seam", "mutant"),
    [(seam, mutant) for seam, mutants in SEAMS.items() for mutant in mutants],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_seam_is_seen(source: Source, seam: Check, mutant: tuple[str, str, str]):
    broken = source.edited(*mutant)
    with pytest.raises((AssertionError, ValueError)):
        seam(broken)


# ---- what the guide says of each
#: what an operator on Ascend may meet, as its row in the guide begins or names it
MET = (
    "MLA models", "hybrid models (GDN, Mamba)", "quantised targets (W8A8)", "int8 KV cache (C8)", "TP", "DP", "PP",
    "prefill and decode apart", "async scheduling", "sleep mode", "LoRA, multimodal", "structured output", "310P",
    "A5 (950)", "V2 runner",
)  # fmt: skip


def states(guide: str) -> dict[str, str]:
    """The rows of the table of what one may meet: what -> its state."""
    table = guide.partition("## What you may meet")[2].partition("\n## ")[0]
    rows = [line.strip("|").partition("|") for line in table.splitlines() if line.startswith("| ")]
    return {what.strip(): state.strip() for what, _, state in rows[1:]}


def unsaid(guide: str) -> list[str]:
    """What has no row, or one that says neither how far it was verified nor that it is refused, and why."""
    rows = states(guide)
    found = [what for what in MET if not any(row == what or row.startswith(f"{what} (") for row in rows)]
    begin = ("not verified", "refused by name", "not there")
    return found + [what for what, state in rows.items() if not state.startswith(begin)]


def test_the_guide_says_what_becomes_of_each():
    guide = (ADAPTER.parents[1] / "docs" / "ascend.md").read_text()
    assert len(states(guide)) > 20
    assert not unsaid(guide)
    assert unsaid(guide.replace("| sleep mode |", "| sleeping |")) == ["sleep mode"]
    assert unsaid(guide.replace("| DP | not verified |", "| DP | |")) == ["DP"]
