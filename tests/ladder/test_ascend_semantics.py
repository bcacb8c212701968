"""Rung 4, second half: the linalg that Ascend's compiler is given means what the reference says."""

from __future__ import annotations

import pytest
import torch
from ladder.ascend_launch import AscendKernel, lowered
from ladder.jobs import CompilerProcess
from ladder.kernels import Kernel, Variant, arguments
from ladder.samples import MORE_SAMPLES, SAMPLES, Sample

#: rounding of a sum; whatever is no float must be equal
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize(
    "sample", dict.fromkeys([*SAMPLES.values(), *MORE_SAMPLES]), ids=lambda s: s.run.__name__
)
def test_lowered_operator_equals_its_reference(ascend: CompilerProcess, sample: Sample):
    with lowered(sample.module(), ascend) as kernels:
        pairs = sample.run(sample.module())
    wanted = {name for name, other in SAMPLES.items() if other is sample}
    assert wanted <= {name for name, kernel in kernels.items() if kernel.launches}
    for got, expected in pairs:
        error = TOLERANCE.get(got.dtype, 0)
        torch.testing.assert_close(got, expected.to(got.dtype), rtol=error, atol=error, equal_nan=True)


def faulty(ascend: CompilerProcess, name: str, x: torch.Tensor, n: int = 64) -> torch.Tensor:
    signature = arguments("x_ptr:*fp32 out_ptr:*fp32 n:i32")
    kernel = Kernel("faulty_kernels", name, signature, (Variant("64", {"BLOCK": 64}),))
    out = torch.zeros(64)
    AscendKernel(ascend, kernel, [*signature, "BLOCK"])[(1,)](x, out, n, BLOCK=64)
    return out


def test_a_wrong_lowering_is_seen(ascend: CompilerProcess):
    x = torch.arange(2**32 - 64, 2**32).to(torch.int32)
    got = faulty(ascend, "multiply_high_kernel", x.view(torch.float32)).view(torch.int32)
    word = x.long() & 0xFFFFFFFF
    # the product may overflow int64: take the high half from the two halves of the factors
    low, high = word & 0xFFFF, word >> 16
    expected = high * high + ((2 * high * low + (low * low >> 16)) >> 16)
    assert (got.long() & 0xFFFFFFFF).ne(expected).any(), "umulhi is right now: Philox may be used on Ascend"


def test_a_write_out_of_bounds_is_seen(ascend: CompilerProcess):
    with pytest.raises(AssertionError, match="outside"):
        faulty(ascend, "out_of_bounds_kernel", torch.ones(64))


def test_launches_must_match_the_table(ascend: CompilerProcess):
    with pytest.raises(AssertionError, match="launched as"):
        faulty(ascend, "hold_many_kernel", torch.ones(128, dtype=torch.float16))


def test_a_crash_is_reported_and_the_next_kernel_runs(ascend: CompilerProcess):
    with pytest.raises(AssertionError, match="ended with status -"):
        faulty(ascend, "out_of_bounds_kernel", torch.ones(64), n=1 << 30)
    with pytest.raises(AssertionError, match="outside"):
        faulty(ascend, "out_of_bounds_kernel", torch.ones(64))
