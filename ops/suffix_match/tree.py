"""Counted suffix trees as arrays that grow. Importing this does not import numba; making a tree does."""

from __future__ import annotations

import numpy as np

#: suffixes that begin in a page of text, at the least
PAGE_TOKENS = 128
CACHE_LINE = 64


class SuffixTree:
    """A counted suffix tree of any number of sequences, which are known by number.

    Memory grows in doublings and is kept, but what is removed makes room: while a sequence is in, each of its tokens
    takes 60 to 250 bytes. No two threads may change a tree at once, and none may while another reads.

    >>> tree = SuffixTree(max_depth=24)
    >>> sequence, one = tree.start(), np.ones(1, np.int32)
    >>> tree.extend(sequence * one, np.array([[1, 2, 3, 4, 1, 2]], np.int32), 0 * one, 6 * one)
    >>> tree.token_ids(sequence).tolist()
    [1, 2, 3, 4, 1, 2]

    Args:
        max_depth: in tokens.

    Raises:
        ValueError: ``max_depth`` is below 1.
    """

    def __init__(self, max_depth: int) -> None:
        if max_depth < 1:
            raise ValueError(f"max_depth={max_depth} was given; choose 1 or more")
        from ascend_spec_ops.suffix_match import cpu_nodes, cpu_tree

        self._names, self._code = cpu_nodes, cpu_tree
        self.max_depth = max_depth
        self._state = np.zeros(cpu_nodes.ROW_ENTRIES, np.int64)
        self.address = self._state.ctypes.data
        """By which compiled code knows the tree, for as long as it is there."""
        self._state[[cpu_nodes.FREE_NODE, cpu_nodes.FREE_PAGE]] = -1
        self._state[cpu_nodes.MAX_DEPTH] = max_depth
        self._state[cpu_nodes.PAGE_SIZE] = 1 << (PAGE_TOKENS + 2 * max_depth - 1).bit_length()
        self._nodes = np.zeros((0, cpu_nodes.NODE_COLUMNS), np.int32)
        self._table = np.zeros((0, 2), np.int64)
        self._tokens = np.zeros(0, np.int32)
        self._suffixes = np.zeros((0, 4), np.int32)
        self._page_links = np.zeros(0, np.int32)
        self._sequences = np.zeros((0, 4), np.int32)
        self._free_sequences: list[int] = []
        self._grow_nodes(1)
        self._code.plant(self.address)

    @property
    def num_sequences(self) -> int:
        return len(self._sequences) - len(self._free_sequences)

    @property
    def num_nodes(self) -> int:
        """In use; with no sequence left, one."""
        return len(self._nodes) - int(self._state[self._names.NUM_FREE_NODES])

    @property
    def num_keys(self) -> int:
        """In the table of children: one for each node but the first."""
        return int((self._table[:, self._names.KEY] != self._names.EMPTY).sum())

    @property
    def nbytes(self) -> int:
        arrays = self._nodes, self._table, self._tokens, self._suffixes, self._page_links, self._sequences
        return self._state.nbytes + sum(array.nbytes for array in arrays)

    def start(self) -> int:
        """A new sequence, empty yet; returns its number."""
        if not self._free_sequences:
            have = len(self._sequences)
            new = np.full((max(1, have), 4), -1, np.int32)
            self._sequences = np.concatenate([self._sequences, new])
            self._state[self._names.SEQUENCES] = self._sequences.ctypes.data
            self._free_sequences.extend(range(len(self._sequences) - 1, have - 1, -1))
        sequence = self._free_sequences.pop()
        self._sequences[sequence] = -1
        self._sequences[sequence, self._names.NUM_TOKENS] = 0
        return sequence

    def extend(
        self, sequences: np.ndarray, token_ids: np.ndarray, begins: np.ndarray, ends: np.ndarray
    ) -> None:
        """Append ``token_ids[i, begins[i] : ends[i]]`` to sequence ``i``; one that had ended goes on.

        Args:
            sequences: ``[n]`` int32, numbers.
            token_ids: ``[n, L]`` int32, rows contiguous, any values.
            begins, ends: ``[n]`` int32; nothing is appended where the first is not below the second.
        """
        self.reserve(int(np.maximum(ends - begins, 0).sum()), len(sequences))
        self._code.extend(self.address, sequences, token_ids, begins, ends)

    def end(self, sequence: int) -> None:
        """No more tokens are expected: from now on matches need not look at where the sequence stands."""
        self._reserve_nodes(self.max_depth)
        self._code.close(self.address, sequence)

    def remove(self, sequence: int) -> None:
        """Take a sequence out: counts are as if it had never been in."""
        self._code.remove(self.address, sequence)
        self._free_sequences.append(sequence)

    def token_ids(self, sequence: int) -> np.ndarray:
        """``[n]`` int32, the sequence's tokens."""
        out = np.empty(self._sequences[sequence, self._names.NUM_TOKENS], np.int32)
        self._code.read(self.address, sequence, out)
        return out

    # ---- memory
    def reserve(self, num_tokens: int, num_sequences: int) -> None:
        """Room for so many more tokens, of so many sequences together."""
        self._reserve_nodes(self._code.nodes_needed(num_tokens, num_sequences, self.max_depth))
        starts = int(self._state[self._names.PAGE_SIZE]) - self.max_depth + 1
        pages = num_tokens // starts + num_sequences
        if self._state[self._names.NUM_FREE_PAGES] < pages:
            self._grow_pages(pages)

    def _reserve_nodes(self, nodes: int) -> None:
        if self._state[self._names.NUM_FREE_NODES] < nodes:
            self._grow_nodes(nodes)

    def _grow_nodes(self, more: int) -> None:
        names, state, have = self._names, self._state, len(self._nodes)
        size = 1 << (have + more - 1).bit_length()
        nodes = _zeros_in_cache_lines(size, names.NODE_COLUMNS)
        nodes[:have] = self._nodes
        nodes[have:, names.NEXT] = np.arange(have + 1, size + 1)
        nodes[-1, names.NEXT] = state[names.FREE_NODE]
        state[names.FREE_NODE] = have
        state[names.NUM_FREE_NODES] += size - have
        self._nodes = nodes
        self._table = np.full((2 * size, 2), names.EMPTY)
        state[names.NODES] = nodes.ctypes.data
        state[names.TABLE], state[names.TABLE_SIZE] = self._table.ctypes.data, 2 * size
        names.fill_table(self.address, have)

    def _grow_pages(self, more: int) -> None:
        names, state, have = self._names, self._state, len(self._page_links)
        num_pages = max(have + more, 2 * have)
        added = num_pages - have
        links = np.arange(have + 1, num_pages + 1, dtype=np.int32)
        links[-1] = state[names.FREE_PAGE]
        state[names.FREE_PAGE] = have
        state[names.NUM_FREE_PAGES] += added
        page_size = int(state[names.PAGE_SIZE])
        self._page_links = np.concatenate([self._page_links, links])
        self._tokens = np.concatenate([self._tokens, np.zeros(added * page_size, np.int32)])
        self._suffixes = np.concatenate([self._suffixes, np.zeros((added * page_size, 4), np.int32)])
        state[names.PAGE_LINKS] = self._page_links.ctypes.data
        state[names.TOKENS] = self._tokens.ctypes.data
        state[names.SUFFIXES] = self._suffixes.ctypes.data


