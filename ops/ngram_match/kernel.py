"""Prompt lookup in Triton, for CUDA and Ascend. Imports triton alone.

Two kernels: the first splits every row among programs and leaves the best match of each part, the second
takes the best part and copies the draft. A match is known by its end, and at equal length the earliest end
is the earliest start, the latest the most recent one.
"""

import triton
import triton.language as tl


@triton.jit
def match_length(row, n, first, max_n, BLOCK: tl.constexpr):
    """``[BLOCK]`` float32: how many tokens up to and including position ``first + lane`` agree with the
    suffix, at most ``max_n``; 0 from the last token on.

    Differences are or-ed and compared as float32, since an integer comparison runs element by element on
    Ascend's scalar unit. Lengths and positions are exact there, being below 2**24.
    """
    lane = tl.arange(0, BLOCK)
    differs = tl.zeros([BLOCK], tl.int32)
    length = tl.zeros([BLOCK], tl.float32)
    for g in range(max_n):
        position = first - g + lane
        inside = (position >= 0) & (position < n)
        token = tl.load(row + position, mask=inside, other=0)
        differs = differs | (token ^ tl.load(row + n - 1 - g))
        length += tl.where(differs.to(tl.float32) == 0.0, 1.0, 0.0)
    position = (first + lane).to(tl.float32)
    length = tl.minimum(length, position + 1.0)
    return tl.where(position < tl.cast(n - 1, tl.float32), length, 0.0)


@triton.jit(do_not_specialize=["num_rows"])
def ngram_scan_kernel(
    token_ids_ptr,  # [S, L] int32
    num_tokens_ptr,  # [S] int32
    lengths_ptr,  # [S, SPLITS] float32: the longest match in each part, 0 if none
    ends_ptr,  # [S, SPLITS] float32: its end, as a position
    num_rows,
    row_stride,
    max_len,  # L
    max_n,
    RECENT: tl.constexpr,  # of equally long matches the last; False: the first
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One part of a row a program, grid-stride. Part ``i`` holds every ``SPLITS``-th block from block ``i``
    on, of those that the row's true length fills: work is even, and none is spent on the unused rest."""
    for work in range(tl.program_id(0), num_rows * SPLITS, tl.num_programs(0)):
        s = work // SPLITS
        n = tl.minimum(tl.load(num_tokens_ptr + s), max_len)
        row = token_ids_ptr + tl.cast(s, tl.int64) * row_stride
        # the suffix is not longer than the row
        limit = tl.minimum(max_n, n)
        best = 0.0
        end = 0.0
        for first in range((work - s * SPLITS) * BLOCK, n - 1, SPLITS * BLOCK):
            length = match_length(row, n, first, limit, BLOCK)
            longest = tl.max(length, axis=0)
            if RECENT:
                lane = tl.arange(0, BLOCK).to(tl.float32)
                if longest >= best:
                    best = longest
                    end = tl.max(tl.where(length == longest, lane, 0.0), axis=0) + first
            else:
                if longest > best:
                    best = longest
                    end = (tl.argmax(length, axis=0) + first).to(tl.float32)
        tl.store(lengths_ptr + work, best)
        tl.store(ends_ptr + work, end)


@triton.jit(do_not_specialize=["num_rows"])
def ngram_copy_kernel(
    token_ids_ptr,  # [S, L] int32
    num_tokens_ptr,  # [S] int32
    num_drafts_ptr,  # [S] int32
    lengths_ptr,  # [S, SPLITS] float32
    ends_ptr,  # [S, SPLITS] float32
    out_ptr,  # [S, max_drafts] int32
    num_rows,
    row_stride,
    max_len,  # L
    min_n,
    max_drafts,
    vocab_size,
    RECENT: tl.constexpr,
    SPLITS: tl.constexpr,  # power of two
    DRAFTS_BLOCK: tl.constexpr,  # power of two >= max_drafts
):
    """One row a program, grid-stride."""
    part = tl.arange(0, SPLITS)
    slot = tl.arange(0, DRAFTS_BLOCK)
    for s in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        n = tl.minimum(tl.load(num_tokens_ptr + s), max_len)
        lengths = tl.load(lengths_ptr + s * SPLITS + part)
        ends = tl.load(ends_ptr + s * SPLITS + part)
        longest = tl.max(lengths, axis=0)
        if RECENT:
            end = tl.max(tl.where(lengths == longest, ends, 0.0), axis=0).to(tl.int32) + 1
        else:
            end = tl.min(tl.where(lengths == longest, ends, 16777216.0), axis=0).to(tl.int32) + 1
        count = tl.minimum(tl.load(num_drafts_ptr + s), n - end)
        if longest < min_n:
            count = 0
            end = 0
        row = token_ids_ptr + tl.cast(s, tl.int64) * row_stride
        draft = tl.load(row + end + slot, mask=slot < count, other=-1)
        # an id that is no token ends the draft
        token = draft.to(tl.float32)
        place = slot.to(tl.float32)
        usable = (token >= 0.0) & (token < tl.cast(vocab_size, tl.float32))
        stop = tl.min(tl.where(usable, 16777216.0, place), axis=0)
        tl.store(out_ptr + s * max_drafts + slot, tl.where(place < stop, draft, -1), mask=slot < max_drafts)
