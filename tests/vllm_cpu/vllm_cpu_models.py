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
    "deep" (a target with more layers), "eagle3", which is for that one, and "int8" (the target, quantised)."""
    random = torch.Generator().manual_seed(0)
    target = _target(random, LAYERS)
    noisy = {
        name: w + 0.1 * w.std() * _randn(random, *w.shape) if w.dim() > 1 else w for name, w in target.items()
    }
    made = {
        "target": (LLAMA, target),
        "noisy": (LLAMA, noisy),
        "deep": ({**LLAMA, "num_hidden_layers": DEEP}, _target(random, DEEP)),
        "eagle": _eagle(random, LLAMA),
        "eagle3": _eagle3(random, LLAMA),
        "int8": _int8(target),
    }
    made["eagle"][1]["embed_tokens.weight"] = target["model.embed_tokens.weight"].clone()
    return {name: save(folder / name, *checkpoint) for name, checkpoint in made.items()}


def make_heads(folder: Path, target: dict[str, Any]) -> dict[str, str]:
    """Random heads for a Llama with the config ``target``, whose embeddings they share: "eagle" and "eagle3"."""
    random = torch.Generator().manual_seed(0)
    head = {"head_dim": target["hidden_size"] // target["num_attention_heads"], **target}
    made = {"eagle": _eagle(random, head), "eagle3": _eagle3(random, head)}
    return {name: save(folder / name, *checkpoint) for name, checkpoint in made.items()}


def make_adapter(folder: Path, rank: int = 8) -> str:
    """A LoRA adapter of the target's attention, as peft writes one."""
    random = torch.Generator().manual_seed(0)
    shapes = {"q_proj": (HEADS * HEAD_DIM, HIDDEN), "o_proj": (HIDDEN, HEADS * HEAD_DIM)}
    weights = {}
    for i in range(LAYERS):
        for name, (outputs, inputs) in shapes.items():
            prefix = f"base_model.model.model.layers.{i}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = 0.3 * _randn(random, rank, inputs)
            weights[f"{prefix}.lora_B.weight"] = 0.3 * _randn(random, outputs, rank)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(shapes),
        "bias": "none",
    }
    return save(folder, config, weights, "adapter_config.json", "adapter_model.safetensors")


def save(
    folder: Path,
    config: dict[str, Any],
    weights: Weights,
    config_file: str = "config.json",
    weights_file: str = "model.safetensors",
) -> str:
    folder.mkdir(parents=True)
    (folder / config_file).write_text(json.dumps(config))
    save_file(weights, folder / weights_file, metadata={"format": "pt"})
    return str(folder)


def _randn(random: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=random)


def _layer(
    random: torch.Generator, prefix: str, config: dict[str, Any], inputs: int | None = None
) -> Weights:
    """Attention over ``inputs`` features (the hidden size) and a gated MLP, norms included."""
    hidden, between = config["hidden_size"], config["intermediate_size"]
    rows, kv_rows = (
        config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads")
    )
    shapes = {
        "self_attn.q_proj": (rows, inputs or hidden),
        "self_attn.k_proj": (kv_rows, inputs or hidden),
        "self_attn.v_proj": (kv_rows, inputs or hidden),
        "self_attn.o_proj": (hidden, rows),
        "mlp.gate_proj": (between, hidden),
        "mlp.up_proj": (between, hidden),
        "mlp.down_proj": (hidden, between),
    }
    weights = {f"{prefix}{name}.weight": 0.15 * _randn(random, *shape) for name, shape in shapes.items()}
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        weights[f"{prefix}{name}.weight"] *= CONTRIBUTION
    weights[f"{prefix}post_attention_layernorm.weight"] = torch.ones(hidden)
    return weights


def _target(random: torch.Generator, layers: int) -> Weights:
    weights = {
        "model.embed_tokens.weight": _randn(random, VOCABULARY, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": 0.3 * _randn(random, VOCABULARY, HIDDEN),
    }
    for i in range(layers):
        weights |= _layer(random, f"model.layers.{i}.", LLAMA)
        weights[f"model.layers.{i}.input_layernorm.weight"] = torch.ones(HIDDEN)
    return weights


def _eagle(random: torch.Generator, target: dict[str, Any]) -> tuple[dict[str, Any], Weights]:
    """Of (embedding, hidden state) the embedding is passed on."""
    size = target["hidden_size"]
    embeds, hidden = torch.eye(size), 0.02 * _randn(random, size, size)
    return {**target, "num_hidden_layers": 1}, {
        **_layer(random, "layers.0.", target),
        "fc.weight": torch.cat([embeds, hidden], 1).contiguous(),
    }


def _eagle3(random: torch.Generator, target: dict[str, Any]) -> tuple[dict[str, Any], Weights]:
    """All random, over the first tokens of the vocabulary: its drafts are hardly ever accepted."""
    hidden = target["hidden_size"]
    config = {
        **target,
        "num_hidden_layers": 1,
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": VOCABULARY,
    }
    return config, {
        **_layer(random, "midlayer.", target, 2 * hidden),
        "midlayer.hidden_norm.weight": torch.ones(hidden),
        "midlayer.input_layernorm.weight": torch.ones(hidden),
        "fc.weight": 0.1 * _randn(random, hidden, 3 * hidden),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": 0.3 * _randn(random, VOCABULARY, hidden),
    }


def _int8(target: Weights) -> tuple[dict[str, Any], Weights]:
    """The target in compressed-tensors' W8A8: a scale a row of weights, one a token of activations."""
    weights = {}
    for name, weight in target.items():
        weights[name] = weight
        if "_proj" in name:
            scale = weight.abs().amax(1, keepdim=True) / 127
            weights |= {name: (weight / scale).round().to(torch.int8), f"{name}_scale": scale}
    ints = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**ints, "strategy": "channel", "dynamic": False},
        "input_activations": {**ints, "strategy": "token", "dynamic": True},
    }
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
    return {**LLAMA, "quantization_config": quantization}, weights
