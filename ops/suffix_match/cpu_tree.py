"""The counted suffix tree in Numba: append to sequences, end them, remove them.

A tree holds every suffix of its sequences, cut to ``max_depth`` tokens, path-compressed: an edge is a slice of the
text of one of the suffixes that pass it, its node's REF. A suffix of a sequence that goes on has not reached the
depth yet; it *stands* in an edge or at its end, and walks on with each token. Nothing is written for it on the way
but its length, so a token costs a comparison for each suffix that stands in an edge, and a look into the hash table
for each that stands at a branch. A suffix that walks beyond all text of its edge lends the edge its own.

Of a node, TOTAL counts the suffixes that entered its edge. Of those, some stand in the edge (``NUM_INSIDE``), each at
its own length; hence the count of a substring that ends in an edge is TOTAL less those that stand before its end.

Trees have nothing in common, so that threads may each change another one.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from ascend_spec_ops.suffix_match.cpu_nodes import (
    AFTER,
    AT,
    BEFORE,
    BEST,
    CHILD,
    CLOCK,
    DEPTH,
    FIRST_PAGE,
    FREE_PAGE,
    LENGTH,
    MAX_DEPTH,
    NEXT,
    NUM_FREE_NODES,
    NUM_FREE_PAGES,
    NUM_INSIDE,
    NUM_TOKENS,
    PAGE,
    PAGE_BEFORE,
    PAGE_SIZE,
    PARENT,
    REACH,
    REF,
    ROOT,
    STAMP,
    STANDING,
    TOKEN,
    TOTAL,
    UNKNOWN,
    adopt,
    discard,
    disown,
    find,
    free_node,
    jit,
    leave,
    new_node,
    nodes_of,
    open_tree,
    page_links_of,
    replace,
    sequences_of,
    stamps_of,
    stand,
    state_of,
    suffixes_of,
    tokens_of,
)


@jit
def _text_reaches(f, v, length):
    """Whether the text of ``v`` has more than ``length`` tokens."""
    nodes = nodes_of(f)
    if nodes[v, REACH] > length:
        return True
    nodes[v, REACH] = suffixes_of(f)[nodes[v, REF], LENGTH]
    return nodes[v, REACH] > length


@jit
def _split(f, v, depth):
    """A node at ``depth`` in the edge of ``v``; returns it. What stands up to there becomes its own."""
    nodes, suffixes = nodes_of(f), suffixes_of(f)
    u = new_node(f, nodes[v, PARENT], depth, nodes[v, REF], nodes[v, TOTAL])
    replace(f, v, u)
    moved = 0
    p = nodes[v, STANDING]
    for _ in range(nodes[v, NUM_INSIDE]):
        after = suffixes[p, AFTER]
        if suffixes[p, LENGTH] <= depth:
            leave(f, p)
            stand(f, p, u, suffixes[p, LENGTH])
            moved += 1
        p = after
    nodes[v, TOTAL] -= moved
    adopt(f, u, v, tokens_of(f)[nodes[v, REF] + depth])
    nodes[u, BEST] = v
    return u


@jit
def _merge(f, u):
    """Take a node out that neither branches nor holds anything."""
    nodes = nodes_of(f)
    if nodes[u, PARENT] < 0 or nodes[u, STANDING] >= 0:
        return
    v = nodes[u, CHILD]
    if v < 0 or nodes[v, NEXT] >= 0:
        return
    discard(f, u, nodes[v, TOKEN])
    replace(f, u, v)
    free_node(f, u)


@jit
def _enter(f, p, v, length, token):
    """Suffix ``p`` stands at the end of ``v`` and walks on into a child."""
    nodes = nodes_of(f)
    c = find(f, v, token)
    clock = state_of(f)[CLOCK]
    if c < 0:
        c = new_node(f, v, state_of(f)[MAX_DEPTH], p, 1)
        stamps_of(f)[c, STAMP // 2] = -clock
        adopt(f, v, c, token)
        if nodes[v, BEST] == -1:
            nodes[v, BEST] = c
    else:
        nodes[c, TOTAL] += 1
        stamps_of(f)[c, STAMP // 2] = clock
        best = nodes[v, BEST]
        if best != UNKNOWN and best != c and nodes[c, TOTAL] >= nodes[best, TOTAL]:
            nodes[v, BEST] = c
        if not _text_reaches(f, c, length):
            nodes[c, REF] = p
    if length > 0:
        leave(f, p)
    stand(f, p, c, length + 1)
    if length > 0:
        _merge(f, v)


@jit
def _walk_on(f, p, length, token):
    nodes, suffixes = nodes_of(f), suffixes_of(f)
    v = suffixes[p, AT]
    if length == nodes[v, DEPTH]:
        _enter(f, p, v, length, token)
        return
    if not _text_reaches(f, v, length):
        nodes[v, REF] = p  # nobody's text is longer
    elif tokens_of(f)[nodes[v, REF] + length] != token:
        _enter(f, p, _split(f, v, length), length, token)
        return
    if length + 1 == nodes[v, DEPTH]:
        leave(f, p)
        stand(f, p, v, length + 1)
    else:
        suffixes[p, LENGTH] = length + 1


@jit
def standing_suffix(f, sequence, length):
    """Where the last ``length`` tokens of a sequence are, ``length`` below the depth: the row of `suffixes`."""
    starts = state_of(f)[PAGE_SIZE] - state_of(f)[MAX_DEPTH] + 1
    row = sequences_of(f)[sequence]
    start = row[NUM_TOKENS] - length
    page = row[PAGE] if start // starts == (row[NUM_TOKENS] - 1) // starts else row[PAGE_BEFORE]
    return page * state_of(f)[PAGE_SIZE] + start % starts


@jit
def _new_page(f, sequence):
    page = state_of(f)[FREE_PAGE]
    state_of(f)[FREE_PAGE] = page_links_of(f)[page]
    state_of(f)[NUM_FREE_PAGES] -= 1
    page_links_of(f)[page] = -1
    row = sequences_of(f)[sequence]
    if row[PAGE] >= 0:
        page_links_of(f)[row[PAGE]] = page
    else:
        row[FIRST_PAGE] = page
    row[PAGE_BEFORE] = row[PAGE]
    row[PAGE] = page


@jit
def append(f, sequence, token):
    size, depth = state_of(f)[PAGE_SIZE], state_of(f)[MAX_DEPTH]
    starts = size - depth + 1
    row = sequences_of(f)[sequence]
    n = row[NUM_TOKENS]
    offset = n % starts
    if offset == 0:
        _new_page(f, sequence)
    state_of(f)[CLOCK] += 1
    page, before = np.int64(row[PAGE]), np.int64(row[PAGE_BEFORE])
    tokens_of(f)[page * size + offset] = token
    if before >= 0 and offset < depth - 1:
        tokens_of(f)[before * size + starts + offset] = token
    for length in range(min(n, depth - 1), 0, -1):  # the longest first: the shorter may follow its text
        place = offset - length
        p = page * size + place if place >= 0 else before * size + starts + place
        _walk_on(f, p, length, token)
    p = page * size + offset
    suffixes_of(f)[p, AT] = ROOT
    suffixes_of(f)[p, LENGTH] = 0
    _enter(f, p, np.int32(ROOT), 0, token)
    row[NUM_TOKENS] = n + 1


@jit
def _append_all(f, sequence, token_ids, begin, end):
    for j in range(begin, end):
        append(f, sequence, token_ids[j])


@jit
def extend(address, sequences, token_ids, begins, ends):
    f = open_tree(address)
    for i in range(sequences.size):
        _append_all(f, sequences[i], token_ids[i], begins[i], ends[i])


@jit
def nodes_needed(num_tokens, num_sequences, depth):
    """For new tokens: each begins a suffix, and any suffix that stands in the tree may branch off, at two nodes."""
    return 2 * min(num_tokens * depth, num_tokens + num_sequences * depth)


@jit
def _is_short(address, num_tokens, num_sequences):
    state = state_of(open_tree(address))
    pages = num_tokens // (state[PAGE_SIZE] - state[MAX_DEPTH] + 1) + num_sequences
    return (
        nodes_needed(num_tokens, num_sequences, state[MAX_DEPTH]) > state[NUM_FREE_NODES]
        or pages > state[NUM_FREE_PAGES]
    )


@jit
def short_of_memory(addresses, trees, shared, begins, ends, short):
    """Which trees have too little for what is to be appended, the shared one last; returns how many tokens that are in
    all, and how many trees."""
    total = num_short = 0
    for i in range(trees.size):
        num_tokens = max(0, ends[i] - begins[i])
        total += num_tokens
        short[i] = _is_short(addresses[trees[i]], num_tokens, 1)
        num_short += short[i]
    short[trees.size] = shared != 0 and _is_short(shared, total, trees.size)
    return total, num_short + short[trees.size]


@jit
def _extend_each(first, last, addresses, trees, token_ids, begins, ends):
    for i in range(first, last):
        _append_all(open_tree(addresses[trees[i]]), 0, token_ids[i], begins[i], ends[i])


@jit
def extend_serial(addresses, trees, shared, sequences, token_ids, begins, shared_begins, ends):
    _extend_each(0, trees.size, addresses, trees, token_ids, begins, ends)
    if shared != 0:
        extend(shared, sequences, token_ids, shared_begins, ends)


@njit(parallel=True, cache=True)
def extend_parallel(addresses, trees, shared, sequences, token_ids, begins, shared_begins, ends, num_threads):
    """The shared tree on one thread, and all others on the others."""
    workers = num_threads - (shared != 0)
    for thread in prange(num_threads):
        if thread == workers:
            extend(shared, sequences, token_ids, shared_begins, ends)
        else:
            first, last = trees.size * thread // workers, trees.size * (thread + 1) // workers
            _extend_each(first, last, addresses, trees, token_ids, begins, ends)


@jit
def ends_as(addresses, trees, token_ids, lengths, out):
    """Whether the sequence of each tree has ``lengths`` tokens, and ends as its row up to there does."""
    for i in range(trees.size):
        n = lengths[i]
        out[i] = trees[i] >= 0 and n <= token_ids.shape[1]
        if not out[i]:
            continue
        f = open_tree(addresses[trees[i]])
        out[i] = sequences_of(f)[0, NUM_TOKENS] == n
        longest = min(n, state_of(f)[MAX_DEPTH] - 1)
        if out[i] and longest > 0:
            start = standing_suffix(f, 0, longest)
            for j in range(longest):
                out[i] &= tokens_of(f)[start + j] == token_ids[i, n - longest + j]
    return out


@jit
def plant(address):
    new_node(open_tree(address), -1, 0, -1, 1)


@jit
def close(address, sequence):
    """No token will follow: the suffixes that stand inside edges get nodes, so that counts need not look at them."""
    f = open_tree(address)
    nodes, suffixes = nodes_of(f), suffixes_of(f)
    for length in range(min(sequences_of(f)[sequence, NUM_TOKENS], state_of(f)[MAX_DEPTH] - 1), 0, -1):
        p = standing_suffix(f, sequence, length)
        v = suffixes[p, AT]
        if length == nodes[v, DEPTH]:
            continue
        if nodes[v, CHILD] >= 0 or suffixes[nodes[v, REF], LENGTH] > length:
            _split(f, v, length)
            continue
        nodes[v, DEPTH] = length  # a leaf in which nobody is longer
        q = nodes[v, STANDING]
        inside = nodes[v, NUM_INSIDE]
        nodes[v, NUM_INSIDE] = 0
        shorter = 0
        for _ in range(inside):  # the ring anew, those inside in front
            after = suffixes[q, AFTER]
            if suffixes[q, LENGTH] < length:
                shorter += 1
                if nodes[v, STANDING] != q:
                    _to_front(f, v, q)
            q = after
        nodes[v, NUM_INSIDE] = shorter


@jit
def _to_front(f, v, p):
    nodes, suffixes = nodes_of(f), suffixes_of(f)
    before, after = suffixes[p, BEFORE], suffixes[p, AFTER]
    suffixes[before, AFTER] = after
    suffixes[after, BEFORE] = before
    head = nodes[v, STANDING]
    tail = suffixes[head, BEFORE]
    suffixes[p, AFTER] = head
    suffixes[p, BEFORE] = tail
    suffixes[tail, AFTER] = p
    suffixes[head, BEFORE] = p
    nodes[v, STANDING] = p


@jit
def _lend(f, v):
    """Another suffix through ``v`` for its REF."""
    nodes, suffixes = nodes_of(f), suffixes_of(f)
    nodes[v, REACH] = 0
    if nodes[v, CHILD] >= 0:
        nodes[v, REF] = nodes[nodes[v, CHILD], REF]
        return
    head = nodes[v, STANDING]
    longest = suffixes[head, BEFORE]  # the last of the ring stands at the end, if anybody does
    p = head
    for _ in range(nodes[v, NUM_INSIDE]):
        if suffixes[p, LENGTH] > suffixes[longest, LENGTH]:
            longest = p
        p = suffixes[p, AFTER]
    nodes[v, REF] = longest


@jit
def _remove_suffix(f, p):
    nodes = nodes_of(f)
    v = suffixes_of(f)[p, AT]
    leave(f, p)
    bottom = np.int32(-1)  # the lowest node that is left
    while nodes[v, PARENT] >= 0:
        parent = nodes[v, PARENT]
        nodes[v, TOTAL] -= 1
        if nodes[parent, BEST] == v:
            nodes[parent, BEST] = UNKNOWN
        if nodes[v, TOTAL] == 0:
            disown(f, v)
            free_node(f, v)
        else:
            if bottom < 0:
                bottom = v
            if nodes[v, REF] == p:
                _lend(f, v)
        v = parent
    if bottom >= 0:
        _merge(f, bottom)


@jit
def remove(address, sequence):
    """Take a sequence out, whether closed or not; its pages are free again."""
    f = open_tree(address)
    size = state_of(f)[PAGE_SIZE]
    starts = size - state_of(f)[MAX_DEPTH] + 1
    row = sequences_of(f)[sequence]
    page = np.int64(row[FIRST_PAGE])
    for n in range(row[NUM_TOKENS]):
        _remove_suffix(f, page * size + n % starts)
        if n % starts == starts - 1 or n == row[NUM_TOKENS] - 1:
            after = page_links_of(f)[page]
            page_links_of(f)[page] = state_of(f)[FREE_PAGE]
            state_of(f)[FREE_PAGE] = page
            state_of(f)[NUM_FREE_PAGES] += 1
            page = np.int64(after)
    row[FIRST_PAGE] = row[PAGE] = row[PAGE_BEFORE] = -1
    row[NUM_TOKENS] = 0


@jit
def read(address, sequence, out):
    f = open_tree(address)
    size = state_of(f)[PAGE_SIZE]
    starts = size - state_of(f)[MAX_DEPTH] + 1
    row = sequences_of(f)[sequence]
    page = np.int64(row[FIRST_PAGE])
    for begin in range(0, out.size, starts):
        end = min(begin + starts, out.size)
        for i in range(begin, end):
            out[i] = tokens_of(f)[page * size + i - begin]
        page = np.int64(page_links_of(f)[page])
    return out
