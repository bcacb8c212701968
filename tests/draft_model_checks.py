"""Engines with a draft model, watched: after every step the drafts are those of a model that starts from scratch."""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from engine_fixtures import TINY_VOCAB, greedy_reference, tiny_llama, tiny_model
from transformers import LlamaConfig, LlamaForCausalLM

from ascend_spec.drafters import DraftModelDrafter
from ascend_spec.engine import LLM
from ascend_spec.models import CausalLM, ModelInfo
from ascend_spec.runtime import DeviceFacts
from ascend_spec.types import SamplingParams

NEW, MASK = 16, TINY_VOCAB - 1
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW)
PROMPTS = [[5, 6], [11, 12, 13, 14, 15], [8, 9, 10] * 9, [3], [21, 7, 7, 30], [40, 2] * 6, [33, 34, 35]]
STATIC = DeviceFacts(block_size=4, host_readable=False, static_shapes=True)


# --------------------------------------------------------------------------------------------------------- models
@cache
def hf_draft(kind: str) -> LlamaForCausalLM:
    """``same`` as the target; ``near``: its weights with noise, which is right for some tokens; ``other``: an
    unrelated model."""
    if kind == "other":
        torch.manual_seed(11)
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = LlamaConfig(
            **{**tiny_llama().config.to_dict(), **sizes, "num_key_value_heads": 1, "head_dim": 8}
        )
        return LlamaForCausalLM(config).eval()
    model = copy.deepcopy(tiny_llama())
    if kind == "near":
        noise = torch.Generator().manual_seed(5)
        for weight in model.parameters():
            weight.data += 0.12 * weight.std() * torch.randn(weight.shape, generator=noise)
    return model


@cache
def target_model() -> CausalLM:
    return tiny_model()


@cache
def draft_model(kind: str) -> CausalLM:
    return CausalLM.from_module(copy.deepcopy(hf_draft(kind)))


@torch.no_grad()
def one_by_one(kind: str, tokens: tuple[int, ...], count: int) -> list[int]:
    """Greedy continuation by transformers, from scratch."""
    text = list(tokens)
    for _ in range(count):
        text.append(int(hf_draft(kind)(torch.tensor([text])).logits[0, -1].argmax()))
    return text[len(tokens) :]


@torch.no_grad()
def in_parallel(kind: str, tokens: tuple[int, ...], count: int) -> list[int]:
    """The definition of PARD: one pass, no draft knows the drafts before it."""
    row = torch.tensor([[*tokens, *[MASK] * (count - 1)]])
    return hf_draft(kind)(row).logits[0, len(tokens) - 1 :].argmax(-1).tolist() if count else []


class BigramModel:
    """A stand-in for a CausalLM: the logits of a row are those of its token."""

    def __init__(self, logits: torch.Tensor, max_model_len: int = 32) -> None:
        self.logits = logits
        self.info = ModelInfo(
            num_layers=1, num_kv_heads=(1,), head_dims=(1,), vocab_size=logits.shape[0], max_model_len=max_model_len,
            eos_token_ids=(), dtype=torch.float32, device=torch.device("cpu"),
        )  # fmt: skip

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.zeros(num_blocks, block_size, 1, 1), torch.zeros(num_blocks, block_size, 1, 1))]

    def forward(self, input_ids, positions, kv_caches, attn_metadata, logits_indices):
        return self.logits[input_ids[logits_indices].long()]


# -------------------------------------------------------------------------------------------------------- engines
def spec_config(num_drafts: int, **changes: Any) -> dict[str, Any]:
    ours = {"on_error": "raise", **changes.pop("ascend_spec", {})}
    return {
        "method": "draft_model",
        "model": "tiny",
        "num_speculative_tokens": num_drafts,
        "ascend_spec": ours,
        **changes,
    }


def engine(
    kind: str, num_drafts: int, *, parallel: bool = False, config: dict | None = None, **options: Any
) -> LLM:
    drafter = DraftModelDrafter(draft_model(kind), num_drafts, mask_token_id=MASK if parallel else None)
    return LLM(
        target_model(),
        speculative_config=spec_config(num_drafts, parallel_drafting=parallel, **(config or {})),
        drafter=drafter,
        **options,
    )


def watch(
    llm: LLM,
    kind: str,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    reference: Callable[[str, tuple[int, ...], int], list[int]] = one_by_one,
    preempt_at: Sequence[int] = (),
) -> Counter[tuple[int, int]]:
    """Generate, and compare text with plain decoding and drafts with ``reference`` after every step.

    Returns:
        how often so many drafts were accepted of so many.
    """
    ids = [llm.add_request(prompt, GREEDY) for prompt in prompts]
    live = {request_id: llm._live[request_id].request for request_id in ids}
    accepted: Counter[tuple[int, int]] = Counter()
    step = 0
    while llm.has_unfinished_requests:
        step += 1
        if step in preempt_at and llm.scheduler.running:
            llm.scheduler._preempt_newest(deque())
        before = {name: (r.num_drafts, r.num_output_tokens) for name, r in live.items()}
        finished = {output.request_id for output in llm.step()}
        for name, request in live.items():
            drafted, length = before[name]
            if request.num_output_tokens > length and name not in finished:
                accepted[request.num_output_tokens - length - 1, drafted] += 1
            expected = greedy_reference(request.prompt_token_ids, NEW)
            assert request.output_token_ids == expected[: request.num_output_tokens], "text"
        for request in llm.scheduler.running:
            if llm.draft is not None and request.num_drafts:
                drafts = llm.draft.token_ids[request.slot, : request.num_drafts].tolist()
                if request.num_output_tokens == before[request.request_id][1] and drafts == [-1] * len(
                    drafts
                ):
                    continue  # a chunk ended one token before its prompt's end: nobody has been asked for drafts
                expected = reference(kind, tuple(request.token_ids), request.num_drafts)
                assert drafts == expected, "drafts"
    assert all(request.num_output_tokens == NEW for request in live.values())
    return accepted


def save(model: Any, path: Path) -> str:
    model.save_pretrained(path)
    return str(path)
