"""Verification in Triton, for CUDA and Ascend: block statistics, accept walk, residual masses, draw.

Four launches, because each wants another grid: every (row, block) tile; every request; every (request, block)
tile; every request. Nothing of the size of the logits is written. Imports triton alone.

Between the launches a request's state is eight numbers:
``state`` int32 ``[B, 4]``: kind, row to draw from (counted from the request's first), draft row, draft id;
``totals`` float32 ``[B, 2]``: log-sum-exp of that row under p and under q.
"""

import triton
import triton.language as tl

from ascend_spec_ops.uniforms.kernel import exponential, gumbel, load_key, threefry2x32

#: what the last token of a request is drawn from
DONE = tl.constexpr(0)  # nothing left to draw: greedy, or a row that is not valid
PLAIN = tl.constexpr(1)  # p
WITHOUT_DRAFT = tl.constexpr(2)  # p without the draft: the residual of a one-hot draft
RESIDUAL = tl.constexpr(3)  # max(p - q, 0)

STREAM_ACCEPT = tl.constexpr(0)
STREAM_BLOCK = tl.constexpr(1)
STREAM_LANE = tl.constexpr(2)


@triton.jit
def _scale(temperature):
    """1 / temperature; 1 for greedy rows, whose masses only tell whether they are valid."""
    return tl.where(temperature > 0.0, 1.0 / tl.where(temperature > 0.0, temperature, 1.0), 1.0)


@triton.jit
def _request_start(cu_ptr, b):
    start = 0
    if b > 0:
        start = tl.load(cu_ptr + b - 1)
    return start


@triton.jit
def _log_sum_exp(x):
    """Of a block of log-weights; -inf for nothing but -inf, NaN for a NaN or +inf."""
    m = tl.max(x, axis=0)
    base = tl.where(m == float("-inf"), 0.0, m)
    return base + tl.log(tl.sum(tl.exp(x - base), axis=0))


@triton.jit
def _is_valid(lse):
    """Neither NaN nor infinite."""
    return (lse > float("-inf")) & (lse < float("inf"))


@triton.jit
def block_statistics_kernel(
    logits_ptr,  # [N + EXTRA * B, V]
    cu_ptr,  # [B] int32
    temperature_ptr,  # [B] fp32
    block_max_ptr,  # [N + EXTRA * B, num_blocks] fp32
    block_arg_ptr,  # [N + EXTRA * B, num_blocks] int32, index within the block; not for EXTRA = 0
    block_lse_ptr,  # [N + EXTRA * B, num_blocks] fp32
    num_requests,
    rows_a_request,  # K + EXTRA: requests with fewer leave programs idle
    vocab_size,
    num_blocks,
    stride,
    EXTRA: tl.constexpr,  # 1: target rows, one more than drafts; 0: draft rows
    BLOCK: tl.constexpr,
):
    """Pass one: maximum, argmax and log-sum-exp of every block of every row."""
    lane = tl.arange(0, BLOCK)
    tiles = num_requests * rows_a_request * num_blocks
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row_index = tile // num_blocks
        block = tile - row_index * num_blocks
        b = row_index // rows_a_request
        j = row_index - b * rows_a_request
        start = _request_start(cu_ptr, b)
        if j < tl.load(cu_ptr + b) - start + EXTRA:
            row = start + EXTRA * b + j
            first = block * BLOCK
            x_ptr = logits_ptr + row.to(tl.int64) * stride + first
            x = tl.load(x_ptr + lane, mask=lane < vocab_size - first, other=float("-inf")).to(tl.float32)
            out = row * num_blocks + block
            tl.store(block_max_ptr + out, tl.max(x, axis=0))
            if EXTRA == 1:
                tl.store(block_arg_ptr + out, tl.argmax(x, axis=0))
            tl.store(block_lse_ptr + out, _log_sum_exp(x * _scale(tl.load(temperature_ptr + b))))


@triton.jit
def _row_total(block_lse_ptr, row, num_blocks, lane):
    x = tl.load(block_lse_ptr + row * num_blocks + lane, mask=lane < num_blocks, other=float("-inf"))
    return _log_sum_exp(x)


@triton.jit
def _one_word(k0, k1, position, STREAM: tl.constexpr):
    """The random word of lane 0, as a block of one (Ascend has no scalar form of some of these)."""
    call = tl.arange(0, 1) + (STREAM << 24)
    x0, _ = threefry2x32(k0, k1, position, call.to(tl.uint32, bitcast=True))
    return x0


