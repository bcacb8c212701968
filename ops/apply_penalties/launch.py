"""Histories in torch, then the Triton kernel; the tensors may be on CUDA, an NPU, or the CPU (interpreter).
Shapes are those of the arguments, and no value is read on the host."""

from __future__ import annotations

import torch
import triton

from ascend_spec_ops import targets
from ascend_spec_ops.apply_penalties.kernel import apply_penalties_kernel

BLOCK = 2048
#: int32 elements on which rows of the table start: 128 bytes
ALIGNMENT = 32


def histories(
    token_ids: torch.Tensor,
    slots: torch.Tensor,
    num_prompt_tokens: torch.Tensor,
    num_tokens: torch.Tensor,
    vocab_size: int,
) -> torch.Tensor:
    """``[B, W > vocab_size]`` int32: how often each token is in the output of each request; -1 for one of the
    prompt alone. What counts for nothing is counted in column ``vocab_size``."""
    position = torch.arange(token_ids.shape[1], dtype=torch.int32, device=token_ids.device)
    tokens = token_ids[slots.clamp(min=0)]
    counted = (position < num_tokens[:, None]) & (tokens >= 0) & (tokens < vocab_size)
    index = torch.where(counted, tokens, vocab_size).long()
    in_output = (position >= num_prompt_tokens[:, None]).to(torch.int32)
    width = (vocab_size // ALIGNMENT + 1) * ALIGNMENT
    counts = torch.zeros((len(slots), width), dtype=torch.int32, device=token_ids.device)
    prompt_alone = torch.zeros_like(counts).scatter_(1, index, -1)
    counts.scatter_add_(1, index, in_output)
    return torch.where(counts > 0, counts, prompt_alone)


def apply_penalties(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    slots: torch.Tensor,
    num_prompt_tokens: torch.Tensor,
    num_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    repetition_penalty: torch.Tensor,
    presence_penalty: torch.Tensor,
    frequency_penalty: torch.Tensor,
) -> None:
    num_requests, vocab_size = len(slots), logits.shape[1]
    if not num_requests:
        return
    history = histories(token_ids, slots, num_prompt_tokens, num_tokens, vocab_size)
    num_blocks = triton.cdiv(vocab_size, BLOCK)
    apply_penalties_kernel[targets.grid(num_requests * num_blocks, logits.device)](
        logits, history, slots.to(torch.int32), draft_token_ids, cu_num_draft_tokens, repetition_penalty,
        presence_penalty, frequency_penalty, num_requests, vocab_size, num_blocks, logits.stride(0),
        history.stride(0), BLOCK=BLOCK,
    )  # fmt: skip
