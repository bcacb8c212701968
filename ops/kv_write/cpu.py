"""Indexed stores; a single copy where the slots are consecutive is not worth a special case."""

from __future__ import annotations

import torch


def kv_write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    if slot_mapping.numel() and int(slot_mapping.min()) < 0:
        written = (slot_mapping >= 0).nonzero().squeeze(1)
        key, value, slot_mapping = key[written], value[written], slot_mapping[written]
    block_size = key_cache.shape[1]
    # by (block, offset), never through a flattened view: the two dimensions need not be mergeable
    index = (torch.div(slot_mapping, block_size, rounding_mode="floor"), slot_mapping % block_size)
    key_cache.index_put_(index, key)
    value_cache.index_put_(index, value)
