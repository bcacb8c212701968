"""torch_npu's operators on a machine without torch_npu: schemas and shape functions, on meta tensors.

The schemas are those that torch_npu registers, extracted from its wheel by ``extract_npu_schemas.py``. The
Meta kernels are Huawei's own; they are read from the wheel (it is never imported) where there is one.
"""

from __future__ import annotations

import ast
import json
import math
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.library import Library, impl

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
META_SOURCE = "torch_npu/op_plugin/meta/_meta_registrations.py"


def committed() -> dict[str, Any]:
    """``{"torch_npu": version, "schemas": {operator: schema}}``"""
    return json.loads((HERE / "npu_schemas.json").read_text())


def operators_called() -> set[str]:
    """Every ``torch.ops.npu.X`` and ``torch_npu.X`` in ``ops/*/npu.py``."""
    found = set()
    for path in sorted((ROOT / "ops").glob("*/npu.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("torch.ops.npu", "torch_npu"):
                found.add(node.attr)
    return found


def find_wheel() -> Path | None:
    """The wheel that ``make setup-ascend`` downloads, of the version whose schemas are committed."""
    if "ASCEND_SPEC_TORCH_NPU_WHEEL" in os.environ:
        return Path(os.environ["ASCEND_SPEC_TORCH_NPU_WHEEL"])
    wheels = (ROOT / ".cache" / "wheels").glob(f"torch_npu-{committed()['torch_npu']}-*.whl")
    return next(iter(sorted(wheels)), None)


@contextmanager
def defined(operators: set[str], meta_kernels: Callable[[Library, set[str]], None]) -> Iterator[None]:
    """Define ``torch.ops.npu.X`` by the committed schemas; ``meta_kernels`` gives them shapes."""
    schemas = committed()["schemas"]
    definitions = Library("npu", "FRAGMENT")
    kernels = Library("npu", "IMPL", "Meta")
    try:
        for name in sorted(operators):
            definitions.define(schemas[name])
        meta_kernels(kernels, operators)
        yield
    finally:
        # other tests must find a torch without npu operators
        kernels._destroy()
        definitions._destroy()


def is_wanted(statement: ast.stmt, operators: set[str]) -> bool:
    """Constants, helpers and the kernels of ``operators``; not imports, libraries and other kernels."""
    if isinstance(statement, ast.Assign):
        return not ast.unparse(statement.value).startswith("Library")
    if not isinstance(statement, ast.FunctionDef):
        return False
    kernels = {f"impl(m, '{name}')" for name in operators}
    return all(ast.unparse(decorator) in kernels for decorator in statement.decorator_list)


class AnyCode:
    """Stands for torch_npu's error codes and dtypes: every attribute exists."""

    def __getattr__(self, name: str) -> int:
        return 0


def huawei_kernels(wheel: Path) -> Callable[[Library, set[str]], None]:
    """Registers the Meta kernels of torch_npu's wheel, with the constants and helpers that they use."""

    def register(library: Library, operators: set[str]) -> None:
        with zipfile.ZipFile(wheel) as archive:
            source = ast.parse(archive.read(META_SOURCE).decode())
        scope = {"m": library, "impl": impl, "torch": torch, "math": math, "os": os, "warnings": warnings}
        scope |= {"torch_npu": AnyCode(), "ErrCode": AnyCode(), "ops_error": lambda code: f" [{code}]"}
        for statement in source.body:
            if is_wanted(statement, operators):
                exec(compile(ast.Module([statement], []), META_SOURCE, "exec"), scope)

    return register


def placeholder_kernels(library: Library, operators: set[str]) -> None:
    """Shapes where there is no wheel: the schema is checked all the same."""

    def attention(query: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty_like(query), query.new_empty(0, dtype=torch.float32)

    placeholders = {
        "npu_fused_infer_attention_score": attention,
        "npu_scatter_pa_kv_cache": lambda *args, **kwargs: None,
    }
    for name in operators:
        library.impl(name, placeholders[name])
