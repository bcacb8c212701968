"""Tensor kernels of ascend-spec. Import this package as ``ascend_spec_ops``.

Each operator is a folder with one meaning (``reference.py``) and as many implementations as devices need;
``selection`` holds the one table that says which of them runs. The operators live in the PyTorch
namespace ``torch.ops.ascend_spec``; the functions exported here are the documented way to call them.
"""

if __name__ != "ascend_spec_ops":
    raise ImportError(
        f"this package was imported as {__name__!r}; import it as 'ascend_spec_ops' "
        "(its operators would otherwise be registered twice)"
    )

from ascend_spec_ops.apply_penalties import apply_penalties
from ascend_spec_ops.apply_token_bitmask import apply_token_bitmask
from ascend_spec_ops.draft_inputs import draft_inputs
from ascend_spec_ops.filter_logits import filter_logits
from ascend_spec_ops.kv_write import kv_write
from ascend_spec_ops.mqa_attention import mqa_attention
from ascend_spec_ops.ngram_match import ngram_match
from ascend_spec_ops.sample import sample
from ascend_spec_ops.suffix_match import SuffixForest, SuffixTree, suffix_extend, suffix_match
from ascend_spec_ops.threads import limit_threads
from ascend_spec_ops.uniforms import random_bits
from ascend_spec_ops.verify import verify
from ascend_spec_ops.warm_up import warm_up

__all__ = [
    "SuffixForest",
    "SuffixTree",
    "apply_penalties",
    "apply_token_bitmask",
    "draft_inputs",
    "filter_logits",
    "kv_write",
    "limit_threads",
    "mqa_attention",
    "ngram_match",
    "random_bits",
    "sample",
    "suffix_extend",
    "suffix_match",
    "verify",
    "warm_up",
]
