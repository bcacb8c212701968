"""Speculative decoding for vLLM on Ascend NPUs, on CUDA and on a plain CPU."""

__version__ = "0.1.0"
