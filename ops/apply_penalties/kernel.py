"""The penalties in Triton, for CUDA and Ascend. Imports triton alone."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_requests"])
def apply_penalties_kernel(
    logits_ptr,  # [N + B, V]
    history_ptr,  # [B, history_stride] int32: how often a token is in the output; -1: in the prompt alone
    slots_ptr,  # [B] int32
    draft_ptr,  # [N] int32
    cu_ptr,  # [B] int32, inclusive
    repetition_ptr,  # [B] fp32
    presence_ptr,  # [B] fp32
    frequency_ptr,  # [B] fp32
    num_requests,
    vocab_size,
    num_blocks,
    stride,
    history_stride,
    BLOCK: tl.constexpr,
):
    """One block of the vocabulary of one request a program, grid-stride: its history is read once, and grows
    from row to row by the draft between them. Ids and counts are compared as float32, exact below 2**24."""
    lane = tl.arange(0, BLOCK)
    for tile in range(tl.program_id(0), num_requests * num_blocks, tl.num_programs(0)):
        b = tile // num_blocks
        first = (tile - b * num_blocks) * BLOCK
        repetition = tl.load(repetition_ptr + b)
        presence = tl.load(presence_ptr + b)
        frequency = tl.load(frequency_ptr + b)
        neutral = (repetition == 1.0) & (presence == 0.0) & (frequency == 0.0)
        if (tl.load(slots_ptr + b) >= 0) & (neutral == 0):
            # not a masked load: Ascend's compiler makes that an unconditional one
            start = tl.where(b > 0, tl.load(cu_ptr + tl.maximum(b - 1, 0)), 0)
            num_drafts = tl.load(cu_ptr + b) - start
            here = lane < vocab_size - first
            history = history_ptr + tl.cast(b, tl.int64) * history_stride + first
            count = tl.load(history + lane, mask=here, other=0).to(tl.float32)
            ended = 0
            for j in range(num_drafts + 1):
                row = logits_ptr + tl.cast(start + b + j, tl.int64) * stride + first
                x = tl.load(row + lane, mask=here, other=0.0).to(tl.float32)
                repeated = tl.where(x > 0.0, x / repetition, x * repetition)
                penalised = tl.where(count > 0.0, repeated - frequency * count - presence, repeated)
                x = tl.where(count == 0.0, x, penalised)
                tl.store(row + lane, x.to(logits_ptr.dtype.element_ty), mask=here)
                if j < num_drafts:
                    draft = tl.load(draft_ptr + start + j)
                    if draft < 0:
                        ended = 1
                    if ended == 0:
                        drafted = lane.to(tl.float32) == tl.cast(draft - first, tl.float32)
                        count = tl.where(drafted, tl.maximum(count, 0.0) + 1.0, count)
