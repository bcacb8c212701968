"""Time one whole verification, draw included, against one softmax over the same rows of logits, rule by rule.

    python benchmarks/verify.py [--device cpu|cuda|npu] [--rule standard block ...] [--batch 1 8 64]

The softmax writes into memory it is given, so that it pays for no allocation: the least that any sampler built
on probabilities has to spend before it looks at the first draft. The floor of any sampler at all is one read of the
logits and of the drafts' logits: it is timed as their largest elements.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import RESULTS, environment, interleave, require, warn_if_busy, watch_other_work, write_json

MODES = ("one-hot", "sampled", "greedy")
RULES = ("standard", "block", "typical", "synthetic", "fly", "coupled")


def rule_options(rule: str, num_drafts: int) -> tuple[float, ...]:
    """Their defaults; of ``synthetic``, which has none, three drafts in four."""
    if rule == "fly":
        return min(6, num_drafts - 1), 0.3, 3
    return {"typical": (0.09, 0.3), "synthetic": (0.75,) * num_drafts}.get(rule, ())


def make_arguments(mode: str, batch: int, num_drafts: int, vocab_size: int, device: str) -> tuple:
    """Logits as sharp as a language model's: one token of each row has most of the mass, and is the draft in
    three of four rows, so that some drafts are accepted and the walk ends at different ones."""
    g = torch.Generator().manual_seed(batch)
    rows = batch * (num_drafts + 1)
    logits = 2 * torch.randn(rows, vocab_size, generator=g)
    likely = torch.randint(vocab_size, (rows,), generator=g)
    logits[torch.arange(rows), likely] = torch.logsumexp(logits, 1) + 2
    judged = torch.arange(rows).view(batch, -1)[:, :-1].flatten()
    wrong = torch.rand(len(judged), generator=g) < 0.25
    drafts = torch.where(wrong, (likely[judged] + 1) % vocab_size, likely[judged]).int()
    draft_logits = draft_temperature = None
    if mode == "sampled":
        draft_logits = torch.empty(len(judged), vocab_size).normal_(0, 2, generator=g)
        draft_logits[torch.arange(len(judged)), drafts.long()] = torch.logsumexp(draft_logits, 1) + 2
        draft_temperature = torch.ones(batch)
    arguments = (
        logits,
        drafts,
        torch.arange(1, batch + 1, dtype=torch.int32) * num_drafts,
        torch.full((batch,), 0.0 if mode == "greedy" else 1.0),
        torch.arange(batch),
        torch.full((batch,), 100),
        num_drafts,
        draft_logits,
        draft_temperature,
    )
    return tuple(x.to(device) if isinstance(x, torch.Tensor) else x for x in arguments)


def measure(rule: str, mode: str, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    import ascend_spec_ops

    arguments = make_arguments(mode, batch, args.num_drafts, args.vocab_size, args.device)
    logits, draft_logits = arguments[0], arguments[7]
    probabilities = torch.empty_like(logits)
    options = rule_options(rule, args.num_drafts)
    read = [logits] if draft_logits is None else [logits, draft_logits]
    functions = {
        "verify": lambda: ascend_spec_ops.verify(*arguments, rule=rule, rule_options=options),
        "softmax": lambda: torch.softmax(logits, -1, out=probabilities),
        "read": lambda: [rows.amax(-1) for rows in read],
    }
    synchronize = (lambda: None) if args.device == "cpu" else getattr(torch, args.device).synchronize
    interleave(functions, 3, synchronize)  # compiles, warms up
    seconds, results = interleave(functions, args.repeats, synchronize)
    ms = {name: 1e3 * median(times) for name, times in seconds.items()}
    return {
        "rule": rule,
        "mode": mode,
        "batch": batch,
        "rows": len(logits),
        "mean_emitted": round(results["verify"][:, 0].float().mean().item(), 2),
        "verify_ms": round(ms["verify"], 4),
        "softmax_ms": round(ms["softmax"], 4),
        "read_ms": round(ms["read"], 4),
        "read_bytes": sum(rows.numel() * rows.element_size() for rows in read),
        "ratio": round(ms["verify"] / ms["softmax"], 3),
        "verify / read": round(ms["verify"] / ms["read"], 3),
    }


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda", "npu"), default="cpu")
    parser.add_argument("--rule", choices=RULES, nargs="+", default=list(RULES))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64], help="requests")
    parser.add_argument("--num-drafts", type=int, default=4, help="K, drafts a request")
    parser.add_argument("--vocab-size", type=int, default=151936)
    parser.add_argument("--repeats", type=int, default=31, help="timed rounds; the median is reported")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU")
    parser.add_argument("--output", type=Path, help="default: results/verify.json, or verify-DEVICE.json")
    args = parser.parse_args(argv)
    suffix = "" if args.device == "cpu" else f"-{args.device}"
    args.output = args.output or RESULTS / f"verify{suffix}.json"
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    require(args.device)
    torch.set_num_threads(args.threads)
    warn_if_busy()
    other_work = watch_other_work()
    result = {
        **environment(args.device),
        "dtype": "float32",
        "num_drafts": args.num_drafts,
        "vocab_size": args.vocab_size,
        "repeats": args.repeats,
        "cases": [],
    }
    for rule, mode, batch in product(args.rule, MODES, args.batch):
        case = measure(rule, mode, batch, args)
        result["cases"].append(case)
        print(
            f"{rule:9} {mode:8} B={batch:<3} verify {case['verify_ms']:8.3f} ms   softmax {case['softmax_ms']:8.3f}"
            f" ms   ratio {case['ratio']:.2f}   of a read {case['verify / read']:.2f}",
            flush=True,
        )
    write_json(args.output, {**result, "cores_busy_with_other_work": other_work()})


if __name__ == "__main__":
    main()
