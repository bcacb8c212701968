"""transformers models on paged K/V: equal to generate, refused by name where they cannot be."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from smollm2 import smollm2_path
from tiny_models import BASE, BOUNDARY, SUPPORTED, PagedRequests, build, config

from ascend_spec.models import CausalLM, UnsupportedModelError, attention, load_tokenizer
from ascend_spec.models.rope import LongRope, make_rope_per_request
from ascend_spec.types import AttentionMetadata

PROMPT_LENGTHS = (40, 9, 27)  # with NEW_TOKENS: beyond the longrope boundary, below it, across it
NEW_TOKENS = 14


def prompts() -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(BASE["vocab_size"]) for _ in range(n)] for n in PROMPT_LENGTHS]


def generate(hf_model: Any, prompt: list[int], count: int = NEW_TOKENS) -> list[int]:
    ids = torch.tensor([prompt])
    output = hf_model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, eos_token_id=None
    )
    return output[0].tolist()


def decode(model: CausalLM, expected: list[list[int]], seed: int = 0) -> list[list[int]]:
    """Greedy decoding of all prompts in one packed batch, with 0 to 3 drafts a step, some of them wrong."""
    rng = random.Random(seed)
    boundary = model.info.longrope_boundary
    paged = PagedRequests(model, len(expected))
    texts = prompts()
    computed = [0] * len(texts)
    while open_requests := [i for i, text in enumerate(texts) if len(text) < len(expected[i])]:
        work, drafts = [], {}
        for i in open_requests:
            text = texts[i]
            if boundary is not None and computed[i] <= boundary < len(text):
                computed[i] = 0  # what generate does: all K/V again, with the long factors
            room = len(expected[i]) - len(text) - 1
            if boundary is not None and len(text) <= boundary:
                room = min(room, boundary - len(text))
            proposal = expected[i][len(text) :][: rng.randint(0, min(3, room))] if computed[i] else []
            drafts[i] = [token if rng.random() < 0.7 else (token + 1) % 160 for token in proposal]
            work.append((i, computed[i], text[computed[i] :] + drafts[i]))
        for (i, start, tokens), logits in zip(work, paged.forward(work), strict=True):
            computed[i] = start + len(tokens) - len(drafts[i])
            for draft, judged in zip([*drafts[i], None], logits[-len(drafts[i]) - 1 :], strict=True):
                texts[i].append(int(judged.argmax()))
                if texts[i][-1] != draft:
                    break
                computed[i] += 1
    return texts


@pytest.mark.parametrize("name", SUPPORTED)
def test_packed_speculative_decoding_equals_generate(name: str) -> None:
    hf_model = build(config(name))
    expected = [generate(copy.deepcopy(hf_model), prompt) for prompt in prompts()]
    assert len({token for text in expected for token in text[-NEW_TOKENS:]}) > 8  # not a constant
    assert decode(CausalLM.from_module(hf_model), expected) == expected


def packed_error(model: CausalLM, hf_model: Any) -> float:
    """Largest difference of packed prefill logits from transformers', request by request."""
    paged = PagedRequests(model, len(PROMPT_LENGTHS))
    logits = paged.forward([(i, 0, prompt) for i, prompt in enumerate(prompts())])
    with torch.no_grad():
        alone = [hf_model(torch.tensor([prompt]), use_cache=False).logits[0] for prompt in prompts()]
    return max((ours - theirs).abs().max().item() for ours, theirs in zip(logits, alone, strict=True))


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("mistral", {"sliding_window": 8}),
        ("mistral", {"sliding_window": 0}),
        ("gemma2", {"soft_cap": 0.0}),
        ("gemma2", {"scale": 0.25}),
        ("gemma2", {"sliding_window": 6}),
        ("llama", {"layer_idx": 0}),
    ],
)
def test_ignoring_what_a_layer_asks_is_seen(name: str, mutant: dict[str, Any], monkeypatch: Any) -> None:
    hf_model = build(config(name))
    model = CausalLM.from_module(copy.deepcopy(hf_model))
    assert packed_error(model, hf_model) < 1e-4
    read_call = attention.read_call
    monkeypatch.setattr(attention, "read_call", lambda *args: replace(read_call(*args), **mutant))
    if "layer_idx" in mutant:  # layers overwrite each other's K/V; seen only when the cache is read again
        expected = [generate(copy.deepcopy(hf_model), prompt) for prompt in prompts()]
        assert decode(model, expected) != expected
    else:
        assert packed_error(model, hf_model) > 1e-2


