"""Count the seeded texts that drafts change under rule ``coupled``, on a real model in float32.

    python benchmarks/same_texts.py [--texts 1000] [--max-tokens 64] [--rule coupled]

The rule promises the same text, so what differs must be a tie: the two engines compute a row's logits in batches of
different shapes, and these are equal up to rounding only. At the first token where two texts part, the row is computed
once more and moved by about that rounding; a draw that then goes both ways is a tie. The same is done at tokens where
nothing parted, to show how rare ties are. (Other rules keep the law of a text and not the text: with ``--rule
standard`` many of them differ.)
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from common import RESULTS, environment, warn_if_busy, watch_other_work, write_json
from decode import encode
from prompts import load

import ascend_spec_ops
from ascend_spec.engine import LLM
from ascend_spec.models import CausalLM, load_tokenizer
from ascend_spec.types import SamplingParams

#: by how much a row is moved, as large as the difference between two ways to compute it
ROUNDING = 1e-4
MOVES = 256
#: drafts from the text itself, by short windows: many of them, right and wrong
SPECULATIVE = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}
Text = tuple[int, ...]


def generate(model: CausalLM, prompts: list[list[int]], args: argparse.Namespace, config: dict | None) -> Any:
    """The texts, seconds, and the engine's counters."""
    longest = max(map(len, prompts)) + args.max_tokens
    llm = LLM(
        model,
        speculative_config=config,
        max_num_seqs=args.batch,
        max_model_len=longest,
        max_num_batched_tokens=max(512, args.batch * 5),
    )
    params = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=args.max_tokens, ignore_eos=True)
        for seed in range(len(prompts))
    ]
    start = perf_counter()
    outputs = llm.generate(prompts, params)
    return [output.token_ids for output in outputs], perf_counter() - start, llm.metrics


def is_tie(model: CausalLM, tokens: list[int], seed: int, generator: torch.Generator) -> bool:
    """Whether the draw after ``tokens`` changes when the logits move by the rounding."""
    ids = torch.tensor([tokens])
    logits = plain_logits(model, ids)
    moved = logits + ROUNDING * torch.randn(MOVES, logits.shape[-1], generator=generator)
    places = torch.full((MOVES,), len(tokens))
    drawn = ascend_spec_ops.sample(moved, torch.ones(MOVES), torch.full((MOVES,), seed), places)
    return len(drawn.unique()) > 1


def plain_logits(model: CausalLM, ids: torch.Tensor) -> torch.Tensor:
    """``[V]`` float32 of the last token of ``ids`` ``[1, T]``, whole text in one pass."""
    llm = LLM(model, max_num_seqs=1, max_model_len=ids.shape[1] + 1, max_num_batched_tokens=ids.shape[1])
    rows: list[torch.Tensor] = []

    def keep(_: list[int], row: torch.Tensor) -> torch.Tensor:
        rows.append(row.clone())
        return row

    llm.generate([ids[0].tolist()], SamplingParams(temperature=0.0, max_tokens=1, logits_processors=(keep,)))
    return rows[0].float()


def parted(one: Text, other: Text) -> int | None:
    """The first place where two texts differ."""
    return next((i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), None)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", type=Path, default=Path.home() / ".cache/ascend-spec/SmolLM2-135M-Instruct"
    )
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32, help="requests at a time")
    parser.add_argument("--rule", choices=("coupled", "standard", "block"), default="coupled")
    parser.add_argument("--controls", type=int, default=200, help="tokens that are tried for a tie besides")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU")
    parser.add_argument("--output", type=Path, default=RESULTS / "same_texts.json")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    warn_if_busy()
    other_work = watch_other_work()
    facts = environment("cpu")
    model = CausalLM.load(args.model)
    tokenizer = load_tokenizer(args.model)
    known = [encode(tokenizer, prompt)[:128] for prompt in load(per_kind=4)]
    prompts = [known[i % len(known)] for i in range(args.texts)]
    plain, plain_seconds, _ = generate(model, prompts, args, None)
    config = {**SPECULATIVE, "ascend_spec": {"rejection_sample_method": args.rule}}
    ours, seconds, metrics = generate(model, prompts, args, config)
    places = {i: place for i in range(args.texts) if (place := parted(plain[i], ours[i])) is not None}
    generator = torch.Generator().manual_seed(0)
    differing = [
        {"text": i, "token": place, "tie": is_tie(model, [*prompts[i], *plain[i][:place]], i, generator)}
        for i, place in places.items()
    ]
    chosen = random.Random(0)
    controls = [
        (chosen.randrange(args.texts), chosen.randrange(args.max_tokens)) for _ in range(args.controls)
    ]
    ties = sum(
        is_tie(model, [*prompts[i], *plain[i][:place]], i, generator)
        for i, place in controls
        if places.get(i, args.max_tokens) > place
    )
    result = {
        **facts,
        "model": args.model.name,
        "texts": args.texts,
        "tokens_each": args.max_tokens,
        "speculative_config": config,
        "accepted_drafts": metrics.num_accepted_tokens,
        "drafts": metrics.num_draft_tokens,
        "rounding": ROUNDING,
        "differing": differing,
        "ties_among_other_tokens": f"{ties} of {args.controls}",
        "seconds": {"plain": round(plain_seconds, 1), "with drafts": round(seconds, 1)},
        "cores_busy_with_other_work": other_work(),
    }
    print(
        f"{len(differing)} of {args.texts} texts differ, {sum(d['tie'] for d in differing)} of them at a tie"
    )
    write_json(args.output, result)


if __name__ == "__main__":
    main()
