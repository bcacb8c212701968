"""The embedded engine: scheduler, block manager, continuous batching, streaming."""

from ascend_spec.engine.llm import LLM
from ascend_spec.engine.request import OutputChunk, RequestError, RequestOutput

__all__ = ["LLM", "OutputChunk", "RequestError", "RequestOutput"]
