"""Block verification in Triton: the running product of every slot, the residual's mass of every row but the first,
and the walk that keeps the drafts up to the last success. Imports triton alone.

Greedy requests are walked as under every rule. For one-hot drafts ``R_i = p_i - p_{i+1}``, so that no row is read
for it.
"""

import triton
import triton.language as tl

from ascend_spec_ops.uniforms.kernel import load_key
from ascend_spec_ops.verify.kernel import (
    RESIDUAL,
    WEIGHED,
    is_valid,
    log_residual,
    log_sum_exp,
    request_start,
    row_total,
    scale_of,
)
from ascend_spec_ops.verify.kernel_walks import (
    STREAM_ROUND,
    accept_threshold,
    argmax_of,
    count_drafts,
    finish,
    log_p_and_q,
)


@triton.jit
def block_product_kernel(
    logits_ptr,
    draft_logits_ptr,
    draft_ptr,
    cu_ptr,
    temperature_ptr,
    draft_temperature_ptr,
    block_lse_ptr,
    draft_lse_ptr,
    num_drafts_ptr,  # [B] int32: drafts before the first empty slot
    product_ptr,  # [N] fp32: log p_{j+1} of draft j; NaN from a row on that is not valid; -inf: no probability
    num_requests,
    max_spec_len,
    vocab_size,
    num_blocks,
    stride,
    draft_stride,
    SAMPLED: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):
    """One request a program. Rows after a draft of no probability are not looked at."""
    lane = tl.arange(0, NUM_BLOCKS)
    for b in range(tl.program_id(0), num_requests, tl.num_programs(0)):
        start = request_start(cu_ptr, b)
        num_drafts = tl.minimum(tl.load(cu_ptr + b) - start, max_spec_len)
        temperature = tl.load(temperature_ptr + b)
        draft_temperature = 0.0
        if SAMPLED:
            draft_temperature = tl.load(draft_temperature_ptr + b)
        has_q = (draft_temperature > 0.0) & (temperature > 0.0)
        num_drafts = count_drafts(
            draft_ptr, draft_lse_ptr, start, num_drafts, has_q, num_blocks, lane, SAMPLED
        )
        tl.store(num_drafts_ptr + b, num_drafts)
        product = 0.0
        for j in range(num_drafts):
            if product > float("-inf"):
                draft = tl.load(draft_ptr + start + j)
                p_total = row_total(block_lse_ptr, start + b + j, num_blocks, lane)
                q_total = 0.0
                if SAMPLED:
                    if has_q:
                        q_total = row_total(draft_lse_ptr, start + j, num_blocks, lane)
                log_p, log_q = log_p_and_q(
                    logits_ptr, draft_logits_ptr, start + b + j, start + j, draft, has_q, p_total, q_total,
                    scale_of(temperature), scale_of(draft_temperature), vocab_size, stride, draft_stride, SAMPLED,
                )  # fmt: skip
                if not is_valid(p_total):
                    product = float("nan")
                elif (log_p > float("-inf")) & (log_q > float("-inf")):
                    product = tl.minimum(product + log_p - log_q, 0.0)
                else:
                    product = float("-inf")
            tl.store(product_ptr + start + j, product)


