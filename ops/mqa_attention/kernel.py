"""Paged multi-query attention in Triton, for CUDA and Ascend. Imports triton alone.

The rows of a tile are (query row, head of the group), so that one pass over a request's keys and values
serves every query row of the tile and every query head that shares the kv head. A KV tile is ``PIECES``
pieces of ``PIECE`` positions: one part of a page, or several small pages.
"""

import triton
import triton.language as tl

MASKED = tl.constexpr(-1.0e30)  # finite: a row with nothing visible in a tile yields no NaN


@triton.jit
def _load_tile(
    cache_ptr,
    block_table_ptr,  # of this request
    tile,
    begin,  # positions of the tile before this are not read
    end,  # nor those from this on
    num_pages,
    pieces_per_page,
    stride_b,
    stride_o,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
):
    """``[PIECES * PIECE, BLOCK_D]`` keys or values of a tile; ``cache_ptr`` stands at the kv head."""
    if PIECES == 1:
        page = tile // pieces_per_page
        offset = (tile - page * pieces_per_page) * PIECE
        block = tl.load(block_table_ptr + page).to(tl.int64)
        n = tl.arange(0, PIECE)[:, None]
        d = tl.arange(0, BLOCK_D)[None, :]
        first = cache_ptr + (block * stride_b + offset * stride_o)
        return tl.load(first + n * stride_o + d, mask=(n >= begin) & (n < end) & (d < D), other=0.0)
    else:
        page = tl.arange(0, PIECES)
        left = num_pages - tile * PIECES
        block = tl.load(block_table_ptr + tile * PIECES + page, mask=page < left, other=0).to(tl.int64)
        o = tl.arange(0, PIECE)[None, :, None]
        n = page[:, None, None] * PIECE + o
        d = tl.arange(0, BLOCK_D)[None, None, :]
        at = (block * stride_b)[:, None, None] + o * stride_o + d
        values = tl.load(cache_ptr + at, mask=(n >= begin) & (n < end) & (d < D), other=0.0)
        return tl.reshape(values, (PIECES * PIECE, BLOCK_D))


@triton.jit
def _by_row(per_query, BLOCK_Q: tl.constexpr, BLOCK_G: tl.constexpr, N: tl.constexpr):
    """``[BLOCK_Q, N]`` repeated for the heads of the group: ``[BLOCK_Q * BLOCK_G, N]``."""
    wide = tl.broadcast_to(per_query[:, None, :], (BLOCK_Q, BLOCK_G, N))
    return tl.reshape(wide, (BLOCK_Q * BLOCK_G, N))


