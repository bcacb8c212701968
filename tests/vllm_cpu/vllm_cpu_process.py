"""What a process with vLLM is started with."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent


def environment(**more: str) -> dict[str, str]:
    """Of a process with vLLM: one thread, no network, our test helpers importable.

    Numba would start a thread a core, and raise the limit of the OpenMP that torch shares with it.
    """
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    return {**os.environ, **threads, "HF_HUB_OFFLINE": "1", "PYTHONPATH": path, **more}
