"""The plugin in the real Python of vllm-ascend, imported and run on CPU tensors, with a fake torch_npu.

vllm-ascend's platform, its patches, its worker, its runner with samplers, batch and drafter are real. No model
is loaded: steps are given logits. What an NPU would compute is not shown.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from config_fixtures import LLAMA
from filelock import FileLock
from ladder.extract_npu_schemas import LIBRARY, extract
from ladder.npu_schema import find_wheel as find_torch_npu
from ladder.vllm_ascend_process import AscendProcess, python_with_vllm, site, unpacked
from ladder.wheel_source import PAIRS

WRAP = "vllm.v1.worker.worker_base.WorkerWrapperBase.init_device"
#: what vllm-ascend's modules ask for, of which there is none here -> modules of vllm-ascend that need it
MISSING = {
    "flash_attn_npu_v3": ("attention.fa3_v1",),
    "torchair": ("compilation.passes.",),
    "pandas": ("core.scheduler_dynamic_batch",),
    "httpx": ("distributed.kv_transfer.",),
    "mooncake": ("distributed.kv_transfer.",),
    "lmcache_ascend": ("distributed.kv_transfer.kv_pool.lmcache_ascend_connector",),
    "ucm": ("distributed.kv_transfer.kv_pool.ucm_connector",),
    "ray": ("distributed.weight_transfer.npu_ipc_engine",),
    "xlite": ("xlite.",),
    "vllm.v1.kv_offload": ("kv_offload.",),  # not in the vLLM it is made for
    "_C_ascend": ("meta_registration",),  # its compiled operators
}


@pytest.fixture(scope="module", params=PAIRS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all of pytest's processes."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "vllm_ascend"
    directory.mkdir(exist_ok=True)
    return directory


def answers(version: str, shared: Path, order: str) -> dict[str, Any]:
    """What a process says that loads our plugin "first" or "last", run once for all of pytest's processes."""
    file = shared / f"{version}-{order}.json"
    with FileLock(f"{file}.lock"):
        if not file.exists():
            file.write_text(json.dumps(ask(version, shared, order)))
    return json.loads(file.read_text())


