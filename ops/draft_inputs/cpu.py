"""The inputs of a step in Numba: a hundred rows cost less than one torch call."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit


@njit(cache=True)
def _fill(last, drafts, cu, num_tokens, blocks, block_size, max_model_len, ids, positions, slots, seq_lens):
    row = 0
    begin = 0
    for b in range(last.size):
        n = max(num_tokens[b], 0)
        limit = max_model_len if n > 0 else 0
        end = cu[b]
        seq_lens[b] = min(n + end - begin, limit)
        for j in range(end - begin + 1):
            token = last[b] if j == 0 else drafts[begin + j - 1]
            position = max(n - 1, 0) + j
            inside = position < limit
            written = inside and token >= 0
            ids[row] = token if written else 0
            positions[row] = position if inside else 0
            slots[row] = -1
            if written:
                slots[row] = blocks[b, position // block_size] * block_size + position % block_size
            row += 1
        begin = end


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
    ends = cu_num_draft_tokens.numpy()
    if num_requests and (np.diff(ends, prepend=0).min() < 0 or ends[-1] != draft_token_ids.shape[0]):
        raise RuntimeError(  # the loop below would write beyond its rows
            f"draft_inputs: cu_num_draft_tokens is {ends.tolist()}; it must not fall, and must end at the "
            f"number of drafts ({draft_token_ids.shape[0]})"
        )
    num_rows = num_requests + draft_token_ids.shape[0]
    input_ids = torch.empty(num_rows, dtype=torch.int32)
    positions = torch.empty(num_rows, dtype=torch.int64)
    slot_mapping = torch.empty(num_rows, dtype=torch.int64)
    seq_lens = torch.empty(num_requests, dtype=torch.int32)
    _fill(
        last_token_ids.numpy(),
        draft_token_ids.numpy(),
        ends,
        num_tokens.numpy(),
        block_table.numpy(),
        block_size,
        max_model_len,
        input_ids.numpy(),
        positions.numpy(),
        slot_mapping.numpy(),
        seq_lens.numpy(),
    )
    return input_ids, positions, slot_mapping, seq_lens
