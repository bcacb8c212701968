"""Says why the device suite did not run, once for each kind of device."""

from __future__ import annotations

import pytest
import torch
from device import support


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in support.KINDS]
)
def test_a_device_is_here(kind):
    reason = support.absent(kind)
    if reason is not None:
        pytest.skip(reason)
    assert (torch.arange(5, device=kind) + 1).sum().item() == 15