def ask(version: str, shared: Path, order: str) -> dict[str, Any]:
    python, wheels = python_with_vllm(), unpacked(version)
    if wheels is None:
        pytest.skip(f"no wheels of vllm-ascend {version} and its vLLM in .cache/wheels: `make setup-ascend`")
    if shutil.which(python) is None:
        pytest.skip(f"no Python with vLLM's dependencies at {python}: `make setup-vllm` creates it")
    target = shared / f"target-{version}-{order}"  # of the model there is the configuration alone
    target.mkdir()
    config = {**LLAMA, "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "torch_dtype": "float32"}
    (target / "config.json").write_text(json.dumps(config))
    process = AscendProcess(python, wheels, site())
    try:
        found = {"register": process("register", ours_first=order == "first")}
        found["attach"] = process("attach", model=str(target))
        if order == "last":
            found["refusals"] = process(
                "refusals", model=str(target), cases=[{}, *(case for case, _ in REFUSED)]
            )
            found["other runners"] = process("other_runners")
    finally:
        process.close()
    return found


@pytest.fixture(scope="module")
def ours_last(version: str, shared: Path) -> dict[str, Any]:
    """vllm-ascend has patched vLLM, and all of it is imported, when our plugin is loaded."""
    return answers(version, shared, "last")


@pytest.fixture(scope="module")
def ours_first(version: str, shared: Path) -> dict[str, Any]:
    """Our plugin is loaded before vllm-ascend's."""
    return answers(version, shared, "first")


def test_it_is_the_real_thing(ours_last: dict[str, Any], version: str):
    registered, attached = ours_last["register"], ours_last["attach"]
    assert registered["platform"] == "NPUPlatform"
    assert registered["vllm"] == PAIRS[version]
    assert attached["runner"] == "vllm_ascend.worker.model_runner_v1"
    assert registered["imported"] > 350


def unexplained(failed: dict[str, str]) -> list[str]:
    """Modules that could not be imported for another reason than :data:`MISSING` says."""
    return [
        f"{module}: {error}"
        for module, error in failed.items()
        if not any(
            re.search(rf"\b{re.escape(need)}\b", error) and module.startswith(f"vllm_ascend.{place}")
            for need, places in MISSING.items()
            for place in places
        )
    ]


def test_what_cannot_be_imported(ours_last: dict[str, Any]):
    failed = ours_last["register"]["failed"]
    print(f"{len(failed)} modules of vllm-ascend cannot be imported here:", *failed.items(), sep="\n  ")
    assert not unexplained(failed)
    assert 10 < len(failed) < 40
    assert unexplained({"vllm_ascend.sample.sampler": "ModuleNotFoundError: No module named 'xlite'"})


# ---- what registering and attaching change
def test_registering_changes_the_wrap_alone(ours_last: dict[str, Any], ours_first: dict[str, Any]):
    for found in (ours_last, ours_first):
        assert found["register"]["changed"] == [WRAP]


def test_both_sides_patches_are_there_in_either_order(ours_last: dict[str, Any], ours_first: dict[str, Any]):
    for found in (ours_last, ours_first):
        assert found["register"]["wrapped"]
        assert found["attach"]["wrapped"], "vllm-ascend patches again when its worker is made"
    patched = ours_first["register"]["patched"]
    assert len(patched) > 50
    assert "vllm.distributed.parallel_state.GroupCoordinator" in patched
    assert set(patched) <= set(ours_last["register"]["patched"]), "there, more of vLLM is imported"
    assert WRAP not in ours_last["register"]["patched"]


def test_attaching_changes_no_module_and_no_class(ours_last: dict[str, Any], ours_first: dict[str, Any]):
    for found in (ours_last["attach"], ours_first["attach"]):
        assert found["attached"] == "V1Adapter"
        assert found["changed"] == []
        assert found["changed later"] == []
        assert found["same class"]


def test_a_change_would_be_seen(ours_last: dict[str, Any]):
    mutants = ours_last["attach"]["mutants"]
    assert "vllm_ascend.sample.rejection_sampler.AscendRejectionSampler.forward" in mutants["patches_a_class"]
    assert mutants["patches_a_module"] == ["vllm_ascend.sample.sampler.random_sample"]
    assert "vllm.v1.sample.sampler.Sampler.forward" in mutants["patches_vllm"]


def test_the_log_says_what_is_attached(ours_first: dict[str, Any]):
    (line,) = (line for line in ours_first["attach"]["log"] if "is attached" in line)
    assert "attached to NPUModelRunner: method ngram with K = 3" in line
    assert "drafter: ours; sampler: ours; attention: vLLM's own" in line


# ---- steps through vllm-ascend's own runner
def test_signatures(ours_last: dict[str, Any], version: str):
    signatures = ours_last["attach"]["signatures"]
    assert signatures["_sample"] == ["logits", "spec_decode_metadata"]
    assert signatures["apply_logits_processors"] == ["logits", "sampling_metadata", "metadata"]
    assert signatures["rejection forward"] == ["metadata", "draft_probs", "logits", "sampling_metadata"]
    histories = ["sampled_token_ids", "num_tokens_no_spec", "token_ids_cpu", "slot_mappings"]
    assert signatures["propose"] == (["num_speculative_tokens"] * (version != "0.23.0") + histories)


def check_steps(steps: dict[str, Any], k: int) -> None:
    """``k``: what the runner asks its drafter for."""
    accepted, rejected = steps["accepted"], steps["rejected"]
    assert accepted["tokens"] == [[9, 5, 7], [6, -1, -1]]
    assert accepted["valid"] == [[9, 5, 7], [6]]
    assert accepted["logprobs of"] == [9, 5, 7, 6]
    assert accepted["drafts"] == [[8, 9, 5][:k], []]
    assert rejected["tokens"] == [[8, -1, -1], [3, 4, -1]]
    assert rejected["valid"] == [[8], [3, 4]]
    assert rejected["logprobs of"] == [8, 3, 4]
    assert rejected["drafts"] == [[9, 5, 7][:k], [6, 3, 4][:k]]
    assert steps["without drafts"]["valid"] == [[2], [1]]


def check_constraints(steps: dict[str, Any]) -> None:
    """5 beats 6 until it has been put out: the second draft of the first request sees the first one's penalty."""
    first, second = steps["constrained"]["valid"]
    assert first == [5, 6]
    assert 0 < len(second) <= 4
    assert all(token < 45 for token in second), "top-p leaves none of the rest"


@pytest.mark.parametrize("order", ["ours_first", "ours_last"])
def test_the_runner_takes_our_tokens_and_drafts(request: pytest.FixtureRequest, version: str, order: str):
    steps = request.getfixturevalue(order)["attach"]["steps"]
    check_steps(steps, 3 if version == "0.23.0" else 2)
    check_constraints(steps)


def test_the_order_makes_no_difference(ours_last: dict[str, Any], ours_first: dict[str, Any]):
    assert ours_last["attach"]["steps"] == ours_first["attach"]["steps"]


# ---- what is refused
#: a configuration -> what the refusal says
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"quantization": {"kv_cache_type": "C8"}},
        "the target's KV cache is int8 (C8), which vllm-ascend's attention reads for one query row a request",
    ),
    (
        {"engine": {"additional_config": {"enable_reduce_sample": True}}},
        "'enable_reduce_sample' was given as",
    ),
]


def test_refusals(ours_last: dict[str, Any]):
    plain, *said = ours_last["refusals"]
    assert plain == "K = 3"
    for text, (_, wanted) in zip(said, REFUSED, strict=True):
        assert wanted in text


def test_runners_that_are_not_attached_to(ours_last: dict[str, Any]):
    said = ours_last["other runners"]
    assert "NPUModelRunner310 runs on Ascend 310P" in said["310P"]
    assert "_sample_random" in said["V2"]


# ---- the fake
def real_words(wheel: Path) -> set[str]:
    """Every word in the Python of torch_npu and in its library's strings."""
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if name.endswith((".py", ".pyi")) or name == LIBRARY]
        return {word.decode() for file in files for word in set(re.findall(rb"\w{3,}", archive.read(file)))}


def test_the_fake_has_nothing_that_torch_npu_has_not(ours_last: dict[str, Any]):
    wheel = find_torch_npu()
    if wheel is None:
        pytest.skip("no torch_npu wheel in .cache/wheels: `make setup-ascend`")
    touched = [
        path.split(".")
        for path in ours_last["attach"]["touched"]
        if path.startswith(("torch_npu.", "torch.npu."))
    ]
    assert len(touched) > 20
    words = real_words(wheel)
    assert {path[-1] for path in touched} <= words
    assert "npu_top_k_top_q" not in words
    schema = extract(wheel, {"npu_top_k_top_p"})["npu_top_k_top_p"]
    assert schema == "npu_top_k_top_p(Tensor logits, Tensor? p=None, Tensor? k=None) -> Tensor"
