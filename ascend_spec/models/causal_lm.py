"""A transformers causal LM on paged K/V: many requests, packed into one row of tokens per forward."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import torch

from ascend_spec.config import ModelFacts
from ascend_spec.models import probe
from ascend_spec.models.attention import (
    PAGED,
    PROBE,
    KVCaches,
    PagedKV,
    RecordedCall,
    UnsupportedModelError,
    max_model_len,
)
from ascend_spec.models.loading import load_hf_model
from ascend_spec.models.prepack import prepack_linears
from ascend_spec.models.rope import LongRope, make_rope_per_request
from ascend_spec.types import AttentionMetadata


@dataclass(frozen=True)
class ModelInfo:
    """Facts of a model that an engine plans with."""

    num_layers: int
    num_kv_heads: tuple[int, ...]
    """per layer"""
    head_dims: tuple[int, ...]
    """per layer"""
    vocab_size: int
    """width of the logits"""
    max_model_len: int
    """longest sequence, in tokens"""
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    longrope_boundary: int | None = None
    """Longest sequence that uses the short rope factors; a request that grows beyond it equals ``generate``
    only if its K/V are recomputed then. None: no such boundary within ``max_model_len``."""
    facts: ModelFacts = field(default_factory=lambda: ModelFacts(""))
    """its config"""

    @property
    def kv_bytes_per_token(self) -> int:
        """Of all layers."""
        values = sum(h * d for h, d in zip(self.num_kv_heads, self.head_dims, strict=True))
        return 2 * values * self.dtype.itemsize


class CausalLM:
    """Made by :meth:`load` or :meth:`from_module`, which refuse what cannot run exactly."""

    def __init__(self, hf_model: Any, info: ModelInfo, long_ropes: list[LongRope]) -> None:
        self.hf_model = hf_model
        self.info = info
        self._long_ropes = long_ropes

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        *,
        prepack: bool = True,
    ) -> CausalLM:
        """Read a safetensors directory or a GGUF file (dequantised to ``dtype``).

        Args:
            prepack: on a CPU, lay the linear layers' weights out for oneDNN (:mod:`.prepack`).

        Raises:
            FileNotFoundError: no such path, or a directory without config.json.
            ValueError: a file that is not a readable GGUF file.
            UnsupportedModelError: an architecture that cannot run on paged K/V.
        """
        return cls.from_module(load_hf_model(path, dtype).to(device), prepack=prepack)

    @classmethod
    def from_module(cls, hf_model: Any, *, prepack: bool = True) -> CausalLM:
        """Take over a transformers causal LM. The module is changed in place and serves this object alone.

        Raises:
            UnsupportedModelError: an architecture that cannot run on paged K/V.
        """
        config = hf_model.config.get_text_config()
        if config._attn_implementation in (PAGED, PROBE):
            raise ValueError("this module already serves a CausalLM; pass a copy made before that")
        if config.is_encoder_decoder:
            raise UnsupportedModelError(_refusal(hf_model, "it is an encoder-decoder"))
        expected = probe.alone(hf_model.eval(), config.vocab_size)
        try:
            return cls._probed(hf_model, config, expected, prepack)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(_refusal(hf_model, str(error))) from error
        except Exception as error:  # code that did not expect our calls may raise anything
            reason = f"its forward failed ({type(error).__name__}: {error})"
            raise UnsupportedModelError(_refusal(hf_model, reason)) from error

    @classmethod
    @torch.no_grad()
    def _probed(cls, hf_model: Any, config: Any, expected: list[torch.Tensor], prepack: bool) -> CausalLM:
        long_ropes = make_rope_per_request(hf_model)
        calls = probe.record_calls(hf_model, config.num_hidden_layers)
        if max_model_len(config) is None:
            raise UnsupportedModelError("its config has no max_position_embeddings, the longest sequence")
        hf_model.set_attn_implementation(PAGED)
        if prepack:
            prepack_linears(hf_model)
        model = cls(hf_model, _info(hf_model, config, calls, long_ropes), long_ropes)
        probe.compare_packed(model, expected)
        return model

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> KVCaches:
        """Zeroed key and value caches of each layer, ``[num_blocks, block_size, Hkv, D]``, the model's dtype.

        Zeroed, since a value row that was never written is multiplied by a weight of zero, and zero times
        NaN is NaN.
        """
        info = self.info
        return [
            (
                torch.zeros(num_blocks, block_size, heads, dim, dtype=info.dtype, device=info.device),
                torch.zeros(num_blocks, block_size, heads, dim, dtype=info.dtype, device=info.device),
            )
            for heads, dim in zip(info.num_kv_heads, info.head_dims, strict=True)
        ]

    @torch.no_grad()
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: KVCaches,
        attn_metadata: AttentionMetadata,
        logits_indices: torch.Tensor,
    ) -> torch.Tensor:
        """One packed forward; K/V of the new rows are written into ``kv_caches``.

        Args:
            input_ids: ``[T]`` int32 or int64, request by request.
            positions: ``[T]`` int64, position of each row in its request (of a tree node: by its depth).
            kv_caches: from :meth:`allocate_kv_cache`.
            logits_indices: ``[n]`` int64, the rows whose logits are wanted.

        Returns:
            ``[n, V]`` in the model's dtype.
        """
        for long_rope in self._long_ropes:
            long_rope.select_rows(positions, attn_metadata)
        output = self.hf_model(
            input_ids=input_ids[None],
            position_ids=positions[None],
            use_cache=False,
            return_dict=True,
            logits_to_keep=logits_indices,
            paged_kv=PagedKV(kv_caches, attn_metadata),
        )
        return output.logits[0]


def _info(hf_model: Any, config: Any, calls: list[RecordedCall], long_ropes: list[LongRope]) -> ModelInfo:
    boundary = min((rope.boundary for rope in long_ropes), default=config.max_position_embeddings)
    return ModelInfo(
        num_layers=len(calls),
        num_kv_heads=tuple(call.num_kv_heads for call in calls),
        head_dims=tuple(call.head_dim for call in calls),
        vocab_size=config.vocab_size,
        max_model_len=config.max_position_embeddings,
        # an id beyond the logits can never come
        eos_token_ids=tuple(id_ for id_ in _eos_token_ids(hf_model) if 0 <= id_ < config.vocab_size),
        dtype=hf_model.dtype,
        device=hf_model.device,
        facts=ModelFacts(hf_model.name_or_path, hf_model.config.to_dict()),
        longrope_boundary=boundary if boundary < config.max_position_embeddings else None,
    )


def _eos_token_ids(hf_model: Any) -> tuple[int, ...]:
    """From the generation config first, since chat models end their turns with a token named only there."""
    found: list[int] = []
    for config in (hf_model.generation_config, hf_model.config.get_text_config()):
        ids = getattr(config, "eos_token_id", None)
        found += [ids] if isinstance(ids, int) else ids or []
    return tuple(dict.fromkeys(found))


def _refusal(hf_model: Any, reason: str) -> str:
    return (
        f"{type(hf_model).__name__} (model_type {hf_model.config.model_type!r}) cannot run on paged K/V: "
        f"{reason}. Supported are decoder-only transformers models whose every layer attends causally "
        "through transformers' AttentionInterface, with grouped heads, a sliding window and a soft cap "
        "(Llama, Mistral, Mixtral, Qwen2, Qwen3, Gemma 2, Phi-3, GPT-NeoX and alike). Use such a model, or "
        "serve this one with an engine that has code for its architecture."
    )
