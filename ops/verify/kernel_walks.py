"""The accept walk in Triton: how many drafts of a request are kept, and what its last token is drawn from.

``accept_kernel`` holds the rules that judge one row after another. What its neighbours share with it:
``draft_of`` (which drafts count), ``log_p_and_q`` (what they are judged by), ``finish`` (what the draw needs to
know). A walk yields a count only; ``finish`` reads everything else anew at row ``count``, since a rule that
looks ahead has gone past it. Imports triton alone.
"""

import triton
import triton.language as tl

from ascend_spec_ops.uniforms.kernel import exponential, load_key, threefry2x32
from ascend_spec_ops.verify.kernel import (
    DONE,
    PLAIN,
    RESIDUAL,
    WITHOUT_DRAFT,
    is_valid,
    request_start,
    row_total,
    scale_of,
    take_largest,
)

#: rules of ``accept_kernel``
STANDARD = tl.constexpr(0)
TYPICAL = tl.constexpr(1)
SYNTHETIC = tl.constexpr(2)
FLY = tl.constexpr(3)

STREAM_ACCEPT = tl.constexpr(0)
STREAM_ROUND = tl.constexpr(5)


@triton.jit
def accept_threshold(k0, k1, position, lane, STREAM: tl.constexpr):
    """The exponential variate of one word below lane 2048, as a block of one (Ascend has no scalar form of some
    of these)."""
    call = tl.arange(0, 1) + (lane + (STREAM << 24))
    word, _ = threefry2x32(k0, k1, position, call.to(tl.uint32, bitcast=True))
    return tl.max(exponential(word), axis=0)


@triton.jit
def draft_of(draft_ptr, draft_lse_ptr, slot, exists, has_q, num_blocks, lane, SAMPLED: tl.constexpr):
    """The id in a slot (-1: the drafts end here), whether it was sampled, and the log-sum-exp of its q."""
    draft = -1
    if exists:
        draft = tl.load(draft_ptr + slot)
    sampled = False
    q_total = 0.0
    if SAMPLED:
        if (draft >= 0) & has_q:
            q_total = row_total(draft_lse_ptr, slot, num_blocks, lane)
            sampled = is_valid(q_total)
            if not sampled:
                draft = -1
    return draft, sampled, q_total


@triton.jit
def count_drafts(draft_ptr, draft_lse_ptr, start, num_drafts, has_q, num_blocks, lane, SAMPLED: tl.constexpr):
    """Drafts before the first empty slot, for a rule that must know it before it walks."""
    count = 0
    for j in range(num_drafts):
        if count == j:
            draft, _, _ = draft_of(
                draft_ptr, draft_lse_ptr, start + j, True, has_q, num_blocks, lane, SAMPLED
            )
            if draft >= 0:
                count = j + 1
    return count


@triton.jit
def log_p_and_q(
    logits_ptr, draft_logits_ptr, row, slot, draft, sampled, p_total, q_total, scale, draft_scale,
    vocab_size, stride, draft_stride, SAMPLED: tl.constexpr,
):  # fmt: skip
    """log P and log Q of a draft; one-hot drafts have log Q = 0, an id of V or more has no P and no sampled Q."""
    log_p = float("-inf")
    log_q = 0.0
    if draft < vocab_size:
        p_at = logits_ptr + tl.cast(row, tl.int64) * stride + draft
        log_p = tl.load(p_at).to(tl.float32) * scale - p_total
        if SAMPLED:
            if sampled:
                q_at = draft_logits_ptr + tl.cast(slot, tl.int64) * draft_stride + draft
                log_q = tl.load(q_at).to(tl.float32) * draft_scale - q_total
    elif sampled:
        log_q = float("-inf")
    return log_p, log_q


@triton.jit
def argmax_of(block_max_ptr, block_arg_ptr, row, num_blocks, lane):
    """The lowest id among the largest of a row."""
    maxima = tl.load(block_max_ptr + row * num_blocks + lane, mask=lane < num_blocks, other=float("-inf"))
    block = tl.argmax(maxima, axis=0)
    return block * 4096 + tl.load(block_arg_ptr + row * num_blocks + block)


