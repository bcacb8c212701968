"""What vLLM itself makes of speculative configurations. Run by the Python of .venv-vllm, never imported.

Reads a JSON list of cases on its standard input and writes a JSON object on the file named by its argument:
by name, what became of each. Needs no GPU and no weights: vLLM's own classes are built from config.json files.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

# before vllm is imported: the platform decides which classes exist
os.environ.update(VLLM_TARGET_DEVICE="cpu", HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="CRITICAL")

import vllm.config.vllm as engine
from vllm.config import (
    CacheConfig,
    KVTransferConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
    WatermarkConfig,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models import registry
from vllm.transformers_utils.config import get_hf_text_config
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

#: methods without a draft model: what vLLM puts in its place is the target's
WITHOUT_DRAFT = ("ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states")
#: each may read those before it
PROPERTIES = (
    "num_lookahead_tokens",
    "num_prefill_lookahead_tokens",
    "num_hash_lookahead_tokens",
    "uniform_decode_query_len",
)
#: what the engine's configuration refuses because this machine has no GPU, not because of the speculation
NEEDS_GPU = ("requires full CUDA graphs",)
#: what a target is refused for, before the speculation is looked at
TOO_LONG = "is greater than the derived max_model_len"


def _vllm_config(facts: dict[str, Any], model, parallel, speculative) -> Any:
    """The engine's configuration; the same attributes on a plain object where only the missing GPU is in the way."""
    cache = CacheConfig(enable_prefix_caching=facts["enable_prefix_caching"])
    connector = KVTransferConfig(kv_connector="ExampleConnector", kv_role="kv_both")
    parts = {
        "model_config": model,
        "parallel_config": parallel,
        "speculative_config": speculative,
        "cache_config": cache,
        "kv_transfer_config": connector if facts["has_kv_connector"] else None,
    }
    if facts["watermarking"]:
        parts["watermark_config"] = WatermarkConfig(key=1, algorithm="dual_key_gumbel")
    scheduler = SchedulerConfig(
        max_num_seqs=facts["max_num_seqs"],
        max_num_batched_tokens=facts["max_num_batched_tokens"],
        max_model_len=model.max_model_len,
        is_encoder_decoder=False,
    )
    try:
        config = VllmConfig(**parts, scheduler_config=scheduler)
        # the CPU turns it off for latent attention, a GPU doesn't
        config.cache_config.enable_prefix_caching = facts["enable_prefix_caching"]
        return config
    except ValueError as error:
        if not any(reason in str(error) for reason in NEEDS_GPU):
            raise
    bare = SimpleNamespace(
        **parts, scheduler_config=scheduler, num_speculative_tokens=speculative.num_speculative_tokens
    )
    bare.use_v2_model_runner = True  # the other one refuses what needs a GPU here
    for name in PROPERTIES:
        setattr(bare, name, getattr(VllmConfig, name).fget(bare))
    return bare


def _values(facts: dict[str, Any], speculative, config) -> dict[str, Any]:
    values = {name: getattr(config, name) for name in PROPERTIES}
    values |= {
        "runner": "v2" if config.use_v2_model_runner else "v1",
        "method": speculative.method,
        "num_speculative_tokens": speculative.num_speculative_tokens,
        "max_num_new_slots_for_drafting": speculative.max_num_new_slots_for_drafting,
        "use_eagle_block_drop": speculative.use_eagle_block_drop(),
        "parallel_drafting": speculative.parallel_drafting,
    }
    if speculative.use_dflash() or speculative.use_dspark():
        scheduler = config.scheduler_config
        values["max_num_draft_seqs"] = scheduler.max_num_active_seqs or scheduler.max_num_seqs
    if speculative.use_ngram():
        values["prompt_lookup"] = [speculative.prompt_lookup_min, speculative.prompt_lookup_max]
    if speculative.method not in WITHOUT_DRAFT:
        draft = speculative.draft_model_config
        values["draft"] = {
            "max_model_len": draft.max_model_len,
            "max_position_embeddings": get_hf_text_config(draft.hf_config).max_position_embeddings,
            "tensor_parallel_size": speculative.draft_parallel_config.tensor_parallel_size,
            "enable_expert_parallel": speculative.draft_parallel_config.enable_expert_parallel,
        }
    if speculative.rejection_sample_method == "synthetic":
        values["synthetic_acceptance_rates"] = speculative.synthetic_acceptance_rates
    if speculative.rejection_sample_method == "fly":
        values["fly_window_size"] = speculative.fly_window_size
    # as the scheduler does: an empty list counts as none
    if ranges := speculative.num_speculative_tokens_per_batch_size:
        values["num_speculative_tokens_by_batch_size"] = build_dynamic_sd_schedule_lookup(
            ranges, facts["max_num_seqs"], speculative.num_speculative_tokens
        )
    return values


@contextmanager
def _machine(case: dict[str, Any]) -> Iterator[None]:
    """The choices that vLLM makes by what it finds on a machine."""
    runner = case["engine"]["runner"]
    choice = {} if runner is None else {"VLLM_USE_V2_MODEL_RUNNER": str(int(runner == "v2"))}
    arctic = mock.patch("vllm.config.speculative.has_arctic_inference", return_value=case["arctic_inference"])
    with mock.patch.dict(os.environ, choice), arctic:
        yield


def _judge(case: dict[str, Any]) -> dict[str, Any]:
    facts = case["engine"]
    args = EngineArgs(
        model=case["target"],
        max_model_len=facts["max_model_len"],
        speculative_config=case["config"],
        **case["arguments"],
    )
    try:
        model = args.create_model_config()
    except ValueError as error:
        if TOO_LONG not in str(error):  # a faulty case, not a refusal
            raise
        return {"accepted": False, "error": str(error)}
    parallel = ParallelConfig(
        tensor_parallel_size=facts["tensor_parallel_size"],
        data_parallel_size=facts["data_parallel_size"],
        enable_expert_parallel=facts["enable_expert_parallel"],
        distributed_executor_backend="mp",
    )
    longest = model.max_model_len  # the engine's configuration may lower it to the draft's
    with _machine(case):
        try:
            speculative = args.create_speculative_config(model, parallel)
            if speculative is None:
                return {"accepted": True, "method": None}
            config = _vllm_config(facts, model, parallel, speculative)
            return {"accepted": True, "max_model_len": longest, **_values(facts, speculative, config)}
        except Exception as error:
            return {"accepted": False, "error": f"{type(error).__name__}: {error}"}


def main() -> None:
    # a subprocess for each architecture that is looked at takes seconds, and a GPU machine has Triton
    with (
        mock.patch.object(registry, "_run_in_subprocess", lambda function: function()),
        mock.patch.object(engine, "HAS_TRITON", True),
    ):
        answers = {case["name"]: _judge(case) for case in json.load(sys.stdin)}
    with open(sys.argv[1], "w") as file:
        json.dump(answers, file)


main()
