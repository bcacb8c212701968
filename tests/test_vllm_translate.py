"""What vLLM's configuration becomes, and what is refused on Ascend: with a stand-in for vLLM's configuration,
which is not installed beside these tests. (Real ones: tests/vllm_cpu, tests/vllm033.)"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from vllm_fake_config import fake_vllm_config, plan

from ascend_spec.config import RULES, ConfigError, Plan, SpeculativeConfig
from ascend_spec.vllm import attach, translate
from ascend_spec.vllm.attach import runner_kind
from ascend_spec.vllm.seams import SeamError
from ascend_spec.vllm.translate import plan_for
from ascend_spec.vllm.v1 import V1Adapter


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


def test_an_int8_kv_cache_is_refused_on_ascend():
    """vllm-ascend's attention for it takes one query row a request; the attribute is of its quantisation config."""
    for device, c8, is_refused in (("npu", True, True), ("npu", False, False), ("cpu", True, False)):
        config = fake_vllm_config(device)
        config.quant_config = SimpleNamespace(enable_c8_quant=c8)
        if not is_refused:
            assert plan_for(config, {}, "v1").num_speculative_tokens == 4
            continue
        with pytest.raises(ConfigError, match=r"KV cache is int8 \(C8\)") as caught:
            plan_for(config, {}, "v1")
        assert [finding.field for finding in caught.value.findings] == ["quantization"]


def test_a_runner_of_310p_is_refused_by_name():
    runner = type("NPUModelRunner310", (), {"_sample": None, "input_batch": None})()
    with pytest.raises(SeamError, match="310P, which has no Triton"):
        runner_kind(runner)


def test_a_runner_that_is_neither_is_named():
    with pytest.raises(SeamError, match=r"GPUModelRunner is none .* neither _sample and input_batch \(V1\)"):
        runner_kind(type("GPUModelRunner", (), {"_sample": None})())


@pytest.mark.parametrize(
    ("runner", "speculative", "field"),
    [
        ("v2", {"method": "suffix", "model": "suffix"}, "method"),
        ("v2", {"method": "custom_class", "model": "package.Drafter"}, "method"),
        ("v2", {"method": "eagle", "model": "org/head", "parallel_drafting": True}, "parallel_drafting"),
        (
            "v2",
            {"method": "draft_model", "model": "org/draft", "use_heterogeneous_vocab": True},
            "use_heterogeneous_vocab",
        ),
        ("v1", {"method": "dspark", "model": "org/head"}, "method"),
        (
            "v1",
            {"method": "draft_model", "model": "org/draft", "enable_adaptive_verification": True},
            "enable_adaptive_verification",
        ),
    ],
)
def test_what_only_the_other_runner_has_is_refused(runner, speculative, field):
    with pytest.raises(ConfigError) as caught:
        plan("cpu", runner=runner, **speculative)
    other = {"v1": "V2", "v2": "V1"}[runner]
    said = [each.message for each in caught.value.findings if each.field == field]
    assert any(f"its {other} runner does" in message for message in said), caught.value
    for each in ("v1", "v2"):
        if each != runner:
            refused = ""
            try:
                plan("cpu", runner=each, **speculative)
            except ConfigError as error:
                refused = str(error)
            assert "model runner does not have" not in refused


def test_ngram_gpu_stays_vllms_on_v1():
    """V1 keeps that drafter's history in tensors of the runner; ours is used with the method ngram."""
    chosen = plan("cpu", method="ngram_gpu", model="ngram_gpu")
    runner = SimpleNamespace(drafter=SimpleNamespace(propose=None), device=torch.device("cpu"))
    adapter = V1Adapter(runner, chosen)
    assert adapter.drafter.startswith("vLLM's own")
    assert "ours drafts with method ngram" in adapter.drafter
    assert runner.drafter.propose is None


def check_lookup_of_the_carrier():
    """vLLM writes both lengths where neither was given; with "suffix" they mean nothing."""
    for bounds, told in (((5, 5), 0), ((2, 5), 2), ((None, None), 0)):
        low, high = bounds
        chosen = plan(
            "cpu", options={"method": "suffix"}, prompt_lookup_min=low, prompt_lookup_max=high,
            suffix_decoding_max_tree_depth=9,
        )  # fmt: skip
        assert (chosen.name, chosen.num_speculative_tokens) == ("suffix", 4)
        assert chosen.config.suffix_decoding_max_tree_depth == 9
        assert sum("has no effect" in warning.message for warning in chosen.warnings) == told


def test_suffix_is_carried_by_ngram(monkeypatch):
    check_lookup_of_the_carrier()
    assert plan("cpu", prompt_lookup_min=5, prompt_lookup_max=5).config.prompt_lookup_max == 5
    monkeypatch.setattr(translate, "CARRIERS", {})
    with pytest.raises(AssertionError):
        check_lookup_of_the_carrier()


#: rule -> what vLLM's own fields say beside its name
EVERY_RULE = {
    "standard": {}, "block": {}, "typical": {}, "fly": {}, "coupled": {},
    "synthetic": {"synthetic_acceptance_rates": [0.5] * 4},
}  # fmt: skip


