"""torch's public API as its own Python and stubs declare it, read by AST: of a wheel that is never installed, or of
the torch that runs the tests."""

from __future__ import annotations

import ast
import importlib.util
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ladder.wheel_source import fits, signature

#: places under which names come into being at run time
DYNAMIC = ("torch.ops",)

Definition = ast.stmt | str
"""A statement that binds a name; the dotted name of a module."""


@dataclass
class Torch:
    """``read(path)`` gives the text of a file of the package torch, "" where there is none."""

    read: Callable[[str], str]
    trees: dict[str, list[ast.stmt]] = field(default_factory=dict)
    found: dict[tuple[str, str], list[Definition]] = field(default_factory=dict)

    def find(self, path: str) -> list[Definition]:
        """What a dotted path stands for, each overload of a function; nothing if torch has no such thing."""
        if path == "torch" or path.startswith(tuple(f"{place}." for place in DYNAMIC)):
            return [path]
        owner, _, name = path.rpartition(".")
        return [found for definition in self.find(owner) for found in self._member(definition, owner, name)]

    def _member(self, owner: Definition, path: str, name: str) -> list[Definition]:
        if isinstance(owner, str):
            return self.in_module(owner, name)
        if isinstance(owner, ast.ClassDef):
            own: list[Definition] = [s for s in _statements(owner.body) if name in _bound(s)]
            for base in [] if own else owner.bases:
                for definition in self.find(f"torch._C.{ast.unparse(base).split('.')[-1]}"):
                    own += self._member(definition, path, name)
            return own
        return []

    def in_module(self, module: str, name: str) -> list[Definition]:
        if (module, name) not in self.found:
            self.found[module, name] = []  # modules that import each other's names end here
            self.found[module, name] = [*self._in_module(module, name)]
        return self.found[module, name]

    def _in_module(self, module: str, name: str) -> Iterator[Definition]:
        for statement in self._module(module):
            if isinstance(statement, ast.ImportFrom):
                yield from self._imported(module, statement, name)
            elif name in _bound(statement):
                yield statement
        if self._module(f"{module}.{name}"):
            yield f"{module}.{name}"

    def _imported(self, module: str, statement: ast.ImportFrom, name: str) -> Iterator[Definition]:
        source = self._absolute(module, statement)
        for alias in statement.names:
            if source.split(".")[0] != "torch":
                if (alias.asname or alias.name) == name:
                    yield statement
            elif alias.name == "*":
                yield from self.in_module(source, name)
            elif (alias.asname or alias.name) == name and (source, alias.name) != (module, name):
                yield from self.in_module(source, alias.name)

    def _absolute(self, module: str, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        parts = module.split(".")
        is_package = bool(self.read(f"{'/'.join(parts)}/__init__.py"))
        package = parts[: len(parts) - statement.level + is_package]
        return ".".join([*package, *([statement.module] if statement.module else [])])

    def _module(self, module: str) -> list[ast.stmt]:
        """The statements of a module's stub and of its source."""
        if module not in self.trees:
            path = module.replace(".", "/")
            files = [f"{path}{end}" for end in (".pyi", ".py", "/__init__.pyi", "/__init__.py")]
            self.trees[module] = [
                s for file in files if (text := self.read(file)) for s in _statements(ast.parse(text).body)
            ]
        return self.trees[module]

    def misfit(self, path: str, call: ast.Call) -> str | None:
        """Why a call fits none of the signatures; None: it fits one, or torch declares none."""
        reasons = []
        for definition in self.find(path):
            for function, bound in self._functions(definition):
                reason = fits(call, signature(function, bound=bound))
                if reason is None:
                    return None
                reasons.append(reason)
        return reasons[0] if reasons else None

    def _functions(self, definition: Definition) -> Iterator[tuple[ast.FunctionDef, bool]]:
        if isinstance(definition, ast.FunctionDef):
            yield definition, False
        elif isinstance(definition, ast.ClassDef):
            for name in ("__init__", "__new__"):
                for found in self._member(definition, "", name):
                    if isinstance(found, ast.FunctionDef):
                        yield found, True

    def tensor_members(self) -> set[str]:
        """Methods and attributes of a tensor."""
        classes = [*self.find("torch._C.TensorBase"), *self.find("torch.Tensor")]
        bodies = [s for c in classes if isinstance(c, ast.ClassDef) for s in _statements(c.body)]
        return {name for statement in bodies for name in _bound(statement)}


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Inside ``if``, ``try``, ``with`` and ``for`` too."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With | ast.For):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, part, []))
            for handler in getattr(statement, "handlers", []):
                yield from _statements(handler.body)


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a statement gives a meaning, imports aside."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {
        node.id
        for target in targets
        if isinstance(target, ast.Name | ast.Tuple)
        for node in ast.walk(target)
        if isinstance(node, ast.Name)
    }


@cache
def in_wheel(wheel: Path) -> Torch:
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
    return Torch(lambda path: archive.read(path).decode() if path in names else "")


@cache
def installed() -> Torch:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parents[1]
    return Torch(lambda path: (root / path).read_text() if (root / path).is_file() else "")


# ---- what sources use of torch
@dataclass(frozen=True)
class Use:
    """A dotted path, and the call of it if it is called."""

    path: str
    place: str
    call: ast.Call | None = None


def uses(source: str, place: str) -> Iterator[Use]:
    """Everything under torch that a source names, whatever name it has given it."""
    nodes = list(ast.walk(ast.parse(source)))
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    names[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                    yield Use(alias.name, place)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield Use(f"{node.module}.{alias.name}", place)
    calls = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Attribute | ast.Name) and (path := _path(node, names)):
            yield Use(path, f"{place}:{node.lineno}", calls.get(id(node)))


def _path(node: ast.expr, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := _path(node.value, names)):
        return f"{owner}.{node.attr}"
    return None


def attributes(source: str) -> set[str]:
    """Names of all attributes that are read or called, of whatever object."""
    return {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
