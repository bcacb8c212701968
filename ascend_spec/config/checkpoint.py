"""What the configuration layer knows of a model: its config.json, read as it stands.

Draft heads come with configs that transformers has no class for, so no class is needed here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ascend_spec.config.errors import shortened

#: what older architectures call the same thing
ALIASES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "num_layers"),
    "num_attention_heads": ("n_head", "num_heads"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
}

#: Rope types whose longest length only sizes the cache of cosines and sines. Others compute frequencies from
#: it (dynamic, longrope), or size the cache from the original length (yarn): raising it changes the model.
CACHE_ONLY_ROPE_TYPES = frozenset({"default", "linear", "llama3", "ntk", "proportional"})

#: rope types whose factor ``max_position_embeddings`` already counts
COUNTED_ROPE_TYPES = frozenset({"longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})

OLDER_ROPE_TYPES = {"su": "longrope", "mrope": "default"}


@dataclass(frozen=True)
class ModelFacts:
    """A model's config.json.

    Attributes:
        path: directory or name, as it was given.
        values: the parsed file; empty if there is none to be read here.
    """

    path: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def known(self) -> bool:
        """Whether there was a config.json; names on a hub are not looked up."""
        return bool(self.values)

    @cached_property
    def text_values(self) -> Mapping[str, Any]:
        """The language model's part: of several modalities, or of a head in the speculators format."""
        for name in ("transformer_layer_config", "text_config", "llm_config"):
            if isinstance(self.values.get(name), Mapping):
                return self.values[name]
        return self.values

    def get(self, name: str, default: Any = None) -> Any:
        """A value of the config, of its language model's part if it isn't at the top."""
        for values in (self.values, self.text_values):
            for alias in (name, *ALIASES.get(name, ())):
                if values.get(alias) is not None:
                    return values[alias]
        return default

    @cached_property
    def model_type(self) -> str:
        return str(self.values.get("model_type", ""))

    @cached_property
    def architectures(self) -> tuple[str, ...]:
        return tuple(self.values.get("architectures") or ())

    @cached_property
    def speculators_type(self) -> str | None:
        """The algorithm that a checkpoint in the speculators format declares."""
        return self.values.get("speculators_model_type")

    @cached_property
    def vocab_size(self) -> int | None:
        return self.get("vocab_size")

    @cached_property
    def max_position_embeddings(self) -> int | None:
        return self.get("max_position_embeddings")

    @cached_property
    def ropes(self) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """Type and parameters of every kind of layer: most models have one, some have one for sliding and one
        for full layers."""
        rope = self.get("rope_parameters") or self.get("rope_scaling") or {}
        kinds = [kind for kind in rope.values() if isinstance(kind, Mapping)] or [rope]
        named = [(str(kind.get("rope_type") or kind.get("type") or "default"), kind) for kind in kinds]
        return tuple((OLDER_ROPE_TYPES.get(name, name), kind) for name, kind in named)

    @cached_property
    def rope_types(self) -> tuple[str, ...]:
        return tuple(kind for kind, _ in self.ropes)

    @cached_property
    def derived_max_model_len(self) -> int | None:
        """The longest sequence that may be asked for, as vLLM derives it: ``model_max_length`` or
        ``max_position_embeddings``, stretched by the rope's factor where that is not counted in already."""
        longest, factor = self.get("model_max_length") or self.max_position_embeddings, 1.0
        if longest is None:
            return None
        if "gemma3" not in str(self.text_values.get("model_type")):  # whose configs count every factor
            for kind, rope in self.ropes:
                if kind not in COUNTED_ROPE_TYPES:
                    factor = rope.get("factor") or factor
        return int(longest * factor)

    @cached_property
    def max_model_len(self) -> int | None:
        """The longest sequence if nothing is asked for: of longrope the original length, since short sequences
        lose by a longer one."""
        original = self.get("original_max_position_embeddings")
        return original if original and "longrope" in self.rope_types else self.derived_max_model_len

    @cached_property
    def rope_only_sizes_cache(self) -> bool:
        """Whether a longer ``max_position_embeddings`` leaves every position's rotation as it is."""
        return all(kind in CACHE_ONLY_ROPE_TYPES for kind in self.rope_types)

    @cached_property
    def is_moe(self) -> bool:
        return (self.get("num_experts") or 0) > 1

    @cached_property
    def layer_weights(self) -> int | None:
        """About how many weights its layers have, to compare models by; None where the config does not say."""
        layers, hidden, inner = map(self.get, ("num_hidden_layers", "hidden_size", "intermediate_size"))
        experts = self.get("num_experts", 1)
        if not all(isinstance(size, int) for size in (layers, hidden, inner, experts)):
            return None
        return layers * hidden * (4 * hidden + 3 * inner * experts)

    def kv_bytes_per_token(self, bytes_per_value: int, tensor_parallel_size: int = 1) -> int | None:
        """Of all layers, on one rank; None where the config does not say."""
        layers, heads = self.get("num_hidden_layers"), self.get("num_attention_heads")
        kv_heads = self.get("num_key_value_heads", heads)
        if not layers or not heads or isinstance(heads, list) or isinstance(kv_heads, list):
            return None
        if latent := self.get("kv_lora_rank"):  # latent attention: one shared vector a token
            return layers * (latent + self.get("qk_rope_head_dim", 0)) * bytes_per_value
        head_dim = self.get("head_dim") or self.get("hidden_size", 0) // heads
        return layers * 2 * max(1, kv_heads // tensor_parallel_size) * head_dim * bytes_per_value or None


class Kind(NamedTuple):
    """Keys of a config.json that are read here, and what their values must be to be of use."""

    keys: tuple[str, ...]
    type: type | tuple[type, ...]
    words: str
    least: int = 0
    """Of numbers."""


KINDS = (
    Kind(
        (
            "vocab_size", "draft_vocab_size", "head_dim", "kv_lora_rank", "qk_rope_head_dim", "block_size",
            "dspark_block_size", "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules",
            "hidden_size", *ALIASES["hidden_size"], "num_hidden_layers", *ALIASES["num_hidden_layers"],
            "num_experts", *ALIASES["num_experts"],
        ),
        int,
        "a whole number",
    ),
    Kind(
        (
            "max_position_embeddings", *ALIASES["max_position_embeddings"],
            "original_max_position_embeddings", "model_max_length", "medusa_num_heads", "n_predict",
        ),
        int,
        "a whole number above 0",
        least=1,
    ),
    Kind(("factor",), (int, float), "a finite number, 1 or more", least=1),
    Kind(
        ("num_attention_heads", *ALIASES["num_attention_heads"], "num_key_value_heads"),
        (int, list),
        "a whole number, or a list with one for each layer",
    ),
    Kind(("architectures", "eagle_aux_hidden_state_layer_ids"), list, "a list"),
    Kind(("rope_parameters", "rope_scaling", "mtp_config"), dict, "an object"),
    Kind(("model_type", "speculators_model_type", "head_dtype"), str, "a text"),
)  # fmt: skip


def _malformed(values: Mapping[str, Any]) -> str | None:
    """What is wrong with the first value that nothing could be made of."""
    for kind in KINDS:
        for key in kind.keys:
            value = values.get(key)
            fits = isinstance(value, kind.type) and not isinstance(value, bool)
            if fits and isinstance(value, int | float):
                fits = kind.least <= value < 2**63
            if value is not None and not fits:
                return f"{key!r} as {shortened(value)}; it must be {kind.words}"
    names = values.get("architectures") or []
    if not all(isinstance(name, str) for name in names):
        return f"'architectures' as {shortened(names)}; it must be a list of names"
    return None


def _parts(facts: ModelFacts) -> Iterator[Mapping[str, Any]]:
    """Every object of a config whose values are read. One must be sound before the next can be looked for."""
    yield facts.values
    yield facts.text_values
    yield facts.values.get("mtp_config") or {}
    for _, rope in facts.ropes:
        yield rope


def read_model_facts(path: str) -> ModelFacts:
    """The facts of a directory with a config.json; of anything else, only its name.

    Raises:
        ValueError: a config.json that is not a JSON object, or with a value that nothing could be made of.
    """
    file = Path(os.path.expanduser(path)) / "config.json"
    try:
        content = file.read_bytes()
    except OSError:
        return ModelFacts(path)
    except ValueError as error:  # a NUL, or half of a character
        raise ValueError(f"{shortened(path)} cannot be a path ({error}): correct the path") from None
    try:
        values = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{shortened(str(file))} cannot be read as JSON ({error}): it may be incomplete; download the model "
            "again"
        ) from None
    if not isinstance(values, dict) or not values:
        raise ValueError(
            f"{shortened(str(file))} holds {shortened(values)}, not a model's config: pass a model's directory"
        )
    facts = ModelFacts(path, values)
    for part in _parts(facts):
        if problem := _malformed(part):
            raise ValueError(f"{shortened(str(file))} has {problem}: download the model again")
    return facts