@pytest.mark.parametrize("rule", EVERY_RULE)
@pytest.mark.parametrize(("device", "runner"), [("cpu", "v1"), ("cpu", "v2"), ("npu", "v1"), ("npu", "v2")])
def test_every_rule_is_taken(device, runner, rule):
    """In vLLM's field, if it has a word for the rule, and in ours."""
    more = EVERY_RULE[rule]
    ours = {"options": {"rejection_sample_method": rule}, **more}
    theirs = {"rejection_sample_method": rule, **more}
    for given in (ours, theirs) if RULES[rule].in_vllm else (ours,):
        assert plan(device, runner=runner, **given).rule.name == rule


def test_options_of_rules_reach_the_plan():
    options = {"rejection_sample_method": "typical", "posterior_threshold": 0.2, "posterior_alpha": 0.5}
    assert plan("cpu", options=options).rule_options == (0.2, 0.5)
    rates = {"synthetic_acceptance_rates": [0.8, 0.4, 0.2, 0.0]}
    synthetic = plan("cpu", rejection_sample_method="synthetic", **rates).rule_options
    assert synthetic == pytest.approx((0.8, 0.5, 0.5, 0.0))


def test_drafts_with_noise_of_their_own_are_refused_under_coupled():
    """vLLM's V2 speculators draw by themselves; on V1 the draw is ours."""
    given = {"method": "draft_model", "model": "org/draft", "draft_sample_method": "probabilistic"}
    coupled = {"rejection_sample_method": "coupled"}
    with pytest.raises(ConfigError, match='with the rule "coupled"') as caught:
        plan("cpu", options=coupled, runner="v2", **given)
    assert [finding.field for finding in caught.value.findings] == ["draft_sample_method"]
    assert plan("cpu", options=coupled, runner="v1", **given).rule.name == "coupled"
    assert plan("cpu", options={}, runner="v2", **given).rule.name == "standard"
    assert plan("cpu", options=coupled, runner="v2").rule.name == "coupled"


#: names that another package has registered with vLLM
FOREIGN = {
    "quantization": "int3-of-somebody",
    "moe_backend": "somebodys",
    "attention_backend": SimpleNamespace(name="SOMEBODYS_ATTN"),
    "kv_cache_dtype": "fp3",
    "draft_load_config": SimpleNamespace(load_format="somebodys"),
}


def test_what_vllm_has_judged_is_not_judged_again(monkeypatch):
    assert set(FOREIGN) == set(translate.VLLM_JUDGES) <= set(SpeculativeConfig.model_fields)
    draft = {"method": "draft_model", "model": "org/draft"}
    for name, value in FOREIGN.items():
        assert plan("cpu", **draft, **{name: value}).num_speculative_tokens == 4
    monkeypatch.setattr(translate, "VLLM_JUDGES", ())
    for name, value in FOREIGN.items():
        if name != "kv_cache_dtype":  # of which our configuration layer has no list
            with pytest.raises(ConfigError, match=name):
                plan("cpu", **draft, **{name: value})


# ---- what the log says
def lines(additional: dict[str, object], chosen: Plan) -> list[str]:
    return [*attach._warnings(additional, chosen), attach._what_it_does(ADAPTER, chosen)]


ADAPTER = SimpleNamespace(drafter="none", sampler="ours")


def check_without_speculation():
    config = fake_vllm_config("cpu")
    config.speculative_config = None
    assert lines({"ascend_spec": {}}, plan_for(config, {}, "v1")) == [
        ", without a --speculative-config: nothing is drafted or judged; sampler: ours; attention: vLLM's own"
    ]


def test_without_speculation_the_log_says_so(monkeypatch):
    check_without_speculation()
    (told,) = lines({"ascend_spec": {}}, plan("cpu"))
    assert told.startswith(
        ": method ngram with K = 4, rule standard (lossless); drafter: none; sampler: ours"
    )
    monkeypatch.setattr(attach, "_what_it_does", lambda adapter, chosen: told)
    with pytest.raises(AssertionError):
        check_without_speculation()


def test_an_option_beside_the_key_is_named():
    (warning, _) = lines({"ascend_spec": {}, "mqa_attention": True, "other": 1}, plan("cpu"))
    assert warning.startswith("'mqa_attention' stands in --additional-config beside 'ascend_spec'")


# ---- our attention
ATTENTION = {"mqa_attention": True}


def test_our_attention_is_off_unless_asked_for():
    assert not plan("cpu").config.ascend_spec.mqa_attention
    assert plan("cpu", options=ATTENTION).config.ascend_spec.mqa_attention
    assert plan("cuda", options=ATTENTION).config.ascend_spec.mqa_attention


@pytest.mark.parametrize(
    ("device", "said"), [("npu", "take 15 drafts a request"), ("xpu", "for CPU and CUDA, not for 'xpu'")]
)
def test_our_attention_is_refused_by_device(device, said):
    with pytest.raises(ConfigError, match=said) as refused:
        plan(device, options=ATTENTION)
    assert "'ascend_spec.mqa_attention' was given as True" in str(refused.value)
    assert plan(device)  # without it


def test_our_attention_is_refused_where_keys_are_divided():
    config = fake_vllm_config("cuda")
    config.parallel_config.decode_context_parallel_size = 2
    with pytest.raises(ConfigError, match="decode_context_parallel_size=2"):
        plan_for(config, ATTENTION, "v1")
    assert plan_for(config, {}, "v1")
