"""Our attention on the target's layers in vLLM's V1 runner: the numbers of vLLM's own, and the same greedy text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import vllm_cpu_cases as cases
from attention_beside_stock import check_steps
from test_vllm_cpu_matrix import check_accepted, plain, tokens  # noqa: F401

OURS = {"additional_config": {"ascend_spec": {"mqa_attention": True}}}
LAYERS = {f"model.layers.{i}.self_attn.attn" for i in range(2)}
ROOMY = dict.fromkeys(cases.ENGINE_FACTORS, False) | {"logprobs_mode": "raw_logprobs"}
BUSY = {**ROOMY, "chunked_prefill": True, "prefix_cache": True, "scarce_blocks": True}
Answer = dict[str, Any]


def run(vllm, models, cell: cases.Cell, broken: str | None = None, **more: Any) -> Answer:
    """Two rounds of greedy requests, the second of which meets the first one's blocks."""
    speculation = cases.speculation_of(cell, models)
    engine = {"model": models["target"], **cases.engine_of(cell), **speculation, **OURS}
    return vllm(
        "vllm_cpu_attention:generate", engine=engine, batches=[cases.greedy()] * 2, broken=broken, **more
    )


@pytest.mark.parametrize("cell", [ROOMY, BUSY], ids=["roomy", "chunks, prefixes, preemption"])
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_greedy_text_and_numbers(vllm, models, plain, method, cell):  # noqa: F811
    answer = run(vllm, models, {**cell, "method": method})
    check_steps(answer["steps"], LAYERS, cases.methods(models)[method]["num_speculative_tokens"] + 1)
    assert tokens(answer, 0) == tokens(answer, 1) == plain
    check_accepted(answer, "some")
    metrics = answer["metrics"]
    assert (sum(each["num_preemptions"] for each in metrics) > 0) == cell["scarce_blocks"]
    assert (metrics[1]["prefix_cache_hits"] > 0) == cell["prefix_cache"]
    (attached,) = [line for line in answer["log"] if "is attached to" in line]
    assert attached.endswith("attention: ours, where drafts are judged")


def test_off_by_default(vllm, models, plain):  # noqa: F811
    engine = {"model": models["target"], **cases.speculation_of({**ROOMY, "method": "ngram"}, models)}
    answer = vllm("vllm_cpu_attention:generate", engine=engine, batches=[cases.greedy()])
    assert answer["steps"] == []
    (attached,) = [line for line in answer["log"] if "is attached to" in line]
    assert attached.endswith("attention: vLLM's own")


@pytest.mark.parametrize("broken", ["keys_read_by_token", "last_key_unseen", "never_ours", "drafter_too"])
def test_mutants_are_found(vllm, models, plain, broken):  # noqa: F811
    answer = run(vllm, models, {**ROOMY, "method": "draft_model"}, broken)
    assert any(step["ours"] for step in answer["steps"]) == (broken != "never_ours")
    with pytest.raises(AssertionError):
        check_steps(answer["steps"], LAYERS, 4)


def test_wrong_attention_shows_in_the_text(vllm, models, plain):  # noqa: F811
    answer = run(vllm, models, {**ROOMY, "method": "ngram"}, "keys_read_by_token")
    assert tokens(answer, 0) != plain


# ---- what is refused at start
def test_an_unknown_layout_ends_the_start(vllm, models):
    report = run(vllm, models, {**ROOMY, "method": "ngram"}, "unknown_layout", fails=True)
    assert report["type"] == "SeamError"
    assert "CPUAttentionBackendImpl has a KV cache of shape" in report["error"]


def with_window(model: str, folder: Path) -> str:
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 16}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_layers_are_refused_by_name(vllm, models, tmp_path):
    window = {"model": with_window(models["target"], tmp_path / "window")}
    quantised = {"model": models["target"], "kv_cache_dtype": "fp8"}
    speculation = {"speculative_config": cases.methods(models)["ngram"], **OURS}
    for engine, said in (
        (window, "there is a sliding window (in 2 layers, the first is model.layers.0.self_attn.attn)"),
        (quantised, "the KV cache is torch."),
    ):
        report = vllm("vllm_cpu_engine:generate", fails=True, engine={**engine, **speculation}, batches=[])
        assert report["type"] == "ConfigError"
        assert "'ascend_spec.mqa_attention' was given as True, but " + said in report["error"]


#: change of a layer (``vllm_cpu_attention.CHANGES``) -> what is said
SAID = {
    "nothing": [],
    "encoder": ["attention of type 'encoder'"],
    "alibi": ["ALiBi slopes"],
    "soft cap": ["scores are capped"],
    "window": ["sliding window"],
    "sinks": ["attention sinks"],
    "images": ["in both directions"],
    "value size": ["other sizes"],
    "quantised": ["KV cache is torch.uint8 and the model torch.float32"],
    "no sink known": ["SeamError: Attention has no has_sink"],
    "MLA": ["MLAAttention is no plain attention"],
}


def test_every_kind_of_layer_is_judged(vllm, models):
    answer = vllm("vllm_cpu_attention:judge_layers", engine={"model": models["target"]})
    assert answer.keys() == SAID.keys()
    for name, said in SAID.items():
        assert len(answer[name]) == len(said), (name, answer[name])
        assert all(part in reason for part, reason in zip(said, answer[name], strict=True)), answer[name]


def test_metadata_that_lacks_something_is_named(vllm):
    bare, undeclared = vllm("vllm_cpu_attention:judge_metadata")
    assert "without block_table, causal, max_query_len, num_actual_tokens, query_start_loc, which" in bare
    assert "makes metadata None" in undeclared


def test_replacing_again(vllm, models):
    answer = vllm(
        "vllm_cpu_attention:twice",
        engine={"model": models["target"], **OURS, "speculative_config": {**cases.methods(models)["ngram"]}},
    )
    assert answer == {"replaced": True, "nested": False, "zero": True}
