"""Time suffix decoding by itself, on streams of tokens that are replayed: ours against Arctic Inference's.

    python benchmarks/suffix_arctic.py [--batch 1 8 32 128 256] [--length 600] [--steps 30] [--threads 1] [--ours-only]

Needs ``make setup-arctic``, which builds the suffix cache of Arctic's source package. A step is what a serving engine
does: the tokens that each request got are added, then all are asked for drafts; of the drafts those are accepted that
the stream goes on with. Both see the same texts in turn, the order alternates, and the stream goes on with what ours
had accepted. Arctic is timed twice: called as vLLM does it, request by request through its Python class, and native,
its trees called directly. It uses one thread, whatever is said here.

Streams are made of source code. *edit*: the output is the prompt with every twentieth token replaced. *warm*: the
output is one that is in the memory, with every fiftieth replaced. *cold*: prompt and output are two different places.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from common import RESULTS, environment, interleave, warn_if_busy, watch_other_work, write_json
from drafters import corpus

from ascend_spec.drafters import SuffixDrafter
from ascend_spec.types import DraftBatch
from ascend_spec_ops import SuffixForest, SuffixTree, suffix_extend, suffix_match

K, DEPTH, MIN_TOKEN_PROB = 16, 24, 0.1
KINDS = ("edit", "warm", "cold")
#: outputs that are in the memory at the beginning
NUM_REMEMBERED = 40
VERSION = "0.1.1"


class Streams:
    """Texts of ``[B]`` requests, prompt and output, and how far each has come."""

    def __init__(self, kind: str, text: np.ndarray, batch: int, length: int) -> None:
        self.random, self.text = np.random.default_rng(0), text
        self.remembered = [self._slice(length) for _ in range(NUM_REMEMBERED)]
        requests = [self._request(kind, length) for _ in range(batch)]
        self.token_ids = np.zeros((batch, 2 * length + K + 1), np.int32)
        self.prompts = np.array([len(prompt) for prompt, _ in requests], np.int32)
        self.lengths = self.prompts + length
        for row, (prompt, output) in zip(self.token_ids, requests, strict=True):
            row[: len(prompt) + length] = np.concatenate([prompt, output])
        self.begins, self.ends = self.prompts.copy(), self.prompts + 1

    def _slice(self, length: int) -> np.ndarray:
        begin = self.random.integers(len(self.text) - length)
        return self.text[begin : begin + length]

    def _changed(self, tokens: np.ndarray, share: float) -> np.ndarray:
        others = self.random.choice(self.text, len(tokens))
        return np.where(self.random.random(len(tokens)) < share, others, tokens)

    def _request(self, kind: str, length: int) -> tuple[np.ndarray, np.ndarray]:
        prompt = self._slice(length)
        if kind == "edit":
            return prompt, self._changed(prompt, 0.05)
        if kind == "warm":
            which = self.random.integers(NUM_REMEMBERED)
            return prompt[: length // 8], self._changed(self.remembered[which], 0.02)
        return prompt, self._slice(length)

    @property
    def is_over(self) -> bool:
        return bool((self.ends + K + 1 > self.lengths).any())

    def accepted(self, drafts: list[list[int]]) -> np.ndarray:
        """``[B]``, how many tokens of each row's drafts the stream goes on with."""
        counts = np.zeros(len(drafts), np.int32)
        for i, row in enumerate(drafts):
            following = self.token_ids[i, self.ends[i] : self.ends[i] + len(row)]
            differ = np.flatnonzero(following != np.array(row, np.int32))
            counts[i] = differ[0] if differ.size else len(row)
        return counts

    def go_on(self, counts: np.ndarray) -> None:
        self.begins = self.ends
        self.ends = self.ends + counts + 1


