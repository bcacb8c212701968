"""Rotary embeddings whose frequencies depend on the length of the sequence, one request at a time.

transformers picks them by the largest position of the batch, which in a packed batch would make one request's
length change another's output. Two types do so:

* ``dynamic`` (NTK) rescales beyond ``max_position_embeddings``, which is also the longest sequence the engine
  admits: its original frequencies are the only ones in use, and they are frozen.
* ``longrope`` (Phi-3) has two sets of factors: the long ones apply once a sequence is longer than
  ``original_max_position_embeddings``, the boundary. ``generate`` throws a request's K/V away when it crosses
  the boundary and computes them again with the long factors. Here a row takes the long factors

  - when its request has more committed tokens than the boundary, computed or not
    (``AttentionMetadata.num_tokens``): what ``generate`` does for such a prompt, and independent of how the
    prompt is cut into chunks;
  - where nobody says how many: when its request is computed from its first token on and is longer than the
    boundary, or when its own position lies beyond it.

  The engine computes a request again from its first token when it first exceeds the boundary
  (``ModelInfo.longrope_boundary``), and lets no drafts straddle it: its text then equals ``generate``'s.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from ascend_spec.models.attention import UnsupportedModelError
from ascend_spec.types import AttentionMetadata


class LongRope(nn.Module):
    """Two frozen copies of a longrope embedding; :meth:`select_rows` says which row uses which."""

    def __init__(self, rotary: nn.Module, boundary: int) -> None:
        super().__init__()
        self.boundary = boundary
        self.short = _frozen_at(rotary, 0)
        self.long = _frozen_at(rotary, boundary)
        #: ``[1, T, 1]`` bool, for the next forward
        self.is_long = torch.zeros(1, 1, 1, dtype=torch.bool, device=self.short.inv_freq.device)

    def select_rows(self, positions: torch.Tensor, meta: AttentionMetadata) -> None:
        """Set the factors of the next forward. positions: ``[T]`` int64."""
        rows = torch.arange(positions.shape[0], dtype=torch.int32, device=positions.device)
        request = torch.searchsorted(meta.query_start_loc[1:], rows, right=True)
        request = request.clamp(max=meta.seq_lens.shape[0] - 1)  # padding rows belong to nobody
        from_start = meta.seq_lens == meta.query_start_loc.diff()
        long_prefill = (from_start & (meta.seq_lens > self.boundary))[request]
        is_long = long_prefill | (positions >= self.boundary)
        if meta.num_tokens is not None:
            is_long = (meta.num_tokens > self.boundary)[request]
        self.is_long = is_long[None, :, None]

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        short, long = self.short(x, position_ids), self.long(x, position_ids)
        return torch.where(self.is_long, long[0], short[0]), torch.where(self.is_long, long[1], short[1])


def _frozen_at(rotary: nn.Module, position: int) -> Any:
    """A copy whose frequencies are those of a sequence that ends at ``position``, for good."""
    frozen: Any = copy.deepcopy(rotary)
    device = frozen.inv_freq.device
    frozen(torch.empty(1, device=device), torch.full((1, 1), position, device=device))
    frozen.inv_freq = frozen.inv_freq.clone()
    frozen.rope_type = "default"
    return frozen


def make_rope_per_request(model: nn.Module) -> list[LongRope]:
    """Replace, inside ``model``, the rotary embeddings that look at the whole batch.

    Returns:
        The longrope embeddings, to be told their rows before each forward.

    Raises:
        UnsupportedModelError: such an embedding with a rope type per layer type.
    """
    long_ropes = []
    for name, module in list(model.named_modules()):
        rope_type = getattr(module, "rope_type", None)
        if isinstance(rope_type, dict):
            batch_wide = sorted({t for t in rope_type.values() if t == "longrope" or "dynamic" in t})
            if batch_wide:
                raise UnsupportedModelError(f"its rope type {batch_wide[0]!r} is set per layer type")
        elif isinstance(rope_type, str) and "dynamic" in rope_type:
            module.rope_type = "default"
        elif rope_type == "longrope":
            boundary = module.config.rope_parameters["original_max_position_embeddings"]
            long_ropes.append(LongRope(module, boundary))
            model.set_submodule(name, long_ropes[-1])
    return long_ropes
