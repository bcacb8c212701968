"""The attention function that a transformers model calls, and what such a call may ask for.

Every layer of a model that goes through transformers' attention registry hands over its query, key and value
for the packed rows of one batch, together with keyword arguments. What those may say is an explicit list:
each is honoured, known not to touch attention, or refused by name. An unread argument (attention sinks, a
position bias) would change the model's output silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

from ascend_spec.types import AttentionMetadata
from ascend_spec_ops.kv_write import kv_write
from ascend_spec_ops.mqa_attention import mqa_attention

#: Registered names. Only the probe has a mask function: without one transformers builds no mask at all, and
#: building one synchronises with the host.
PAGED = "ascend_spec_paged"
PROBE = "ascend_spec_probe"
PROBE_WITHOUT_MASK = "ascend_spec_probe_without_mask"

#: Keyword arguments that say nothing about which keys a query sees or how they are weighed.
WITHOUT_EFFECT = frozenset(
    {
        "cache_position",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)

KVCaches = list[tuple[torch.Tensor, torch.Tensor]]


class UnsupportedModelError(ValueError):
    """The model cannot run on paged K/V; the message says what it is, what is supported and what to do."""


@dataclass(frozen=True)
class AttentionCall:
    """What one layer asks of attention, as the operator takes it."""

    layer_idx: int
    scale: float
    sliding_window: int
    """0: none."""
    soft_cap: float
    """0: none."""


@dataclass(frozen=True)
class PagedKV:
    """Travels through the model's keyword arguments to each attention call."""

    kv_caches: KVCaches
    attn_metadata: AttentionMetadata


def read_call(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, asked: dict[str, Any]
) -> AttentionCall:
    """Check one attention call against what the paged operator can do.

    Raises:
        UnsupportedModelError: the call asks for something else; the message names it.
    """
    asked = dict(asked)
    scale = asked.pop("scaling", None)
    sliding_window = asked.pop("sliding_window", None)
    soft_cap = asked.pop("softcap", None)
    if asked.pop("dropout", 0.0):
        raise UnsupportedModelError("its attention applies dropout; call eval() on it first")
    is_causal = asked.pop("is_causal", None)
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise UnsupportedModelError("its attention is not causal")
    given = {name for name, argument in asked.items() if argument is not None}
    if unknown := sorted(given - WITHOUT_EFFECT):
        raise UnsupportedModelError(f"its attention passes {', '.join(unknown)}, which is not implemented")
    if key.shape != value.shape or key.shape[-1] != query.shape[-1]:
        raise UnsupportedModelError(
            f"its keys and values differ in shape ({tuple(key.shape)} and {tuple(value.shape)}, "
            f"queries {tuple(query.shape)})"
        )
    layer_idx = getattr(module, "layer_idx", None)
    if not isinstance(layer_idx, int):
        raise UnsupportedModelError(f"its {type(module).__name__} has no layer_idx, which names the KV cache")
    return AttentionCall(
        layer_idx=layer_idx,
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        sliding_window=sliding_window or 0,
        soft_cap=soft_cap or 0.0,
    )


def paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged_kv: PagedKV,
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """Write the new rows' K/V into their slots, then attend over the paged cache.

    Args:
        query: ``[1, Hq, T, D]``; key and value ``[1, Hkv, T, D]``: the layout of transformers.
        attention_mask: ignored; the probe has shown that it would be the one ``asked`` describes.

    Returns:
        ``[1, T, Hq, D]``, and None for the attention weights.
    """
    call = read_call(module, query, key, value, asked)
    key_cache, value_cache = paged_kv.kv_caches[call.layer_idx]
    meta = paged_kv.attn_metadata
    query, key, value = (states[0].transpose(0, 1).contiguous() for states in (query, key, value))
    kv_write(key, value, key_cache, value_cache, meta.slot_mapping)
    output = mqa_attention(
        query,
        key_cache,
        value_cache,
        meta.block_table,
        meta.query_start_loc,
        meta.seq_lens,
        meta.max_query_len,
        call.scale,
        mask=meta.mask,
        sliding_window=call.sliding_window,
        soft_cap=call.soft_cap,
        query_lens_cpu=meta.query_lens_cpu,
        seq_lens_cpu=meta.seq_lens_cpu,
    )
    return output[None], None


@dataclass(frozen=True)
class RecordedCall:
    """What the probe saw of one attention call."""

    layer_idx: int
    num_kv_heads: int
    head_dim: int


def probe_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged_kv: list[RecordedCall] | None = None,
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """Check and record the call; the result is zeros. The mask is what :func:`probe_mask` returned."""
    if paged_kv is None:
        raise UnsupportedModelError("it does not pass keyword arguments on to its attention layers")
    call = read_call(module, query, key, value, asked)
    if attention_mask is not None and not _is_described_by(attention_mask, call.sliding_window):
        window = f"a sliding window of {call.sliding_window}" if call.sliding_window else "no window"
        raise UnsupportedModelError(
            f"layer {call.layer_idx} declares causal attention with {window} but builds another mask"
        )
    paged_kv.append(RecordedCall(call.layer_idx, key.shape[1], key.shape[-1]))
    return query.new_zeros(query.transpose(1, 2).shape), None


def probe_mask(*, mask_function: Any, config: Any, device: Any = "cpu", **_: Any) -> torch.Tensor | None:
    """transformers' own mask rule, evaluated for the last position the model may reach.

    Returns:
        ``[1, 1, 1, L + 1]`` bool: which of the positions 0 to L the query at L - 1 sees, with L the model's
        maximum length; None without a maximum. A window or chunk far longer than any probe shows in this row
        without a long forward.
    """
    length = max_model_len(config)
    if length is None:
        return None
    zero = torch.zeros((), dtype=torch.int64, device=device)
    seen = mask_function(zero, zero, zero + length - 1, torch.arange(length + 1, device=device))
    return seen.expand(length + 1).view(1, 1, 1, -1)


def max_model_len(config: Any) -> int | None:
    """Longest sequence of the model, in tokens; None if its config does not say."""
    return getattr(config, "max_position_embeddings", None) or None


def _is_described_by(mask_row: torch.Tensor, sliding_window: int) -> bool:
    position = torch.arange(mask_row.shape[-1], device=mask_row.device)
    last = mask_row.shape[-1] - 2
    expected = position <= last
    if sliding_window:
        expected &= position > last - sliding_window
    return mask_row.dtype == torch.bool and torch.equal(mask_row.flatten(), expected)


AttentionInterface.register(PAGED, paged_attention)
AttentionInterface.register(PROBE, probe_attention)
AttentionInterface.register(PROBE_WITHOUT_MASK, probe_attention)
AttentionMaskInterface.register(PROBE, probe_mask)
