"""Everything that this project uses of torch is in the oldest torch it is meant for, and used as that one has it:
vllm-ascend's 2.10, whose stubs are read from a wheel, beside the torch that runs the tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from ladder.torch_stubs import Torch, Use, attributes, in_wheel, installed, uses
from ladder.wheel_source import find_wheel

ROOT = Path(__file__).parents[2]
OLDEST = "2.10.0"


@pytest.fixture(scope="session")
def oldest() -> Torch:
    wheel = find_wheel("torch", OLDEST)
    if wheel is None:
        pytest.skip(f"no wheel of torch {OLDEST} in .cache/wheels: `make setup-ascend`")
    return in_wheel(wheel)


@pytest.fixture(params=["oldest", "installed"])
def torch_api(request: pytest.FixtureRequest) -> Torch:
    return installed() if request.param == "installed" else request.getfixturevalue("oldest")


@cache
def sources() -> dict[str, str]:
    files = [path for package in ("ascend_spec", "ops") for path in sorted((ROOT / package).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): path.read_text() for path in files}


@cache
def all_uses() -> list[Use]:
    return [use for place, source in sources().items() for use in uses(source, place)]


def faults(api: Torch, found: list[Use]) -> list[str]:
    """Paths that are not there, and calls that fit no signature."""
    missing = [f"{use.place}: no {use.path}" for use in found if not api.find(use.path)]
    calls = [(use, api.misfit(use.path, use.call)) for use in found if use.call is not None]
    return missing + [f"{use.place}: {use.path}: {reason}" for use, reason in calls if reason]


def test_torch_has_what_is_used(torch_api: Torch):
    assert not faults(torch_api, all_uses())


def test_tensors_have_what_is_used(oldest: Torch):
    """Of whatever object an attribute is read: none has a name that only newer tensors have."""
    newer = installed().tensor_members() - oldest.tensor_members()
    used = {name for source in sources().values() for name in attributes(source)}
    assert {"masked_fill", "repeat_interleave", "nan_to_num"} <= used & oldest.tensor_members()
    assert not used & newer


def test_uses_are_seen():
    paths = {use.path for use in all_uses()}
    assert len(all_uses()) > 1000
    assert paths >= {"torch.searchsorted", "torch.library.Library", "torch.inference_mode", "torch.Tensor"}
    assert {use.path for use in all_uses() if use.call is not None} >= {"torch.empty", "torch.where"}


MUTANTS = {
    "a function": "torch.frobnicate(x)",
    "of a module": "torch.nn.Linea",
    "of a class": "torch.Generator.seed_of",
    "imported": "from torch.nn.functional import softmin_max",
    "a module": "import torch.nn.functionals",
    "under another name": "import torch.nn.functional as F\nF.frobnicate(x)",
    "a keyword": "torch.searchsorted(a, b, rigth=True)",
    "an argument more": "torch.equal(a, b, c)",
    "of a constructor": "torch.library.Library('a', 'DEF', namespace='b')",
}


@pytest.mark.parametrize("label", MUTANTS)
def test_what_is_not_there_is_found(torch_api: Torch, label: str):
    (fault,) = faults(torch_api, list(uses(f"import torch\n{MUTANTS[label]}\n", "a mutant")))
    assert fault.startswith("a mutant")


def test_what_is_newer_is_found(oldest: Torch):
    """Something that the torch of the tests has and the oldest one has not."""
    newer = [
        name
        for name in sorted(installed().tensor_members() - oldest.tensor_members())
        if installed().find(f"torch.{name}")
    ]
    assert newer, "compare with an older torch than that of the tests"
    found = list(uses(f"import torch\ntorch.{newer[0]}", "a mutant"))
    assert not faults(installed(), found)
    assert len(faults(oldest, found)) == 1
    assert attributes(f"x.{newer[0]}(y)") == {newer[0]}
