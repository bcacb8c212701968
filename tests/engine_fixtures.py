"""Small models, drafters and tokenizers with which the engine can be driven into every corner."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ascend_spec.models import CausalLM, ModelInfo
from ascend_spec.types import AttentionMetadata, Draft, DraftBatch

TINY_VOCAB = 64


@cache
def tiny_llama() -> LlamaForCausalLM:
    """A random Llama for reference; sharp enough that its greedy text is not one token repeated."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=TINY_VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def tiny_model() -> CausalLM:
    return CausalLM.from_module(copy.deepcopy(tiny_llama()))


@cache
def greedy_reference(prompt: tuple[int, ...], max_new_tokens: int) -> list[int]:
    output = tiny_llama().generate(
        torch.tensor([prompt]), max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=0
    )
    return output[0, len(prompt) :].tolist()


class ScriptedModel:
    """A stand-in for a CausalLM whose greedy output is written down: ``script[p]`` at position ``p``."""

    def __init__(self, script: Sequence[int], vocab_size: int, max_model_len: int, eos: tuple[int, ...] = ()):
        padding = [0] * (max_model_len + 1 - len(script))
        self.script = torch.tensor([*script, *padding])
        self.info = ModelInfo(
            num_layers=1,
            num_kv_heads=(1,),
            head_dims=(1,),
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            eos_token_ids=eos,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        self.calls: list[tuple[list[int], list[int], AttentionMetadata]] = []

    def allocate_kv_cache(self, num_blocks: int, block_size: int):
        return [(torch.zeros(num_blocks, block_size, 1, 1), torch.zeros(num_blocks, block_size, 1, 1))]

    def forward(self, input_ids, positions, kv_caches, attn_metadata, logits_indices):
        self.calls.append((input_ids.tolist(), positions.tolist(), attn_metadata))
        following = self.script[positions[logits_indices] + 1]
        return torch.nn.functional.one_hot(following, self.info.vocab_size) * 20.0


@dataclass
class FunctionDrafter:
    """Drafts are ``function(history, wanted)``, a list of ids for each slot that wants some."""

    function: Callable[[list[int], int], list[int]]
    width: int
    seen: list[list[int]] = field(default_factory=list)

    def propose(self, batch: DraftBatch) -> Draft:
        tokens = torch.full((batch.token_ids.shape[0], self.width), -1, dtype=torch.int32)
        for slot, length in enumerate(batch.num_tokens.numpy()):
            wanted = int(batch.num_speculative_tokens.numpy()[slot])
            if length == 0 or wanted == 0:
                continue
            history = list(map(int, batch.token_ids[slot, :length].numpy()))
            self.seen.append(history)
            drafts = self.function(history, wanted)[: self.width]
            tokens[slot, : len(drafts)] = torch.tensor(drafts, dtype=torch.int32)
        return Draft(token_ids=tokens)


def oracle(texts: Sequence[Sequence[int]], width: int) -> FunctionDrafter:
    """Knows every prompt with its continuation, and drafts that."""
    return FunctionDrafter(lambda history, wanted: _continuation(texts, history)[:wanted], width)


def always_wrong(texts: Sequence[Sequence[int]], width: int, vocab_size: int) -> FunctionDrafter:
    """Drafts a token that the oracle would never draft there."""

    def function(history: list[int], wanted: int) -> list[int]:
        return [(token + 1) % vocab_size for token in _continuation(texts, history)[:wanted]]

    return FunctionDrafter(function, width)


def half_right(texts: Sequence[Sequence[int]], width: int, vocab_size: int) -> FunctionDrafter:
    """Right for some tokens, different from step to step, then wrong."""

    def function(history: list[int], wanted: int) -> list[int]:
        drafts = _continuation(texts, history)[:wanted]
        right = len(history) % (width + 1)
        return drafts[:right] + [(token + 1) % vocab_size for token in drafts[right:]]

    return FunctionDrafter(function, width)


def _continuation(texts: Sequence[Sequence[int]], history: list[int]) -> list[int]:
    for text in texts:
        if list(text[: len(history)]) == history:
            return list(text[len(history) :])
    return []


class ByteTokenizer:
    """UTF-8 bytes as tokens; ids from 256 on are special."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(token for token in ids if token < 256).decode("utf-8", errors="replace")
