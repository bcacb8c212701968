"""Time decoding with a draft model, ours and transformers' assisted generation: a draft of the target's own vocabulary,
and one with another tokenizer (token-level intersection here, universal assisted generation there).

    python benchmarks/draft_models.py [--pairs layers vocabularies] [--max-tokens 64] [--prompts-per-kind 1]

Pairs: ``layers`` is SmolLM2-135M and itself without some of its layers, nearly as slow as the target: it measures what
drafting costs, not what a small draft gains. ``vocabularies`` is Gemma 3 270M and SmolLM2-135M (``python
tests/gemma3.py`` fetches Gemma). All variants of a pair decode the same prompts in one run and take turns, in float32.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import RESULTS, environment, interleave, warn_if_busy, watch_other_work, write_json
from decode import encode
from prompts import load

from ascend_spec.drafters import DraftModelDrafter
from ascend_spec.engine import LLM
from ascend_spec.models import CausalLM, load_tokenizer
from ascend_spec.types import SamplingParams

CACHE = Path.home() / ".cache/ascend-spec"
SMOLLM2, GEMMA = CACHE / "SmolLM2-135M-Instruct", CACHE / "gemma-3-270m"
#: of 30, the three that change the argmax least; the draft of pair ``layers`` goes without them
DROPPED_LAYERS = (17, 18, 25)


class Ours:
    """One engine, greedy and sampled."""

    def __init__(self, llm: LLM, max_tokens: int) -> None:
        self.llm, self.max_tokens = llm, max_tokens

    def generate(self, ids: list[int], temperature: float) -> list[int]:
        params = SamplingParams(temperature=temperature, seed=0, max_tokens=self.max_tokens)
        return list(self.llm.generate([ids], params)[0].token_ids)


def without_layers(path: Path) -> Any:
    """The transformers model of ``path`` without ``DROPPED_LAYERS``."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    kept = [layer for i, layer in enumerate(model.model.layers) if i not in DROPPED_LAYERS]
    for index, layer in enumerate(kept):
        layer.self_attn.layer_idx = index
    model.model.layers = torch.nn.ModuleList(kept)
    model.config.num_hidden_layers = len(kept)
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[: len(kept)]
    return model


def engines(pair: str, target: Path, args: argparse.Namespace) -> dict[str, Ours]:
    model = CausalLM.load(target)
    config = {"method": "draft_model", "model": str(SMOLLM2), "num_speculative_tokens": args.num_drafts}
    sizes: dict[str, Any] = {"max_num_seqs": 1, "max_model_len": args.max_model_len}
    made: dict[str, Any] = {"plain": LLM(model, **sizes)}
    for name, method in (("greedy drafts", "greedy"), ("sampled drafts", "probabilistic")):
        options = {**config, "draft_sample_method": method}
        if pair == "vocabularies":
            options["use_heterogeneous_vocab"] = True
            made[name] = LLM(str(target), speculative_config=options, **sizes)
        else:
            draft = CausalLM.from_module(without_layers(SMOLLM2))
            drafter = DraftModelDrafter(draft, args.num_drafts, draft_sample_method=method)
            made[name] = LLM(model, speculative_config=options, drafter=drafter, **sizes)
    return {name: Ours(llm, args.max_tokens) for name, llm in made.items()}


