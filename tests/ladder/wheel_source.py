"""The Python in wheels of packages that cannot be installed here: read from the archive by AST, never imported."""

from __future__ import annotations

import ast
import inspect
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

WHEELS = Path(__file__).parents[2] / ".cache" / "wheels"

#: vllm-ascend -> the vLLM it is made for
PAIRS = {"0.23.0": "0.23.0", "0.26.0rc1": "0.26.0"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Missing(AssertionError):
    """A name, file or argument that the wheels do not have."""


def find_wheel(name: str, version: str) -> Path | None:
    """The wheel of a distribution in ``.cache/wheels``, if it was downloaded."""
    return next(iter(sorted(WHEELS.glob(f"{name}-{version}-*.whl"))), None)


@dataclass
class Source:
    """The Python of several wheels, with the branches for other versions of vLLM left out.

    Places are written ``path/in/wheel.py:Class.method``.
    """

    wheels: list[zipfile.ZipFile]
    vllm_version: str
    texts: dict[str, str] = field(default_factory=dict)
    trees: dict[str, ast.Module] = field(default_factory=dict)

    def edited(self, file: str, old: str, new: str) -> Source:
        """The same with a piece of a file replaced."""
        assert old in self.text(file), f"{file} has no {old!r} to replace"
        texts = {**self.texts, file: self.text(file).replace(old, new)}
        trees = {name: tree for name, tree in self.trees.items() if name != file}
        return Source(self.wheels, self.vllm_version, texts, trees)

    def files(self, folder: str) -> list[str]:
        """Python files under a folder."""
        names = (name for wheel in self.wheels for name in wheel.namelist())
        return sorted(name for name in names if name.startswith(folder) and name.endswith(".py"))

    def text(self, file: str) -> str:
        """Raises Missing for a file that no wheel has."""
        for wheel in self.wheels if file not in self.texts else []:
            if file in wheel.NameToInfo:
                self.texts[file] = wheel.read(file).decode()
        if file not in self.texts:
            raise Missing(f"no {file} in {[wheel.filename for wheel in self.wheels]}")
        return self.texts[file]

    def tree(self, file: str) -> ast.Module:
        if file not in self.trees:
            self.trees[file] = _VersionBranches(self.vllm_version).visit(ast.parse(self.text(file)))
        return self.trees[file]

    def definition(self, place: str) -> ast.AST:
        """The class or function at a place; Missing if there is none."""
        file, _, path = place.partition(":")
        node: ast.AST = self.tree(file)
        for name in path.split("."):
            found = [child for child in _statements(node) if getattr(child, "name", None) == name]
            if not found:
                raise Missing(f"{file} has no {path}")
            node = found[0]
        return node

    def lineage(self, place: str) -> Iterator[str]:
        """Places of a class and of its bases, as far as the wheels have them."""
        yield place
        file = place.partition(":")[0]
        node = self.definition(place)
        assert isinstance(node, ast.ClassDef)
        for base in node.bases:
            other = self._imported(file, ast.unparse(base))
            if other is not None:
                yield from self.lineage(other)

    def _imported(self, file: str, name: str) -> str | None:
        for node in ast.walk(self.tree(file)):
            if isinstance(node, ast.ImportFrom) and any(name in (a.asname, a.name) for a in node.names):
                module = f"{node.module}".replace(".", "/") + ".py"
                return f"{module}:{name}" if module.startswith("vllm") else None
            if isinstance(node, ast.ClassDef) and node.name == name:
                return f"{file}:{name}"
        return None

    def members(self, place: str) -> set[str]:
        """What instances of a class have: methods, fields, and what its methods assign to ``self``."""
        found: set[str] = set()
        for owner in self.lineage(place):
            node = self.definition(owner)
            for child in _statements(node):
                found |= {getattr(child, "name", "")} | {
                    target.id for target in _targets(child) if isinstance(target, ast.Name)
                }
            for child in ast.walk(node):
                found |= {
                    target.attr
                    for target in _targets(child)
                    if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
                }
        return found

    def signature(self, place: str) -> inspect.Signature:
        """Of a function, or of a method looked up through its class's bases, without ``self``."""
        owner, _, name = place.rpartition(".")
        for candidate in self.lineage(owner):
            try:
                node = self.definition(f"{candidate}.{name}")
            except Missing:
                continue
            assert isinstance(node, Function)
            return signature(node, bound="staticmethod" not in map(ast.unparse, node.decorator_list))
        raise Missing(f"{owner} has no method {name}")

    def calls(self, place: str, function: str) -> list[ast.Call]:
        """Calls of ``function``, written as in the source, in the definition at a place."""
        nodes = ast.walk(self.definition(place))
        return [n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == function]


def signature(node: Function, *, bound: bool) -> inspect.Signature:
    """The signature of a definition, without defaults' values; ``bound`` leaves the first parameter out."""
    arguments, kinds = node.args, inspect.Parameter
    positional = arguments.posonlyargs + arguments.args
    required = len(positional) - len(arguments.defaults)
    parameters = [
        kinds(a.arg, kinds.POSITIONAL_OR_KEYWORD, default=kinds.empty if index < required else None)
        for index, a in enumerate(positional)
    ][bound:]
    if arguments.vararg:
        parameters.append(kinds(arguments.vararg.arg, kinds.VAR_POSITIONAL))
    for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(kinds(a.arg, kinds.KEYWORD_ONLY, default=kinds.empty if default is None else None))
    if arguments.kwarg:
        parameters.append(kinds(arguments.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(parameters)


def fits(call: ast.Call, parameters: inspect.Signature) -> str | None:
    """Why a call does not fit a signature; None: it does."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None  # what is passed on cannot be counted here
    try:
        parameters.bind(*call.args, **{f"{keyword.arg}": keyword.value for keyword in call.keywords})
    except TypeError as error:
        return f"{ast.unparse(call)}: {error}"
    return None


class _VersionBranches(ast.NodeTransformer):
    """``if vllm_version_is("0.23.0"): ...`` becomes the branch that runs beside this vLLM."""

    def __init__(self, version: str) -> None:
        self.version = version

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        test = node.test
        if isinstance(test, ast.Call) and ast.unparse(test.func) == "vllm_version_is":
            return node.body if ast.literal_eval(test.args[0]) == self.version else node.orelse
        return node


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Statements of a module, class or function; inside its ``if`` blocks too, not inside nested definitions."""
    for child in getattr(node, "body", []):
        yield child
        if isinstance(child, ast.If):
            yield from _statements(child)
            yield from _statements(ast.Module(child.orelse, []))


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [part for target in node.targets for part in _parts(target)]
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []


def _parts(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
