"""Any transformers causal LM, target or draft, on paged K/V and packed requests. Only this package imports
transformers."""

from ascend_spec.models.attention import KVCaches, UnsupportedModelError
from ascend_spec.models.causal_lm import CausalLM, ModelInfo
from ascend_spec.models.demo import demo_model_path
from ascend_spec.models.loading import load_tokenizer

__all__ = ["CausalLM", "KVCaches", "ModelInfo", "UnsupportedModelError", "demo_model_path", "load_tokenizer"]