@pytest.mark.parametrize("name", SUPPORTED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_probe_accepts_half_precision(name: str, dtype: torch.dtype) -> None:
    model = CausalLM.from_module(build(config(name), dtype=dtype))
    assert model.info.dtype == model.allocate_kv_cache(1, 4)[0][0].dtype == dtype


# --- longrope -----------------------------------------------------------------------------------------------


def test_longrope_requests_do_not_see_each_other(monkeypatch: Any) -> None:
    hf_model = build(config("phi3-longrope"))
    model = CausalLM.from_module(copy.deepcopy(hf_model))
    assert model.info.longrope_boundary == BOUNDARY
    assert packed_error(model, hf_model) < 1e-4

    def batch_wide(self: LongRope, positions: torch.Tensor, meta: AttentionMetadata) -> None:
        self.is_long = (positions.max() >= self.boundary).expand(1, positions.shape[0], 1)

    monkeypatch.setattr(LongRope, "select_rows", batch_wide)
    assert packed_error(model, hf_model) > 1e-2


def test_longrope_rows_do_not_depend_on_drafts_beside_them() -> None:
    model = CausalLM.from_module(build(config("phi3-longrope")))
    text = prompts()[0][: BOUNDARY - 2]
    drafts = [5, 9, 31, 77]  # across the boundary
    together, one_by_one = PagedRequests(model, 1), PagedRequests(model, 1)
    for paged in (together, one_by_one):
        paged.forward([(0, 0, text)])
    rows = together.forward([(0, len(text), drafts)])[0]
    single = [one_by_one.forward([(0, len(text) + j, [token])])[0] for j, token in enumerate(drafts)]
    torch.testing.assert_close(rows, torch.cat(single), rtol=1e-4, atol=1e-4)


def test_longrope_padding_rows_are_harmless() -> None:
    model = CausalLM.from_module(build(config("phi3-longrope")))
    rope = next(module for module in model.hf_model.modules() if isinstance(module, LongRope))
    metadata = AttentionMetadata(
        block_table=torch.zeros(1, 1, dtype=torch.int32),
        slot_mapping=torch.tensor([0, 1, -1, -1]),
        query_start_loc=torch.tensor([0, 2], dtype=torch.int32),
        seq_lens=torch.tensor([2], dtype=torch.int32),
        query_lens_cpu=(2,),
        seq_lens_cpu=(2,),
        max_query_len=2,
    )
    rope.select_rows(torch.tensor([0, 1, 0, 0]), metadata)
    assert not rope.is_long.any()


# --- refusals -----------------------------------------------------------------------------------------------


def refused_config(name: str) -> Any:
    t = transformers
    return {
        "mamba": lambda: t.MambaConfig(vocab_size=160, hidden_size=64, num_hidden_layers=2),
        "falcon": lambda: t.FalconConfig(**BASE),
        "bloom": lambda: t.BloomConfig(vocab_size=160, hidden_size=64, n_layer=2, n_head=4),
        "gpt-oss": lambda: t.GptOssConfig(**BASE, head_dim=16, num_local_experts=4, num_experts_per_tok=2),
        "bert": lambda: t.BertConfig(**BASE),
        "lfm2": lambda: t.Lfm2Config(**BASE, layer_types=["conv", "full_attention", "full_attention"]),
        "llama4": lambda: t.Llama4TextConfig(
            **BASE, head_dim=16, attention_chunk_size=16, num_local_experts=2
        ),
        "deepseek-v3": lambda: t.DeepseekV3Config(**{**BASE, "num_key_value_heads": 4}),
    }[name]()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mamba", ["MambaForCausalLM", "2 of its 2 decoder layers (0, 1)"]),
        ("falcon", ["FalconForCausalLM", "3 of its 3 decoder layers", "attention code of its own"]),
        ("bloom", ["BloomForCausalLM", "2 of its 2 decoder layers"]),
        ("gpt-oss", ["GptOssForCausalLM", "passes s_aux"]),
        ("bert", ["BertLMHeadModel", "not causal"]),
        ("lfm2", ["Lfm2ForCausalLM", "1 of its 3 decoder layers (0)"]),
        ("llama4", ["Llama4ForCausalLM", "builds another mask"]),
        ("deepseek-v3", ["DeepseekV3ForCausalLM", "keys and values differ in shape"]),
    ],
)
def test_refused_by_name_at_construction(name: str, words: list[str]) -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        CausalLM.from_module(build(refused_config(name)))
    message = str(refusal.value)
    assert "\n" not in message
    for word in [*words, "Supported are", "Use such a model"]:
        assert word in message


