"""Tiny random checkpoints for vLLM's engine: a target, draft models and heads, made by a script in a second.

The layers of the target add little to its embeddings, so that an EAGLE head which passes the embedding of the last
token on agrees with it often, but not always.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VOCABULARY = 512
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 128, 256, 4, 2, 32
#: of the target, and of the one for EAGLE-3, which reads the layers 2, half and third from the last: they must differ
LAYERS, DEEP = 2, 7
#: how much a layer adds
CONTRIBUTION = 0.06

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}

Weights = dict[str, torch.Tensor]


def make_models(folder: Path) -> dict[str, str]:
    """Write all of them. Name -> directory: "target", "noisy" (a draft model that is nearly the target), "eagle",
    "deep" (a target with more layers) and "eagle3", which is for that one."""
    random = torch.Generator().manual_seed(0)
    target = _target(random, LAYERS)
    noisy = {
        name: w + 0.1 * w.std() * _randn(random, *w.shape) if w.dim() > 1 else w for name, w in target.items()
    }
    head = {**LLAMA, "num_hidden_layers": 1}
    made = {
        "target": (LLAMA, target),
        "noisy": (LLAMA, noisy),
        "deep": ({**LLAMA, "num_hidden_layers": DEEP}, _target(random, DEEP)),
        "eagle": (head, _eagle(random, target)),
        "eagle3": (
            {**head, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": VOCABULARY},
            _eagle3(random),
        ),
    }
    for name, (config, weights) in made.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(config))
        save_file(weights, folder / name / "model.safetensors", metadata={"format": "pt"})
    return {name: str(folder / name) for name in made}


def _randn(random: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=random)


def _layer(random: torch.Generator, prefix: str, inputs: int = HIDDEN) -> Weights:
    """Attention over ``inputs`` features and a gated MLP, norms included."""
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, inputs),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, inputs),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, inputs),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    weights = {f"{prefix}{name}.weight": 0.15 * _randn(random, *shape) for name, shape in shapes.items()}
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        weights[f"{prefix}{name}.weight"] *= CONTRIBUTION
    weights[f"{prefix}post_attention_layernorm.weight"] = torch.ones(HIDDEN)
    return weights


def _target(random: torch.Generator, layers: int) -> Weights:
    weights = {
        "model.embed_tokens.weight": _randn(random, VOCABULARY, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": 0.3 * _randn(random, VOCABULARY, HIDDEN),
    }
    for i in range(layers):
        weights |= _layer(random, f"model.layers.{i}.")
        weights[f"model.layers.{i}.input_layernorm.weight"] = torch.ones(HIDDEN)
    return weights


def _eagle(random: torch.Generator, target: Weights) -> Weights:
    """Of (embedding, hidden state) the embedding is passed on."""
    embeds, hidden = torch.eye(HIDDEN), 0.02 * _randn(random, HIDDEN, HIDDEN)
    return {
        **_layer(random, "layers.0."),
        "fc.weight": torch.cat([embeds, hidden], 1).contiguous(),
        "embed_tokens.weight": target["model.embed_tokens.weight"].clone(),
    }


def _eagle3(random: torch.Generator) -> Weights:
    """All random: its drafts are hardly ever accepted."""
    return {
        **_layer(random, "midlayer.", 2 * HIDDEN),
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        "midlayer.input_layernorm.weight": torch.ones(HIDDEN),
        "fc.weight": 0.1 * _randn(random, HIDDEN, 3 * HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": 0.3 * _randn(random, VOCABULARY, HIDDEN),
    }
