"""Launcher of the Triton kernel; the tensors may be on CUDA, an NPU, or the CPU (interpreter)."""

from __future__ import annotations

import torch

from ascend_spec_ops import targets
from ascend_spec_ops.draft_inputs.kernel import draft_inputs_kernel

MAX_ROWS = 16


def draft_inputs(
    last_token_ids: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    num_tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    max_model_len: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    num_requests = last_token_ids.shape[0]
    input_ids = last_token_ids.new_empty(num_requests + draft_token_ids.shape[0])
    positions = torch.empty_like(input_ids, dtype=torch.int64)
    slot_mapping = torch.empty_like(positions)
    seq_lens = torch.empty_like(num_tokens)
    draft_inputs_kernel[targets.grid(num_requests, input_ids.device)](
        last_token_ids,
        draft_token_ids,
        cu_num_draft_tokens,
        num_tokens,
        block_table,
        input_ids,
        positions,
        slot_mapping,
        seq_lens,
        num_requests,
        block_table.stride(0),
        block_table.shape[1] - 1,
        block_size,
        max_model_len,
        # the largest power of two that a block holds
        ROWS=min(MAX_ROWS, 1 << (block_size.bit_length() - 1)),
    )
    return input_ids, positions, slot_mapping, seq_lens