class LeakyLlama(transformers.LlamaForCausalLM):
    """Each row also sees the row before it, whosever that is: what a short convolution does."""

    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:  # type: ignore[override]
        embeds = self.model.embed_tokens(input_ids)
        return super().forward(inputs_embeds=embeds + 0.1 * embeds.roll(1, dims=1), **kwargs)


class RowPositionLlama(transformers.LlamaForCausalLM):
    """Counts positions by row, not by request."""

    def forward(self, input_ids: torch.Tensor, position_ids: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().forward(input_ids, position_ids=torch.arange(input_ids.shape[1])[None], **kwargs)


class TwoAttentionsLlama(transformers.LlamaForCausalLM):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.layers[1].self_attn.layer_idx = 0


def test_leak_between_requests_is_found() -> None:
    with pytest.raises(UnsupportedModelError, match="besides attention mixes tokens"):
        CausalLM.from_module(LeakyLlama(config("llama")))


def test_positions_by_request_of_rope_are_relative_but_learned_ones_are_found() -> None:
    """Rope shifts nothing inside a request, so counting by row is right there; a learned table shows it."""
    CausalLM.from_module(RowPositionLlama(config("llama")))
    hf_model = build(transformers.GPT2Config(vocab_size=160, n_embd=64, n_layer=2, n_head=4, n_positions=128))
    honest = hf_model.forward
    hf_model.forward = lambda input_ids, position_ids=None, **kwargs: honest(
        input_ids, position_ids=torch.arange(input_ids.shape[1])[None], **kwargs
    )
    with pytest.raises(UnsupportedModelError, match="positions are not honoured"):
        CausalLM.from_module(hf_model)


def test_layers_that_share_a_cache_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"1 of its 3 decoder layers \(1\)"):
        CausalLM.from_module(TwoAttentionsLlama(config("llama")))


def test_rope_types_per_layer_type_are_refused() -> None:
    hf_model = build(config("llama"))
    hf_model.model.rotary_emb.rope_type = {"full_attention": "longrope", "sliding_attention": "default"}
    with pytest.raises(UnsupportedModelError, match="'longrope' is set per layer type"):
        make_rope_per_request(hf_model)


