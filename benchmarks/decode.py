"""Time greedy decoding, ours and transformers', plain and with drafts from the text itself.

    python benchmarks/decode.py [--max-tokens 96] [--prompts-per-kind 2] [--repeats 1] [--threads N]

All variants decode the same prompts in one run and take turns on every prompt, prompt processing included. A
text ends at its end token or after ``--max-tokens`` tokens: the longer the output, the more of it repeats, so a
speed-up goes with its output length.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import RESULTS, environment, interleave, warn_if_busy, watch_other_work, write_json
from prompts import Prompt, load

#: ratios of tokens per second that are reported
RATIOS = {
    "ngram / plain": ("ngram", "plain"),
    "plain / plain without prepack": ("plain", "plain_no_prepack"),
    "plain without prepack / transformers": ("plain_no_prepack", "transformers"),
    "plain / transformers": ("plain", "transformers"),
    "ngram / transformers lookup": ("ngram", "transformers_lookup"),
    "transformers lookup / transformers": ("transformers_lookup", "transformers"),
}
MAX_NGRAM = 3


def make_variants(args: argparse.Namespace) -> dict[str, Callable[[list[int]], list[int]]]:
    """Each takes prompt ids and returns output ids."""
    from transformers import AutoModelForCausalLM

    from ascend_spec.engine import LLM
    from ascend_spec.models import CausalLM
    from ascend_spec.types import SamplingParams

    num_drafts = args.num_speculative_tokens
    ngram = {
        "method": "ngram",
        "num_speculative_tokens": num_drafts,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": MAX_NGRAM,
    }
    greedy = SamplingParams(temperature=0.0, max_tokens=args.max_tokens)
    packed = CausalLM.load(args.model, prepack=True)
    unpacked = CausalLM.load(args.model, prepack=False)

    def ours(model: CausalLM, config: dict | None) -> Callable[[list[int]], list[int]]:
        length = min(args.max_model_len, model.info.max_model_len)
        llm = LLM(model, speculative_config=config, max_num_seqs=1, max_model_len=length)
        return lambda prompt: list(llm.generate([prompt], greedy)[0].token_ids)

    hf_model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    hf_model.generation_config.max_matching_ngram_size = MAX_NGRAM

    def theirs(**options: Any) -> Callable[[list[int]], list[int]]:
        options = {"max_new_tokens": args.max_tokens, "do_sample": False, **options}

        def generate(prompt: list[int]) -> list[int]:
            ids = torch.tensor([prompt])
            out = hf_model.generate(ids, attention_mask=torch.ones_like(ids), **options)
            return out[0, len(prompt) :].tolist()

        return generate

    return {
        "plain": ours(packed, None),
        "plain_no_prepack": ours(unpacked, None),
        "transformers": theirs(),
        "ngram": ours(packed, ngram),
        "transformers_lookup": theirs(prompt_lookup_num_tokens=num_drafts),
    }


def encode(tokenizer: Any, prompt: Prompt) -> list[int]:
    if prompt.is_chat and tokenizer.chat_template:
        turn = [{"role": "user", "content": prompt.text}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        return tokenizer.encode(text, add_special_tokens=False)
    return tokenizer.encode(prompt.text)


def measure(variants: dict, prompt: Prompt, ids: list[int], repeats: int) -> dict[str, Any]:
    calls = {name: lambda generate=generate: generate(ids) for name, generate in variants.items()}
    seconds, texts = interleave(calls, repeats)
    speed = {name: len(texts[name]) / median(times) for name, times in seconds.items()}
    return {
        "kind": prompt.kind,
        "prompt": prompt.text[:60],
        "prompt_tokens": len(ids),
        "output_tokens": {name: len(text) for name, text in texts.items()},
        "same_text": all(text == texts["plain"] for text in texts.values()),
        "seconds": {name: [round(s, 4) for s in times] for name, times in seconds.items()},
        "tokens_per_second": {name: round(value, 2) for name, value in speed.items()},
    }


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Of each pair of variants, the median over prompts of the ratio of their speeds."""
    speeds = [row["tokens_per_second"] for row in rows]
    return {
        name: round(median(speed[over] / speed[under] for speed in speeds), 2)
        for name, (over, under) in RATIOS.items()
    }


