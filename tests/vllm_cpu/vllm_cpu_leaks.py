"""In the process that has vLLM: what engines and requests leave behind."""

from __future__ import annotations

import os
import random
import threading
from typing import Any

from vllm_cpu_engine import Engine, run, sampling_params


def held() -> dict[str, int]:
    """What the process has open."""
    with open("/proc/self/status") as file:
        threads = next(int(line.split()[1]) for line in file if line.startswith("Threads:"))
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threads,
        "python threads": threading.active_count(),
    }


def cycles(engine: dict[str, Any], batch: list, count: int) -> list[dict[str, int]]:
    """What is held after each of so many starts and stops."""
    seen = []
    for _ in range(count):
        with Engine(engine) as llm:
            run(llm, batch)
        seen.append(held())
    return seen


def aborted_requests(engine: dict[str, Any], count: int, leak: bool = False) -> dict[str, Any]:
    """Run requests of random lengths, prompts and parameters, a third of which is aborted at a random time.

    Args:
        leak: as a fault, blocks of one request are taken and never given back.
    """
    numbers = random.Random(0)
    with Engine(engine) as llm:
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        pool = scheduler.kv_cache_manager.block_pool
        free, before = pool.get_num_free_blocks(), held()
        finished = aborted = added = 0
        running: set[str] = set()
        while added < count or llm.llm_engine.has_unfinished_requests():
            for _ in range(min(numbers.randrange(3), count - added)):
                name, added = str(added), added + 1
                running.add(name)
                llm.llm_engine.add_request(
                    name, {"prompt_token_ids": _prompt(numbers)}, _params(numbers, added)
                )
            if running and numbers.random() < 0.25:
                name = numbers.choice(sorted(running))
                running.discard(name)
                llm.llm_engine.abort_request([name])
                aborted += 1
            for output in llm.llm_engine.step():
                if output.finished and output.request_id in running:
                    running.discard(output.request_id)
                    finished += 1
        while scheduler.has_finished_requests():  # the worker hears of the last ones with the next step
            llm.llm_engine.step()
        if leak:
            pool.get_new_blocks(1)
        runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        return {
            "finished": finished,
            "aborted": aborted,
            "blocks": free - pool.get_num_free_blocks(),
            "requests": len(scheduler.requests) + len(runner.requests),
            "seeds": len(runner._sample.seeds),
            "more held": {name: value - before[name] for name, value in held().items()},
        }


def _prompt(numbers: random.Random) -> list[int]:
    some = [numbers.randrange(3, 512) for _ in range(numbers.randrange(2, 20))]
    return some * numbers.randrange(1, 4)


def _params(numbers: random.Random, index: int) -> Any:
    params: dict[str, Any] = {"max_tokens": numbers.randrange(1, 24)}
    if index % 2:
        params |= {"temperature": 1.0, "top_k": numbers.randrange(1, 50)}
    if index % 3 == 0:
        params |= {"seed": index, "presence_penalty": 0.5, "logprobs": 1}
    return sampling_params(params)
