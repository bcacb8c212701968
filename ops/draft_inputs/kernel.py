"""The inputs of a step in Triton, for CUDA and Ascend. Imports triton alone."""

import triton
import triton.language as tl


@triton.jit
def block_start(blocks, block, max_block, block_size):
    """The slot of the first token of the request's ``block``-th block, less that token's position: what
    turns a position into a slot. Past the table's end it repeats the last entry, which nothing uses."""
    block = tl.minimum(block, max_block)
    return (tl.load(blocks + block) - block) * block_size


@triton.jit(do_not_specialize=["num_requests"])
def draft_inputs_kernel(
    last_ptr,  # [B] int32
    drafts_ptr,  # [N] int32
    cu_ptr,  # [B] int32, inclusive
    num_tokens_ptr,  # [B] int32
    blocks_ptr,  # [B, M] int32
    ids_ptr,  # [N + B] int32
    positions_ptr,  # [N + B] int64
    slots_ptr,  # [N + B] int64
    seq_lens_ptr,  # [B] int32
    num_requests,
    blocks_stride,
    max_block,  # M - 1
    block_size,
    max_model_len,
    ROWS: tl.constexpr,  # power of two <= block_size
):
    """One request a program, grid-stride; its rows in chunks of ``ROWS``, which stand in at most two blocks:
    two scalar loads and a select instead of a gather and a vector division. Ids and positions are compared
    as float32, exact below 2**24."""
    lane = tl.arange(0, ROWS)
    for b in range(tl.program_id(0), num_requests, tl.num_programs(0)):
        # not a masked load: Ascend's compiler makes that an unconditional one
        begin = tl.where(b > 0, tl.load(cu_ptr + tl.maximum(b - 1, 0)), 0)
        num_rows = tl.load(cu_ptr + b) - begin + 1
        n = tl.maximum(tl.load(num_tokens_ptr + b), 0)
        last = tl.load(last_ptr + b)
        limit = tl.where(n > 0, max_model_len, 0)
        tl.store(seq_lens_ptr + b, tl.minimum(n + num_rows - 1, limit))
        blocks = blocks_ptr + tl.cast(b, tl.int64) * blocks_stride
        for first in range(0, num_rows, ROWS):
            here = lane < num_rows - first
            # the drafts don't hold row 0. ">=", since Ascend's compiler makes an unmasked load of ">"
            drafts = drafts_ptr + begin + first - 1
            token = tl.load(drafts + lane, mask=here & (lane >= 1 - first), other=last)
            start = tl.maximum(n - 1 + first, 0)
            block = start // block_size
            position = start + lane
            positionf = position.to(tl.float32)
            slot = position + tl.where(
                positionf < tl.cast((block + 1) * block_size, tl.float32),
                block_start(blocks, block, max_block, block_size),
                block_start(blocks, block + 1, max_block, block_size),
            )
            inside = positionf < tl.cast(limit, tl.float32)
            written = inside & (token.to(tl.float32) >= 0.0)
            out = begin + b + first + lane
            tl.store(ids_ptr + out, tl.where(written, token, 0), mask=here)
            tl.store(positions_ptr + out, tl.where(inside, position, 0).to(tl.int64), mask=here)
            tl.store(slots_ptr + out, tl.where(written, slot, -1).to(tl.int64), mask=here)
