"""What the embedded engine cannot do, or not yet: of a configuration, and of the way a target is run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ascend_spec.config.checks import given, method_name, value
from ascend_spec.config.errors import Finding, quoted, shortened, wrong
from ascend_spec.config.speculator import SpeculatorConfig
from ascend_spec.config.target import TargetConfig

#: fields that vLLM's engine reads and the embedded one does not
VLLM_ONLY = (
    "revision", "code_revision", "draft_tensor_parallel_size", "draft_parallel_config", "draft_load_config",
    "draft_model_config",
    "disable_padded_drafter_batch", "quantization", "moe_backend", "attention_backend", "kv_cache_dtype",
    "draft_lm_head_quantization", "use_local_argmax_reduction", "enable_adaptive_verification",
    "disable_eagle_block_drop", "disable_lookahead_block_hashes", "index_share_for_mtp_iteration",
    "dspark_draft_topk", "xpress_topc",
)  # fmt: skip
#: all that facts of the target may be: the engine is one process, with the model's own dtype in weights and cache
TARGETS: dict[str, tuple[Any, ...]] = {
    "tensor_parallel_size": (1,),
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "prefill_context_parallel_size": (1,),
    "enable_expert_parallel": (False,),
    "quantization": (None,),
    "kv_cache_dtype": ("auto",),
    "enable_prefix_caching": (False,),
    "has_kv_connector": (False,),
    "watermarking": (False,),
    "graph_mode": ("none", "full"),
}


#: what a contract may ask for and the engine has no way to give
UNGIVEN = {
    "uses_target_hidden_states": "the target's hidden states",
}


def refused_by_engine(speculator: SpeculatorConfig) -> Iterator[Finding]:
    config, name = speculator.config, method_name(speculator)
    if speculator.speculator_class is None:
        yield Finding(
            "method",
            f"Method {name!r} is known, but its drafter is not built yet. Use one of {quoted(engine_methods())}.",
        )
    else:
        for flag, what in UNGIVEN.items():
            if getattr(speculator, flag):
                yield Finding(
                    "method",
                    f"Method {name!r} needs {what}, which the embedded engine does not give yet. Use one of "
                    f"{quoted(engine_methods())}.",
                )
    for option in VLLM_ONLY:
        if given(config, option):
            yield Finding(
                option,
                f"'{option}' was given as {shortened(value(config, option))}; it is for vLLM, and the embedded engine "
                "cannot honour it. Remove it.",
            )
    if config.use_heterogeneous_vocab and config.parallel_drafting:
        yield Finding(
            "parallel_drafting",
            "'parallel_drafting' was given as true together with 'use_heterogeneous_vocab'; the draft's mask token is "
            "none of the target's, and the embedded engine cannot feed it. Remove one of them.",
        )


def refused_target(target: TargetConfig) -> Iterator[Finding]:
    for name, allowed in TARGETS.items():
        asked = getattr(target, name)
        if asked not in allowed:
            words = " or ".join(map(repr, allowed))
            yield wrong(
                name, asked, f"{words} in the embedded engine", "Change it, or run the target in vLLM."
            )


def engine_methods() -> list[str]:
    """Built-in methods whose drafter exists."""
    from ascend_spec.config.methods import BUILT_IN

    return [name for name, contract in BUILT_IN.items() if contract.speculator_class is not None]
