"""The grammar's bitmask over the vocabulary, row by row."""

import torch

from ascend_spec_ops import selection
from ascend_spec_ops.filter_logits import check_rows
from ascend_spec_ops.selection import Implementation


def apply_token_bitmask(logits: torch.Tensor, bitmask: torch.Tensor) -> None:
    """Set to ``-inf``, in place, every token whose bit is 0: bit ``i`` of word ``w`` is token ``32 * w + i``, the
    layout of vLLM and xgrammar. Tokens beyond the mask are forbidden, bits beyond the vocabulary ignored.

    Args:
        logits: ``[R, V]`` float32, float16 or bfloat16; rows contiguous, not overlapping.
        bitmask: ``[R, W]`` int32, contiguous, one row a row of logits; all bits set (-1) leave a row as it is.

    Raises:
        RuntimeError: shapes, dtypes or strides are not as above.
    """
    check_arguments(logits, bitmask)
    torch.ops.ascend_spec.apply_token_bitmask(logits, bitmask)


def check_arguments(logits: torch.Tensor, bitmask: torch.Tensor) -> None:
    """The contract, from shapes, strides and dtypes alone; also the operator's shape function."""
    check_rows(logits)
    torch._check(
        bitmask.dim() == 2
        and bitmask.dtype == torch.int32
        and bitmask.shape[0] == logits.shape[0]
        and bitmask.is_contiguous(),
        lambda: (
            f"bitmask must be [{logits.shape[0]}, W] int32, contiguous, "
            f"not {list(bitmask.shape)} {bitmask.dtype}"
        ),
    )


selection.define("apply_token_bitmask(Tensor(a!) logits, Tensor bitmask) -> ()", check_arguments)
selection.implement(
    "apply_token_bitmask",
    "cpu",
    Implementation("numba", "ascend_spec_ops.apply_token_bitmask.cpu:apply_token_bitmask"),
)
for _device in ("cuda", "npu"):
    selection.implement(
        "apply_token_bitmask",
        _device,
        Implementation("torch", "ascend_spec_ops.apply_token_bitmask.device:apply_token_bitmask"),
    )