class Ours:
    """The two operators."""

    def __init__(self, streams: Streams) -> None:
        self.forest, self.memory, one = SuffixForest(DEPTH), SuffixTree(DEPTH), np.ones(1, np.int32)
        for output in streams.remembered:
            sequence = self.memory.start()
            self.memory.extend(sequence * one, output[None], 0 * one, len(output) * one)
            self.memory.end(sequence)
        trees = []
        for prompt, row in zip(streams.prompts, streams.token_ids, strict=True):
            trees.append(self.forest.plant())
            self.forest[trees[-1]].extend(0 * one, row[None], 0 * one, prompt * one)
        self.trees = {
            "local": self.forest,
            "local_trees": np.array(trees, np.int32),
            "shared": self.memory,
            "shared_sequences": np.array([self.memory.start() for _ in trees], np.int32),
        }
        self.wanted = np.full(len(trees), K, np.int32)

    def add(self, streams: Streams) -> None:
        suffix_extend(
            streams.token_ids, streams.begins, streams.ends, **self.trees, shared_begins=streams.begins
        )

    def speculate(self, streams: Streams) -> np.ndarray:
        found = suffix_match(
            streams.token_ids, streams.ends, self.wanted, K, **self.trees, min_token_prob=MIN_TOKEN_PROB
        )
        return found.token_ids

    @staticmethod
    def lists(drafts: np.ndarray) -> list[list[int]]:
        return [row[row >= 0].tolist() for row in drafts]


class Whole:
    """The drafter, as the engine calls it: both operators, and keeping account of requests."""

    def __init__(self, streams: Streams) -> None:
        self.drafter, batch = SuffixDrafter(K, DEPTH, min_token_prob=MIN_TOKEN_PROB), len(streams.prompts)
        for output in streams.remembered:
            self.drafter._remember(output)
        self.fixed = (
            torch.full((batch,), K, dtype=torch.int32),
            None,
            None,
            torch.from_numpy(streams.prompts),
        )
        self.ids = tuple(map(str, range(batch)))

    def propose(self, streams: Streams) -> torch.Tensor:
        token_ids, ends = torch.from_numpy(streams.token_ids), torch.from_numpy(streams.ends)
        return self.drafter.propose(DraftBatch(token_ids, ends, *self.fixed, self.ids)).token_ids


class Arctic:
    """Through its Python class, as vLLM's proposer calls it."""

    def __init__(self, streams: Streams) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.cache = SuffixDecodingCache(max_tree_depth=DEPTH)
        for number, output in enumerate(streams.remembered):
            name = f"remembered {number}"
            self.cache.start_request(name, output[:0])
            self.cache.add_active_response(name, output)
            self.cache.stop_request(name)
        for i, (prompt, row) in enumerate(zip(streams.prompts, streams.token_ids, strict=True)):
            self.cache.start_request(i, row[:prompt])

    def add(self, streams: Streams) -> None:
        for i, (row, begin, end) in enumerate(_rows(streams)):
            self.cache.add_active_response(i, row[begin:end])

    def speculate(self, streams: Streams) -> list[list[int]]:
        return [
            self.cache.speculate(
                i, row[max(0, end - DEPTH) : end], max_spec_tokens=K, min_token_prob=MIN_TOKEN_PROB
            ).token_ids
            for i, (row, _, end) in enumerate(_rows(streams))
        ]

    @staticmethod
    def lists(drafts: list[list[int]]) -> list[list[int]]:
        return drafts


class Native(Arctic):
    """Its trees, called directly."""

    def add(self, streams: Streams) -> None:
        memory, local, numbers = self.cache._global_tree, self.cache._local_trees, self.cache._req_to_seq_id
        for i, (row, begin, end) in enumerate(_rows(streams)):
            local[i].extend_ndarray(0, row[begin:end])
            memory.extend_ndarray(numbers[i], row[begin:end])

    def speculate(self, streams: Streams) -> list[list[int]]:
        memory, local, drafts = self.cache._global_tree, self.cache._local_trees, []
        for i, (row, _, end) in enumerate(_rows(streams)):
            context = row[max(0, end - DEPTH) : end]
            own, others = (
                tree.speculate_ndarray(context, K, 1.0, 0.0, MIN_TOKEN_PROB, False)
                for tree in (local[i], memory)
            )
            drafts.append((own if own.score >= others.score else others).token_ids)
        return drafts


def _rows(streams: Streams) -> Any:
    return zip(streams.token_ids, streams.begins.tolist(), streams.ends.tolist(), strict=True)


class Case(NamedTuple):
    kind: str
    batch: int
    threads: int


