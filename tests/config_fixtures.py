"""Tiny checkpoints (a config.json each), targets and plans for the tests of the configuration layer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ascend_spec.config import (
    Plan,
    TargetConfig,
    load_speculative_config,
    registry,
    resolve,
)

Values = dict[str, Any]

LLAMA: Values = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
HEAD: Values = {**LLAMA, "num_hidden_layers": 1}
DEEPSEEK: Values = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_nextn_predict_layers": 1,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
}
MIXTRAL: Values = {
    **LLAMA,
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 4,
}

#: config.json by the name of a checkpoint's directory
CHECKPOINTS: dict[str, Values] = {
    "llama": LLAMA,
    "mixtral": MIXTRAL,
    "deepseek": DEEPSEEK,
    "deepseek-3": {**DEEPSEEK, "num_nextn_predict_layers": 3},
    "draft": {**LLAMA, "num_hidden_layers": 2},
    "eagle": {**HEAD, "architectures": ["EagleLlamaForCausalLM"]},
    "eagle3": {**HEAD, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 96},
    "peagle": {"speculators_model_type": "peagle", "transformer_layer_config": HEAD},
    "nextn": {**DEEPSEEK, "model_type": "deepseek_mtp", "architectures": ["DeepSeekMTPModel"]},
    "nextn-v3": {**DEEPSEEK, "architectures": ["DeepseekV3ForCausalLMNextN"]},
    "gemma4": {**HEAD, "model_type": "gemma4_assistant", "architectures": ["Gemma4AssistantForCausalLM"]},
    "dflash": {**HEAD, "model_type": "qwen3", "architectures": ["DFlashDraftModel"]},
    "xpress": {**HEAD, "model_type": "qwen3", "architectures": ["Qwen3XPressModel"]},
    "dspark": {**HEAD, "model_type": "qwen3", "architectures": ["Qwen3DSparkModel"], "block_size": 7},
    "dspark-bonus": {
        **HEAD,
        "model_type": "qwen3",
        "architectures": ["Qwen3DSparkModel"],
        "sample_from_anchor": False,
    },
    "dspark-speculators": {"speculators_model_type": "dspark", "transformer_layer_config": HEAD, "block_size": 7},
    "medusa": {**HEAD, "architectures": ["MedusaModel"], "model_type": "medusa", "medusa_num_heads": 5},
    "mlp": {**HEAD, "architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator",
            "n_predict": 5},
}  # fmt: skip


def write(directory: Path, values: Values) -> str:
    """A model's directory with nothing but a config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(values))
    return str(directory)


class Checkpoints:
    """A shelf of checkpoints on disk, by the names of ``CHECKPOINTS``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __getitem__(self, name: str) -> str:
        return self.like(name, name)

    def like(self, name: str, directory: str, **changes: Any) -> str:
        """A checkpoint with some values changed, under a name of its own; those that are None are left out."""
        values = {**CHECKPOINTS[name], **changes}
        return write(
            self.root / directory, {key: value for key, value in values.items() if value is not None}
        )

    def target(self, name: str = "llama", **facts: Any) -> TargetConfig:
        return TargetConfig.from_directory(self[name], **facts)


def planned(given: Values | None, target: TargetConfig, *, embedded: bool = False) -> Plan:
    """What the user's words become."""
    return resolve(load_speculative_config(given), target, embedded=embedded)


def warned(plan: Plan) -> dict[str, str]:
    """Messages of the plan's warnings, by field."""
    return {warning.field: warning.message for warning in plan.warnings}


@contextmanager
def restored_registry() -> Iterator[None]:
    """Registrations made inside are forgotten afterwards, and entry points are looked up anew."""
    before = dict(registry._registered)
    registry._load_entry_points.cache_clear()
    try:
        yield
    finally:
        registry._registered.clear()
        registry._registered.update(before)
        registry._load_entry_points.cache_clear()
