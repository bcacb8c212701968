"""One of two ranks that compare themselves as vLLM's workers do: run by ``test_vllm_ranks.py``, without vLLM.

Prints, by case, what this rank was told: an error's text, or null.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from unittest.mock import patch

import torch.distributed as dist

import ascend_spec
from ascend_spec.config import Plan, TargetConfig, load_speculative_config, resolve
from ascend_spec.vllm import ranks

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}
Faults = Callable[[], AbstractContextManager[object]]


def plan(target: str, **more: object) -> Plan:
    return resolve(load_speculative_config({**NGRAM, **more}), TargetConfig.from_directory(target))


def another_version() -> AbstractContextManager[object]:
    return patch.object(ascend_spec, "__version__", "0.0.1")


def hears_nobody() -> AbstractContextManager[object]:
    """A rank that takes the others' word to be its own."""

    def mutant(values: list[str], mine: str, group: object) -> None:
        values[:] = [mine] * len(values)

    return patch.object(ranks.dist, "all_gather_object", mutant)


#: what is wrong on rank 1, and the fields by which its speculative config differs
CASES: dict[str, tuple[Faults, dict[str, object]]] = {
    "the same": (nullcontext, {}),
    "another version": (another_version, {}),
    "another plan": (nullcontext, {"num_speculative_tokens": 3}),
}


def told(target: str, group: dist.ProcessGroup, fields: dict[str, object]) -> str | None:
    try:
        ranks.require_same_version(group)
        ranks.require_same_plan(group, plan(target, **fields))
    except ranks.RankMismatchError as error:
        return str(error)
    return None


def main(rank: int, store: str, target: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    results = {}
    for name, (fault, fields) in CASES.items():
        for mutant, broken in (("", nullcontext), (", not listening", hears_nobody)):
            group = dist.new_group()
            with broken(), fault() if rank == 1 else nullcontext():
                results[name + mutant] = told(target, group, fields if rank == 1 else {})
            dist.barrier()
    # last, since the group is of no use afterwards
    group = dist.new_group()
    if rank == 0:
        with patch.object(ranks, "PATIENCE", timedelta(seconds=2)):
            results["alone"] = told(target, group, {})
    dist.barrier()
    print(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