def test_a_module_serves_one_object() -> None:
    hf_model = build(config("llama"))
    CausalLM.from_module(hf_model)
    with pytest.raises(ValueError, match="already serves a CausalLM"):
        CausalLM.from_module(hf_model)


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"s_aux": torch.zeros(4)}, "passes s_aux"),
        ({"position_bias": torch.zeros(1)}, "passes position_bias"),
        ({"dropout": 0.1}, "dropout"),
        ({"is_causal": False}, "not causal"),
        ({"whatever_comes_next": 0}, "passes whatever_comes_next"),
    ],
)
def test_attention_arguments_are_refused_by_name(asked: dict[str, Any], word: str) -> None:
    module = torch.nn.Module()
    module.layer_idx = 1  # type: ignore[assignment]
    query, key = torch.zeros(1, 4, 3, 16), torch.zeros(1, 2, 3, 16)
    fine = {"scaling": 0.5, "softcap": None, "sliding_window": None, "dropout": 0.0, "s_aux": None}
    assert attention.read_call(module, query, key, key, fine) == attention.AttentionCall(1, 0.5, 0, 0.0)
    with pytest.raises(UnsupportedModelError, match=word):
        attention.read_call(module, query, key, key, {**fine, **asked})


# --- shapes without data, facts, the real model -------------------------------------------------------------


@pytest.mark.parametrize("name", SUPPORTED)
def test_forward_runs_on_meta_tensors(name: str) -> None:
    """No host synchronisation and no shape that depends on data."""
    dtype = torch.bfloat16 if name == "mixtral" else torch.float32  # the meta grouped product has bf16 alone
    model = CausalLM.from_module(build(config(name), device="meta", dtype=dtype))
    batch = PagedRequests(CausalLM.from_module(build(config("llama"))), 2)
    ids, positions, metadata = batch.pack([(0, 0, [1, 2, 3]), (1, 30, [4, 5, 6, 7, 8])])
    on_meta = {
        field: held.to("meta") if isinstance(held, torch.Tensor) else held
        for field, held in vars(metadata).items()
    }
    logits = model.forward(
        ids.to("meta"),
        positions.to("meta"),
        model.allocate_kv_cache(64, 4),
        AttentionMetadata(**on_meta),
        torch.empty(3, dtype=torch.int64, device="meta"),
    )
    assert logits.shape == (3, 160)
    assert logits.device.type == "meta"


def test_info() -> None:
    hf_model = build(config("qwen3"))
    hf_model.generation_config.eos_token_id = [7, 9, 160, -1]  # the last two can never be drawn
    hf_model.config.eos_token_id = 9
    info = CausalLM.from_module(hf_model).info
    assert (info.num_layers, info.num_kv_heads, info.head_dims) == (3, (2, 2, 2), (32, 32, 32))
    assert (info.vocab_size, info.max_model_len, info.eos_token_ids) == (160, 128, (7, 9))
    assert (info.dtype, info.device.type, info.longrope_boundary) == (torch.float32, "cpu", None)


@pytest.mark.parametrize("chosen", [[4, 0, 2], [3], []])
def test_logits_of_chosen_rows_only(chosen: list[int]) -> None:
    model = CausalLM.from_module(build(config("llama")))
    paged = PagedRequests(model, 2)
    work = [(0, 0, [1, 2, 3]), (1, 0, [4, 5])]
    every = torch.cat(paged.forward(work))
    ids, positions, metadata = paged.pack(work)
    rows = torch.tensor(chosen, dtype=torch.int64)
    some = model.forward(ids.int(), positions, paged.caches, metadata, rows)
    torch.testing.assert_close(some, every[rows], rtol=1e-5, atol=1e-5)


def test_smollm2_equals_generate() -> None:
    path = smollm2_path()
    tokenizer = load_tokenizer(path)
    hf_model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    texts = [tokenizer(text).input_ids for text in ("The capital of France is", "def add(a, b):\n    return")]
    expected = [generate(hf_model, text, 5) for text in texts]
    assert "Paris" in tokenizer.decode(expected[0])
    model = CausalLM.load(path)
    assert model.info.eos_token_ids == (2,)
    model.info = replace(model.info, max_model_len=64)  # a small cache
    paged = PagedRequests(model, 2, 16)
    computed = [0, 0]
    for _ in range(5):
        work = [(i, computed[i], text[computed[i] :]) for i, text in enumerate(texts)]
        computed = [len(text) for text in texts]
        for text, logits in zip(texts, paged.forward(work), strict=True):
            text.append(int(logits[-1].argmax()))
    assert texts == expected
