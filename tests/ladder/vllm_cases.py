"""Speculative configurations that vLLM and this project must read alike, valid and invalid.

Here: examples of vLLM's documentation and recipes, and configurations of vLLM's own tests; ``vllm_bounds`` has
every check on both sides of its bound. Names of models are those of ``vllm_checkpoints``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Engine:
    """How the target is run, by the names of ``TargetConfig``."""

    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    max_model_len: int | None = None
    enable_prefix_caching: bool = True
    has_kv_connector: bool = False
    enable_expert_parallel: bool = False
    watermarking: bool = False
    runner: str | None = None
    """None: the model runner that vLLM chooses on a machine with a GPU."""


@dataclass(frozen=True)
class Case:
    name: str
    target: str
    config: dict[str, Any] | None
    arguments: dict[str, Any] = field(default_factory=dict)
    """vLLM's separate ``spec_method``, ``spec_model`` and ``spec_tokens``."""
    engine: Engine = Engine()
    arctic_inference: bool = True
    """Whether vLLM finds the package that its suffix decoding is in: no part of the configuration."""

    def located(self, paths: dict[str, Path]) -> dict[str, Any]:
        """The case as plain data, with paths for the names of checkpoints."""
        data = asdict(self)
        data["target"] = str(paths[self.target])
        for holder, key in ((data["config"], "model"), (data["arguments"], "spec_model")):
            if holder and holder.get(key) in paths:
                holder[key] = str(paths[holder[key]])
        return data


LLAMA, QWEN3, DEEPSEEK = "Llama-tiny", "Qwen3-tiny", "DeepSeek-V3-tiny"
DRAFT, EAGLE, EAGLE3 = "Llama-draft", "EAGLE-LLaMA-tiny", "EAGLE3-LLaMA-tiny"
DFLASH, DSPARK = "Qwen3-tiny-DFlash-b16", "dspark_qwen3_tiny_block7"
V1, V2 = Engine(runner="v1"), Engine(runner="v2")


def case(name: str, target: str = LLAMA, /, engine: Engine = Engine(), **config: Any) -> Case:
    """``K`` stands for ``num_speculative_tokens``."""
    if "K" in config:
        config["num_speculative_tokens"] = config.pop("K")
    return Case(name, target, config, engine=engine)


def flags(name: str, config: dict[str, Any] | None = None, **arguments: Any) -> Case:
    return Case(name, LLAMA, config, arguments={f"spec_{key}": value for key, value in arguments.items()})


SUFFIX = {
    "suffix_decoding_max_tree_depth": 24,
    "suffix_decoding_max_cached_requests": 10000,
    "suffix_decoding_max_spec_factor": 1.0,
    "suffix_decoding_min_token_prob": 0.1,
}
EAGLE_SCHEDULE = [[1, 64, 3], [65, 128, 1], [129, 512, 0]]
EAGLE3_SCHEDULE = [[1, 16, 5], [17, 32, 4], [33, 64, 3], [65, 128, 1], [129, 512, 0]]
DSPARK_SCHEDULE = [[1, 32, 7], [33, 128, 5], [129, 512, 3]]
MANY = Engine(max_num_seqs=256)

