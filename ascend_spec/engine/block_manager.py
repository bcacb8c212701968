"""The paged KV pool: which blocks belong to which request."""

from __future__ import annotations

from collections import deque

from ascend_spec.engine.request import Request


class BlockManager:
    """Hands out blocks of ``block_size`` tokens. A request keeps its blocks until it ends or is preempted."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free_block_ids = deque(range(num_blocks))

    def capacity(self, request: Request) -> int:
        """The most tokens ``request`` could hold with its own and all free blocks."""
        return (len(request.block_ids) + len(self.free_block_ids)) * self.block_size

    def holds(self, request: Request, num_tokens: int) -> bool:
        """Whether its own blocks are enough for ``num_tokens`` tokens."""
        return len(request.block_ids) * self.block_size >= num_tokens

    def allocate(self, request: Request, num_tokens: int) -> list[int]:
        """Grow to ``num_tokens`` tokens; returns the new blocks. Ask :meth:`capacity` first."""
        missing = -(-num_tokens // self.block_size) - len(request.block_ids)
        new = [self.free_block_ids.popleft() for _ in range(missing)]
        request.block_ids.extend(new)
        return new

    def free(self, request: Request) -> None:
        self.free_block_ids.extend(request.block_ids)
        request.block_ids.clear()
