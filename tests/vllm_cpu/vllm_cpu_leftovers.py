"""What is left when processes have ended."""

from __future__ import annotations

from pathlib import Path

import psutil
from vllm_cpu_server import still_works


class Leftovers:
    """Processes, files in a directory for temporary ones of their own, and shared memory."""

    def __init__(self, temporary: Path, processes: list[psutil.Process]) -> None:
        """To be made while they run: which shared memory is theirs can only be seen then."""
        self.temporary, self.processes = temporary, processes
        maps = (each.path for process in processes for each in process.memory_maps())
        self.shared_memory = {Path(path) for path in maps if path.startswith("/dev/shm/")}

    def found(self) -> list[str]:
        """Names of all that is still there, but for what vLLM 0.32 leaves without this package too."""
        return [
            *(f"process {each.pid}" for each in self.processes if still_works(each)),
            *(f"file {path.name}" for path in self.temporary.iterdir() if not is_vllms(path)),
            *(f"shared memory {path.name}" for path in self.shared_memory if path.exists()),
        ]


def is_vllms(path: Path) -> bool:
    """Sockets between its processes, and the file by which they find each other."""
    return path.is_socket() or path.name.startswith("vllm_dist_")
