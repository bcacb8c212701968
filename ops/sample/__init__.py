"""One token a row: the draw that :mod:`ascend_spec_ops.verify` makes for a request without drafts, so that
decoding with speculation on and off shares one sampler."""

import torch

from ascend_spec_ops import selection
from ascend_spec_ops.selection import Implementation


def sample(
    logits: torch.Tensor, temperature: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Draw one token a row from ``softmax(logits / temperature)``.

    Args:
        logits: ``[B, V]`` float32, float16 or bfloat16, contiguous rows; masked tokens are ``-inf``.
        temperature: ``[B]`` float32; 0 is greedy (ties: the lowest id).
        seeds: ``[B]`` int64.
        positions: ``[B]`` int64, absolute position of the token drawn.

    Returns:
        ``[B]`` int32; -1 for a row with a NaN, a ``+inf`` or nothing but ``-inf``.

    Raises:
        RuntimeError: shapes or dtypes are not as above.
    """
    return torch.ops.ascend_spec.sample(logits, temperature, seeds, positions)


def sample_by_verify(
    logits: torch.Tensor, temperature: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """The one implementation, for every device: verification of no drafts."""
    no_drafts = torch.empty(0, dtype=torch.int32, device=logits.device)
    no_counts = torch.zeros(logits.shape[0], dtype=torch.int32, device=logits.device)
    return torch.ops.ascend_spec.verify(logits, no_drafts, no_counts, temperature, seeds, positions, 0)[
        :, 1
    ].clone()


def _fake(logits, temperature, seeds, positions):
    torch._check(logits.dim() == 2, lambda: f"logits must be [B, V]: {logits.shape}")
    return logits.new_empty(logits.shape[0], dtype=torch.int32)


selection.define("sample(Tensor logits, Tensor temperature, Tensor seeds, Tensor positions) -> Tensor", _fake)
for _device in ("cpu", "cuda", "npu"):
    selection.implement(
        "sample", _device, Implementation("verify", "ascend_spec_ops.sample:sample_by_verify")
    )
