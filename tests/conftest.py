"""Shared set-up of the test suite: Triton kernels run in the interpreter on CPU tensors."""

import os

# before anything imports triton
os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from ladder.interpreter import mend_bfloat16_dot

mend_bfloat16_dot()
torch.set_num_threads(1)  # two busy processes on two threads each are slower than one thread each


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the long settings too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    deselected = [item for item in items if item.get_closest_marker("full")]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if not item.get_closest_marker("full")]
