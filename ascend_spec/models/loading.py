"""Read models and tokenizers from disk, with errors that say which file is wrong and how."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ascend_spec.models.attention import UnsupportedModelError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")


def load_hf_model(path: str | os.PathLike[str], dtype: torch.dtype) -> Any:
    """A transformers causal LM on the CPU, from a safetensors directory or a GGUF file.

    Raises:
        FileNotFoundError: no such path, or a directory without config.json.
        ValueError: an unreadable config or weight file, or weights that lack some of the model's tensors.
        UnsupportedModelError: not a decoder-only language model.
    """
    path = _existing(path)
    if path.is_file():
        return _load_gguf(path, dtype)
    if not (path / "config.json").is_file():
        raise _no_model_directory(path)
    _refuse_other_kinds(path)
    return _load_weights(path, path, dtype=dtype, local_files_only=True)


def load_tokenizer(path: str | os.PathLike[str]) -> Any:
    """The tokenizer of a model directory or GGUF file.

    Raises:
        FileNotFoundError: no such path, or a directory without tokenizer files.
        ValueError: unreadable files.
    """
    path = _existing(path)
    if path.is_file():
        return _load_gguf_tokenizer(path)
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        if not (path / "config.json").is_file():  # the tokenizer is the least that is missing here
            raise _no_model_directory(path)
        raise FileNotFoundError(
            f"{path} has no tokenizer: none of {', '.join(TOKENIZER_FILES)} is there. Copy the tokenizer "
            "files of the model this one was made from into it, or pass the directory that has them."
        )
    with _readable(path):
        return AutoTokenizer.from_pretrained(path, local_files_only=True)


def _no_model_directory(path: Path) -> FileNotFoundError:
    return FileNotFoundError(
        f"{path} is a directory without config.json. A model is a directory with config.json and "
        "safetensors files as transformers saves it, or a .gguf file: pass one of these (of a directory "
        "that holds a .gguf file, name the file)."
    )


def _existing(path: str | os.PathLike[str]) -> Path:
    found = Path(path).expanduser()
    if not found.exists():
        raise FileNotFoundError(
            f"{found} does not exist. A model is given as a local path: a directory with config.json and "
            "safetensors files, or a .gguf file; names on a hub are not looked up. Download the model and "
            "pass its path."
        )
    return found


def _refuse_other_kinds(path: Path) -> None:
    """Before the weights are read."""
    with _readable(path):
        config = AutoConfig.from_pretrained(path, local_files_only=True)
    if config.is_encoder_decoder:
        kind = "an encoder-decoder"
    elif type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        kind = "not a causal language model"
    else:
        return
    raise UnsupportedModelError(
        f"{path} holds a model of type {config.model_type!r}, {kind}. Only decoder-only language models can "
        "run on paged K/V: use one of these."
    )


def _load_weights(path: Path, source: Path, **options: Any) -> Any:
    load: Any = AutoModelForCausalLM.from_pretrained  # returns a pair with output_loading_info
    with _readable(path):
        model, found = load(source, output_loading_info=True, **options)
    if missing := sorted(found["missing_keys"]):  # transformers only warns, and draws them at random
        raise ValueError(
            f"{path} lacks {len(missing)} tensor(s) that a {type(model).__name__} of its config has "
            f"({', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}). Download the model again, or "
            "pass one whose weights belong to its config."
        )
    return model


def _load_gguf(path: Path, dtype: torch.dtype) -> Any:
    _require_gguf(path)
    loaded = _load_weights(path, path.parent, gguf_file=path.name, dtype=dtype)
    # The object counts as quantized and refuses to be saved, although its weights are plain by now: move them
    # into a model built from a config that never heard of quantization.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(loaded).__name__]
    clean = type(loaded)(config).to(dtype)
    clean.load_state_dict(loaded.state_dict(), assign=True)
    clean.tie_weights()
    clean.generation_config = loaded.generation_config
    return clean


def _load_gguf_tokenizer(path: Path) -> Any:
    _require_gguf(path)
    from gguf import GGUFReader

    with _readable(path):
        fields = GGUFReader(path).fields
        tokenizer: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    if _adds_bos(fields) and tokenizer.bos_token is not None:
        tokenizer.add_bos_token = True  # the conversion forgets it; Gemma without its BOS writes gibberish
        tokenizer.update_post_processor()
    return tokenizer


def _adds_bos(fields: Any) -> bool:
    """GGUF's own flag; where it is absent, llama.cpp's default: SentencePiece vocabularies do."""
    if flag := fields.get("tokenizer.ggml.add_bos_token"):
        return bool(flag.contents())
    model = fields.get("tokenizer.ggml.model")
    return model is not None and model.contents() == "llama"


def _require_gguf(path: Path) -> None:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ValueError(
            f"{path} is not a GGUF file: it begins with {magic!r} instead of b'GGUF'. A single file is read "
            "as GGUF; pass the directory for a model in safetensors format."
        )
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"reading {path} needs the package(s) {', '.join(missing)}: pip install 'ascend-spec[gguf]'"
        )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Readers of a cut or foreign file raise whatever its first misread byte leads to."""
    try:
        yield
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        unreadable = _unreadable_gguf if path.is_file() else _unreadable_directory
        raise ValueError(unreadable(path, cause)) from error


def _unreadable_directory(path: Path, cause: str) -> str:
    return (
        f"{path} could not be read as a model directory ({cause}). Either a file in it is incomplete or "
        "missing, then download it again and compare sizes, or it is of a kind that transformers does not "
        "know here, then use another model."
    )


def _unreadable_gguf(path: Path, cause: str) -> str:
    size = path.stat().st_size
    return (
        f"{path} could not be read as a GGUF file of {size} bytes ({cause}). Either it is incomplete, then "
        "download it again and compare its size, or transformers does not know its architecture or "
        "quantization, then use the model's safetensors directory."
    )