@triton.jit
def block_residual_kernel(
    logits_ptr,
    draft_logits_ptr,
    cu_ptr,
    temperature_ptr,
    draft_temperature_ptr,
    block_lse_ptr,
    draft_lse_ptr,
    num_drafts_ptr,
    product_ptr,
    rest_ptr,  # [N, num_blocks] fp32: log of sum max(p_i * p - q, 0) over every block of row i; not for i = 0
    num_requests,
    max_spec_len,
    vocab_size,
    num_blocks,
    stride,
    draft_stride,
    NUM_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Of sampled drafts; the draw uses the masses of the row where the walk ends again."""
    lane = tl.arange(0, BLOCK)
    block_lane = tl.arange(0, NUM_BLOCKS)
    for tile in range(tl.program_id(0), num_requests * max_spec_len * num_blocks, tl.num_programs(0)):
        row_index = tile // num_blocks
        block = tile - row_index * num_blocks
        b = row_index // max_spec_len
        i = row_index - b * max_spec_len
        temperature = tl.load(temperature_ptr + b)
        draft_temperature = tl.load(draft_temperature_ptr + b)
        if (i > 0) & (i < tl.load(num_drafts_ptr + b)) & (temperature > 0.0) & (draft_temperature > 0.0):
            slot = request_start(cu_ptr, b) + i
            product = tl.load(product_ptr + slot - 1)
            if product > float("-inf"):
                row = slot + b
                first = block * BLOCK
                mask = lane < vocab_size - first
                x_ptr = logits_ptr + tl.cast(row, tl.int64) * stride + first
                x = tl.load(x_ptr + lane, mask=mask, other=float("-inf")).to(tl.float32)
                y_ptr = draft_logits_ptr + tl.cast(slot, tl.int64) * draft_stride + first
                y = tl.load(y_ptr + lane, mask=mask, other=float("-inf")).to(tl.float32)
                p_total = row_total(block_lse_ptr, row, num_blocks, block_lane) - product
                q_total = row_total(draft_lse_ptr, slot, num_blocks, block_lane)
                rest = log_residual(
                    x * scale_of(temperature) - p_total, y * scale_of(draft_temperature) - q_total
                )
                tl.store(rest_ptr + slot * num_blocks + block, log_sum_exp(rest))


@triton.jit
def _log_rate(product, mass):
    """log h of a draft that is not the last: ``mass / (mass + 1 - p)``, and 1 where nothing is left of either."""
    whole = mass + (1.0 - tl.exp(product))
    log_rate = tl.log(tl.where(mass > 0.0, mass, 1.0)) - tl.log(tl.where(whole > 0.0, whole, 1.0))
    return tl.where(mass > 0.0, log_rate, tl.where(whole > 0.0, float("-inf"), 0.0))


@triton.jit
def block_walk_kernel(
    draft_ptr,
    cu_ptr,
    temperature_ptr,
    draft_temperature_ptr,
    seeds_ptr,
    positions_ptr,
    block_max_ptr,
    block_arg_ptr,
    block_lse_ptr,
    draft_lse_ptr,
    num_drafts_ptr,
    product_ptr,
    rest_ptr,
    state_ptr,
    totals_ptr,
    mass_ptr,  # [B, num_blocks] fp32
    out_ptr,
    num_requests,
    max_spec_len,
    vocab_size,
    num_blocks,
    SAMPLED: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):
    """The last draft whose test succeeds, one request a program."""
    lane = tl.arange(0, NUM_BLOCKS)
    for b in range(tl.program_id(0), num_requests, tl.num_programs(0)):
        start = request_start(cu_ptr, b)
        num_drafts = tl.load(num_drafts_ptr + b)
        temperature = tl.load(temperature_ptr + b)
        draft_temperature = 0.0
        if SAMPLED:
            draft_temperature = tl.load(draft_temperature_ptr + b)
        has_q = (draft_temperature > 0.0) & (temperature > 0.0)
        k0, k1 = load_key(seeds_ptr, b)
        position = tl.load(positions_ptr + 2 * b).to(tl.uint32, bitcast=True)
        count = 0
        log_scale = 0.0
        valid = 1
        for j in range(num_drafts):
            product = tl.load(product_ptr + start + j)
            if temperature <= 0.0:
                if (count == j) & (product == product):
                    token = argmax_of(block_max_ptr, block_arg_ptr, start + b + j, num_blocks, lane)
                    if token == tl.load(draft_ptr + start + j):
                        count = j + 1
            elif product != product:
                if valid == 1:
                    count = j  # finish() reads the row and flags the request
                    valid = 0
            elif product > float("-inf"):
                log_rate = product
                if j + 1 < num_drafts:
                    if has_q:
                        mass = tl.exp(row_total(rest_ptr, start + j + 1, num_blocks, lane))
                    else:
                        mass = tl.exp(product) - tl.exp(tl.load(product_ptr + start + j + 1))
                    log_rate = _log_rate(product, mass)
                if accept_threshold(k0, k1, position, j, STREAM_ROUND) > -log_rate:
                    count = j + 1
                    log_scale = product
        kind = finish(
            draft_ptr, block_max_ptr, block_arg_ptr, block_lse_ptr, draft_lse_ptr, state_ptr, totals_ptr,
            out_ptr, b, start, count, num_drafts, temperature, has_q, log_scale, max_spec_len, vocab_size,
            num_blocks, lane, SAMPLED, ARGMAX=False,
        )  # fmt: skip
        if SAMPLED:
            if (kind == RESIDUAL) & (count > 0):
                tl.store(state_ptr + 4 * b, WEIGHED)
                masses = tl.load(rest_ptr + (start + count) * num_blocks + lane, mask=lane < num_blocks)
                tl.store(mass_ptr + b * num_blocks + lane, masses, mask=lane < num_blocks)
