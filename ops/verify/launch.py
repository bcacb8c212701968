"""Launcher of the Triton kernels. No value is read on the host."""

from __future__ import annotations

import torch
import triton

from ascend_spec_ops import targets
from ascend_spec_ops.uniforms.launch import HALF, as_words
from ascend_spec_ops.verify import VOCAB_BLOCK, check_arguments
from ascend_spec_ops.verify.kernel import (
    accept_kernel,
    block_statistics_kernel,
    draw_kernel,
    residual_mass_kernel,
)


def verify(
    logits: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    max_spec_len: int,
    draft_logits: torch.Tensor | None = None,
    draft_temperature: torch.Tensor | None = None,
) -> torch.Tensor:
    check_arguments(
        logits, draft_token_ids, cu_num_draft_tokens, temperature, seeds, positions, max_spec_len,
        draft_logits, draft_temperature,
    )  # fmt: skip
    device = logits.device
    cu, num_requests, vocab_size = cu_num_draft_tokens, len(seeds), logits.shape[1]
    out = torch.full((num_requests, max_spec_len + 2), -1, dtype=torch.int32, device=device)
    if num_requests == 0:
        return out
    num_blocks = triton.cdiv(vocab_size, VOCAB_BLOCK)
    padded_blocks = triton.next_power_of_2(num_blocks)

    def statistics(rows: torch.Tensor, row_temperature: torch.Tensor, extra: int) -> tuple[torch.Tensor, ...]:
        shape = (rows.shape[0], num_blocks)
        block_max = torch.empty(shape, dtype=torch.float32, device=device)
        block_arg = torch.empty(shape, dtype=torch.int32, device=device)
        block_lse = torch.empty_like(block_max)
        rows_a_request = max_spec_len + extra
        block_statistics_kernel[targets.grid(num_requests * rows_a_request * num_blocks, device)](
            rows, cu, row_temperature, block_max, block_arg, block_lse, num_requests, rows_a_request, vocab_size,
            num_blocks, rows.stride(0), EXTRA=extra, BLOCK=VOCAB_BLOCK,
        )  # fmt: skip
        return block_max, block_arg, block_lse

    block_max, block_arg, block_lse = statistics(logits, temperature, 1)
    sampled = draft_logits is not None and draft_logits.shape[0] > 0
    q, q_temperature, q_lse = logits, temperature, block_lse  # never read when not SAMPLED
    if draft_logits is not None and draft_temperature is not None and sampled:
        q, q_temperature = draft_logits, draft_temperature
        q_lse = statistics(q, q_temperature, 0)[2]

    state = torch.empty((num_requests, 4), dtype=torch.int32, device=device)
    totals = torch.empty((num_requests, 2), dtype=torch.float32, device=device)
    mass = torch.empty((num_requests, num_blocks), dtype=torch.float32, device=device)
    strides = (logits.stride(0), q.stride(0))
    accept_kernel[targets.grid(num_requests, device)](
        logits, q, draft_token_ids, cu, temperature, q_temperature, as_words(seeds), as_words(positions),
        block_max, block_arg, block_lse, q_lse, state, totals, out, num_requests, max_spec_len, vocab_size,
        num_blocks, *strides, SAMPLED=sampled, NUM_BLOCKS=padded_blocks,
    )  # fmt: skip
    residual_mass_kernel[targets.grid(num_requests * num_blocks, device)](
        logits, q, cu, temperature, q_temperature, block_lse, state, totals, mass, num_requests, vocab_size,
        num_blocks, *strides, SAMPLED=sampled, BLOCK=VOCAB_BLOCK,
    )  # fmt: skip
    draw_kernel[targets.grid(num_requests, device)](
        logits, q, cu, temperature, q_temperature, as_words(seeds), as_words(positions), block_lse, state,
        totals, mass, out, num_requests, max_spec_len, vocab_size, num_blocks, *strides, SAMPLED=sampled,
        NUM_BLOCKS=padded_blocks, HALF=HALF, num_warps=8,
    )  # fmt: skip
    return out
