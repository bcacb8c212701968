"""Tiny checkpoints for the contract with vLLM: config.json files, no weights.

Names say what each one is, as names on a hub do: vLLM reads methods from them. Sizes are the smallest that
vLLM's own model configs accept; families' keys (``num_nextn_predict_layers`` ...) are those of the published
checkpoints.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 512
#: longest sequence of every target, in tokens
MAX_LEN = 512

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": MAX_LEN,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
#: one layer, as heads have; and a shorter context than the targets, as many published heads have
HEAD = {**LLAMA, "num_hidden_layers": 1, "max_position_embeddings": 128}
QWEN3_HEAD = {**HEAD, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
EAGLE3 = {**HEAD, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 256}
MOE = {
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}
LATENT_ATTENTION = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "head_dim": 16,
}


def _family(architecture: str, model_type: str, base: dict[str, Any] = LLAMA, **more: Any) -> dict[str, Any]:
    return {**base, "architectures": [architecture], "model_type": model_type, **more}


def _deepseek(num_modules: int | None, **more: Any) -> dict[str, Any]:
    return _family(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        **MOE,
        **LATENT_ATTENTION,
        **({} if num_modules is None else {"num_nextn_predict_layers": num_modules}),
        **more,
    )


def _speculators(algorithm: str, layer: dict[str, Any] = HEAD, **more: Any) -> dict[str, Any]:
    """A head in the format of the speculators library: its own keys around a transformer's config."""
    return {
        "architectures": [f"{algorithm.title()}Speculator"],
        "speculators_model_type": algorithm,
        "speculators_version": "0.3.0",
        "draft_vocab_size": 256,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": "Llama-tiny", "architectures": ["LlamaForCausalLM"]},
        },
        **more,
    }


def _rope(rope_type: str, head: dict[str, Any] = EAGLE3, **more: Any) -> dict[str, Any]:
    return {**head, "rope_scaling": {"rope_type": rope_type, **more}}


TARGETS: dict[str, dict[str, Any]] = {
    "Llama-tiny": LLAMA,
    "Llama-tiny-long": {**LLAMA, "max_position_embeddings": 2048},
    "Llama-tiny-linear": _rope("linear", {**LLAMA, "max_position_embeddings": 128}, factor=4.0),
    "Llama-tiny-yarn": _rope("yarn", LLAMA, factor=4.0, original_max_position_embeddings=128),
    "Llama-tiny-longrope": {
        **_rope("longrope", LLAMA, short_factor=[1.0] * 16, long_factor=[2.0] * 16),
        "original_max_position_embeddings": 128,
    },
    "Llama-tiny-longrope-inside": _rope(
        "longrope",
        LLAMA,
        short_factor=[1.0] * 16,
        long_factor=[2.0] * 16,
        original_max_position_embeddings=128,
    ),
    "Llama-tiny-su": {
        **LLAMA,
        "rope_scaling": {"type": "su", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16},
        "original_max_position_embeddings": 128,
    },
    "Llama-tiny-dynamic": _rope("dynamic", LLAMA, factor=2.0),
    "Llama-tiny-model-max": {**LLAMA, "model_max_length": 2048},
    "Qwen3-tiny": QWEN3,
    "Mixtral-tiny": _family(
        "MixtralForCausalLM", "mixtral", num_local_experts=8, num_experts_per_tok=2, sliding_window=None
    ),
    "Gemma3-tiny": _family(
        "Gemma3ForCausalLM",
        "gemma3_text",
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=32,
        sliding_window=64,
    ),
    "Gemma3-tiny-linear": _rope(
        "linear",
        _family(
            "Gemma3ForCausalLM",
            "gemma3_text",
            hidden_activation="gelu_pytorch_tanh",
            query_pre_attn_scalar=32,
            sliding_window=64,
        ),
        factor=8.0,
    ),
    "DeepSeek-V3-tiny": _deepseek(1),
    "DeepSeek-V3-tiny-3mtp": _deepseek(3),
    "DeepSeek-V3-tiny-unsaid": _deepseek(None),
    "Qwen3-Next-tiny": _family(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        num_nextn_predict_layers=1,
    ),
    "MiMo-7B-tiny": _family("MiMoForCausalLM", "qwen2", num_nextn_predict_layers=1),
    "MiMo-V2-tiny": _family("MiMoV2ForCausalLM", "qwen2", num_nextn_predict_layers=3),
    "GLM-4.5-tiny": _family("Glm4MoeForCausalLM", "glm4_moe", **MOE, num_nextn_predict_layers=1),
    "GLM-4.7-Flash-tiny": _family(
        "Glm4MoeLiteForCausalLM", "glm4_moe_lite", **MOE, **LATENT_ATTENTION, num_nextn_predict_layers=1
    ),
    "GLM-5-tiny": _family(
        "GlmMoeDsaForCausalLM",
        "glm_moe_dsa",
        **MOE,
        **LATENT_ATTENTION,
        index_n_heads=2,
        index_head_dim=16,
        index_topk=16,
        num_nextn_predict_layers=1,
    ),
    "ERNIE-4.5-tiny": _family(
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5_moe",
        moe_num_experts=8,
        moe_k=2,
        moe_intermediate_size=64,
        num_nextn_predict_layers=1,
    ),
    "Nemotron-H-tiny": _family(
        "NemotronHForCausalLM",
        "nemotron_h",
        layers_block_type=["mamba", "attention"] * 4,
        num_nextn_predict_layers=1,
        mtp_layers_block_type=["attention", "moe"],
    ),
    "LongCat-Flash-tiny": _family(
        "LongcatFlashForCausalLM",
        "longcat_flash",
        **LATENT_ATTENTION,
        num_layers=4,
        ffn_hidden_size=256,
        expert_ffn_hidden_size=64,
        n_routed_experts=8,
        moe_topk=2,
        zero_expert_num=4,
    ),
    "Step-3.5-tiny": _family(
        "Step3p5ForCausalLM",
        "step3p5",
        **{key: value for key, value in MOE.items() if key == "moe_intermediate_size"},
        moe_num_experts=8,
        moe_top_k=2,
        num_attention_groups=2,
        share_expert_dim=64,
        num_nextn_predict_layers=3,
    ),
    "EXAONE-MoE-tiny": _family(
        "ExaoneMoeForCausalLM",
        "exaone_moe",
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        num_shared_experts=1,
        num_nextn_predict_layers=1,
    ),
    "Hunyuan-V3-tiny": _family("HYV3ForCausalLM", "hy_v3", **MOE, num_nextn_predict_layers=1),
}

