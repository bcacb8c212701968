"""What the kernels of all rules share: statistics of blocks, the log-weights of the last draw, the draw.

Four launches, because each wants another grid: every (row, block) tile; every request; every (request, block)
tile; every request. The second is the accept walk, which differs by rule: ``kernel_walks.py``,
``kernel_block.py``; ``kernel_coupled.py`` has the rule that draws first and compares afterwards. Nothing of
the size of the logits is written. Imports triton alone.

Between the launches a request's state is six numbers:
``state`` int32 ``[B, 4]``: kind, row to draw from (counted from the request's first), draft row, draft id;
``totals`` float32 ``[B, 2]``: what is subtracted from a logit of that row to give the log-weight under p
(log-sum-exp, less the log of the residual's scale) and under q.
"""

import triton
import triton.language as tl

from ascend_spec_ops.uniforms.kernel import gumbel, load_key, threefry2x32

#: what the last token of a request is drawn from
DONE = tl.constexpr(0)  # nothing left to draw: greedy, or a row that is not valid
PLAIN = tl.constexpr(1)  # p
WITHOUT_DRAFT = tl.constexpr(2)  # p without the draft: the residual of a one-hot draft
RESIDUAL = tl.constexpr(3)  # max(scale * p - q, 0)
WEIGHED = tl.constexpr(4)  # the same, and the walk has left the masses of its blocks

STREAM_BLOCK = tl.constexpr(1)
STREAM_LANE = tl.constexpr(2)


@triton.jit
def scale_of(temperature):
    """1 / temperature; 1 for greedy rows, whose masses only tell whether they are valid."""
    return tl.where(temperature > 0.0, 1.0 / tl.where(temperature > 0.0, temperature, 1.0), 1.0)


@triton.jit
def request_start(cu_ptr, b):
    start = 0
    if b > 0:
        start = tl.load(cu_ptr + b - 1)
    return start


@triton.jit
def log_sum_exp(x):
    """Of a block of log-weights; -inf for nothing but -inf, NaN for a NaN or +inf."""
    m = tl.max(x, axis=0)
    base = tl.where(m == float("-inf"), 0.0, m)
    return base + tl.log(tl.sum(tl.exp(x - base), axis=0))


@triton.jit
def is_valid(lse):
    """Neither NaN nor infinite."""
    return (lse > float("-inf")) & (lse < float("inf"))


@triton.jit
def take_largest(x, lane):
    """The largest of a block, and the block without it."""
    at = tl.argmax(x, axis=0).to(tl.float32)
    return tl.max(x, axis=0), tl.where(lane.to(tl.float32) == at, float("-inf"), x)


@triton.jit
def block_statistics_kernel(
    logits_ptr,  # [N + EXTRA * B, V]
    cu_ptr,  # [B] int32
    temperature_ptr,  # [B] fp32
    block_max_ptr,  # [N + EXTRA * B, num_blocks] fp32
    block_arg_ptr,  # [N + EXTRA * B, num_blocks] int32, index within the block; not for EXTRA = 0
    block_lse_ptr,  # [N + EXTRA * B, num_blocks] fp32
    top_ptr,  # [N + EXTRA * B, num_blocks, TOP_K] fp32, the largest logits; not for TOP_K = 0
    num_requests,
    rows_a_request,  # K + EXTRA: requests with fewer leave programs idle
    vocab_size,
    num_blocks,
    stride,
    EXTRA: tl.constexpr,  # 1: target rows, one more than drafts; 0: draft rows
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Pass one: maximum, argmax and log-sum-exp of every block of every row, and its largest logits."""
    lane = tl.arange(0, BLOCK)
    tiles = num_requests * rows_a_request * num_blocks
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row_index = tile // num_blocks
        block = tile - row_index * num_blocks
        b = row_index // rows_a_request
        j = row_index - b * rows_a_request
        start = request_start(cu_ptr, b)
        if j < tl.load(cu_ptr + b) - start + EXTRA:
            row = start + EXTRA * b + j
            first = block * BLOCK
            x_ptr = logits_ptr + row.to(tl.int64) * stride + first
            x = tl.load(x_ptr + lane, mask=lane < vocab_size - first, other=float("-inf")).to(tl.float32)
            out = row * num_blocks + block
            tl.store(block_max_ptr + out, tl.max(x, axis=0))
            if EXTRA == 1:
                tl.store(block_arg_ptr + out, tl.argmax(x, axis=0))
            tl.store(block_lse_ptr + out, log_sum_exp(x * scale_of(tl.load(temperature_ptr + b))))
            for i in range(TOP_K):
                largest, x = take_largest(x, lane)
                tl.store(top_ptr + out * TOP_K + i, largest)


@triton.jit
def row_total(block_lse_ptr, row, num_blocks, lane):
    x = tl.load(block_lse_ptr + row * num_blocks + lane, mask=lane < num_blocks, other=float("-inf"))
    return log_sum_exp(x)


@triton.jit
def log_residual(log_p, log_q):
    """log max(p - q, 0); what is below 1e-37 is rounding noise of the subtraction."""
    rest = tl.exp(log_p) - tl.exp(log_q)
    return tl.where(rest > 1e-37, tl.log(tl.maximum(rest, 1e-37)), float("-inf"))


@triton.jit
def _log_weights(
    logits_ptr, draft_logits_ptr, state_ptr, totals_ptr, temperature_ptr, draft_temperature_ptr, b, kind, row,
    first, lane, vocab_size, stride, draft_stride, SAMPLED: tl.constexpr,
):  # fmt: skip
    """The log-weights that request ``b`` draws from, for tokens ``first + lane``."""
    x_ptr = logits_ptr + row.to(tl.int64) * stride + first
    mask = lane < vocab_size - first
    x = tl.load(x_ptr + lane, mask=mask, other=float("-inf")).to(tl.float32)
    weights = x * scale_of(tl.load(temperature_ptr + b))
    if kind == WITHOUT_DRAFT:
        draft = tl.load(state_ptr + 4 * b + 3) - first
        weights = tl.where(lane.to(tl.float32) == draft.to(tl.float32), float("-inf"), weights)
    if SAMPLED:
        if kind >= RESIDUAL:
            y_row = tl.load(state_ptr + 4 * b + 2).to(tl.int64)
            y_ptr = draft_logits_ptr + y_row * draft_stride + first
            y = tl.load(y_ptr + lane, mask=mask, other=float("-inf")).to(tl.float32)
            y = y * scale_of(tl.load(draft_temperature_ptr + b)) - tl.load(totals_ptr + 2 * b + 1)
            weights = log_residual(weights - tl.load(totals_ptr + 2 * b), y)
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
        row = request_start(cu_ptr, b) + b + tl.load(state_ptr + 4 * b + 1)
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
            tl.store(mass_ptr + tile, log_sum_exp(weights))
        elif (kind == PLAIN) | (kind == WITHOUT_DRAFT):
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
            row = request_start(cu_ptr, b) + b + count
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
