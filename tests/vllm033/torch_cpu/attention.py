"""Paged attention in torch: each request's blocks are gathered, then one call for its rows."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)


class TorchAttentionBackend(CPUAttentionBackend):
    @staticmethod
    def get_impl_cls() -> type:
        return TorchAttentionImpl

    @staticmethod
    def get_builder_cls() -> type:
        return TorchAttentionMetadataBuilder


class TorchAttentionMetadataBuilder(CPUAttentionMetadataBuilder):
    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> CPUAttentionMetadata:
        common = common_attn_metadata
        return CPUAttentionMetadata(
            num_actual_tokens=common.num_actual_tokens,
            max_query_len=common.max_query_len,
            query_start_loc=common.query_start_loc,
            max_seq_len=common.max_seq_len,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            scheduler_metadata=None,
            causal=common.causal,
        )


class TorchAttentionImpl(CPUAttentionBackendImpl):
    """K/V lie as ``[num_blocks, num_kv_heads, block_size, 2 * head_size]``."""

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        slots = slot_mapping[: key.shape[0]]
        kept = slots >= 0
        rows = torch.cat([key, value], -1)[: len(slots)][kept]
        block_size = kv_cache.shape[2]
        kv_cache[slots[kept] // block_size, :, slots[kept] % block_size] = rows

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: CPUAttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if attn_metadata is None:  # a dummy run
            return output
        starts, lengths = attn_metadata.query_start_loc.tolist(), attn_metadata.seq_lens.tolist()
        for request, length in enumerate(lengths):
            rows = slice(starts[request], starts[request + 1])
            num_rows = rows.stop - rows.start
            if num_rows < 1:
                continue
            blocks = attn_metadata.block_table[request, : -(-length // kv_cache.shape[2])].long()
            heads_first = kv_cache[blocks].transpose(0, 1).flatten(1, 2)[:, :length]
            keys, values = heads_first.chunk(2, -1)
            visible = torch.ones(num_rows, length, dtype=torch.bool).tril(length - num_rows)
            output[rows] = torch.nn.functional.scaled_dot_product_attention(
                query[rows].transpose(0, 1), keys, values, visible, scale=self.scale, enable_gqa=True
            ).transpose(0, 1)
        return output
