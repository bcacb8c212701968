"""In a process that has vLLM: our attention beside vLLM's own on the same steps, and broken copies of it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from ascend_spec.vllm import attention

Step = dict[str, Any]


@contextlib.contextmanager
def beside_stock(tell: Callable[[Step], None]) -> Iterator[None]:
    """Have each call of a replaced layer, dummy runs apart, told: its "layer", the query "rows" of its longest
    request, whether it was "ours", and the largest "deviation" from what vLLM's own attention says."""
    operator, replaced = attention.mqa_attention, attention.MQAForward.__call__
    calls: list[None] = []

    def counted(*args: Any) -> torch.Tensor:
        calls.append(None)
        return operator(*args)

    @functools.wraps(replaced)
    def both(
        self: Any,
        layer: Any,
        query: Any,
        key: Any,
        value: Any,
        cache: Any,
        step: Any,
        output: Any,
        **scales: Any,
    ) -> torch.Tensor:
        before, theirs = len(calls), torch.zeros_like(output)
        result = replaced(self, layer, query, key, value, cache, step, output, **scales)
        if step is not None:
            self.stock(layer, query, key, value, cache, step, theirs, **scales)
            rows = slice(step.num_actual_tokens)
            deviation = (output[rows] - theirs[rows]).abs().nan_to_num(torch.inf).max().item()
            ours = len(calls) > before
            tell(
                {"layer": layer.layer_name, "rows": step.max_query_len, "ours": ours, "deviation": deviation}
            )
        return result

    with (
        mock.patch.object(attention, "mqa_attention", counted),
        mock.patch.object(attention.MQAForward, "__call__", both),
    ):
        yield


def check_steps(steps: list[Step], layers: set[str], rows: int) -> None:
    """Ours was called where drafts were judged and nowhere else, on the target's layers, and said what vLLM's does."""
    ours = [step for step in steps if step["ours"]]
    assert {step["layer"] for step in steps} == {step["layer"] for step in ours} == layers
    assert all(step["ours"] == (1 < step["rows"] <= rows) for step in steps)
    assert max(step["rows"] for step in steps) > rows, "a prompt"
    assert max(step["deviation"] for step in ours) < 1e-5  # float32, of activations of about 1


# ---- broken copies
def keys_read_by_token() -> Any:
    """The layout of other backends than vLLM's on a CPU."""
    return mock.patch.object(attention, "cache_views", return_value=attention.key_beside_value)


def keys_read_by_block() -> Any:
    """The layout of vLLM's backend on a CPU."""
    return mock.patch.object(attention, "cache_views", return_value=attention.keys_before_values)


def last_key_unseen() -> Any:
    """Context lengths are one too short."""
    operator = attention.mqa_attention

    def mutant(
        query: Any, keys: Any, values: Any, table: Any, starts: Any, lengths: Any, *rest: Any
    ) -> torch.Tensor:
        return operator(query, keys, values, table, starts, lengths - 1, *rest)

    return mock.patch.object(attention, "mqa_attention", mutant)


def never_ours() -> Any:
    return mock.patch.object(attention.MQAForward, "takes", return_value=False)


def drafter_too() -> Any:
    """The layers of a draft model count as the target's."""

    def mutant(runner: Any) -> dict[str, Any]:
        return dict(runner.vllm_config.compilation_config.static_forward_context)

    return mock.patch.object(attention, "target_layers", mutant)


def unknown_layout() -> Any:
    """Of the layouts vLLM's on a CPU is forgotten."""
    return mock.patch.object(attention, "LAYOUTS", (attention.key_beside_value,))


BROKEN: dict[str, Callable[[], Any]] = {
    broken.__name__: broken
    for broken in (
        keys_read_by_token,
        keys_read_by_block,
        last_key_unseen,
        never_ours,
        drafter_too,
        unknown_layout,
    )
}
