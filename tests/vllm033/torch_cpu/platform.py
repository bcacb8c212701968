"""vLLM's CPU platform without its compiled library."""

from __future__ import annotations

import os
from typing import Any

import torch
from vllm.platforms.cpu import CpuPlatform


class TorchCpuPlatform(CpuPlatform):
    @classmethod
    def import_kernels(cls) -> None:
        """The operators that vLLM calls by name on a CPU. An attribute of the namespace wins over a lookup."""
        if os.environ.get("TRITON_INTERPRET") == "1":
            from torch_cpu.interpreter import mend_masks

            mend_masks()
        for kernel in (init_cpu_memory_env, greedy_argmax, compute_slot_mapping_kernel_impl):
            setattr(torch.ops._C, kernel.__name__, kernel)

    @classmethod
    def get_attn_backend_cls(cls, *_: Any, **__: Any) -> str:
        return "torch_cpu.attention.TorchAttentionBackend"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        super().check_and_update_config(vllm_config)
        vllm_config.compilation_config.custom_ops = ["none"]  # layers in torch instead of compiled ones


def init_cpu_memory_env(nodes: list[int]) -> str:
    return ""


def greedy_argmax(logits: torch.Tensor) -> torch.Tensor:
    return logits.argmax(-1)


def compute_slot_mapping_kernel_impl(
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    block_size: int,
) -> None:
    """Where the K/V of each row goes: ``slot_mapping [max_num_tokens]``, -1 behind the last row."""
    lengths = query_start_loc.diff().long()
    requests = torch.arange(len(lengths)).repeat_interleave(lengths)
    positions = positions[: len(requests)]
    blocks = block_table[requests, positions // block_size].long()
    slot_mapping.fill_(-1)
    slot_mapping[: len(requests)] = blocks * block_size + positions % block_size
