"""Suffix decoding's memory as a file: outputs of earlier requests, for a process that starts later.

The file holds a line that names the format, a line of JSON (version, counts, whose token ids they are), the lengths of
the outputs and their tokens as little-endian int32, and SHA-256 of all that. It is replaced as a whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MAGIC = b"ascend-spec suffix memory\n"
VERSION = 1
DIGEST_BYTES = 32


@dataclass(frozen=True)
class Tokenizer:
    """Whose token ids a memory holds. What is None is not known, and not compared."""

    vocab_size: int | None = None
    vocabulary: str | None = None
    """A digest of the vocabulary."""

    @classmethod
    def of_model(cls, path: str | os.PathLike[str] | None, vocab_size: int | None) -> Tokenizer:
        """Of a model's directory; a model without a ``tokenizer.json`` is known by the size of its vocabulary."""
        file = Path(path or "") / "tokenizer.json"
        if path is None or not file.is_file():
            return cls(vocab_size)
        described = json.loads(file.read_text(encoding="utf-8"))
        added = [(token["id"], token["content"]) for token in described.get("added_tokens", [])]
        words = json.dumps([described["model"].get("vocab"), sorted(added)], sort_keys=True)
        return cls(vocab_size, hashlib.sha256(words.encode()).hexdigest())

    def differs(self, other: Tokenizer) -> str | None:
        """In what; None: nothing is known to differ."""
        if None not in (self.vocab_size, other.vocab_size) and self.vocab_size != other.vocab_size:
            return f"a vocabulary of {other.vocab_size} tokens, and not {self.vocab_size}"
        if None not in (self.vocabulary, other.vocabulary) and self.vocabulary != other.vocabulary:
            return "another tokenizer's vocabulary"
        return None


def save(path: str | os.PathLike[str], outputs: Sequence[np.ndarray], tokenizer: Tokenizer) -> None:
    """Write outputs, the oldest first, in place of what the file held.

    Raises:
        OSError: it cannot be written; the file is then as it was.
    """
    lengths = np.array([len(output) for output in outputs], "<i4")
    header = {
        "version": VERSION, "num_outputs": len(outputs), "num_tokens": int(lengths.sum()),
        "vocab_size": tokenizer.vocab_size, "vocabulary": tokenizer.vocabulary,
    }  # fmt: skip
    tokens = np.concatenate([*outputs, np.zeros(0, np.int32)]).astype("<i4")
    body = b"".join([MAGIC, json.dumps(header).encode(), b"\n", lengths.tobytes(), tokens.tobytes()])
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name + ".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(body + hashlib.sha256(body).digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def load(path: str | os.PathLike[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """The outputs of a file, the oldest first; none if there is no such file.

    Raises:
        ValueError: it is damaged, of another version or tokenizer, or no such memory; or nothing could be written
            there later.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise ValueError(
            f"suffix_memory_path={str(path)!r} is in no directory that exists: make it, or correct the path"
        )
    if not target.exists():
        return []
    problem, advice = None, "The file was left as it is: give another path, or remove it to begin anew."
    content = target.read_bytes() if target.is_file() else b""
    body, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
    first, _, numbers = body[len(MAGIC) :].partition(b"\n")
    if not content.startswith(MAGIC):
        problem = "it is no suffix memory"
    elif hashlib.sha256(body).digest() != digest:
        problem = "it is damaged or was cut short: its checksum is wrong"
    else:
        header = json.loads(first)
        if header["version"] != VERSION:
            problem = f"its format is version {header['version']}, and this is for version {VERSION}"
        elif difference := tokenizer.differs(Tokenizer(header["vocab_size"], header["vocabulary"])):
            problem = f"it was made with {difference}"
    if problem is not None:
        raise ValueError(f"suffix_memory_path={str(path)!r} cannot be read: {problem}. {advice}")
    count = header["num_outputs"]
    values = np.frombuffer(numbers, "<i4")
    return np.split(values[count:].astype(np.int32), np.cumsum(values[:count])[:-1]) if count else []
