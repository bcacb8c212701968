"""What the engine must know about a device. Kernels have their own facts, in ``ascend_spec_ops.targets``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

GIB = 1 << 30


@dataclass(frozen=True)
class DeviceFacts:
    """Facts that change a step, so that callers ask for a fact and not for a device's name."""

    block_size: int
    """Default tokens a KV block."""
    host_readable: bool
    """Tensors can be read by the host without a copy or a wait."""
    static_shapes: bool
    """Decode steps are padded to buckets, because launches are captured; otherwise padding is only a cost."""


_FACTS = {
    "cpu": DeviceFacts(block_size=16, host_readable=True, static_shapes=False),
    "cuda": DeviceFacts(block_size=16, host_readable=False, static_shapes=True),
    # Ascend's fused attention reads pages of 128 tokens
    "npu": DeviceFacts(block_size=128, host_readable=False, static_shapes=True),
}


def device_facts(device: torch.device | str) -> DeviceFacts:
    """The facts of ``device``.

    Raises:
        ValueError: a device that is none of cpu, cuda, npu.
    """
    kind = str(device).split(":")[0]  # torch knows the word "npu" only once torch_npu is imported
    if kind not in _FACTS:
        raise ValueError(f"device {str(device)!r} was given; use one of {', '.join(_FACTS)}")
    return _FACTS[kind]


def kv_cache_budget(device: torch.device) -> int:
    """Bytes a KV cache may take when nobody says how many blocks it shall have."""
    if device.type == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min(4 * GIB, memory // 4)
    free, _ = getattr(torch, device.type).mem_get_info(device)
    return int(0.8 * free)  # the rest is for activations and for other buffers


Values = Sequence | np.ndarray


@dataclass(frozen=True)
class Upload:
    """Makes tensors on ``device`` from host numbers, without waiting for the device."""

    device: torch.device

    def _tensor(self, values: Values, dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.tensor(values, dtype=dtype)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def bool(self, values: Values) -> torch.Tensor:
        return self._tensor(values, torch.bool)

    def int32(self, values: Values) -> torch.Tensor:
        return self._tensor(values, torch.int32)

    def int64(self, values: Values) -> torch.Tensor:
        return self._tensor(values, torch.int64)

    def float32(self, values: Values) -> torch.Tensor:
        return self._tensor(values, torch.float32)
