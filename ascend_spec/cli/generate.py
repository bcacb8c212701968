"""``ascend-spec generate``: text for one prompt, streamed, or for a file of prompts."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ascend_spec.cli.errors import CommandError, judging_input
from ascend_spec.config import load_speculative_config

#: options that are sampling parameters of the same names
SAMPLING = (
    "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logprobs",
)  # fmt: skip


def run(args: argparse.Namespace) -> int:
    with judging_input():
        config = load_speculative_config(
            args.speculative_config,
            spec_method=args.spec_method,
            spec_model=args.spec_model,
            spec_tokens=args.spec_tokens,
            embedded=True,
        )
    # after the config, which is judged at once, come the imports that take seconds
    from ascend_spec.cli.inputs import load_model, read_prompts, token_ids
    from ascend_spec.engine import LLM, OutputChunk, RequestError
    from ascend_spec.types import SamplingParams

    numbered = None if args.prompts_file is None else read_prompts(args.prompts_file)
    texts = [args.prompt] if numbered is None else list(numbered.values())
    model, tokenizer = load_model(args.model)
    with judging_input():
        llm = LLM(
            model,
            tokenizer=tokenizer,
            speculative_config=config,
            max_model_len=args.max_model_len,
            num_kv_blocks=args.num_kv_blocks,
            max_num_batched_tokens=args.max_num_batched_tokens,
            max_num_seqs=max(1, min(8, len(texts))),  # no more KV than the prompts can use
        )
    params = SamplingParams(
        temperature=args.temperature,
        seed=args.seed,
        max_tokens=args.max_tokens,
        min_tokens=args.min_tokens,
        stop=tuple(args.stop),
        ignore_eos=args.ignore_eos,
        **{name: getattr(args, name) for name in SAMPLING},
    )
    prompts = [token_ids(tokenizer, text, args.chat) for text in texts]
    streamed = len(texts) == 1 and not args.json

    def stream(chunk: OutputChunk) -> None:
        print(chunk.text, end="", flush=True)

    begin = time.perf_counter()
    with judging_input(RequestError), _showing_failures(llm):  # RequestError: when there is but one prompt
        outputs = llm.generate(prompts, params, callback=stream if streamed else None)
    seconds = time.perf_counter() - begin
    if streamed:
        print()
    places = [""] if numbered is None else [f"line {number}: " for number in numbered]
    for place, text, output in zip(places, texts, outputs, strict=True):
        _report(place, text, output, args.json, streamed)
    if args.json:
        print(json.dumps({"metrics": _metrics(llm)}))
    else:
        sys.stdout.flush()
        line = _speed(outputs, seconds, llm)
        Console(stderr=True, highlight=False).print(line, style="dim", markup=False, soft_wrap=True)
    return 1 if any(output.error for output in outputs) else 0


@contextmanager
def _showing_failures(llm: Any) -> Iterator[None]:
    """What a drafter raises, where the user wants to see it: a line and no traceback."""
    from ascend_spec.engine import RequestError

    try:
        yield
    except RequestError:
        raise
    except Exception as error:
        if llm.plan.config.ascend_spec.on_error != "raise":
            raise
        raise CommandError(
            f"generation failed with {type(error).__name__}: {error}; 'ascend_spec.on_error' is \"raise\": give "
            '"continue" to go on without drafts'
        ) from error


def _report(place: str, prompt: str, output: Any, as_json: bool, streamed: bool) -> None:
    if as_json:
        keys = ["text", "token_ids", "finish_reason", "error", *(["logprobs"] if output.logprobs else [])]
        fields = {key: asdict(output)[key] for key in keys}
        print(json.dumps({"prompt": prompt, **fields}))
    elif not streamed:
        print(f"=== {prompt}\n{output.text}\n")
    if output.error:
        print(f"ascend-spec: error: {place}prompt {prompt[:60]!r}: {output.error}", file=sys.stderr)


def _speed(outputs: Sequence[Any], seconds: float, llm: Any) -> str:
    """One line: how fast, and what the drafts were worth."""
    num_tokens = sum(len(output.token_ids) for output in outputs)
    line = f"{num_tokens} tokens in {seconds:.2f} s, {num_tokens / max(seconds, 1e-9):.1f} tokens/s"
    if llm.plan.num_speculative_tokens == 0:
        return line
    metrics = llm.metrics
    if metrics.num_drafts == 0:
        return f"{line}; no drafts were made"
    return (
        f"{line}; {metrics.acceptance_rate:.0%} of {metrics.num_draft_tokens} draft tokens accepted, "
        f"{metrics.mean_acceptance_length:.2f} tokens a draft"
    )


def _metrics(llm: Any) -> dict[str, Any]:
    metrics = llm.metrics
    return {
        "acceptance_rate": metrics.acceptance_rate,
        "mean_acceptance_length": metrics.mean_acceptance_length,
        **metrics.prometheus(),
    }
