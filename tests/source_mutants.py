"""Broken copies of a module: a small patch of its source, loaded beside it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Patch:
    """``number`` is the mutant's number in the list of known mistakes, where it has one."""

    name: str
    old: str
    new: str
    number: int | None = None

    def __str__(self) -> str:
        return self.name

    def load(self, module: ModuleType, folder: Path) -> ModuleType:
        """The patched copy. Numba compiles it anew, serially: that takes half as long."""
        assert module.__file__ is not None
        source = Path(module.__file__).read_text()
        assert source.count(self.old) == 1, "the mutant no longer fits the code: write it anew"
        path = folder / f"mutant_{abs(hash(self))}.py"
        path.write_text(
            source.replace(self.old, self.new).replace("@njit(parallel=True, cache=True)", "@njit")
        )
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        mutant = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(mutant)
        return mutant