@triton.jit
def mqa_attention_kernel(
    out_ptr,  # [T, HKV * GROUP, D], contiguous
    query_ptr,  # [T, HKV * GROUP, D]
    key_cache_ptr,  # [num_blocks, block_size, HKV, D], strided
    value_cache_ptr,  # [num_blocks, block_size, HKV, D], strided
    block_table_ptr,  # [B, M] int32
    query_start_ptr,  # [B + 1] int32
    seq_lens_ptr,  # [B] int32
    mask_ptr,  # [T, mask_width] int8, read if MASK
    depth_ptr,  # [T] int32, read if MASK and WINDOW
    num_requests,
    num_kv_heads,
    num_query_tiles,
    pieces_per_page,
    mask_width,
    scale,
    window,
    soft_cap,
    query_stride_t,
    query_stride_h,
    key_stride_b,
    key_stride_o,
    key_stride_h,
    value_stride_b,
    value_stride_o,
    value_stride_h,
    table_stride,
    MASK: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_G: tl.constexpr,  # GROUP, rounded up to a power of two
    BLOCK_D: tl.constexpr,  # D, rounded up to a power of two, at least 16
    BLOCK_Q: tl.constexpr,  # query rows of a tile; BLOCK_Q * BLOCK_G is at least 16
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
):
    """One program a (request, kv head, query tile), grid-stride."""
    BLOCK_M: tl.constexpr = BLOCK_Q * BLOCK_G
    BLOCK_N: tl.constexpr = PIECE * PIECES
    q3 = tl.arange(0, BLOCK_Q)[:, None, None]
    g3 = tl.arange(0, BLOCK_G)[None, :, None]
    d3 = tl.arange(0, BLOCK_D)[None, None, :]
    q1 = tl.arange(0, BLOCK_Q)
    n1 = tl.arange(0, BLOCK_N)
    for work in range(tl.program_id(0), num_requests * num_kv_heads * num_query_tiles, tl.num_programs(0)):
        pair = work // num_query_tiles
        first = (work - pair * num_query_tiles) * BLOCK_Q
        b = pair // num_kv_heads
        h = pair - b * num_kv_heads
        start = tl.load(query_start_ptr + b)
        query_len = tl.load(query_start_ptr + b + 1) - start
        rows = query_len - first
        if rows > 0:
            seq_len = tl.load(seq_lens_ptr + b)
            past = seq_len - query_len
            token = (start + first).to(tl.int64)
            inside = (q3 < rows) & (g3 < GROUP) & (d3 < D)
            query = query_ptr + token * query_stride_t + h * GROUP * query_stride_h
            q = tl.load(query + q3 * query_stride_t + g3 * query_stride_h + d3, mask=inside, other=0.0)
            q = tl.reshape(q, (BLOCK_M, BLOCK_D))
            # where each row stands, in float: ids and positions are exact below 2**24
            if MASK and WINDOW:
                depth = tl.load(depth_ptr + token + q1, mask=q1 < rows, other=0)
                position = (past + depth).to(tl.float32)
            else:
                position = (past + first + q1).to(tl.float32)
            end = seq_len if MASK else tl.minimum(seq_len, past + first + BLOCK_Q)
            begin = 0
            if WINDOW:
                begin = tl.maximum(past - window + 1 + (0 if MASK else first), 0)

            keys = key_cache_ptr + h * key_stride_h
            values = value_cache_ptr + h * value_stride_h
            table = block_table_ptr + b * table_stride
            num_pages = (seq_len + pieces_per_page * PIECE - 1) // (pieces_per_page * PIECE)
            top = tl.full([BLOCK_M], MASKED, tl.float32)
            total = tl.zeros([BLOCK_M], tl.float32)
            acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
            for tile in range(begin // BLOCK_N, (end + BLOCK_N - 1) // BLOCK_N):
                base = tile * BLOCK_N
                k = _load_tile(
                    keys, table, tile, begin - base, seq_len - base, num_pages, pieces_per_page,
                    key_stride_b, key_stride_o, D, BLOCK_D, PIECE, PIECES,
                )  # fmt: skip
                s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
                if SOFT_CAP:
                    s = soft_cap - 2.0 * soft_cap / (tl.exp(s * (2.0 / soft_cap)) + 1.0)
                p1 = (base + n1).to(tl.float32)
                if MASK:
                    column = base - past  # of the tile's first position among the new rows
                    # compared in two dimensions: triton-adapter-opt 3.2 crashes on a one-dimensional range
                    seen = tl.load(
                        mask_ptr + (token * mask_width + column) + q1[:, None] * mask_width + n1[None, :],
                        mask=(q1[:, None] < rows)
                        & (n1[None, :] >= -column)
                        & (n1[None, :] < query_len - column),
                        other=0,
                    )
                    hidden = tl.where(p1[None, :] < past.to(tl.float32), 0.0, 1.0 - seen.to(tl.float32))
                else:
                    hidden = tl.where(p1[None, :] <= position[:, None], 0.0, 1.0)
                if WINDOW:
                    hidden = tl.where(p1[None, :] <= position[:, None] - window, 1.0, hidden)
                s = tl.where(_by_row(hidden, BLOCK_Q, BLOCK_G, BLOCK_N) > 0.5, MASKED, s)
                new_top = tl.maximum(top, tl.max(s, axis=1))
                shrink = tl.exp(top - new_top)
                p = tl.exp(s - new_top[:, None])
                total = total * shrink + tl.sum(p, axis=1)
                v = _load_tile(
                    values, table, tile, begin - base, seq_len - base, num_pages, pieces_per_page,
                    value_stride_b, value_stride_o, D, BLOCK_D, PIECE, PIECES,
                )  # fmt: skip
                acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
                top = new_top
            # a row that saw nothing (padding) has weighed masked scores alone: zero, not their mean
            inverse = tl.where(top > 0.5 * MASKED, 1.0 / tl.maximum(total, 1.0e-30), 0.0)
            o = tl.reshape(acc * inverse[:, None], (BLOCK_Q, BLOCK_G, BLOCK_D))
            out = out_ptr + (token * num_kv_heads + h) * (GROUP * D)
            out_stride = num_kv_heads * GROUP * D
            tl.store(out + q3 * out_stride + g3 * D + d3, o.to(out_ptr.dtype.element_ty), mask=inside)
