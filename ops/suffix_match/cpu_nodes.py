"""The arrays of a tree and what holds them together: children in one hash table, and rings of suffixes.

Compiled code knows a tree by the address of its row, from which it reads where the arrays are. Nine arrays as arguments
would cost more than the work of a small batch; and a function that is not inlined gets eight numbers, not seventy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numba.np import arrayobj

# columns of `nodes`, int32; STAMP takes two of them
PARENT, DEPTH, REF, TOTAL, NUM_INSIDE, STANDING, CHILD, NEXT, PREV, BEST, TOKEN, REACH, STAMP = range(13)
NODE_COLUMNS = 16
# columns of `table`, int64: parent and token of a node, and the node
KEY, VALUE = range(2)
# columns of `suffixes`, int32: the node in whose edge one stands, its length, its neighbours in the ring of those that
# stand in the edge: first those inside it, then those at its end
AT, LENGTH, AFTER, BEFORE = range(4)
# columns of `sequences`, int32
FIRST_PAGE, PAGE, PAGE_BEFORE, NUM_TOKENS = range(4)
# entries of a tree's row, int64: free nodes are linked by NEXT, free pages by `page_links`; then where arrays begin
FREE_NODE, NUM_FREE_NODES, FREE_PAGE, NUM_FREE_PAGES, CLOCK, MAX_DEPTH, PAGE_SIZE, TABLE_SIZE = range(8)
NODES, TABLE, TOKENS, SUFFIXES, PAGE_LINKS, SEQUENCES = range(8, 14)
ROW_ENTRIES = 14
#: the node that all suffixes begin at
ROOT = 0
#: a node whose best child is not known since a sequence was removed
UNKNOWN = -2
EMPTY = np.int64(-1)


# without reference counts, which would cost more than the work: nothing here makes an array
jit = njit(cache=True, _nrt=False)  # type: ignore[call-overload]


class Tree(NamedTuple):
    """Addresses; the functions below read them as arrays."""

    row: int
    nodes: int
    table: int
    tokens: int
    suffixes: int
    page_links: int
    sequences: int


def _array(read_address, dtype, *columns):
    """A function that gives the array at an address which ``read_address`` makes code for; it has no end."""

    @intrinsic
    def array_of(typingctx, owner):
        array_type = types.Array(dtype, 1 + len(columns), "C")

        def codegen(context, builder, signature, args):
            array = arrayobj.make_array(array_type)(context, builder)
            item = dtype.bitwidth // 8
            arrayobj.populate_array(
                array,
                data=builder.inttoptr(read_address(builder, args[0]), array.data.type),
                shape=[context.get_constant(types.intp, size) for size in (1 << 31, *columns)],
                strides=[
                    context.get_constant(types.intp, size) for size in (*(c * item for c in columns), item)
                ],
                itemsize=context.get_constant(types.intp, item),
                meminfo=None,
            )
            return array._getvalue()

        return array_type(owner), codegen

    return array_of


def _field(name):
    place = Tree._fields.index(name)
    return lambda builder, tree: builder.extract_value(tree, place)


_row_at = _array(lambda builder, address: address, types.int64)
state_of = _array(_field("row"), types.int64)
"""``[ROW_ENTRIES]``"""
nodes_of = _array(_field("nodes"), types.int32, NODE_COLUMNS)
"""``[N, NODE_COLUMNS]``. DEPTH is where a node's edge ends; the text of the edge is that of suffix REF, known to have
REACH tokens at the least; TOTAL suffixes entered it."""
stamps_of = _array(_field("nodes"), types.int64, NODE_COLUMNS // 2)
"""``[N, NODE_COLUMNS // 2]``, the same memory: in ``STAMP // 2`` when a node was last entered, and of what was entered
once, minus the time: of equal counts the larger stamp comes first."""
table_of = _array(_field("table"), types.int64, 2)
"""``[TABLE_SIZE, 2]``, a power of 2; a KEY is EMPTY where there is no entry."""
tokens_of = _array(_field("tokens"), types.int32)
"""``[T]``: text, in pages that repeat the first tokens of the next, so that all suffixes that begin in a page can be
read in it."""
suffixes_of = _array(_field("suffixes"), types.int32, 4)
"""``[T, 4]``, the suffix that begins at each token."""
page_links_of = _array(_field("page_links"), types.int32)
"""``[P]``, the next page."""
sequences_of = _array(_field("sequences"), types.int32, 4)
"""``[S, 4]``"""


@jit
def open_tree(address):
    row = _row_at(address)
    return Tree(address, row[NODES], row[TABLE], row[TOKENS], row[SUFFIXES], row[PAGE_LINKS], row[SEQUENCES])


# ---- children
@jit
def _key(parent, token):
    return (np.int64(parent) << 32) | (np.int64(token) & 0xFFFFFFFF)


@jit
def _home(key, mask):
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    return np.int64(mixed & np.uint64(mask))


@jit
def find(f, parent, token):
    """The child of ``parent`` whose edge begins with ``token``; -1: none."""
    key = _key(parent, token)
    table, mask = table_of(f), state_of(f)[TABLE_SIZE] - 1
    slot = _home(key, mask)
    while table[slot, KEY] != EMPTY:
        if table[slot, KEY] == key:
            return np.int32(table[slot, VALUE])
        slot = (slot + 1) & mask
    return np.int32(-1)


@jit
def _put(f, parent, token, node):
    key = _key(parent, token)
    table, mask = table_of(f), state_of(f)[TABLE_SIZE] - 1
    slot = _home(key, mask)
    while table[slot, KEY] != EMPTY and table[slot, KEY] != key:
        slot = (slot + 1) & mask
    table[slot, KEY] = key
    table[slot, VALUE] = node


@jit
def discard(f, parent, token):
    """Close the gap behind: what was pushed on by the key moves back."""
    key = _key(parent, token)
    table, mask = table_of(f), state_of(f)[TABLE_SIZE] - 1
    slot = _home(key, mask)
    while table[slot, KEY] != key:
        slot = (slot + 1) & mask
    gap = slot
    while True:
        slot = (slot + 1) & mask
        if table[slot, KEY] == EMPTY:
            break
        if ((slot - _home(table[slot, KEY], mask)) & mask) >= ((slot - gap) & mask):
            table[gap, KEY] = table[slot, KEY]
            table[gap, VALUE] = table[slot, VALUE]
            gap = slot
    table[gap, KEY] = EMPTY


@jit
def fill_table(address, size):
    """The first ``size`` nodes into a new table."""
    f = open_tree(address)
    for v in range(size):
        if nodes_of(f)[v, TOTAL] > 0 and nodes_of(f)[v, PARENT] >= 0:
            _put(f, nodes_of(f)[v, PARENT], nodes_of(f)[v, TOKEN], v)


@jit
def new_node(f, parent, depth, ref, total):
    v = np.int32(state_of(f)[FREE_NODE])
    row = nodes_of(f)[v]
    state_of(f)[FREE_NODE] = row[NEXT]
    state_of(f)[NUM_FREE_NODES] -= 1
    row[PARENT] = parent
    row[DEPTH] = depth
    row[REF] = ref
    row[TOTAL] = total
    row[NUM_INSIDE] = row[REACH] = 0
    row[STANDING] = row[CHILD] = row[NEXT] = row[PREV] = row[BEST] = -1
    row[TOKEN] = 0
    return v


@jit
def free_node(f, v):
    nodes_of(f)[v, TOTAL] = 0
    nodes_of(f)[v, NEXT] = state_of(f)[FREE_NODE]
    state_of(f)[FREE_NODE] = v
    state_of(f)[NUM_FREE_NODES] += 1


@jit
def adopt(f, parent, v, token):
    """``v`` becomes a child of ``parent``."""
    nodes = nodes_of(f)
    nodes[v, PARENT] = parent
    nodes[v, TOKEN] = token
    first = nodes[parent, CHILD]
    nodes[v, NEXT] = first
    nodes[v, PREV] = -1
    if first >= 0:
        nodes[first, PREV] = v
    nodes[parent, CHILD] = v
    _put(f, parent, token, v)


@jit
def replace(f, v, by):
    """``by`` takes the place of ``v`` among the children of its parent."""
    nodes = nodes_of(f)
    parent = nodes[v, PARENT]
    for column in (PARENT, NEXT, PREV, TOKEN):
        nodes[by, column] = nodes[v, column]
    stamps_of(f)[by, STAMP // 2] = stamps_of(f)[v, STAMP // 2]
    if nodes[v, PREV] >= 0:
        nodes[nodes[v, PREV], NEXT] = by
    else:
        nodes[parent, CHILD] = by
    if nodes[v, NEXT] >= 0:
        nodes[nodes[v, NEXT], PREV] = by
    if nodes[parent, BEST] == v:
        nodes[parent, BEST] = by
    _put(f, parent, nodes[v, TOKEN], by)


@jit
def disown(f, v):
    nodes = nodes_of(f)
    parent, before, after = nodes[v, PARENT], nodes[v, PREV], nodes[v, NEXT]
    if before >= 0:
        nodes[before, NEXT] = after
    else:
        nodes[parent, CHILD] = after
    if after >= 0:
        nodes[after, PREV] = before
    discard(f, parent, nodes[v, TOKEN])


@jit
def comes_before(f, a, b):
    """Whether child ``a`` is the more frequent one, or of equal ones the first."""
    if nodes_of(f)[a, TOTAL] != nodes_of(f)[b, TOTAL]:
        return nodes_of(f)[a, TOTAL] > nodes_of(f)[b, TOTAL]
    return stamps_of(f)[a, STAMP // 2] > stamps_of(f)[b, STAMP // 2]


@jit
def best_child(f, v):
    """-1: it has none."""
    best = nodes_of(f)[v, BEST]
    if best != UNKNOWN:
        return best
    best = c = nodes_of(f)[v, CHILD]
    while c >= 0:
        if comes_before(f, c, best):
            best = c
        c = nodes_of(f)[c, NEXT]
    nodes_of(f)[v, BEST] = best  # threads that search at once write the same
    return best


# ---- where suffixes stand
@jit
def stand(f, p, v, length):
    """Let suffix ``p`` stand in the edge of ``v``; the first of the ring is the last that came inside."""
    nodes, suffixes = nodes_of(f), suffixes_of(f)
    suffixes[p, AT] = v
    suffixes[p, LENGTH] = length
    inside = length < nodes[v, DEPTH]
    nodes[v, NUM_INSIDE] += inside
    head = nodes[v, STANDING]
    if head < 0:
        suffixes[p, AFTER] = suffixes[p, BEFORE] = p
        nodes[v, STANDING] = p
        return
    tail = suffixes[head, BEFORE]
    suffixes[p, AFTER] = head
    suffixes[p, BEFORE] = tail
    suffixes[tail, AFTER] = p
    suffixes[head, BEFORE] = p
    if inside:
        nodes[v, STANDING] = p


@jit
def leave(f, p):
    nodes, suffixes = nodes_of(f), suffixes_of(f)
    v, after = suffixes[p, AT], suffixes[p, AFTER]
    nodes[v, NUM_INSIDE] -= suffixes[p, LENGTH] < nodes[v, DEPTH]
    if after == p:
        nodes[v, STANDING] = -1
        return
    before = suffixes[p, BEFORE]
    suffixes[before, AFTER] = after
    suffixes[after, BEFORE] = before
    if nodes[v, STANDING] == p:
        nodes[v, STANDING] = after


@jit
def num_shorter(f, v, length):
    """How many suffixes stand inside the edge of ``v`` before ``length``."""
    count = 0
    p = nodes_of(f)[v, STANDING]
    for _ in range(nodes_of(f)[v, NUM_INSIDE]):
        count += suffixes_of(f)[p, LENGTH] < length
        p = suffixes_of(f)[p, AFTER]
    return count