@triton.jit
def accept_kernel(
    logits_ptr,
    draft_logits_ptr,
    draft_ptr,  # [N] int32
    cu_ptr,
    temperature_ptr,
    draft_temperature_ptr,
    seeds_ptr,  # [B, 2] int32
    positions_ptr,  # [B, 2] int32
    block_max_ptr,
    block_arg_ptr,
    block_lse_ptr,
    draft_lse_ptr,
    state_ptr,  # [B, 4] int32
    totals_ptr,  # [B, 2] fp32
    out_ptr,  # [B, max_spec_len + 2] int32, filled with -1
    num_requests,
    max_spec_len,
    vocab_size,
    num_blocks,
    stride,
    draft_stride,
    SAMPLED: tl.constexpr,  # draft logits are given
    NUM_BLOCKS: tl.constexpr,  # num_blocks, rounded up to a power of two
):
    """The accept walk, one request a program. Greedy requests are finished here."""
    lane = tl.arange(0, NUM_BLOCKS)
    for b in range(tl.program_id(0), num_requests, tl.num_programs(0)):
        start = _request_start(cu_ptr, b)
        num_drafts = tl.minimum(tl.load(cu_ptr + b) - start, max_spec_len)
        temperature = tl.load(temperature_ptr + b)
        scale = _scale(temperature)
        draft_temperature = 0.0
        if SAMPLED:
            draft_temperature = tl.load(draft_temperature_ptr + b)
        k0, k1 = load_key(seeds_ptr, b)
        position = tl.load(positions_ptr + 2 * b).to(tl.uint32, bitcast=True)
        out = out_ptr + b * (max_spec_len + 2)
        kind = -1  # still walking
        count = 0
        draft = -1
        p_total = 0.0
        q_total = 0.0
        for j in range(num_drafts + 1):
            if kind < 0:
                row = start + b + j
                p_total = _row_total(block_lse_ptr, row, num_blocks, lane)
                draft = -1
                if j < num_drafts:
                    draft = tl.load(draft_ptr + start + j)
                sampled = False
                if SAMPLED:
                    if (draft >= 0) & (draft_temperature > 0.0) & (temperature > 0.0):
                        q_total = _row_total(draft_lse_ptr, start + j, num_blocks, lane)
                        sampled = _is_valid(q_total)
                        if not sampled:
                            draft = -1
                if not _is_valid(p_total):
                    kind = DONE
                    count = -1
                elif temperature > 0.0:
                    if draft < 0:
                        kind = PLAIN
                    else:
                        log_q = 0.0
                        log_p = float("-inf")
                        if draft < vocab_size:
                            p_at = logits_ptr + row.to(tl.int64) * stride + draft
                            log_p = tl.load(p_at).to(tl.float32) * scale - p_total
                            if SAMPLED:
                                if sampled:
                                    q_at = draft_logits_ptr + (start + j).to(tl.int64) * draft_stride + draft
                                    q_logit = tl.load(q_at).to(tl.float32)
                                    log_q = q_logit * _scale(draft_temperature) - q_total
                        elif sampled:
                            log_q = float("-inf")
                        threshold = tl.max(
                            exponential(_one_word(k0, k1, position + j, STREAM_ACCEPT)), axis=0
                        )
                        if (log_q > float("-inf")) & (threshold > log_q - log_p):
                            tl.store(out + 1 + j, draft)
                            count += 1
                        elif sampled:
                            kind = RESIDUAL
                        elif draft < vocab_size:
                            kind = WITHOUT_DRAFT
                        else:
                            kind = PLAIN
                else:
                    maxima = tl.load(
                        block_max_ptr + row * num_blocks + lane, mask=lane < num_blocks, other=float("-inf")
                    )
                    block = tl.argmax(maxima, axis=0)
                    token = block * 4096 + tl.load(block_arg_ptr + row * num_blocks + block)
                    tl.store(out + 1 + j, token)
                    count += 1
                    if token != draft:
                        kind = DONE
        if kind == DONE:
            tl.store(out, tl.maximum(count, 0))
            if count < 0:
                for j in range(max_spec_len + 1):
                    tl.store(out + 1 + j, -1)
        else:
            tl.store(out, count + 1)
        tl.store(state_ptr + 4 * b, kind)
        tl.store(state_ptr + 4 * b + 1, tl.maximum(count, 0))
        tl.store(state_ptr + 4 * b + 2, start + tl.maximum(count, 0))
        tl.store(state_ptr + 4 * b + 3, draft)
        tl.store(totals_ptr + 2 * b, p_total)
        tl.store(totals_ptr + 2 * b + 1, q_total)


@triton.jit
def _log_weights(
    logits_ptr, draft_logits_ptr, state_ptr, totals_ptr, temperature_ptr, draft_temperature_ptr, b, kind, row,
    first, lane, vocab_size, stride, draft_stride, SAMPLED: tl.constexpr,
):  # fmt: skip
    """The log-weights that request ``b`` draws from, for tokens ``first + lane``."""
    x_ptr = logits_ptr + row.to(tl.int64) * stride + first
    mask = lane < vocab_size - first
    x = tl.load(x_ptr + lane, mask=mask, other=float("-inf")).to(tl.float32)
    weights = x * _scale(tl.load(temperature_ptr + b))
    if kind == WITHOUT_DRAFT:
        draft = tl.load(state_ptr + 4 * b + 3) - first
        weights = tl.where(lane.to(tl.float32) == draft.to(tl.float32), float("-inf"), weights)
    if SAMPLED:
        if kind == RESIDUAL:
            y_row = tl.load(state_ptr + 4 * b + 2).to(tl.int64)
            y_ptr = draft_logits_ptr + y_row * draft_stride + first
            y = tl.load(y_ptr + lane, mask=mask, other=float("-inf")).to(tl.float32)
            y = y * _scale(tl.load(draft_temperature_ptr + b)) - tl.load(totals_ptr + 2 * b + 1)
            rest = tl.exp(weights - tl.load(totals_ptr + 2 * b)) - tl.exp(y)
            # below 1e-37 it is rounding noise of the subtraction
            weights = tl.where(rest > 1e-37, tl.log(tl.maximum(rest, 1e-37)), float("-inf"))
    return weights