DRAFTS: dict[str, dict[str, Any]] = {
    "Llama-draft": {**LLAMA, "num_hidden_layers": 2, "max_position_embeddings": 256},
    "Llama-draft-longer": {**LLAMA, "num_hidden_layers": 2, "max_position_embeddings": 1024},
    "Llama-draft-320": {**LLAMA, "num_hidden_layers": 2, "vocab_size": 320},
    "Llama-draft-moe": _family(
        "MixtralForCausalLM", "mixtral", num_local_experts=8, num_experts_per_tok=2, num_hidden_layers=2
    ),
    "Llama-draft-3-heads": {**LLAMA, "num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 96},
    "Llama-draft-yarn": _rope(
        "yarn", {**LLAMA, "max_position_embeddings": 128}, factor=2.0, original_max_position_embeddings=64
    ),
    "Llama-draft-longrope": {
        **_rope(
            "longrope",
            {**LLAMA, "num_hidden_layers": 2, "max_position_embeddings": 256},
            short_factor=[1.0] * 16,
            long_factor=[2.0] * 16,
        ),
        "original_max_position_embeddings": 64,
    },
    "Llama-draft-linear": _rope("linear", {**LLAMA, "max_position_embeddings": 128}, factor=2.0),
    "my-eagle-draft": {**LLAMA, "num_hidden_layers": 2},
    "EAGLE-LLaMA-tiny": HEAD,
    "EAGLE-LLaMA-tiny-long": {**HEAD, "max_position_embeddings": 1024},
    "EAGLE-LLaMA-tiny-n3": {**HEAD, "n_predict": 3},
    "EAGLE3-LLaMA-tiny-n3": {**EAGLE3, "n_predict": 3},
    "Llama-draft-n3": {**LLAMA, "num_hidden_layers": 2, "n_predict": 3},
    "LLaMA-tiny-head": HEAD,
    "EAGLE3-LLaMA-tiny": EAGLE3,
    "Qwen3-tiny_eagle3": {**QWEN3_HEAD, "architectures": ["Eagle3Qwen3ForCausalLM"], "draft_vocab_size": 256},
    "my-eagle-eagle3": EAGLE3,
    "LLaMA-tiny-aux-head": EAGLE3,
    "EAGLE3-linear": _rope("linear", factor=2.0),
    "EAGLE3-llama3": _rope(
        "llama3",
        factor=2.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    ),
    "EAGLE3-dynamic": _rope("dynamic", factor=2.0),
    "EAGLE3-yarn": _rope("yarn", factor=2.0, original_max_position_embeddings=64),
    "EAGLE3-longrope": {
        **_rope("longrope", short_factor=[1.0] * 16, long_factor=[2.0] * 16),
        "original_max_position_embeddings": 64,
    },
    "Llama-tiny-speculator.eagle3": _speculators("eagle3", norm_before_residual=True, target_hidden_size=128),
    "Llama-tiny-speculator.peagle": _speculators("peagle", mask_token_id=3, target_hidden_size=128),
    "Llama-tiny-speculator.dflash": _speculators(
        "dflash", QWEN3_HEAD, mask_token_id=3, aux_hidden_state_layer_ids=[2, 4, 6]
    ),
    "Llama-tiny-speculator.dspark": _speculators(
        "dspark",
        QWEN3_HEAD,
        mask_token_id=3,
        aux_hidden_state_layer_ids=[2, 4, 6],
        markov_rank=8,
        markov_head_type="vanilla",
        block_size=6,
    ),
    "P-EAGLE-tiny": {**EAGLE3, "pard_token": 3},
    "PARD-tiny": {**LLAMA, "num_hidden_layers": 2, "pard_token": 3},
    "Qwen3-tiny-DFlash-b16": {
        **QWEN3_HEAD,
        "architectures": ["DFlashDraftModel"],
        "block_size": 16,
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 3, 5]},
    },
    "Qwen3-tiny-DFlash-n3": {
        **QWEN3_HEAD,
        "architectures": ["DFlashDraftModel"],
        "block_size": 16,
        "n_predict": 3,
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 3, 5]},
    },
    "Qwen3-tiny-DFlash-XPress": {
        **QWEN3_HEAD,
        "architectures": ["Qwen3XPressModel"],
        "block_size": 16,
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 3, 5]},
    },
    "dspark_qwen3_tiny_block7": {
        **QWEN3_HEAD,
        "architectures": ["Qwen3DSparkModel"],
        "block_size": 7,
        "markov_rank": 8,
        "markov_head_type": "vanilla",
        "mask_token_id": 3,
        "target_layer_ids": [1, 3, 5],
    },
    "dspark_qwen3_tiny_n3": {
        **QWEN3_HEAD,
        "architectures": ["Qwen3DSparkModel"],
        "block_size": 7,
        "n_predict": 3,
        "mask_token_id": 3,
        "target_layer_ids": [1, 3, 5],
    },
    "Qwen3-tiny-block-head": {
        **QWEN3_HEAD,
        "architectures": ["Qwen3DSparkModel"],
        "block_size": 7,
        "sample_from_anchor": False,
        "mask_token_id": 3,
        "target_layer_ids": [1, 3, 5],
    },
    "dspark_qwen3_tiny_no_block": {
        **QWEN3_HEAD,
        "architectures": ["Qwen3DSparkModel"],
        "mask_token_id": 3,
        "target_layer_ids": [1, 3, 5],
    },
    "DeepSeek-V3-tiny-NextN": _family(
        "DeepSeekMTPModel",
        "deepseek_v3",
        **MOE,
        **LATENT_ATTENTION,
        num_nextn_predict_layers=1,
    ),
    # an EAGLE head with the model type of the target that it is for
    "eagle-deepseek-v3-tiny": {**_deepseek(1), "num_hidden_layers": 1},
    "gemma-4-tiny-it-assistant": {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "text_config": {
            **LLAMA,
            "model_type": "gemma4_text",
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "global_head_dim": 32,
            "sliding_window": 64,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
        },
        "torch_dtype": "float32",
    },
    "medusa-tiny": {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "num_heads": 3,
        "num_hidden_layers": 1,
    },
    "llama-tiny-accelerator": {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "vocab_size": VOCABULARY,
        "emb_dim": 128,
        "inner_dim": 128,
        "n_predict": 3,
        "n_candidates": 3,
    },
}


def write_checkpoints(directory: Path) -> dict[str, Path]:
    """Write every checkpoint below ``directory``; their paths by name."""
    paths = {}
    for name, config in {**TARGETS, **DRAFTS}.items():
        paths[name] = directory / name
        paths[name].mkdir()
        (paths[name] / "config.json").write_text(json.dumps(config, indent=1))
    return paths