def measure(case: Case, text: np.ndarray, length: int, steps: int, with_arctic: bool) -> dict[str, Any]:
    """Medians over steps, and of all that is compared what share."""
    torch.set_num_threads(case.threads)
    streams = Streams(case.kind, text, case.batch, length)
    kinds: dict[str, Any] = {"ours": Ours}
    if with_arctic:
        kinds |= {"arctic": Arctic, "native": Native}
    caches, whole = {name: kind(streams) for name, kind in kinds.items()}, Whole(streams)
    seconds: dict[str, list[float]] = {}
    num_tokens, num_differing, num_steps = dict.fromkeys(caches, 0), 0, 0
    while num_steps <= steps and not streams.is_over:
        names = list(caches)[:: -1 if num_steps % 2 else 1]
        found = {}
        for call in ("add", "speculate"):
            calls = {f"{name}_{call}": partial(getattr(caches[name], call), streams) for name in names}
            times, found = interleave(calls, 1)
            for name in calls if num_steps else ():  # the first compiles, and warms caches up
                seconds.setdefault(name, []).extend(times[name])
        times, proposed = interleave({"propose": partial(whole.propose, streams)}, 1)
        if num_steps:
            seconds.setdefault("propose", []).extend(times["propose"])
        drafts = {name: caches[name].lists(found[f"{name}_speculate"]) for name in caches}
        if Ours.lists(proposed["propose"].numpy()) != drafts["ours"]:
            raise SystemExit("the drafter's drafts are not the operators'")
        for ours, theirs in zip(drafts["ours"], drafts.get("native", drafts["ours"]), strict=True):
            num_differing += ours != theirs
        accepted = {name: streams.accepted(rows) for name, rows in drafts.items()}
        for name, counts in accepted.items():
            num_tokens[name] += int(counts.sum()) + case.batch
        streams.go_on(accepted["ours"])
        num_steps += 1
    return summary(case, seconds, num_tokens, num_differing, num_steps)


def summary(
    case: Case, seconds: dict[str, list[float]], num_tokens: dict[str, int], num_differing: int, steps: int
) -> dict[str, Any]:
    ms = {f"{name}_ms": round(median(values) * 1e3, 4) for name, values in sorted(seconds.items())}
    result = {**case._asdict(), "steps": steps, **ms}
    result["tokens_per_step"] = {
        name: round(count / steps / case.batch, 4) for name, count in num_tokens.items()
    }
    if "arctic" in num_tokens:
        result["rows_that_differ"] = round(num_differing / steps / case.batch, 4)
        for name in ("arctic", "native"):
            for call in ("add", "speculate"):
                result[f"ours / {name}, {call}"] = round(ms[f"ours_{call}_ms"] / ms[f"{name}_{call}_ms"], 3)
            both = [sum(ms[f"{who}_{call}_ms"] for call in ("add", "speculate")) for who in ("ours", name)]
            result[f"ours / {name}"] = round(both[0] / both[1], 3)
        result["propose / arctic"] = round(
            ms["propose_ms"] / (ms["arctic_add_ms"] + ms["arctic_speculate_ms"]), 3
        )
    return result


def find_arctic() -> None:
    found = list(Path(__file__).parents[1].glob(".venv-arctic/lib/python3*/site-packages/arctic_inference"))
    if not found:
        raise SystemExit(
            "Arctic's suffix cache is not here: make setup-arctic builds it, or give --ours-only"
        )
    sys.path.append(str(found[0].parent))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32, 128, 256])
    parser.add_argument("--length", type=int, default=600, help="of prompts and outputs")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--ours-only", action="store_true", help="where Arctic's is not built")
    parser.add_argument("--output", type=Path, default=RESULTS / "suffix.json")
    args = parser.parse_args()
    if not args.ours_only:
        find_arctic()
    torch.set_num_threads(1)
    warn_if_busy()
    result, other_work = environment("cpu"), watch_other_work()
    text = corpus(sorted(Path(torch.__file__).parent.glob("nn/modules/*.py")))
    cases = []
    for case in map(Case._make, product(KINDS, args.batch, args.threads)):
        measured = measure(case, text, args.length, args.steps, not args.ours_only)
        cases.append(measured)
        figures = {key: value for key, value in measured.items() if key.endswith("_ms") or " / " in key}
        print(*case, *(f"{name} {value}" for name, value in figures.items()), flush=True)
    result["versions"] |= {"arctic-inference": None if args.ours_only else VERSION}
    result |= {"num_speculative_tokens": K, "max_tree_depth": DEPTH, "min_token_prob": MIN_TOKEN_PROB}
    result |= {"length": args.length, "corpus": "the sources of torch.nn.modules"}
    write_json(args.output, {**result, "cores_busy_with_other_work": other_work(), "cases": cases})


if __name__ == "__main__":
    main()
