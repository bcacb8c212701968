"""Coupled verification in Triton: every row becomes a request of its own without drafts, ``draw_kernel`` draws a
token for each, and the drafts are compared with those. Imports triton alone.
"""

import triton
import triton.language as tl

from ascend_spec_ops.verify.kernel import DONE, PLAIN, is_valid, request_start, row_total
from ascend_spec_ops.verify.kernel_walks import argmax_of


@triton.jit
def coupled_rows_kernel(
    cu_ptr,
    temperature_ptr,
    seeds_ptr,  # [B, 2] int32
    positions_ptr,  # [B, 2] int32
    block_max_ptr,
    block_arg_ptr,
    block_lse_ptr,
    row_temperature_ptr,  # [N + B] fp32
    row_seeds_ptr,  # [N + B, 2] int32
    row_positions_ptr,  # [N + B, 2] int32, of which the low word counts
    row_state_ptr,  # [N + B, 4] int32
    token_ptr,  # [N + B, 2] int32: not used, and the token; -1 for a row that is not valid
    num_requests,
    num_blocks,
    NUM_BLOCKS: tl.constexpr,
):
    """One request a program. Greedy rows get their token here."""
    lane = tl.arange(0, NUM_BLOCKS)
    for b in range(tl.program_id(0), num_requests, tl.num_programs(0)):
        start = request_start(cu_ptr, b)
        temperature = tl.load(temperature_ptr + b)
        position = tl.load(positions_ptr + 2 * b).to(tl.uint32, bitcast=True)
        for j in range(tl.load(cu_ptr + b) - start + 1):
            row = start + b + j
            kind = DONE
            token = -1
            if is_valid(row_total(block_lse_ptr, row, num_blocks, lane)):
                if temperature > 0.0:
                    kind = PLAIN
                else:
                    token = argmax_of(block_max_ptr, block_arg_ptr, row, num_blocks, lane)
            tl.store(row_temperature_ptr + row, temperature)
            tl.store(row_seeds_ptr + 2 * row, tl.load(seeds_ptr + 2 * b))
            tl.store(row_seeds_ptr + 2 * row + 1, tl.load(seeds_ptr + 2 * b + 1))
            tl.store(row_positions_ptr + 2 * row, (position + j).to(tl.int32, bitcast=True))
            tl.store(row_state_ptr + 4 * row, kind)
            tl.store(row_state_ptr + 4 * row + 1, 0)
            tl.store(token_ptr + 2 * row + 1, token)


@triton.jit
def coupled_match_kernel(
    draft_ptr,
    cu_ptr,
    token_ptr,
    out_ptr,  # [B, max_spec_len + 2] int32, filled with -1
    num_requests,
    max_spec_len,
):
    """The drafts before the first that is not its row's token, and that token; one request a program."""
    for b in range(tl.program_id(0), num_requests, tl.num_programs(0)):
        start = request_start(cu_ptr, b)
        num_drafts = tl.minimum(tl.load(cu_ptr + b) - start, max_spec_len)
        tokens = token_ptr + 2 * (start + b) + 1
        count = 0
        for j in range(num_drafts):
            if count == j:
                draft = tl.load(draft_ptr + start + j)
                if (draft >= 0) & (draft == tl.load(tokens + 2 * j)):
                    count = j + 1
        out = out_ptr + b * (max_spec_len + 2)
        last = tl.load(tokens + 2 * count)
        tl.store(out, tl.where(last < 0, 0, count + 1))
        if last >= 0:
            for j in range(count + 1):
                tl.store(out + 1 + j, tl.load(tokens + 2 * j))
