"""``ascend-spec suffix build``: a memory for suffix decoding, from text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from ascend_spec.cli.errors import CommandError, judging_input
from ascend_spec.config import read_model_facts
from ascend_spec.drafters import suffix_memory
from ascend_spec.models import load_tokenizer


def run(args: argparse.Namespace) -> int:
    if Path(args.output).exists():
        raise CommandError(
            f"--output was given as {args.output!r}, which exists: remove it or give another name"
        )
    with judging_input():
        facts, tokenizer = read_model_facts(args.model), load_tokenizer(args.model)
    outputs = [_token_ids(tokenizer, path) for path in args.corpus]
    with judging_input(OSError):
        suffix_memory.save(
            args.output, outputs, suffix_memory.Tokenizer.of_model(args.model, facts.vocab_size)
        )
    num_tokens = sum(len(output) for output in outputs)
    if args.json:
        print(
            json.dumps(
                {"ok": True, "file": args.output, "num_outputs": len(outputs), "num_tokens": num_tokens}
            )
        )
    else:
        print(f"{args.output}: {num_tokens} tokens of {len(outputs)} texts")
    return 0


def _token_ids(tokenizer, path: str) -> np.ndarray:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--corpus was given {path!r}, which cannot be read: {error}") from error
    return np.array(tokenizer.encode(text, add_special_tokens=False), np.int32)
