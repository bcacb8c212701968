"""What vLLM's configuration becomes, and what is refused on Ascend: with a stand-in for vLLM's configuration,
which is not installed beside these tests. (Real ones: tests/vllm_cpu, tests/vllm033.)"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from config_fixtures import LLAMA

from ascend_spec.config import ConfigError
from ascend_spec.vllm.attach import runner_kind
from ascend_spec.vllm.translate import plan_for
from ascend_spec.vllm.v1 import SeamError


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
        scheduler_config=SimpleNamespace(max_num_seqs=4, max_num_batched_tokens=512),
        cache_config=SimpleNamespace(block_size=16, enable_prefix_caching=False, cache_dtype="auto"),
        compilation_config=SimpleNamespace(cudagraph_mode=None),
        kv_transfer_config=None,
    )  # fmt: skip


def plan(device: str = "npu", additional: dict[str, Any] | None = None, **speculative: Any):
    return plan_for(fake_vllm_config(device, additional, **speculative), {}, "v1")


def test_a_plain_configuration_passes_on_both():
    for device in ("npu", "cpu"):
        assert plan(device).num_speculative_tokens == 4
    assert plan("npu").target.max_query_len == 16
    assert plan("cpu").target.max_query_len is None


@pytest.mark.parametrize(
    ("additional", "speculative", "field"),
    [
        ({"enable_reduce_sample": True}, {}, "enable_reduce_sample"),
        ({"rejection_sampler_config": {"method": "block"}}, {}, "rejection_sampler_config"),
        ({"finegrained_tp_config": {"lmhead_tensor_parallel_size": 2}}, {}, "finegrained_tp_config"),
        ({}, {"num_speculative_tokens": 16}, "num_speculative_tokens"),
        (
            {},
            {"method": "eagle3", "model": "org/head", "draft_sample_method": "probabilistic"},
            "draft_sample_method",
        ),
    ],
)
def test_what_ascend_would_run_otherwise_is_refused(additional, speculative, field):
    with pytest.raises(ConfigError) as caught:
        plan("npu", additional, **speculative)
    assert field in {finding.field for finding in caught.value.findings}
    assert plan("cpu", additional, **speculative).num_speculative_tokens >= 4


def test_a_runner_of_310p_is_refused_by_name():
    runner = type("NPUModelRunner310", (), {"_sample": None, "input_batch": None})()
    with pytest.raises(SeamError, match="310P, which has no Triton"):
        runner_kind(runner)
