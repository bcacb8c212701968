"""A stand-in for vLLM's configuration, where vLLM is not installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from config_fixtures import LLAMA

from ascend_spec.config import Plan
from ascend_spec.vllm.translate import plan_for


def fake_vllm_config(
    device: str = "npu", additional: dict[str, Any] | None = None, **speculative: Any
) -> Any:
    """The attributes of vLLM's VllmConfig that are read, and nothing else."""
    fields = {
        "method": "ngram",
        "model": "ngram",
        "num_speculative_tokens": 4,
        "rejection_sample_method": "standard",
    }
    return SimpleNamespace(
        additional_config={"ascend_spec": {}, **(additional or {})},
        speculative_config=SimpleNamespace(**{**fields, **speculative}),
        device_config=SimpleNamespace(device_type=device),
        model_config=SimpleNamespace(
            model="target", hf_config=SimpleNamespace(to_dict=lambda: dict(LLAMA)), max_model_len=64,
            enforce_eager=True, dtype="torch.float32", quantization=None, tokenizer="target",
            tokenizer_mode="auto", seed=0, trust_remote_code=False, max_logprobs=20, config_format="auto",
            hf_overrides=None,
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, enable_expert_parallel=False
        ),
        scheduler_config=SimpleNamespace(
            max_num_seqs=4, max_num_batched_tokens=512, async_scheduling=False
        ),
        cache_config=SimpleNamespace(block_size=16, enable_prefix_caching=False, cache_dtype="auto"),
        compilation_config=SimpleNamespace(cudagraph_mode=None),
        kv_transfer_config=None,
    )  # fmt: skip


def plan(
    device: str = "npu",
    additional: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    runner: str = "v1",
    **speculative: Any,
) -> Plan:
    """What the plugin plans, or its ConfigError."""
    return plan_for(fake_vllm_config(device, additional, **speculative), options or {}, runner)