@triton.jit
def finish(
    draft_ptr, block_max_ptr, block_arg_ptr, block_lse_ptr, draft_lse_ptr, state_ptr, totals_ptr, out_ptr,
    b, start, count, num_drafts, temperature, has_q, log_scale, max_spec_len, vocab_size, num_blocks, lane,
    SAMPLED: tl.constexpr, ARGMAX: tl.constexpr,
):  # fmt: skip
    """Write the ``count`` accepted drafts, and what the last token is drawn from; returns its kind.

    A request whose row ``count`` is not valid keeps the -1 of ``out`` and a count of 0. The residual is of
    ``exp(log_scale) * p``. ``ARGMAX``: a rejected draft is replaced by the argmax, also in sampled rows.
    """
    out = out_ptr + b * (max_spec_len + 2)
    row = start + b + count
    p_total = row_total(block_lse_ptr, row, num_blocks, lane)
    draft, sampled, q_total = draft_of(
        draft_ptr, draft_lse_ptr, start + count, count < num_drafts, has_q, num_blocks, lane, SAMPLED
    )
    kind = DONE
    if is_valid(p_total):
        tl.store(out, count + 1)
        for j in range(count):
            tl.store(out + 1 + j, tl.load(draft_ptr + start + j))
        replaced = temperature <= 0.0
        if ARGMAX:
            replaced = replaced | (draft >= 0)
        if replaced:
            tl.store(out + 1 + count, argmax_of(block_max_ptr, block_arg_ptr, row, num_blocks, lane))
        elif sampled:
            kind = RESIDUAL
        elif (draft >= 0) & (draft < vocab_size):
            kind = WITHOUT_DRAFT
        else:
            kind = PLAIN
    else:
        tl.store(out, 0)
    tl.store(state_ptr + 4 * b, kind)
    tl.store(state_ptr + 4 * b + 1, count)
    tl.store(state_ptr + 4 * b + 2, start + count)
    tl.store(state_ptr + 4 * b + 3, draft)
    tl.store(totals_ptr + 2 * b, p_total - log_scale)
    tl.store(totals_ptr + 2 * b + 1, q_total)
    return kind


@triton.jit
def _is_typical(log_p, entropy_ptr, slot, epsilon, delta, num_blocks, lane):
    """p > min(epsilon, delta * exp(-H)); the entropy is there only where p does not exceed epsilon."""
    p = tl.exp(log_p)
    accepted = p > epsilon
    if (not accepted) & (p > 0.0):
        parts = tl.load(entropy_ptr + slot * num_blocks + lane, mask=lane < num_blocks, other=0.0)
        accepted = p > delta * tl.exp(-tl.sum(parts, axis=0))
    return accepted


@triton.jit
def _accepts(
    log_p, log_q, draft, temperature, k0, k1, position, row, slot, j, block_max_ptr, block_arg_ptr, rule_ptr,
    first_option, second_option, vocab_size, num_blocks, lane, RULE: tl.constexpr,
):  # fmt: skip
    """Whether draft ``j`` is accepted by its own row, leaving aside that fly may overlook a rejection."""
    if RULE == SYNTHETIC:
        threshold = accept_threshold(k0, k1, position + j, 0, STREAM_ACCEPT)
        possible = (log_p > float("-inf")) & (log_q > float("-inf"))
        accepted = possible & (threshold > tl.load(rule_ptr + j))
    elif temperature <= 0.0:
        accepted = argmax_of(block_max_ptr, block_arg_ptr, row, num_blocks, lane) == draft
    elif RULE == TYPICAL:
        accepted = _is_typical(log_p, rule_ptr, slot, first_option, second_option, num_blocks, lane)
    else:
        if RULE == FLY:
            threshold = accept_threshold(k0, k1, position, j, STREAM_ROUND)
        else:
            threshold = accept_threshold(k0, k1, position + j, 0, STREAM_ACCEPT)
        accepted = (log_q > float("-inf")) & (threshold > log_q - log_p)
    return accepted


