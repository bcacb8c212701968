"""Runs stock vLLM on cases, in one process. Started by the Python of .venv-vllm, never imported.

Reads a JSON object of cases by name on its standard input, and writes what became of each on the file named by its
argument. A case has ``engine`` (arguments of vLLM's ``LLM``), ``passes``, and ``changes``, names of functions
in ``changes.py``. A pass has ``sampling`` (of ``SamplingParams``) and perhaps ``reversed``: the requests
come in the other order.
"""

from __future__ import annotations

import gc
import json
import logging
import random
import sys
import traceback
from typing import Any

import changes
from vllm import LLM, SamplingParams
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

COMMON = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_seqs": 3,
    "max_num_batched_tokens": 64,  # the longest prompt comes in two chunks
    "kv_cache_memory_bytes": 16 << 20,
    "disable_log_stats": False,
}


def prompts() -> list[list[int]]:
    """Four requests for three places: one waits, one repeats itself, one is longer than a step."""
    draw = random.Random(0)
    random_ones = [[draw.randrange(3, 160) for _ in range(length)] for length in (5, 17, 70)]
    return [*random_ones, [7, 8, 9, 10, 11] * 4]


class Messages(logging.Handler):
    """What the plugin says in the log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def run(case: dict[str, Any]) -> dict[str, Any]:
    messages = Messages()
    logging.getLogger("vllm.ascend_spec").addHandler(messages)
    answer: dict[str, Any] = {"log": messages.lines}
    llm = None
    undo = [getattr(changes, name)() for name in case["changes"]]
    try:
        llm = LLM(**{**COMMON, **case["engine"]})
        answer["passes"] = [generate(llm, **each) for each in case["passes"]]
        answer |= facts(llm)
    except Exception as error:
        traceback.print_exc()
        answer["error"] = f"{type(error).__name__}: {error}"
    finally:
        logging.getLogger("vllm.ascend_spec").removeHandler(messages)
        for restore in reversed(undo):
            restore()
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()
    return answer


def generate(llm: LLM, sampling: dict[str, Any], reversed: bool = False) -> dict[str, Any]:
    before = counters(llm)
    order = slice(None, None, -1 if reversed else 1)
    outputs = llm.generate(
        [{"prompt_token_ids": ids} for ids in prompts()[order]],
        SamplingParams(max_tokens=14, ignore_eos=True, detokenize=False, **sampling),
        use_tqdm=False,
    )[order]
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "logprobs": [logprobs(output.outputs[0]) for output in outputs],
        "counters": {name: value - before.get(name, 0) for name, value in counters(llm).items()},
    }


def counters(llm: LLM) -> dict[str, int]:
    """vLLM's own of speculative decoding."""
    return {
        metric.name.removeprefix("vllm:spec_decode_num_"): metric.value
        for metric in llm.get_metrics()
        if "spec_decode" in metric.name and hasattr(metric, "value")
    }


def logprobs(output: Any) -> list[float] | None:
    """Of the tokens that were drawn; None: not asked for."""
    if output.logprobs is None:
        return None
    places = zip(output.token_ids, output.logprobs, strict=True)
    return [place[token].logprob for token, place in places]


def facts(llm: LLM) -> dict[str, Any]:
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    return {"runner": type(runner).__module__, "attached": hasattr(runner, "ascend_spec")}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    cases = json.load(sys.stdin)
    with open(sys.argv[1], "w") as answers:
        json.dump({name: run(case) for name, case in cases.items()}, answers)
