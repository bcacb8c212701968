"""``ascend-spec demo``: real prompts, decoded with and without speculation, side by side."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from rich.console import Console

from ascend_spec.cli.errors import judging_input
from ascend_spec.cli.prompts import demo_prompts
from ascend_spec.cli.view import LiveView, View
from ascend_spec.config import SpeculativeConfig, load_speculative_config

if TYPE_CHECKING:
    from ascend_spec.cli.race import Lane, Result

#: the best of those measured for the demo model on a CPU, where a wrong draft costs little
DEFAULT_CONFIG = {
    "method": "ngram",
    "num_speculative_tokens": 5,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}
WARM_UP_TOKENS = 12


def run(args: argparse.Namespace) -> int:
    with judging_input():
        config = load_speculative_config(args.speculative_config or DEFAULT_CONFIG, embedded=True)
    console = Console(stderr=args.json)
    view = (LiveView if console.is_terminal else View)(console)
    view.say("importing PyTorch and transformers ...")
    import torch

    from ascend_spec.cli.race import race, summarize
    from ascend_spec.engine import RequestError
    from ascend_spec.types import SamplingParams

    if args.threads:
        torch.set_num_threads(args.threads)
    plain, spec, prompts = _prepare(args, config, view)
    view.say("warming up, compiling kernels on first use ...")
    with judging_input(RequestError):  # a prompt longer than another model allows
        for token_ids in (prompts[kind][0] for kind in ("edit", "chat")):
            race(plain, spec, token_ids, SamplingParams(temperature=0.0, max_tokens=WARM_UP_TOKENS))
        params = SamplingParams(temperature=0.0, max_tokens=args.max_tokens)
        results: dict[str, list[Result]] = {}
        for kind, batch in prompts.items():
            results[kind] = []
            for number, token_ids in enumerate(batch, 1):
                with view.prompt(f"{kind} {number} of {len(batch)}", plain, spec):
                    results[kind].append(race(plain, spec, token_ids, params, view.update))
    kinds = {kind: summarize(of_kind) for kind, of_kind in results.items()}
    overall = summarize(result for of_kind in results.values() for result in of_kind)
    view.table({**kinds, "all": overall})
    if args.json:
        print(json.dumps({**overall, "kinds": kinds}))
    return 0


def _prepare(
    args: argparse.Namespace, config: SpeculativeConfig | None, view: View
) -> tuple[Lane, Lane, dict[str, list[list[int]]]]:
    """Two engines on one model, and the prompts as its tokens."""
    from ascend_spec.cli.inputs import load_model, token_ids
    from ascend_spec.cli.race import Lane
    from ascend_spec.engine import LLM
    from ascend_spec.models import demo_model_path

    if args.model is None:
        view.say("finding the demo model; its first conversion takes about half a minute ...")
    with judging_input():
        path = args.model or demo_model_path()
    view.say(f"loading {path} ...")
    model, tokenizer = load_model(path)
    prompts = {
        kind: [token_ids(tokenizer, text, chat=True) for text in texts]
        for kind, texts in demo_prompts(args.prompts_per_kind).items()
    }
    longest = max(len(ids) for batch in prompts.values() for ids in batch)
    with judging_input():
        llms = [
            LLM(
                model,
                tokenizer=tokenizer,
                speculative_config=speculative_config,
                max_model_len=min(longest + args.max_tokens, model.info.max_model_len),
                max_num_seqs=1,
            )
            for speculative_config in (None, config)
        ]
    return Lane("plain", llms[0]), Lane("speculative", llms[1]), prompts
