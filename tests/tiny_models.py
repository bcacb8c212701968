"""Tiny random transformers models, and packed forwards on paged K/V for them."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
import transformers

from ascend_spec.types import AttentionMetadata

BASE: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # large enough for attention to decide tokens
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
BOUNDARY = 32
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [3.0 + i for i in range(8)],
    "original_max_position_embeddings": BOUNDARY,
}


def config(name: str) -> Any:
    t = transformers
    return {
        "llama": lambda: t.LlamaConfig(**BASE),
        "llama-dynamic-ntk": lambda: t.LlamaConfig(
            **BASE, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
        ),
        "qwen2": lambda: t.Qwen2Config(**BASE),
        "qwen3": lambda: t.Qwen3Config(**BASE, head_dim=32),
        "mistral": lambda: t.MistralConfig(**BASE, sliding_window=7),
        "gemma2": lambda: t.Gemma2Config(
            **BASE,
            head_dim=16,
            sliding_window=6,
            query_pre_attn_scalar=40,
            attn_logit_softcapping=3.0,
            final_logit_softcapping=5.0,
            tie_word_embeddings=False,
        ),
        "phi3-longrope": lambda: t.Phi3Config(
            **BASE, original_max_position_embeddings=BOUNDARY, rope_parameters=LONGROPE
        ),
        "gpt-neox": lambda: t.GPTNeoXConfig(**BASE),
        "mixtral": lambda: t.MixtralConfig(**BASE, num_local_experts=4),
    }[name]()


SUPPORTED = (
    "llama",
    "llama-dynamic-ntk",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma2",
    "phi3-longrope",
    "gpt-neox",
    "mixtral",
)


def build(config: Any, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


#: (request, position of its first row, token ids)
Work = list[tuple[int, int, list[int]]]


class PagedRequests:
    """K/V of some requests in blocks handed out in a scrambled order."""

    def __init__(self, model: Any, count: int, block_size: int = 4) -> None:
        self.model, self.block_size = model, block_size
        blocks = -(-model.info.max_model_len // block_size)
        self.caches = model.allocate_kv_cache(count * blocks, block_size)
        order = torch.randperm(count * blocks, generator=torch.Generator().manual_seed(1))
        self.block_table = order.to(torch.int32).view(count, blocks)

    def pack(self, work: Work) -> tuple[torch.Tensor, torch.Tensor, AttentionMetadata]:
        """Token ids, positions and metadata of one packed batch."""
        lens = tuple(len(tokens) for _, _, tokens in work)
        seq_lens = tuple(start + len(tokens) for _, start, tokens in work)
        positions = torch.cat([torch.arange(start, start + len(tokens)) for _, start, tokens in work])
        table = self.block_table[torch.tensor([request for request, _, _ in work])]
        row_request = torch.arange(len(work)).repeat_interleave(torch.tensor(lens))
        block = table[row_request, positions // self.block_size].long()
        metadata = AttentionMetadata(
            block_table=table,
            slot_mapping=block * self.block_size + positions % self.block_size,
            query_start_loc=torch.tensor([0, *accumulate(lens)], dtype=torch.int32),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
            query_lens_cpu=lens,
            seq_lens_cpu=seq_lens,
            max_query_len=max(lens),
        )
        return torch.tensor([token for _, _, tokens in work for token in tokens]), positions, metadata

    def forward(self, work: Work) -> list[torch.Tensor]:
        """One packed forward. Logits of every row, by request."""
        ids, positions, metadata = self.pack(work)
        logits = self.model.forward(ids, positions, self.caches, metadata, torch.arange(len(ids)))
        return list(logits.split(metadata.query_lens_cpu))