def plot(result: dict[str, Any], path: Path) -> None:
    """Bars of tokens per second by kind; skipped where matplotlib is not installed (extra ``bench``)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: matplotlib is not installed (pip install 'ascend-spec[bench]')")
        return
    kinds = list(result["by_kind"])
    names = list(result["variants"])
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        heights = [result["by_kind"][kind]["tokens_per_second"][name] for kind in kinds]
        axes.bar([k + i * width for k in range(len(kinds))], heights, width, label=name)
    axes.set_xticks([k + 0.4 - width / 2 for k in range(len(kinds))], kinds)
    axes.set_ylabel("tokens per second (median)")
    axes.set_title(f"{result['model']}, greedy, up to {result['max_tokens']} tokens, {result['cpu']}", size=9)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    print(f"wrote {path}")


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in {row["kind"]: 0 for row in rows}}
    names = rows[0]["tokens_per_second"]
    return {
        "ratios": ratios(rows),
        "by_kind": {
            kind: {
                "prompts": len(group),
                "ratios": ratios(group),
                "tokens_per_second": {
                    name: round(median(row["tokens_per_second"][name] for row in group), 2) for name in names
                },
            }
            for kind, group in kinds.items()
        },
    }


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", help="directory of a model in transformers' format; default: the demo model"
    )
    parser.add_argument("--max-tokens", type=int, default=96, help="most output tokens")
    parser.add_argument("--num-speculative-tokens", type=int, default=5, help="of both drafters")
    parser.add_argument("--prompts-per-kind", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1, help="rounds over a prompt; its median counts")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--output", type=Path, default=RESULTS / "decode.json")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    from ascend_spec.models import demo_model_path, load_tokenizer

    warn_if_busy()
    args.model = args.model or str(demo_model_path())
    torch.set_num_threads(args.threads)
    facts = environment("cpu")
    tokenizer = load_tokenizer(args.model)
    variants = make_variants(args)
    prompts = [(prompt, encode(tokenizer, prompt)) for prompt in load(args.prompts_per_kind)]
    for generate in variants.values():  # compiles, warms up
        generate(prompts[0][1])
    other_work, rows = watch_other_work(), []
    for prompt, ids in prompts:
        row = measure(variants, prompt, ids, args.repeats)
        rows.append(row)
        speeds = "  ".join(f"{name} {speed:.1f}" for name, speed in row["tokens_per_second"].items())
        print(
            f"{prompt.kind:8} {len(ids):4} + {row['output_tokens']['plain']:3} tokens: {speeds} tokens/s",
            flush=True,
        )
    result = {
        **facts,
        "cores_busy_with_other_work": other_work(),
        "model": Path(args.model).name,
        "dtype": "float32",
        "max_tokens": args.max_tokens,
        "num_speculative_tokens": args.num_speculative_tokens,
        "max_ngram": MAX_NGRAM,
        "repeats": args.repeats,
        "variants": {
            "plain": {"engine": "ascend-spec", "prepacked_linears": True},
            "plain_no_prepack": {"engine": "ascend-spec", "prepacked_linears": False},
            "transformers": {"engine": "transformers", "prepacked_linears": False},
            "ngram": {"engine": "ascend-spec", "prepacked_linears": True},
            "transformers_lookup": {"engine": "transformers", "prepacked_linears": False},
        },
        "prompts_with_the_same_text": sum(row["same_text"] for row in rows),
        **summarise(rows),
        "prompts": rows,
    }
    for name, ratio in result["ratios"].items():
        print(f"{name:40} {ratio:.2f}")
    write_json(args.output, result)
    plot(result, args.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