# fmt: off
DOCUMENTED = [
    case("docs/schema: draft model", method="draft_model", model=DRAFT, K=5),
    case("docs/schema: n-gram", method="ngram", K=4, prompt_lookup_min=2, prompt_lookup_max=5),
    case("docs/schema: suffix", method="suffix", K=8, **SUFFIX),
    case("docs/n-gram", QWEN3, method="ngram", K=5, prompt_lookup_max=4),
    case("docs/suffix", QWEN3, method="suffix", K=32),
    Case("docs/suffix without its package", QWEN3, {"method": "suffix", "num_speculative_tokens": 32},
         arctic_inference=False),
    case("docs/suffix, adaptive", QWEN3, method="suffix", K=8, enable_adaptive_verification=True),
    case("docs/eagle", method="eagle", model=EAGLE, K=2, draft_tensor_parallel_size=1,
          engine=Engine(tensor_parallel_size=4)),
    case("docs/eagle3", method="eagle3", model="Llama-tiny-speculator.eagle3", K=2,
          draft_tensor_parallel_size=2, engine=Engine(tensor_parallel_size=2)),
    case("docs/mtp", "MiMo-7B-tiny", method="mtp", K=1),
    case("docs/mtp: Gemma 4 assistant", "Gemma3-tiny", method="mtp", model="gemma-4-tiny-it-assistant", K=1),
    case("docs/draft model", QWEN3, method="draft_model", model=DRAFT, K=5),
    case("docs/draft model, another vocabulary", QWEN3, method="draft_model", model="Llama-draft-320", K=3,
          use_heterogeneous_vocab=True),
    case("docs/fly", QWEN3, method="draft_model", model=DRAFT, K=8, rejection_sample_method="fly",
          fly_window_size=6, fly_entropy_threshold=0.3, fly_entropy_top_k=3),
    case("docs/PARD", QWEN3, method="draft_model", model="PARD-tiny", K=12, parallel_drafting=True),
    case("docs/P-EAGLE", method="eagle3", model="P-EAGLE-tiny", K=5, parallel_drafting=True),
    case("docs/dynamic: eagle", method="eagle", model=EAGLE, K=3, engine=MANY,
          num_speculative_tokens_per_batch_size=EAGLE_SCHEDULE),
    case("docs/dynamic: eagle3", method="eagle3", model=EAGLE3, K=5, engine=MANY,
          num_speculative_tokens_per_batch_size=EAGLE3_SCHEDULE),
    case("docs/dynamic: dspark", QWEN3, method="dspark", model=DSPARK, K=11, engine=MANY,
          num_speculative_tokens_per_batch_size=DSPARK_SCHEDULE, draft_sample_method="probabilistic"),
    case("docs/dynamic: dspark, a field of a later version", QWEN3, method="dspark", model=DSPARK, K=11,
          adaptive_verification=True),
    case("docs/extract hidden states", QWEN3, method="extract_hidden_states", K=1,
          draft_model_config={"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}}),
    case("docs/extract hidden states, all layers", QWEN3, method="extract_hidden_states", K=1),
    case("docs/dflash", QWEN3, method="dflash", model=DFLASH, K=16),
    case("docs/adaptive: dspark", QWEN3, method="dspark", model=DSPARK, K=7,
          draft_sample_method="probabilistic", enable_adaptive_verification=True),
    case("docs/adaptive: dflash", QWEN3, method="dflash", model=DFLASH, K=8, enable_adaptive_verification=True),
    case("docs/mlp speculator", method="mlp_speculator", model="llama-tiny-accelerator",
          draft_tensor_parallel_size=1),
    case("docs/medusa", method="medusa", model="medusa-tiny", K=3),
    case("docs/an option of the past: tree", method="eagle", model=EAGLE, K=3, speculative_token_tree="[(0,)]"),
    case("docs/an option of the past: rate", method="ngram", K=3, rejection_sample_method="synthetic",
          synthetic_acceptance_rate=0.7),
    case("docs/a rule of the past: strict", method="ngram", K=3, rejection_sample_method="strict"),
    case("recipes/DeepSeek-V3", DEEPSEEK, method="deepseek_mtp", K=1),
    case("recipes/Qwen3-Next", "Qwen3-Next-tiny", method="qwen3_next_mtp", K=2),
    case("recipes/GLM-4.5", "GLM-4.5-tiny", method="mtp", K=1),
    case("recipes/GLM-4.5, older name", "GLM-4.5-tiny", method="glm4_moe_mtp", K=1),
    case("recipes/GLM-4.7-Flash", "GLM-4.7-Flash-tiny", method="mtp", K=1),
    case("recipes/GLM-5", "GLM-5-tiny", method="mtp", K=3),
    case("recipes/ERNIE-4.5", "ERNIE-4.5-tiny", method="ernie_mtp", K=1),
    case("recipes/MiMo-V2-Flash", "MiMo-V2-tiny", method="mtp", K=1),
    case("recipes/MiMo-V2-Flash, more drafts", "MiMo-V2-tiny", method="mimo_v2_mtp", K=3),
    case("recipes/LongCat-Flash", "LongCat-Flash-tiny", method="mtp", K=1),
    case("recipes/Nemotron-H", "Nemotron-H-tiny", method="nemotron_h_mtp", K=2),
    case("recipes/Step-3.5", "Step-3.5-tiny", method="step3p5_mtp", K=3),
    case("recipes/Step-3.5, one draft", "Step-3.5-tiny", method="mtp", K=1),
    case("recipes/EXAONE-MoE", "EXAONE-MoE-tiny", method="mtp", K=2),
    case("recipes/Hunyuan", "Hunyuan-V3-tiny", method="mtp", K=1),
]
# fmt: on

ORACLE = "project.proposers.OracleProposer"
NGRAM4: dict[str, Any] = {"method": "ngram", "K": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 3}

# fmt: off
TESTED = [
    case("tests/ngram", method="ngram", K=3, prompt_lookup_min=3, prompt_lookup_max=5),
    case("tests/ngram_gpu", QWEN3, method="ngram_gpu", K=2, prompt_lookup_min=2, prompt_lookup_max=3),
    case("tests/suffix without K", method="suffix", suffix_decoding_max_spec_factor=2.0),
    case("tests/suffix, small memory", method="suffix", suffix_decoding_max_spec_factor=2.0,
          suffix_decoding_max_cached_requests=1000),
    case("tests/ngram, drafting in parallel", **NGRAM4, parallel_drafting=True),
    case("tests/ngram, draft TP", **NGRAM4, draft_tensor_parallel_size=2),
    case("tests/ngram, MoE backend", **NGRAM4, moe_backend="triton"),
    case("tests/ngram, KV dtype", **NGRAM4, kv_cache_dtype="fp8"),
    case("tests/ngram, probabilistic drafts", **NGRAM4, draft_sample_method="probabilistic"),
    case("tests/ngram, attention backend", **NGRAM4, attention_backend="FLASH_ATTN"),
    case("tests/eagle, own length", "Llama-tiny-long", method="eagle", model="EAGLE-LLaMA-tiny-long", K=3,
          max_model_len=512),
    case("tests/custom class by path", method="custom_class", model=ORACLE, K=3),
    case("tests/custom class inferred", model=ORACLE, K=3),
    case("tests/MTP of the draft's config", DEEPSEEK, model="DeepSeek-V3-tiny-NextN", K=2),
    case("tests/MTP without K, with a model", DEEPSEEK, method="mtp", model="DeepSeek-V3-tiny-NextN"),
    case("tests/MTP without K", "DeepSeek-V3-tiny-3mtp", method="mtp"),
    case("tests/a path does not decide against draft_model", method="draft_model", model="my-eagle-draft", K=3),
    case("tests/draft_model for an MTP checkpoint", DEEPSEEK, method="draft_model",
          model="DeepSeek-V3-tiny-NextN", K=1),
    case("tests/eagle for an MTP checkpoint", DEEPSEEK, method="eagle", model="DeepSeek-V3-tiny-NextN", K=1),
    case("tests/eagle for DeepSeek", DEEPSEEK, method="eagle", model="eagle-deepseek-v3-tiny", K=1),
    case("tests/eagle for DeepSeek, by path", DEEPSEEK, model="eagle-deepseek-v3-tiny", K=1),
    case("tests/mtp for an EAGLE path", method="mtp", model=EAGLE, K=2),
    case("tests/vocabularies differ", method="draft_model", model="Llama-draft-320", K=3),
    case("tests/vocabularies differ, head of 256", method="eagle3", model=EAGLE3, K=3),
    case("tests/dense draft of a MoE target", "Mixtral-tiny", method="draft_model", model=DRAFT, K=3,
          engine=Engine(tensor_parallel_size=2, enable_expert_parallel=True)),
    case("tests/MoE draft", "Mixtral-tiny", method="draft_model", model="Llama-draft-moe", K=3,
          engine=Engine(tensor_parallel_size=2, enable_expert_parallel=True)),
    case("tests/MoE draft without expert parallelism", "Mixtral-tiny", method="draft_model",
          model="Llama-draft-moe", K=3, engine=Engine(tensor_parallel_size=2)),
    case("tests/eagle keeps target positions", "Llama-tiny-long", method="eagle", model=EAGLE3, K=3),
    case("tests/eagle3 keeps target positions", "Llama-tiny-long", method="eagle3", model=EAGLE3, K=3),
    case("tests/dflash keeps target positions", QWEN3, method="dflash", model=DFLASH, K=3),
    case("tests/draft_model keeps its own", "Llama-tiny-long", method="draft_model", model=DRAFT, K=3, engine=V1),
    case("tests/speculators: P-EAGLE", method="eagle3", model="Llama-tiny-speculator.peagle", K=4,
          parallel_drafting=True),
    case("tests/speculators: dflash", QWEN3, method="dflash", model="Llama-tiny-speculator.dflash", K=5),
    case("tests/speculators: dspark", QWEN3, method="dspark", model="Llama-tiny-speculator.dspark", K=5),
    case("tests/dspark, standard rule", QWEN3, method="dspark", model=DSPARK, K=5, draft_sample_method="greedy",
          rejection_sample_method="standard"),
    case("tests/dspark above its block", QWEN3, method="dspark", model=DSPARK, K=9),
    case("tests/disabled padding", method="eagle", model=EAGLE, K=3, disable_padded_drafter_batch=True),
    case("tests/one prompt_lookup bound too large", method="ngram", K=3, prompt_lookup_min=6,
          prompt_lookup_max=5),
]
# fmt: on
