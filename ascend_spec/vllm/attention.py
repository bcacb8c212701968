"""Our attention in place of vLLM's where drafts are judged: on the target's layers, for a few query rows a request.

``forward`` of each layer's implementation is replaced, as an instance, once the KV cache is there. Keys and values are
still written by vLLM, and prompts and single rows are still its own. Both runners look ``layer.impl`` up at every call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ascend_spec.config import ConfigError, Finding, Plan
from ascend_spec.vllm.seams import SeamError, check_seams
from ascend_spec_ops import mqa_attention

OPTION = "ascend_spec.mqa_attention"
RUNNER_SEAMS = ("initialize_kv_cache", "get_model", "vllm_config.compilation_config.static_forward_context")
LAYER_SEAMS = (
    "impl.do_kv_cache_update", "impl.scale", "impl.alibi_slopes", "impl.logits_soft_cap", "kv_cache",
    "attn_type", "sliding_window", "has_sink", "use_mm_prefix", "num_kv_heads", "head_size", "head_size_v",
    "attn_backend.forward_includes_kv_cache_update", "attn_backend.get_builder_cls",
)  # fmt: skip
#: what is read of a step's metadata
METADATA_SEAMS = (
    "num_actual_tokens",
    "max_query_len",
    "query_start_loc",
    "seq_lens",
    "block_table",
    "causal",
)

#: the cache of a layer -> its keys and values, ``[num_blocks, block_size, Hkv, D]``
Views = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


def key_beside_value(cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of each token of a head its key, then its value (FlashAttention, Triton)."""
    return cache.transpose(1, 2).chunk(2, -1)


