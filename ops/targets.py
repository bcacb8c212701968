"""Facts of the hardware that launchers need: how many programs fill a device."""

from __future__ import annotations

from functools import cache

import torch

#: Ascend's launch limit for a grid, without auto-blockify
MAX_GRID = 65535


@cache
def _parallel_units(device_type: str, index: int) -> int:
    if device_type == "cuda":
        # four resident programs a multiprocessor hide memory latency for kernels of this kind
        return 4 * torch.cuda.get_device_properties(index).multi_processor_count
    if device_type == "npu":
        import triton

        properties = triton.runtime.driver.active.utils.get_device_properties(index)
        return properties["num_vectorcore"]
    return 4  # the interpreter: enough to exercise the grid-stride loop


def grid(work: int, device: torch.device) -> tuple[int]:
    """``min(work, units)`` programs, at least one: kernels loop over the rest by grid stride."""
    return (max(1, min(work, _parallel_units(device.type, device.index or 0), MAX_GRID)),)