@triton.jit
def _top_entropy(top_ptr, row, p_total, scale, num_blocks, TOP_K: tl.constexpr, NUM_TOPS: tl.constexpr):
    """-sum p ln p over the TOP_K largest of a row, which are among those of its blocks."""
    lane = tl.arange(0, NUM_TOPS)
    tops = tl.load(
        top_ptr + row * num_blocks * TOP_K + lane, mask=lane < num_blocks * TOP_K, other=float("-inf")
    )
    entropy = 0.0
    for _ in range(TOP_K):
        largest, tops = take_largest(tops, lane)
        if largest > float("-inf"):
            log_p = largest * scale - p_total
            entropy -= tl.exp(log_p) * log_p
    return entropy


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
    rule_ptr,  # fp32, typical: entropies [N, num_blocks]; synthetic: -log of the rates [K]; fly: top_ptr
    state_ptr,  # [B, 4] int32
    totals_ptr,  # [B, 2] fp32
    out_ptr,  # [B, max_spec_len + 2] int32, filled with -1
    num_requests,
    max_spec_len,
    vocab_size,
    num_blocks,
    stride,
    draft_stride,
    first_option,  # fp32, typical: epsilon; fly: window
    second_option,  # fp32, typical: delta; fly: entropy threshold
    RULE: tl.constexpr,
    TOP_K: tl.constexpr,  # 0 but for fly
    NUM_TOPS: tl.constexpr,  # num_blocks * TOP_K, rounded up to a power of two
    SAMPLED: tl.constexpr,  # draft logits are given
    NUM_BLOCKS: tl.constexpr,  # num_blocks, rounded up to a power of two
):
    """The walk of the rules that judge one row after another, one request a program."""
    lane = tl.arange(0, NUM_BLOCKS)
    for b in range(tl.program_id(0), num_requests, tl.num_programs(0)):
        start = request_start(cu_ptr, b)
        num_drafts = tl.minimum(tl.load(cu_ptr + b) - start, max_spec_len)
        temperature = tl.load(temperature_ptr + b)
        draft_temperature = 0.0
        if SAMPLED:
            draft_temperature = tl.load(draft_temperature_ptr + b)
        has_q = (draft_temperature > 0.0) & (temperature > 0.0)
        k0, k1 = load_key(seeds_ptr, b)
        position = tl.load(positions_ptr + 2 * b).to(tl.uint32, bitcast=True)
        if RULE == FLY:
            num_drafts = count_drafts(
                draft_ptr, draft_lse_ptr, start, num_drafts, has_q, num_blocks, lane, SAMPLED
            )
        count = 0
        walking = 1
        deferred = 0  # fly: 1 while draft ``count`` is rejected and the window after it is open
        for j in range(num_drafts):
            if walking == 1:
                walking = 0
                row = start + b + j
                p_total = row_total(block_lse_ptr, row, num_blocks, lane)
                draft, sampled, q_total = draft_of(
                    draft_ptr, draft_lse_ptr, start + j, True, has_q, num_blocks, lane, SAMPLED
                )
                if not is_valid(p_total):
                    count = j  # finish() reads the row and flags the request
                elif draft >= 0:
                    log_p, log_q = log_p_and_q(
                        logits_ptr, draft_logits_ptr, row, start + j, draft, sampled, p_total, q_total,
                        scale_of(temperature), scale_of(draft_temperature), vocab_size, stride, draft_stride,
                        SAMPLED,
                    )  # fmt: skip
                    accepted = _accepts(
                        log_p, log_q, draft, temperature, k0, k1, position, row, start + j, j, block_max_ptr,
                        block_arg_ptr, rule_ptr, first_option, second_option, vocab_size, num_blocks, lane, RULE,
                    )  # fmt: skip
                    if accepted:
                        walking = 1
                        if (deferred == 0) | (j - count == first_option):
                            count = j + 1
                            deferred = 0
                    if RULE == FLY:
                        possible = (log_p > float("-inf")) & (log_q > float("-inf"))
                        fits = j + first_option < num_drafts
                        if (not accepted) & (deferred == 0) & possible & fits:
                            entropy = _top_entropy(
                                rule_ptr, row, p_total, scale_of(temperature), num_blocks, TOP_K, NUM_TOPS
                            )
                            if entropy >= second_option:
                                deferred = 1
                                walking = 1
        finish(
            draft_ptr, block_max_ptr, block_arg_ptr, block_lse_ptr, draft_lse_ptr, state_ptr, totals_ptr,
            out_ptr, b, start, count, num_drafts, temperature, has_q, 0.0, max_spec_len, vocab_size, num_blocks,
            lane, SAMPLED, ARGMAX=RULE == TYPICAL,
        )  # fmt: skip


@triton.jit
def entropy_kernel(
    logits_ptr,
    draft_ptr,
    cu_ptr,
    temperature_ptr,
    block_lse_ptr,
    entropy_ptr,  # [N, num_blocks] fp32
    num_requests,
    max_spec_len,
    vocab_size,
    num_blocks,
    stride,
    epsilon,
    NUM_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Typical: ``-sum p log(p + 1e-5)`` of every block of the rows whose draft epsilon alone does not accept."""
    lane = tl.arange(0, BLOCK)
    block_lane = tl.arange(0, NUM_BLOCKS)
    for tile in range(tl.program_id(0), num_requests * max_spec_len * num_blocks, tl.num_programs(0)):
        row_index = tile // num_blocks
        block = tile - row_index * num_blocks
        b = row_index // max_spec_len
        j = row_index - b * max_spec_len
        start = request_start(cu_ptr, b)
        temperature = tl.load(temperature_ptr + b)
        if (j < tl.load(cu_ptr + b) - start) & (temperature > 0.0):
            draft = tl.load(draft_ptr + start + j)
            if (draft >= 0) & (draft < vocab_size):
                row = start + b + j
                total = row_total(block_lse_ptr, row, num_blocks, block_lane)
                x_ptr = logits_ptr + tl.cast(row, tl.int64) * stride
                log_p = tl.load(x_ptr + draft).to(tl.float32) * scale_of(temperature) - total
                if tl.exp(log_p) <= 1.001 * epsilon:  # the walk may round another way
                    first = block * BLOCK
                    mask = lane < vocab_size - first
                    x = tl.load(x_ptr + first + lane, mask=mask, other=float("-inf")).to(tl.float32)
                    p = tl.exp(x * scale_of(temperature) - total)
                    out = (start + j) * num_blocks + block
                    tl.store(entropy_ptr + out, -tl.sum(p * tl.log(p + 1e-5), axis=0))