def _zeros_in_cache_lines(rows: int, columns: int) -> np.ndarray:
    """``[rows, columns]`` int32, the first row at the beginning of a line of the cache."""
    memory = np.zeros(rows * columns + CACHE_LINE // 4, np.int32)
    begin = -memory.ctypes.data % CACHE_LINE // 4
    return memory[begin : begin + rows * columns].reshape(rows, columns)


class SuffixForest:
    """Trees of one sequence each, which come and go as requests do, known by number.

    >>> forest = SuffixForest(max_depth=24)
    >>> tree = forest.plant()
    >>> forest[tree].num_sequences
    1
    """

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self.addresses = np.zeros(0, np.int64)
        """``[N]`` of trees by number; 0 where there is none."""
        self._trees: dict[int, SuffixTree] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._trees)

    def __getitem__(self, number: int) -> SuffixTree:
        return self._trees[number]

    @property
    def nbytes(self) -> int:
        return self.addresses.nbytes + sum(tree.nbytes for tree in self._trees.values())

    def plant(self) -> int:
        """A new tree with a sequence 0, empty yet; returns its number."""
        if not self._free:
            have = len(self.addresses)
            self.addresses = np.concatenate([self.addresses, np.zeros(max(8, have), np.int64)])
            self._free.extend(range(len(self.addresses) - 1, have - 1, -1))
        number = self._free.pop()
        tree = self._trees[number] = SuffixTree(self.max_depth)
        tree.start()
        self.addresses[number] = tree.address
        return number

    def fell(self, number: int) -> None:
        """Forget a tree, and free its memory at once."""
        del self._trees[number]
        self.addresses[number] = 0
        self._free.append(number)

    def ends_as(self, trees: np.ndarray, token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """``[n]`` bool: whether each tree has as many tokens as ``lengths`` says, and those of them that a match
        depends on are ``token_ids[i, :lengths[i]]``'s last.

        Args:
            trees: ``[n]`` int32, numbers; -1: no.
            token_ids: ``[n, L]`` int32, rows contiguous.
            lengths: ``[n]`` int32; beyond ``L``: no.
        """
        from ascend_spec_ops.suffix_match import cpu_tree

        out = np.empty(len(trees), bool)
        cpu_tree.ends_as(self.addresses, trees, token_ids, lengths, out)
        return out
