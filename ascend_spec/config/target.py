"""The other half of what decides: the target model and how it is run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ascend_spec.config.checkpoint import ModelFacts, read_model_facts
from ascend_spec.config.errors import quoted, shortened
from ascend_spec.config.options import MOST

Runner = Literal["embedded", "v1", "v2"]
GraphMode = Literal["none", "piecewise", "full"]
#: tables by batch size are held in full
MOST_SEQS = 2**20
#: the least and the most of every size
SIZES = {
    "max_model_len": (1, MOST), "max_num_seqs": (1, MOST_SEQS), "max_num_batched_tokens": (1, MOST),
    "block_size": (1, MOST), "num_kv_blocks": (0, MOST), "kv_cache_bytes": (0, 2**63 - 1),
    "kv_bytes_per_token": (0, 2**63 - 1), "max_query_len": (1, MOST), "tensor_parallel_size": (1, MOST),
    "pipeline_parallel_size": (1, MOST), "data_parallel_size": (1, MOST),
    "prefill_context_parallel_size": (1, MOST), "num_threads": (1, MOST),
}  # fmt: skip
#: sizes that may be None, which says that nothing limits them
OPEN = ("num_kv_blocks", "kv_cache_bytes", "kv_bytes_per_token", "max_query_len")


@dataclass(frozen=True)
class TargetConfig:
    """Facts of the target and of the engine that runs it. Sizes in tokens unless they say otherwise.

    Raises:
        ValueError: a size, runner or graph mode that is none.
    """

    model: ModelFacts
    max_model_len: int
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    block_size: int = 16
    num_kv_blocks: int | None = None
    """None: ``max_num_seqs`` full requests, or what ``kv_cache_bytes`` allows."""
    kv_cache_bytes: int | None = None
    """Memory for the K/V of target and draft together; None: as much as they need."""
    kv_bytes_per_token: int | None = None
    """Of the target's layers, measured; None: computed from its config."""
    max_query_len: int | None = None
    """Most query rows a request may have in the device's attention operator; None: no limit."""
    attention_takes_trees: bool = True
    """Whether the attention can show each row its own set of rows, as a tree of drafts needs."""
    runner: Runner = "embedded"
    """Whose model runner: this package's engine, or one of vLLM's two."""
    graph_mode: GraphMode = "none"
    """How decode steps are captured as device graphs."""
    enforce_eager: bool = False
    enable_prefix_caching: bool = False
    has_kv_connector: bool = False
    watermarking: bool = False
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    enable_expert_parallel: bool = False
    dtype: str = "float32"
    kv_cache_dtype: str = "auto"
    """Of the target, and of a draft for which nothing else is said; "auto": the model's dtype."""
    quantization: str | None = None
    tokenizer: str | None = None
    """None: the model's own."""
    tokenizer_mode: str = "auto"
    seed: int = 0
    trust_remote_code: bool = False
    max_logprobs: int = 20
    config_format: str = "auto"
    hf_overrides: Callable[[Any], Any] | dict | None = None
    model_weights: str | None = None
    """Where the weights come from, if not from the model's path: loaders rewrite that to a cache."""
    device: str = "cpu"
    """Where the embedded engine puts a draft model."""
    num_threads: int = 1
    """CPU threads that may be used by all ranks of this machine together."""

    def __post_init__(self) -> None:
        for name, allowed in (("runner", get_args(Runner)), ("graph_mode", get_args(GraphMode))):
            if getattr(self, name) not in allowed:
                given = shortened(getattr(self, name))
                raise ValueError(f"{name}={given} was given; choose one of {quoted(allowed)}")
        for name, (least, most) in SIZES.items():
            value = getattr(self, name)
            if value is None and name in OPEN:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise ValueError(
                    f"{name}={shortened(value)} was given; choose an integer from {least} to {most}"
                )

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str], **facts: Any) -> TargetConfig:
        """Read a model's directory.

        Args:
            path: with a config.json.
            **facts: fields of this class; ``max_model_len`` missing or None: what the model was trained for.

        Raises:
            ValueError: no readable config.json, or one without the longest length, or a length that is too long
                for the model.
        """
        model = read_model_facts(os.fspath(path))
        if not model.known:
            raise ValueError(
                f"{os.fspath(path)!r} was given as the target model; it must be a directory with a config.json. "
                "Names on a hub are not looked up: download the model and pass its path."
            )
        given = facts.pop("max_model_len", None)
        longest = model.max_model_len if given is None else given
        if longest is None:
            raise ValueError(
                f"the config.json of {os.fspath(path)!r} has no max_position_embeddings: give max_model_len"
            )
        if given is not None:
            check_max_model_len(given, model.derived_max_model_len or given)
        return cls(model, longest, **facts)


def check_max_model_len(given: int | None, supported: int) -> int:
    """The length that is meant: ``supported`` if none was given.

    Raises:
        ValueError: a length that the model does not support.
    """
    if given is not None and not 2 <= given <= supported:
        raise ValueError(f"max_model_len={given} was given; this model allows 2 to {supported}")
    return given or supported
