"""One row after the other, in Python integers."""

from __future__ import annotations

import torch


def row_input(
    token: int, position: int, blocks: list[int], block_size: int, limit: int
) -> tuple[int, int, int]:
    """``(id, position, slot)`` of one row; ``limit`` is 0 for padding, else ``max_model_len``."""
    if position >= limit:
        return 0, 0, -1
    if token < 0:
        return 0, position, -1
    return token, position, blocks[position // block_size] * block_size + position % block_size


def draft_inputs(
    last_token_ids: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    num_tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    max_model_len: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The operator. Copies to the host."""
    rows, seq_lens, begin = [], [], 0
    for b, end in enumerate(cu_num_draft_tokens.tolist()):
        n = max(int(num_tokens[b]), 0)
        first = max(n - 1, 0)
        limit = max_model_len if n > 0 else 0
        tokens = [int(last_token_ids[b]), *draft_token_ids[begin:end].tolist()]
        blocks = block_table[b].tolist()
        rows += [row_input(t, first + j, blocks, block_size, limit) for j, t in enumerate(tokens)]
        seq_lens.append(min(n + end - begin, limit))
        begin = end
    ids, positions, slots = zip(*rows, strict=True) if rows else ((), (), ())
    device = last_token_ids.device
    return (
        torch.tensor(ids, dtype=torch.int32, device=device),
        torch.tensor(positions, dtype=torch.int64, device=device),
        torch.tensor(slots, dtype=torch.int64, device=device),
        torch.tensor(seq_lens, dtype=torch.int32, device=device),
    )
