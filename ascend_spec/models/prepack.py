"""Linear layers of a CPU model with their weights laid out once for oneDNN.

PyTorch's own linear hands oneDNN or MKL the plain row-major weight each time; a weight reordered once into
oneDNN's blocked layout makes one to sixteen rows about twice as fast in float32 and bfloat16 alike. It stays
true float32: the products differ by summation order alone (about 1e-6 of their scale).

The operators are private to PyTorch. They are tried and their product is compared before any layer is
changed; where that fails the plain layers stay, and the reason is logged once.
"""

from __future__ import annotations

import functools
import logging

import torch
from torch import nn

logger = logging.getLogger(__name__)

#: The layout is tuned for this many rows. Measured: 1 makes every row count slower than leaving it open does
#: (except one row by itself in bfloat16); 8 and 16 are equally good from 1 to 256 rows.
BATCH_HINT = 8
DTYPES = (torch.float32, torch.bfloat16)


class PrepackedLinear(nn.Module):
    """``x @ weight.T + bias`` for ``x`` of ``[..., in_features]``, without keeping the plain weight."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        # a plain attribute: an oneDNN tensor is opaque and cannot be moved or saved as a buffer can
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), BATCH_HINT)
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


@functools.cache
def unavailable_reason(dtype: torch.dtype) -> str | None:
    """Why linears of this dtype cannot be prepacked here, or None."""
    if dtype not in DTYPES:
        return f"{dtype} is not one of {', '.join(map(str, DTYPES))}"
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 48, generator=generator).to(dtype) for n in (3, 80))
    bias = torch.randn(80, generator=generator).to(dtype)
    try:
        with torch.no_grad():
            product = PrepackedLinear(weight, bias)(x)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
        return f"oneDNN's private operators failed: {type(error).__name__}: {str(error).splitlines()[0]}"
    expected = x.double() @ weight.double().T + bias.double()
    deviation = ((product - expected).abs().max() / expected.abs().max()).item()
    accurate = deviation <= 4 * torch.finfo(dtype).eps
    return None if accurate else f"a trial product is off by {deviation:.1e} of its scale"


def prepack_linears(model: nn.Module) -> int:
    """Replace each CPU ``nn.Linear`` of ``model``; subclasses stay, since they may do more.

    The plain weight is dropped with the replaced layer, unless something else holds it (a tied embedding).

    Returns:
        How many layers were replaced.
    """
    linears = [
        (name, module)
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module.weight.device.type == "cpu"
    ]
    for dtype in sorted({linear.weight.dtype for _, linear in linears}, key=str):
        reason = unavailable_reason(dtype)
        if reason is not None:
            logger.warning("linear layers run without prepacked weights: %s", reason)
            linears = [(name, linear) for name, linear in linears if linear.weight.dtype != dtype]
    count = len(linears)
    while linears:  # popped one by one, so that at most one weight is held twice
        name, linear = linears.pop()
        model.set_submodule(name, PrepackedLinear(linear.weight, linear.bias))
    return count
