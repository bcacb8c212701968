"""Time the attention of one verification step in one layer: vLLM's kernel for CPUs and this project's operator.

    .venv-vllm-cpu/bin/python benchmarks/vllm_cpu_attention.py

Both read one cache in vLLM's layout, with the heads of SmolLM2-135M, K = 5 and one thread. The time is that of the
thread, so that other processes of the machine hardly count; the best of the rounds is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any

import torch
from common import environment, write_json

HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE, ROWS = 9, 3, 64, 32, 6
ROUNDS, CALLS = 8, 20


def step(num_requests: int, context: int) -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
    """vLLM's and ours, on the same random queries, keys and values."""
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    from ascend_spec.vllm.attention import keys_before_values
    from ascend_spec_ops import mqa_attention

    blocks = -(-context // BLOCK_SIZE)
    cache = torch.randn(num_requests * blocks, KV_HEADS, BLOCK_SIZE, 2 * HEAD_SIZE)
    halves = cache.view(*cache.shape[:2], 2 * BLOCK_SIZE, HEAD_SIZE).chunk(2, 2)
    query = torch.randn(num_requests * ROWS, HEADS, HEAD_SIZE)
    output = torch.empty_like(query)
    table = torch.arange(num_requests * blocks, dtype=torch.int32).view(num_requests, blocks)
    starts = ROWS * torch.arange(num_requests + 1, dtype=torch.int32)
    lengths = torch.full((num_requests,), context, dtype=torch.int32)
    metadata = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=num_requests, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_SIZE, seq_lens=lengths,
        dtype=query.dtype, query_start_loc=starts, causal=True, sliding_window_size=-1,
        isa=_get_attn_isa(query.dtype, BLOCK_SIZE, HEAD_SIZE), enable_kv_split=True,
    )  # fmt: skip

    def stock() -> torch.Tensor:
        ops.cpu_attention_with_kv_cache(
            query=query, key_cache=halves[0], value_cache=halves[1], output=output, query_start_loc=starts,
            seq_lens=lengths, scale=HEAD_SIZE**-0.5, causal=True, alibi_slopes=None, sliding_window=-1,
            block_table=table, softcap=0, scheduler_metadata=metadata, s_aux=None,
        )  # fmt: skip
        return output

    def ours() -> torch.Tensor:
        keys, values = keys_before_values(cache)
        return mqa_attention(query, keys, values, table, starts, lengths, ROWS, HEAD_SIZE**-0.5)

    return stock, ours


def microseconds(call: Callable[[], Any]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        start = thread_time()
        for _ in range(CALLS):
            call()
        best = min(best, (thread_time() - start) / CALLS)
    return 1e6 * best


def main() -> None:
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    torch.set_num_threads(1)
    facts, rows = environment("cpu"), []
    for num_requests in (1, 4):
        for context in (300, 1000):
            stock, ours = step(num_requests, context)
            torch.testing.assert_close(ours(), stock(), atol=1e-5, rtol=0)
            row = {"requests": num_requests, "context": context}
            row |= {"stock_us": round(microseconds(stock), 1), "ours_us": round(microseconds(ours), 1)}
            rows.append({**row, "ours / stock": round(row["ours_us"] / row["stock_us"], 2)})
            print(rows[-1], flush=True)
    write_json(Path(__file__).parent / "results" / "vllm_cpu_attention.json", {**facts, "rows": rows})


if __name__ == "__main__":
    main()