def transformers_variants(pair: str, target: Path, args: argparse.Namespace) -> dict[str, Callable]:
    """``(ids, temperature) -> ids``: plain, and assisted with as many drafts a step."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    if pair == "vocabularies":
        draft = AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32).eval()
        tokenizers = {"tokenizer": load_tokenizer(target), "assistant_tokenizer": load_tokenizer(SMOLLM2)}
    else:
        draft, tokenizers = without_layers(SMOLLM2), {}
    draft.generation_config = copy.deepcopy(draft.generation_config)
    draft.generation_config.num_assistant_tokens = args.num_drafts
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0

    def generate(ids: list[int], temperature: float, **options: Any) -> list[int]:
        sampling = (
            {"do_sample": True, "temperature": temperature, "top_k": 0}
            if temperature
            else {"do_sample": False}
        )
        tensor = torch.tensor([ids])
        torch.manual_seed(0)
        out = model.generate(
            tensor,
            attention_mask=torch.ones_like(tensor),
            max_new_tokens=args.max_tokens,
            **sampling,
            **options,
        )
        return out[0, len(ids) :].tolist()

    return {
        "transformers": generate,
        "transformers assisted": lambda ids, temperature: generate(
            ids, temperature, assistant_model=draft, **tokenizers
        ),
    }


def measure(pair: str, target: Path, args: argparse.Namespace) -> dict[str, Any]:
    ours, theirs = engines(pair, target, args), transformers_variants(pair, target, args)
    tokenizer = load_tokenizer(target)
    prompts = [encode(tokenizer, prompt)[: args.prompt_tokens] for prompt in load(args.prompts_per_kind)]
    result: dict[str, Any] = {"target": target.name, "draft": SMOLLM2.name, "prompts": len(prompts)}
    if pair == "layers":
        result["layers_left_out_of_draft"] = list(DROPPED_LAYERS)
    for mode, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        names = ["plain", "sampled drafts" if temperature else "greedy drafts"]
        speeds: dict[str, list[float]] = {name: [] for name in (*names, *theirs)}
        drafter = ours[names[1]].llm
        before = (
            drafter.metrics.num_accepted_tokens,
            drafter.metrics.num_draft_tokens,
            drafter.metrics.num_drafts,
        )
        same = 0
        for ids in prompts:
            functions: dict[str, Callable] = {**{name: ours[name].generate for name in names}, **theirs}
            calls = {name: partial(function, ids, temperature) for name, function in functions.items()}
            seconds, texts = interleave(calls, args.repeats)
            same += all(text == texts["plain"] for text in texts.values())
            for name, times in seconds.items():
                speeds[name].append(len(texts[name]) / median(times))
            print(pair, mode, {name: round(values[-1], 1) for name, values in speeds.items()}, flush=True)
        after = (
            drafter.metrics.num_accepted_tokens,
            drafter.metrics.num_draft_tokens,
            drafter.metrics.num_drafts,
        )
        accepted, drafts, rounds = (b - a for a, b in zip(before, after, strict=True))
        result[mode] = {
            "acceptance_rate": round(accepted / drafts, 3),
            "accepted_a_round": round(accepted / rounds, 2),
            "same_text": f"{same} of {len(prompts)}" if mode == "greedy" else None,
            "tokens_per_second": {name: round(median(values), 2) for name, values in speeds.items()},
            "ratios": {
                f"{over} / {under}": round(median(a / b for a, b in zip(speeds[over], speeds[under], strict=True)), 2)
                for over, under in (
                    (names[1], "plain"), (names[1], "transformers assisted"), ("transformers assisted", "transformers"),
                )
            },
        }  # fmt: skip
    return result


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--pairs", nargs="+", choices=("layers", "vocabularies"), default=["layers", "vocabularies"]
    )
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=256, help="of a prompt no more than so many")
    parser.add_argument("--prompts-per-kind", type=int, default=1)
    parser.add_argument("--num-drafts", type=int, default=4, help="K")
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU")
    parser.add_argument("--output", type=Path, default=RESULTS / "draft_models.json")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    warn_if_busy()
    other_work = watch_other_work()
    result: dict[str, Any] = {**environment("cpu"), "dtype": "float32", "num_drafts": args.num_drafts}
    result |= {"max_tokens": args.max_tokens, "repeats": args.repeats}
    for pair in args.pairs:
        target = SMOLLM2 if pair == "layers" else GEMMA
        if not target.is_dir():
            print(f"pair {pair} is left out: there is no {target}")
            continue
        result[pair] = measure(pair, target, args)
    write_json(args.output, {**result, "cores_busy_with_other_work": other_work()})


if __name__ == "__main__":
    main()
