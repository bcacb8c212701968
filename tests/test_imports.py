"""Imports go downwards only, and each outside world has one room."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: rooms of ascend_spec, upper ones first; a room may import what stands in a later row, and itself
LAYERS = [
    ["cli"],
    ["vllm", "engine"],
    ["drafters", "scorer", "samplers"],
    ["models", "checkpoints"],
    ["config", "runtime", "metrics"],
    ["types"],
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
#: who alone may import a package of the outside world
ONLY = {
    "vllm": {"vllm"},
    "vllm_ascend": {"vllm"},
    "transformers": {"models"},
    "torch_npu": set(),
    "ops": set(),
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
    return found


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "ascend_spec" and len(parts) > 1 else None


@pytest.mark.parametrize("path", sources("ascend_spec"), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_downwards(path):
    room = path.relative_to(ROOT / "ascend_spec").parts[0].removesuffix(".py")
    if room == "__init__":
        return
    assert room in LEVEL, f"{room} is no room of the design"
    for module in imports(path):
        other = room_of(module)
        if other and other != room:
            assert LEVEL[other] > LEVEL[room], f"{room} imports {module}: upwards or sideways"


@pytest.mark.parametrize(
    "path", sources("ascend_spec") + sources("ops"), ids=lambda p: str(p.relative_to(ROOT))
)
def test_outside_worlds_have_one_room(path):
    room = path.relative_to(ROOT).parts[1].removesuffix(".py")
    in_ops = path.is_relative_to(ROOT / "ops")
    for module in imports(path):
        top = module.split(".")[0]
        assert top not in ONLY or (not in_ops and room in ONLY[top]), f"{path} imports {module}"
        assert not (in_ops and top == "ascend_spec"), f"{path}: operators know tensors only"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "ops").rglob("kernel*.py")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_kernels_import_triton_alone(path):
    for module in imports(path):
        assert module.split(".")[0] == "triton" or ".kernel" in module, f"{path} imports {module}"


def test_nobody_calls_the_operators_ops():
    with pytest.raises(ImportError, match="import it as 'ascend_spec_ops'"):
        import ops  # noqa: F401


@pytest.mark.parametrize("folder", ["ascend_spec", "ops", "tests", "benchmarks"])
def test_files_stay_small(folder):
    long = {
        str(p.relative_to(ROOT)): n for p in sources(folder) if (n := len(p.read_text().splitlines())) > 500
    }
    assert not long
