"""Counter-based random numbers: Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC 2011).

Every random number of the project is a pure function of (request seed, absolute position, stream, lane):

* key: the request's 64-bit seed, low word first;
* counter: ``(position mod 2**32, stream << 24 | call)``;
* lane ``i`` of a stream is word ``(i >> 11) & 1`` of call ``(i >> 12) << 11 | (i & 2047)``: one call gives
  lanes ``i`` and ``i + 2048`` of a 4096-lane group, so that a kernel works on two half groups with one
  Threefry call for both.

A word ``x`` becomes an exponential variate by ``-log1p(-(x + 1/2) / 2**32)``: both tails are right, and it
is neither 0 nor infinite. Threefry needs additions, xor and rotations by constants only; Philox needs the
high half of a product, which triton-ascend 3.2 lowers as a signed operation.
"""

import torch

from ascend_spec_ops import selection
from ascend_spec_ops.selection import Implementation

#: Disjoint streams. Two numbers of different streams are independent, also at one position.
STREAM_ACCEPT = 0
STREAM_BLOCK = 1
STREAM_LANE = 2
STREAM_DRAFT_BLOCK = 3
STREAM_DRAFT_LANE = 4
#: Accept tests of a rule that looks ahead: at the first position of the round, one lane a draft. A number that a
#: round has inspected must not decide in the next one, which starts at a later position.
STREAM_ROUND = 5


def random_bits(seeds: torch.Tensor, positions: torch.Tensor, stream: int, num_lanes: int) -> torch.Tensor:
    """Random words for one stream.

    Args:
        seeds: ``[B]`` int64, the request's seed (all 64 bits count).
        positions: ``[B]`` int64, absolute token position.
        stream: 0 to 255.
        num_lanes: how many words a row gets.

    Returns:
        ``[B, num_lanes]`` int32, the 32 random bits as a signed integer.

    Raises:
        RuntimeError: wrong shapes or dtypes.
    """
    check_arguments(seeds, positions, stream, num_lanes)
    return torch.ops.ascend_spec.random_bits(seeds, positions, stream, num_lanes)


def check_arguments(seeds: torch.Tensor, positions: torch.Tensor, stream: int, num_lanes: int) -> None:
    for name, tensor in (("seeds", seeds), ("positions", positions)):
        torch._check(
            tensor.dtype == torch.int64 and tensor.shape == (seeds.numel(),),
            lambda name=name, tensor=tensor: (
                f"{name} must be [{seeds.numel()}] int64, not {list(tensor.shape)} {tensor.dtype}"
            ),
        )
    torch._check(0 <= stream < 256, lambda: f"stream must be 0 to 255, not {stream}")
    torch._check(num_lanes >= 0, lambda: f"num_lanes must be 0 or more, not {num_lanes}")


def _fake(seeds: torch.Tensor, positions: torch.Tensor, stream: int, num_lanes: int) -> torch.Tensor:
    check_arguments(seeds, positions, stream, num_lanes)
    return seeds.new_empty((seeds.shape[0], num_lanes), dtype=torch.int32)


selection.define("random_bits(Tensor seeds, Tensor positions, int stream, int num_lanes) -> Tensor", _fake)
selection.implement(
    "random_bits",
    "cpu",
    Implementation("numba", "ascend_spec_ops.uniforms.cpu:random_bits"),
)
for _device in ("cuda", "npu"):
    selection.implement(
        "random_bits",
        _device,
        Implementation("triton", "ascend_spec_ops.uniforms.launch:random_bits"),
        Implementation("torch", "ascend_spec_ops.uniforms.reference:random_bits"),
    )
