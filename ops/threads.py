"""How many CPU threads our kernels may use, beside torch's own limit."""

from __future__ import annotations

import os

_limit = os.cpu_count() or 1


def limit_threads(num_threads: int) -> None:
    """Let the kernels of this process use at most ``num_threads``: ranks of one machine share its cores."""
    global _limit
    _limit = max(1, num_threads)


def thread_limit() -> int:
    return _limit
