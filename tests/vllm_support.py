"""The support table of docs/vllm.md: what a test proves, it says itself, and the table is written from that.

``python tests/vllm_support.py`` (``make support-table``) writes it; ``test_vllm_support.py`` compares.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

HERE = Path(__file__).parent
DOCUMENT = HERE.parent / "docs" / "vllm.md"
BEGIN, END = "<!-- support table: make support-table -->\n", "<!-- end of the support table -->"
#: where tests run a vLLM
FOLDERS = ("vllm_cpu", "vllm033")
#: modules that tests import by name, as pytest finds them
PATHS = (HERE, HERE / "exactness", HERE / "ladder", HERE / "vllm_cpu")
Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True, order=True)
class Cell:
    vllm: str
    runner: str
    method: str
    rule: str


#: cell -> what was shown, and the test that shows it
CELLS: dict[Cell, list[tuple[str, str]]] = {}


def supports(
    vllm: str, runner: str, methods: Mapping[str, str] | Iterable[str], what: str, rule: str = "standard"
) -> Callable[[Test], Test]:
    """Say beside a test that it proves cells of the support table.

    Args:
        vllm: distribution and version.
        methods: names for the table; of a parametrised test, by the parameter that stands for each.
        what: what the test shows, in a few words.

    Raises:
        ValueError: a parameter that the test doesn't have, so that nothing would be proved.
    """

    def record(test: Test) -> Test:
        marks = getattr(test, "pytestmark", [])
        if isinstance(methods, Mapping):
            given = [value for mark in marks if mark.name == "parametrize" for value in mark.args[1]]
            if unknown := set(methods) - {value for value in given if isinstance(value, str)}:
                raise ValueError(f"{test.__name__} runs no {', '.join(sorted(unknown))}")
        name = f"`{Path(test.__code__.co_filename).name}::{test.__name__}`"
        if any(mark.name == "full" for mark in marks):
            name += ", `make test-full`"
        for method in methods.values() if isinstance(methods, Mapping) else methods:
            shown = CELLS.setdefault(Cell(vllm, runner, method, rule), [])
            if (what, name) not in shown:  # pytest and the table import a module each
                shown.append((what, name))
        return test

    return record


def collect() -> dict[Cell, list[tuple[str, str]]]:
    """What all tests with a vLLM say."""
    sys.path += [str(path) for path in PATHS if str(path) not in sys.path]
    CELLS.clear()
    for folder in FOLDERS:
        for file in sorted((HERE / folder).glob("test_*.py")):
            spec = importlib.util.spec_from_file_location(f"support_table_{file.stem}", file)
            assert spec is not None
            assert spec.loader is not None
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return CELLS


def table(cells: dict[Cell, list[tuple[str, str]]]) -> str:
    lines = ["| vLLM | runner | method | rule | what was shown |", "|---|---|---|---|---|"]
    for cell, shown in sorted(cells.items()):
        texts = [f"{what} ({name})" for what, name in sorted(shown)]
        lines.append(f"| {cell.vllm} | {cell.runner} | {cell.method} | {cell.rule} | {'; '.join(texts)} |")
    return "\n".join(lines) + "\n"


def parts(text: str) -> tuple[str, str, str]:
    """A document before, in and after its support table."""
    before, _, rest = text.partition(BEGIN)
    inside, _, after = rest.partition(END)
    return before, inside, after


def write(document: Path = DOCUMENT) -> None:
    before, _, after = parts(document.read_text())
    document.write_text(before + BEGIN + table(collect()) + END + after)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    import vllm_support  # the one that the tests import

    vllm_support.write()