def keys_before_values(cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of each head of a block all keys as ``[D, block_size]``, then all values as ``[block_size, D]`` (CPU)."""
    block_size, width = cache.shape[2:]
    keys, values = cache.view(*cache.shape[:2], 2, -1).unbind(2)
    keys = keys.unflatten(2, (width // 2, block_size))
    return keys.permute(0, 3, 1, 2), values.unflatten(2, (block_size, -1)).transpose(1, 2)


LAYOUTS: tuple[Views, ...] = (key_beside_value, keys_before_values)


class MQAForward:
    """Stands in for ``layer.impl.forward``.

    Args:
        layer: vLLM's attention layer, with its KV cache.
        max_query_len: the most rows of a request that ours takes, K + 1.

    Raises:
        SeamError: no layout that is known.
    """

    def __init__(self, layer: Any, max_query_len: int) -> None:
        self.stock, self.scale = layer.impl.forward, layer.impl.scale
        self.views = cache_views(layer)
        self.max_query_len = max_query_len

    def __call__(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``query`` and ``output`` ``[T, Hq, D]``; rows behind the step's tokens are padding.

        Raises:
            RuntimeError: metadata of other shapes or dtypes than the operator takes.
        """
        quantised = output_scale is not None or output_block_scale is not None
        if quantised or not self.takes(attn_metadata):
            return self.stock(
                layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
            )
        step, rows = attn_metadata, slice(attn_metadata.num_actual_tokens)
        keys, values = self.views(kv_cache)
        attended = mqa_attention(
            query[rows], keys, values, step.block_table, step.query_start_loc, step.seq_lens, step.max_query_len,
            self.scale,
        )  # fmt: skip
        output[rows].copy_(attended.view_as(output[rows]))
        return output

    def takes(self, attn_metadata: Any) -> bool:
        """Whether drafts are judged, and nothing else is computed; None as metadata: a dummy run."""
        return (
            attn_metadata is not None
            and 1 < attn_metadata.max_query_len <= self.max_query_len
            and attn_metadata.causal is True
        )


def replace_attention(runner: Any, plan: Plan) -> None:
    """Have a runner's target layers use ours from the time when their KV cache is there.

    Raises:
        SeamError: a part of the runner that is missing.
    """
    check_seams(runner, RUNNER_SEAMS)
    stock = runner.initialize_kv_cache

    @functools.wraps(stock)
    def initialize_kv_cache(*args: Any, **kwargs: Any) -> Any:
        result = stock(*args, **kwargs)
        replace_forwards(runner, plan.num_speculative_tokens + 1)
        return result

    runner.initialize_kv_cache = initialize_kv_cache


def replace_forwards(runner: Any, max_query_len: int) -> None:
    """
    Raises:
        ConfigError: layers that ours cannot compute.
        SeamError: layers, caches or metadata that are not as we know them.
    """
    layers = target_layers(runner)
    if refused := list(_refused(layers, runner.vllm_config.model_config.dtype)):
        raise ConfigError(refused)
    for layer in layers.values():
        vars(layer.impl).pop("forward", None)  # vLLM may have profiled with a small cache before
        layer.impl.forward = MQAForward(layer, max_query_len)


def target_layers(runner: Any) -> dict[str, Any]:
    """Attention layers of the target, by name; those of a drafter's model are none of its modules.

    Raises:
        SeamError: there is none.
    """
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    modules = set(runner.get_model().modules())
    known = runner.vllm_config.compilation_config.static_forward_context
    layers = {
        name: layer
        for name, layer in known.items()
        if isinstance(layer, AttentionLayerBase) and layer in modules
    }
    if not layers:
        raise SeamError(f"{type(runner).__name__} has a target without attention layers. Remove '{OPTION}'.")
    return layers


def _refused(layers: dict[str, Any], dtype: torch.dtype) -> Iterator[Finding]:
    names: dict[str, list[str]] = {}
    for name, layer in layers.items():
        for reason in unsupported(layer, dtype):
            names.setdefault(reason, []).append(name)
    for reason, refused in names.items():
        yield Finding(
            OPTION,
            f"'{OPTION}' was given as True, but {reason} (in {len(refused)} layers, the first is {refused[0]}). "
            "Remove it; vLLM's own attention then judges drafts.",
        )


def unsupported(layer: Any, dtype: torch.dtype) -> list[str]:
    """What a layer does that ours does not.

    Raises:
        SeamError: a part of the layer or of its steps' metadata that is missing.
    """
    from vllm.model_executor.layers.attention import Attention

    if type(layer) is not Attention:
        return [f"{type(layer).__name__} is no plain attention"]
    check_seams(layer, LAYER_SEAMS, {"impl.forward": MQAForward.__call__})
    check_metadata(layer)
    does = {
        f"there is attention of type {layer.attn_type!r}": layer.attn_type != "decoder",
        "there are ALiBi slopes": layer.impl.alibi_slopes is not None,
        "attention scores are capped": bool(layer.impl.logits_soft_cap),
        "there is a sliding window": layer.sliding_window is not None,
        "there are attention sinks": layer.has_sink,
        "images are attended to in both directions": layer.use_mm_prefix,
        "keys and values have other sizes": layer.head_size_v != layer.head_size,
        f"the KV cache is {layer.kv_cache.dtype} and the model {dtype}": layer.kv_cache.dtype != dtype,
        "the backend writes keys and values while it attends": layer.attn_backend.forward_includes_kv_cache_update,
    }
    return [what for what, there in does.items() if there]


def check_metadata(layer: Any) -> None:
    """
    Raises:
        SeamError: the class of a step's metadata, as the backend declares it, lacks something that is read.
    """
    build = layer.attn_backend.get_builder_cls().build
    declared = build.__annotations__.get("return")
    kind = vars(sys.modules[build.__module__]).get(declared) if isinstance(declared, str) else declared
    missing = set(METADATA_SEAMS) - set(getattr(kind, "__dataclass_fields__", ()))
    if missing:
        raise SeamError(
            f"{layer.attn_backend.__name__} makes metadata {declared!r} without {', '.join(sorted(missing))}, which "
            f"ascend-spec reads. Remove '{OPTION}'."
        )


def cache_views(layer: Any) -> Views:
    """How keys and values lie in a layer's cache, found by having vLLM write a block and a bit, and reading it.

    The cache is zero again afterwards, as it is before the first request.

    Raises:
        SeamError: in no way that is known.
    """
    cache, heads, size = layer.kv_cache, layer.num_kv_heads, layer.head_size
    shape = tuple(cache.shape)
    if cache.dim() == 4 and shape[1] == heads and shape[3] == 2 * size:
        num_tokens = min(shape[2] + 3, shape[0] * shape[2])
        # a prime number of values, all exact in bfloat16, so that no two rows are the same
        numbers = torch.arange(2 * num_tokens * heads * size, device=cache.device).remainder_(251)
        written = numbers.to(cache.dtype).view(2, num_tokens, heads, size)
        slots = torch.arange(num_tokens, device=cache.device)
        layer.impl.do_kv_cache_update(layer, *written, cache, slots)
        found = [views for views in LAYOUTS if _reads(views, cache, written)]
        layer.impl.do_kv_cache_update(layer, *torch.zeros_like(written), cache, slots)
        if found:
            return found[0]
    raise SeamError(
        f"{type(layer.impl).__name__} has a KV cache of shape {list(shape)} for {heads} heads of {size} whose layout "
        f"ascend-spec does not know. Remove '{OPTION}'."
    )


def _reads(views: Views, cache: torch.Tensor, written: torch.Tensor) -> bool:
    try:
        read = views(cache)
    except RuntimeError:  # its strides have no such view
        return False
    return all(
        torch.equal(each[:2].flatten(0, 1)[: len(expected)], expected)
        for each, expected in zip(read, written, strict=True)
    )