@triton.jit
def residual_mass_kernel(
    logits_ptr,
    draft_logits_ptr,
    cu_ptr,
    temperature_ptr,
    draft_temperature_ptr,
    block_lse_ptr,
    state_ptr,
    totals_ptr,
    mass_ptr,  # [B, num_blocks] fp32: log mass of every block of what is drawn from
    num_requests,
    vocab_size,
    num_blocks,
    stride,
    draft_stride,
    SAMPLED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Pass two. Only the row that a request draws from is read, and of a one-hot residual one block of it."""
    lane = tl.arange(0, BLOCK)
    for tile in range(tl.program_id(0), num_requests * num_blocks, tl.num_programs(0)):
        b = tile // num_blocks
        block = tile - b * num_blocks
        kind = tl.load(state_ptr + 4 * b)
        row = _request_start(cu_ptr, b) + b + tl.load(state_ptr + 4 * b + 1)
        first = block * BLOCK
        touched = kind == RESIDUAL
        if kind == WITHOUT_DRAFT:
            draft = tl.load(state_ptr + 4 * b + 3)
            touched = (draft >= first) & (draft < first + BLOCK)
        if touched:
            weights = _log_weights(
                logits_ptr, draft_logits_ptr, state_ptr, totals_ptr, temperature_ptr, draft_temperature_ptr,
                b, kind, row, first, lane, vocab_size, stride, draft_stride, SAMPLED,
            )  # fmt: skip
            tl.store(mass_ptr + tile, _log_sum_exp(weights))
        elif kind != DONE:
            tl.store(mass_ptr + tile, tl.load(block_lse_ptr + row * num_blocks + block))


@triton.jit
def draw_kernel(
    logits_ptr,
    draft_logits_ptr,
    cu_ptr,
    temperature_ptr,
    draft_temperature_ptr,
    seeds_ptr,
    positions_ptr,
    block_lse_ptr,
    state_ptr,
    totals_ptr,
    mass_ptr,
    out_ptr,
    num_requests,
    max_spec_len,
    vocab_size,
    num_blocks,
    stride,
    draft_stride,
    SAMPLED: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
    HALF: tl.constexpr,  # half a block: one Threefry call gives the noise of lanes i and i + HALF
):
    """The two-level Gumbel draw, one request a program."""
    block_lane = tl.arange(0, NUM_BLOCKS)
    lane = tl.arange(0, HALF)
    for b in range(tl.program_id(0), num_requests, tl.num_programs(0)):
        kind = tl.load(state_ptr + 4 * b)
        if kind != DONE:
            count = tl.load(state_ptr + 4 * b + 1)
            row = _request_start(cu_ptr, b) + b + count
            k0, k1 = load_key(seeds_ptr, b)
            position = tl.load(positions_ptr + 2 * b).to(tl.uint32, bitcast=True) + count
            in_row = block_lane < num_blocks
            mass = tl.load(mass_ptr + b * num_blocks + block_lane, mask=in_row, other=float("-inf"))
            if tl.max(mass, axis=0) == float("-inf"):
                # nothing is left of p - q, which only rounding can bring about: draw from p
                kind = PLAIN
                mass = tl.load(
                    block_lse_ptr + row * num_blocks + block_lane, mask=in_row, other=float("-inf")
                )
            call = block_lane + (STREAM_BLOCK << 24)
            noise, _ = threefry2x32(k0, k1, position, call.to(tl.uint32, bitcast=True))
            block = tl.argmax(mass + gumbel(noise), axis=0)
            best = float("-inf")
            token = 0
            # one half at a time: both at once would not fit Ascend's unified buffer with double buffering
            for half in range(2):
                first = block * 2 * HALF + half * HALF
                weights = _log_weights(
                    logits_ptr, draft_logits_ptr, state_ptr, totals_ptr, temperature_ptr, draft_temperature_ptr,
                    b, kind, row, first, lane, vocab_size, stride, draft_stride, SAMPLED,
                )  # fmt: skip
                lane_call = lane + (STREAM_LANE << 24)
                x0, x1 = threefry2x32(k0, k1, position, lane_call.to(tl.uint32, bitcast=True))
                score = weights + gumbel(tl.where(half == 0, x0, x1))
                largest = tl.max(score, axis=0)
                if largest > best:
                    best = largest
                    token = first + tl.argmax(score, axis=0)
            tl.store(out_ptr + b * (max_spec_len + 2) + 1 + count, token)
