"""Models, configs and prompts as the user names them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ascend_spec.cli.errors import CommandError, judging_input
from ascend_spec.models import CausalLM, load_tokenizer


def load_model(path: str | os.PathLike[str]) -> tuple[CausalLM, Any]:
    """The model and its tokenizer, the smaller first since it may already be missing."""
    try:
        with judging_input():
            tokenizer = load_tokenizer(path)
            return CausalLM.load(path), tokenizer
    except SafetensorError as error:
        raise CommandError(
            f"the weights in {path} could not be read ({error}): a safetensors file there is incomplete or "
            "damaged; download it again and compare its size"
        ) from error


def token_ids(tokenizer: Any, text: str, chat: bool) -> list[int]:
    """Empty for an empty text, even where a template or a BOS token would stand around it."""
    if not text:
        return []
    if not chat:
        return list(tokenizer.encode(text))
    if not tokenizer.chat_template:
        raise CommandError(
            "the chat template was asked for, but this model's tokenizer has none: use a chat model, or drop "
            "--chat and write the prompt as the model was trained to read it"
        )
    turn = [{"role": "user", "content": text}]
    return list(tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False))


def read_prompts(path: str) -> dict[int, str]:
    """Line number -> prompt, of a file with a prompt a line, or of JSON lines with a key "prompt"; which one, its
    first line tells. Blank lines are skipped."""
    try:
        # not splitlines: it would end lines at separators that editors show inside one, and JSON allows in text
        numbered = enumerate(Path(path).read_text(encoding="utf-8-sig").split("\n"), 1)
        lines = {number: line for number, line in numbered if line.strip()}
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"--prompts-file {path} cannot be read ({error}): pass a text file in UTF-8 with a prompt a line"
        ) from error
    if not lines:
        raise CommandError(f"{path} holds no prompt: write one a line, or JSON lines with a key 'prompt'")
    if _json_object(next(iter(lines.values()))) is None:
        return lines
    return {number: _json_prompt(path, number, line) for number, line in lines.items()}


def _json_prompt(path: str, number: int, line: str) -> str:
    prompt = (_json_object(line) or {}).get("prompt")
    if not isinstance(prompt, str):
        raise CommandError(
            f"{path}: line {number} is {line[:80]!r}; the file holds JSON lines, so each must be an object "
            "with a string under 'prompt': correct it"
        )
    return prompt


def _json_object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
