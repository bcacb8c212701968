"""A captured verification gives, on other inputs in the same buffers, what a fresh call gives."""

from __future__ import annotations

import pytest
import torch
from device.support import move, on_kinds
from verify_cases import assert_equals_reference, make_case

GRAPHS = {"cuda": "CUDAGraph", "npu": "NPUGraph"}


@pytest.mark.parametrize("sampled", [False, True], ids=["one-hot", "sampled"])
@pytest.mark.parametrize("kind", on_kinds())
def test_replay_on_refilled_buffers(kind, sampled):
    if kind not in GRAPHS:
        pytest.skip(f"{kind} has no graphs")
    device = getattr(torch, kind)
    verify = torch.ops.ascend_spec.verify
    first, second = (make_case(4, 3, 20000, sampled=sampled, mixed=False, seed=seed) for seed in (1, 2))
    buffers = move(first.arguments(), kind)
    verify(*buffers)  # compiles
    device.synchronize()
    graph = getattr(device, GRAPHS[kind])()
    with device.graph(graph):
        out = verify(*buffers)
    graph.replay()
    assert_equals_reference(first, out.cpu())
    for buffer, value in zip(buffers, second.arguments(), strict=True):
        if isinstance(buffer, torch.Tensor):
            buffer.copy_(value)
    graph.replay()
    assert_equals_reference(second, out.cpu())
