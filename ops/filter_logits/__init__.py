"""min-p, top-k and top-p: what they cut becomes ``-inf``, without sorting the vocabulary.

Each of the three keeps the tokens from some logit on, so a row's cut is one threshold. Min-p gives it in closed
form. The other two are one search: the largest logit ``v`` for which the weights of all tokens at ``v`` or above
reach a target, with weight 1 and target k for top-k, with weight p and target ``top_p`` times what is left for
top-p. It is found by passes over the row that count on each side of a pivot, or by counts of ever finer bins.

Order and meaning are those of vLLM's sampler (V1): probabilities at the row's temperature; min-p relative to the
largest; top-k of the rest; top-p of that rest, *renormalised*. Ascend's fused ``npu_top_k_top_p`` knows no
min-p and takes k up to 1024 only, and the paths of vllm-ascend around it sum top-p before they renormalise,
which keeps more: it is no implementation of this operator.
"""

import torch

from ascend_spec_ops import selection
from ascend_spec_ops.selection import Implementation


def filter_logits(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> None:
    """Set to ``-inf``, in place, every token that a row's parameters cut.

    With ``p = softmax(logits / temperature)`` of a row, one after the other:

    * ``min_p``: tokens with ``p < min_p * max(p)`` go.
    * ``top_k``: of what is left, tokens below the k-th largest go. All that tie with it stay, as in vLLM.
    * ``top_p``: of what is left, renormalised, a token goes if the tokens strictly above it hold ``top_p`` or
      more. So of equal logits all stay or all go (vLLM drops some of them, by the order its sort left them in).

    The largest logit always stays, and all that equal it. Logits that stay keep their bits.

    Args:
        logits: ``[R, V]`` float32, float16 or bfloat16; rows contiguous, not overlapping.
        temperature: ``[R]`` float32. A greedy row (0 or less) is left alone.
        top_k: ``[R]`` int32; below 1 or from ``V`` on: off.
        top_p: ``[R]`` float32; from 1 on: off. 0 keeps the largest.
        min_p: ``[R]`` float32; 0 or less: off.

    A row with a NaN, a ``+inf`` or nothing but ``-inf`` is left alone too.

    Raises:
        RuntimeError: shapes, dtypes or strides are not as above.
    """
    check_arguments(logits, temperature, top_k, top_p, min_p)
    torch.ops.ascend_spec.filter_logits(logits, temperature, top_k, top_p, min_p)


def check_arguments(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> None:
    """The contract, from shapes, strides and dtypes alone; also the operator's shape function."""
    check_rows(logits)
    for name, tensor, dtype in (
        ("temperature", temperature, torch.float32),
        ("top_k", top_k, torch.int32),
        ("top_p", top_p, torch.float32),
        ("min_p", min_p, torch.float32),
    ):
        torch._check(
            tensor.shape == logits.shape[:1] and tensor.dtype == dtype and tensor.is_contiguous(),
            lambda name=name, tensor=tensor, dtype=dtype: (
                f"{name} must be [{logits.shape[0]}] {dtype}, contiguous, "
                f"not {list(tensor.shape)} {tensor.dtype}"
            ),
        )


def check_rows(logits: torch.Tensor) -> None:
    """Logits that are changed in place: floats of up to 32 bits in contiguous rows that do not overlap."""
    torch._check(
        logits.dim() == 2 and logits.dtype in (torch.float32, torch.float16, torch.bfloat16),
        lambda: (
            f"logits must be two-dimensional float32, float16 or bfloat16, "
            f"not {list(logits.shape)} {logits.dtype}"
        ),
    )
    rows, columns = logits.shape
    torch._check(
        (columns < 2 or logits.stride(1) == 1) and (rows < 2 or logits.stride(0) >= columns),
        lambda: f"logits rows must be contiguous and not overlap: strides {logits.stride()}",
    )


selection.define(
    "filter_logits(Tensor(a!) logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p) -> ()",
    check_arguments,
)
selection.implement(
    "filter_logits", "cpu", Implementation("numba", "ascend_spec_ops.filter_logits.cpu:filter_logits")
)
for _device in ("cuda", "npu"):
    selection.implement(
        "filter_logits",
        _device,
        Implementation("triton", "ascend_spec_ops.filter_logits.launch:filter_logits"),
    )
