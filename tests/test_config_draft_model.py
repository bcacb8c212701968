"""The draft model's configuration: what it takes from the target, what it keeps, and how long it may be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from config_fixtures import Checkpoints, Values, planned, warned
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ascend_spec.config import BUILT_IN, ConfigError, DraftModelConfig, TargetConfig, checkpoint
from ascend_spec.config.checkpoint import CACHE_ONLY_ROPE_TYPES

DRAFT = {"method": "draft_model", "num_speculative_tokens": 3}
EAGLE = {"method": "eagle", "num_speculative_tokens": 3}


@pytest.fixture
def shelf(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def draft_of(given: Values, target: TargetConfig) -> DraftModelConfig:
    draft = planned(given, target).draft_model
    assert draft is not None
    return draft


def refused(given: Values, target: TargetConfig) -> dict[str, str]:
    """Messages by field."""
    with pytest.raises(ConfigError) as caught:
        planned(given, target)
    return {finding.field: finding.message for finding in caught.value.findings}


# ---- inheritance, one by one
INHERITED: dict[str, Any] = {
    "tokenizer": "the-targets-tokenizer",
    "tokenizer_mode": "slow",
    "dtype": "bfloat16",
    "seed": 17,
    "trust_remote_code": True,
    "enforce_eager": True,
    "max_logprobs": 7,
    "config_format": "hf",
}
OWN: dict[str, Any] = {
    "revision": "r1",
    "code_revision": "c1",
    "quantization": "awq",
    "moe_backend": "triton",
    "attention_backend": "FLASHINFER",
    "kv_cache_dtype": "fp8",
}


@pytest.mark.parametrize("name", INHERITED)
def test_taken_from_the_target(name: str, shelf: Checkpoints) -> None:
    given = {**DRAFT, "model": shelf["draft"]}
    plain, changed = (draft_of(given, shelf.target(**facts)) for facts in ({}, {name: INHERITED[name]}))
    assert getattr(changed, name) == INHERITED[name]
    assert replace(changed, **{name: getattr(plain, name)}) == plain  # and nothing else


@pytest.mark.parametrize("name", OWN)
def test_its_own(name: str, shelf: Checkpoints) -> None:
    given = {**DRAFT, "model": shelf["draft"]}
    assert getattr(draft_of(given, shelf.target(quantization="gptq")), name) is None
    assert getattr(draft_of({**given, name: OWN[name]}, shelf.target()), name) == OWN[name]


def test_every_field_is_taken_or_its_own() -> None:
    """A new field of the draft model's configuration belongs into one of the lists of this file."""
    elsewhere = {
        "facts", "model", "hf_overrides", "max_model_len", "max_position_embeddings", "tensor_parallel_size",
        "enable_expert_parallel",
    }  # fmt: skip
    assert set(DraftModelConfig.__dataclass_fields__) == {*INHERITED, *OWN, *elsewhere}


def test_the_targets_path_is_the_tokenizer_by_default(shelf: Checkpoints) -> None:
    target = shelf.target()
    given = {**DRAFT, "model": shelf["draft"]}
    assert draft_of(given, target).tokenizer == target.model.path
    other = draft_of({**given, "use_heterogeneous_vocab": True}, replace(target, tokenizer="elsewhere"))
    assert other.tokenizer == shelf["draft"]


@pytest.mark.parametrize("of_target", [True, False])
@pytest.mark.parametrize("given", [None, True, False])
def test_eager_mode_that_the_user_sets_is_kept(
    given: bool | None, of_target: bool, shelf: Checkpoints
) -> None:
    own = {} if given is None else {"enforce_eager": given}
    draft = draft_of({**DRAFT, "model": shelf["draft"], **own}, shelf.target(enforce_eager=of_target))
    assert draft.enforce_eager is (of_target if given is None else given)


def test_functions_over_the_targets_config_pass_and_dictionaries_do_not(shelf: Checkpoints) -> None:
    def shrink(config: Any) -> Any:
        return config

    given = {**DRAFT, "model": shelf["draft"]}
    assert draft_of(given, shelf.target(hf_overrides=shrink)).hf_overrides is shrink
    assert draft_of(given, shelf.target(hf_overrides={"num_hidden_layers": 1})).hf_overrides is None
    assert draft_of(given, shelf.target()).hf_overrides is None


@pytest.mark.parametrize("method", ["mtp", "dspark"])
def test_the_targets_own_weights_keep_its_quantization(method: str, shelf: Checkpoints) -> None:
    target = shelf.target("deepseek", quantization="fp8")
    given = {"method": method, "num_speculative_tokens": 1}
    assert draft_of(given, target).quantization == "fp8"
    assert draft_of({**given, "quantization": "awq"}, target).quantization == "awq"


def test_mtp_reads_the_weights_where_they_came_from(shelf: Checkpoints) -> None:
    """Loaders rewrite a model's path to a cache and keep the original one beside it."""
    weights = shelf.like("deepseek", "original")
    target = shelf.target("deepseek")
    given = {"method": "mtp", "num_speculative_tokens": 1}
    assert draft_of(given, target).model == target.model.path
    assert draft_of(given, replace(target, model_weights=weights)).model == weights


@pytest.mark.parametrize("name", [name for name, contract in BUILT_IN.items() if contract.model == "none"])
def test_methods_without_a_draft_model(name: str, shelf: Checkpoints) -> None:
    model = {"model": "pkg.Drafter"} if name == "custom_class" else {}
    given = {"ascend_spec": {"method": name}, "num_speculative_tokens": 2, **model}
    assert planned(given, shelf.target()).draft_model is None


# ---- parallelism
@pytest.mark.parametrize("on_target", [True, False])
@pytest.mark.parametrize("checkpoint_name", ["draft", "mixtral"])
def test_experts_in_parallel_only_of_a_draft_that_has_some(
    checkpoint_name: str, on_target: bool, shelf: Checkpoints
) -> None:
    given = {**DRAFT, "model": shelf[checkpoint_name]}
    draft = draft_of(given, shelf.target("mixtral", enable_expert_parallel=on_target))
    assert draft.enable_expert_parallel is (on_target and checkpoint_name == "mixtral")


@pytest.mark.parametrize(
    ("given", "ranks", "becomes"),
    [(None, 1, 1), (None, 4, 4), (1, 4, 1), (4, 4, 4), (2, 4, None), (8, 4, None)],
)
def test_ranks_of_the_draft(given: int | None, ranks: int, becomes: int | None, shelf: Checkpoints) -> None:
    check_ranks(given, ranks, becomes, shelf)


def check_ranks(given: int | None, ranks: int, becomes: int | None, shelf: Checkpoints) -> None:
    wanted = {} if given is None else {"draft_tensor_parallel_size": given}
    config = {**EAGLE, "model": shelf["eagle"], **wanted}
    target = shelf.target(tensor_parallel_size=ranks)
    if becomes is not None:
        assert draft_of(config, target).tensor_parallel_size == becomes
        return
    message = refused(config, target)["draft_tensor_parallel_size"]
    assert f"given as {given}; it must be 1 or the target's tensor parallel size, {ranks}" in message


@pytest.mark.parametrize(
    ("heads", "ranks", "fits"), [(8, 4, True), (6, 4, False), (6, 3, True), (2, 4, False)]
)
def test_heads_are_divided_among_ranks(heads: int, ranks: int, fits: bool, shelf: Checkpoints) -> None:
    check_heads(heads, ranks, fits, shelf)


def check_heads(heads: int, ranks: int, fits: bool, shelf: Checkpoints) -> None:
    config = {**EAGLE, "model": shelf.like("eagle", f"eagle-{heads}", num_attention_heads=heads)}
    wide = shelf.like("llama", "24-heads", num_attention_heads=24)
    target = TargetConfig.from_directory(wide, tensor_parallel_size=ranks)
    if fits:
        assert draft_of(config, target).tensor_parallel_size == ranks
        return
    assert (
        f"{heads} attention heads cannot be divided" in refused(config, target)["draft_tensor_parallel_size"]
    )
    assert draft_of({**config, "draft_tensor_parallel_size": 1}, target).tensor_parallel_size == 1


def test_fewer_experts_than_ranks(shelf: Checkpoints) -> None:
    config = {**DRAFT, "model": shelf.like("mixtral", "two-experts", num_local_experts=2)}
    spread = shelf.target("mixtral", tensor_parallel_size=4, enable_expert_parallel=True)
    assert "2 experts, fewer than the 4 ranks" in refused(config, spread)["draft_tensor_parallel_size"]
    draft_of(config, replace(spread, enable_expert_parallel=False))
    draft_of(config, replace(spread, tensor_parallel_size=2))


# ---- the draft's vocabulary and head
def test_an_independent_model_needs_the_targets_vocabulary(shelf: Checkpoints) -> None:
    config = {**DRAFT, "model": shelf.like("draft", "of-100", vocab_size=100)}
    message = refused(config, shelf.target())["model"]
    assert "has 100 tokens; the target's has 128" in message
    draft_of({**config, "use_heterogeneous_vocab": True}, shelf.target())


def test_a_head_may_know_fewer_tokens(shelf: Checkpoints) -> None:
    draft_of({**EAGLE, "model": shelf.like("eagle", "of-100", vocab_size=100)}, shelf.target())


def test_hidden_sizes_of_an_independent_model_may_differ(shelf: Checkpoints) -> None:
    config = {**DRAFT, "model": shelf.like("draft", "narrow", hidden_size=32)}
    plan = planned(config, shelf.target())
    assert not plan.speculator.uses_target_hidden_states


@pytest.mark.parametrize(
    ("head", "model", "fits"),
    [(None, "bfloat16", True), ("bfloat16", "bfloat16", True), ("float32", "bfloat16", False)],
)
def test_a_quantised_head_has_the_models_dtype(
    head: str | None, model: str, fits: bool, shelf: Checkpoints
) -> None:
    checkpoint_path = shelf.like("eagle", "eagle-head", head_dtype=head)
    config = {**EAGLE, "model": checkpoint_path, "draft_lm_head_quantization": "fp8"}
    target = shelf.target(dtype=model)
    if fits:
        draft_of(config, target)
        return
    message = refused(config, target)["draft_lm_head_quantization"]
    assert "the head has float32 and the model bfloat16" in message


def test_candidates_of_dspark(shelf: Checkpoints) -> None:
    config = {"method": "dspark", "model": shelf["dspark"], "dspark_draft_topk": 128}
    draft_of(config, shelf.target())
    message = refused({**config, "dspark_draft_topk": 129}, shelf.target())["dspark_draft_topk"]
    assert "at most the draft's vocabulary size, 128" in message


@pytest.mark.parametrize(
    ("checkpoint_name", "changes", "fits"),
    [
        ("dspark", {}, True),
        ("dspark", {"architectures": ["Qwen3OmniDSparkModel"]}, True),
        ("dspark", {"architectures": ["Gemma4DSparkModel"]}, False),
        ("dspark-speculators", {}, True),  # which vLLM makes a Qwen3DSparkModel, whatever it calls itself
        ("dspark-speculators", {"architectures": ["DSparkDraftModel"]}, True),
    ],
)
def test_heads_whose_candidates_can_be_narrowed(
    checkpoint_name: str, changes: Values, fits: bool, shelf: Checkpoints
) -> None:
    path = shelf.like(checkpoint_name, "narrowed", **changes)
    config = {"model": path, "dspark_draft_topk": 4}
    if fits:
        draft_of(config, shelf.target())
        return
    message = refused(config, shelf.target())["dspark_draft_topk"]
    assert "left out unless the draft is one of Qwen3DSparkModel, Qwen3OmniDSparkModel" in message


@pytest.mark.parametrize(
    ("checkpoint_name", "written", "beyond"),
    [
        ("dspark", None, 0),
        ("dspark", True, 0),
        ("dspark", False, 1),
        ("dspark-speculators", None, 1),
        ("dspark-speculators", True, 0),
        ("dspark-speculators", False, 1),
    ],
)
def test_sampling_from_the_anchor(
    checkpoint_name: str, written: bool | None, beyond: int, shelf: Checkpoints
) -> None:
    """What a head says counts; one that says nothing does, unless it is in the speculators format."""
    path = shelf.like(checkpoint_name, "anchored", sample_from_anchor=written)
    plan = planned({"model": path, "num_speculative_tokens": 3}, shelf.target())
    assert plan.num_lookahead_tokens == 3 + beyond


def test_candidates_of_dspark_need_one_rank(shelf: Checkpoints) -> None:
    config = {"method": "dspark", "model": shelf["dspark"], "dspark_draft_topk": 4}
    target = shelf.target(tensor_parallel_size=2)
    message = refused({**config, "draft_tensor_parallel_size": 2}, target)["dspark_draft_topk"]
    assert "it needs 1" in message
    draft_of({**config, "draft_tensor_parallel_size": 1}, target)


# ---- how long
@pytest.mark.parametrize(
    ("given", "own", "of_target", "becomes"),
    [(None, 64, 32, 32), (None, 16, 32, 16), (16, 16, 32, 16), (8, 64, 32, 8), (17, 16, 32, None), (33, 64, 32, None)],
)  # fmt: skip
def test_longest_sequence_of_an_independent_model(
    given: int | None, own: int, of_target: int, becomes: int | None, shelf: Checkpoints
) -> None:
    config = {**DRAFT, "model": shelf.like("draft", f"up-to-{own}", max_position_embeddings=own)}
    config |= {} if given is None else {"max_model_len": given}
    target = shelf.target(max_model_len=of_target)
    if becomes is None:
        assert (
            f"given as {given}; it must be at most {min(own, of_target)}"
            in refused(config, target)["max_model_len"]
        )
        return
    plan = planned(config, target)
    assert plan.draft_model is not None
    assert (plan.draft_model.max_model_len, plan.draft_model.max_position_embeddings) == (becomes, own)
    assert plan.speculator.max_model_len == becomes
    assert ("max_model_len" in warned(plan)) is (becomes < of_target)


@pytest.mark.parametrize("given", [None, 16])
@pytest.mark.parametrize("rope", ["default", "llama3", "yarn", "dynamic"])
def test_longest_sequence_of_a_head(rope: str, given: int | None, shelf: Checkpoints) -> None:
    """A head whose cache cannot grow ends where it was trained for; the draft model's own length never grows."""
    path = shelf.like("eagle", "short", max_position_embeddings=32, rope_parameters={"rope_type": rope})
    config = {**EAGLE, "model": path, **({} if given is None else {"max_model_len": given})}
    plan = planned(config, shelf.target())
    reach = 64 if rope in ("default", "llama3") else 32
    assert plan.draft_model is not None
    assert plan.draft_model.max_position_embeddings == reach
    assert plan.draft_model.max_model_len == (given or 32)
    assert plan.speculator.max_model_len == (given or reach)
    assert ("max_model_len" in warned(plan)) is ((given or reach) < 64)


def test_a_draft_that_says_nothing_reaches_as_far_as_the_target(shelf: Checkpoints) -> None:
    draft = draft_of({**DRAFT, "model": "org/some-draft"}, shelf.target())
    assert (draft.max_model_len, draft.max_position_embeddings) == (64, None)


@pytest.mark.parametrize("method", ["draft_model", "PARD"])
@pytest.mark.parametrize("rope", sorted(CACHE_ONLY_ROPE_TYPES))
def test_an_independent_model_is_never_raised(rope: str, method: str, shelf: Checkpoints) -> None:
    path = shelf.like("draft", "short", max_position_embeddings=32, rope_parameters={"rope_type": rope})
    draft = draft_of({**DRAFT, "model": path, "parallel_drafting": method == "PARD"}, shelf.target())
    assert (draft.max_position_embeddings, draft.max_model_len) == (32, 32)


@pytest.mark.parametrize(
    ("written", "raised"),
    [
        ({}, True),
        ({"rope_scaling": None}, True),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, True),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, False),
        ({"rope_scaling": {"rope_type": "longrope"}}, False),
        ({"rope_parameters": {"rope_theta": 1e4}}, True),
        ({"rope_parameters": {"full": {"rope_type": "default"}, "sliding": {"rope_type": "ntk"}}}, True),
        ({"rope_parameters": {"full": {"rope_type": "yarn"}, "sliding": {"rope_type": "default"}}}, False),
        ({"rope_parameters": {"rope_type": "not_invented_yet"}}, False),
    ],
)
def test_every_layers_rope_must_only_size_a_cache(written: Values, raised: bool, shelf: Checkpoints) -> None:
    path = shelf.like("eagle", "short", max_position_embeddings=32, **written)
    draft = draft_of({**EAGLE, "model": path}, shelf.target())
    assert draft.max_position_embeddings == (64 if raised else 32)


def test_a_longer_head_is_not_cut(shelf: Checkpoints) -> None:
    draft = draft_of({**EAGLE, "model": shelf["eagle"]}, shelf.target(max_model_len=32))
    assert (draft.max_position_embeddings, draft.max_model_len) == (64, 32)


# ---- which rope types only size a cache: what transformers computes
SHORT, LONG = 32, 128
ROPE: dict[str, Values] = {
    "default": {},
    "linear": {"factor": 2.0},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
    },
    "proportional": {"partial_rotary_factor": 0.5},
    "dynamic": {"factor": 2.0},
    # without a factor of their own, both derive it from the longest length
    "yarn": {"factor": None, "original_max_position_embeddings": 16},
    "longrope": {
        "short_factor": [1.0] * 4, "long_factor": [3.0] * 4, "original_max_position_embeddings": 16,
    },
}  # fmt: skip


def rotations(rope_type: str, longest: int) -> torch.Tensor:
    """Cosines and sines of every position up to ``LONG``, ``[2, 1, LONG, 8]``, of a head built for ``SHORT``
    whose longest length is then set to ``longest``, as vLLM does it."""
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=8,
        max_position_embeddings=SHORT,
        rope_parameters={"rope_type": rope_type, "rope_theta": 1e4, **ROPE[rope_type]},
    )
    config.max_position_embeddings = longest
    return torch.stack(LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(LONG)[None]))


def raised_length(rope_type: str, shelf: Checkpoints) -> int:
    """What the configuration layer makes of the longest length of such a head."""
    rope = {"rope_type": rope_type, **ROPE[rope_type]}
    path = shelf.like("eagle", f"{rope_type}-head", max_position_embeddings=SHORT, rope_parameters=rope)
    target = TargetConfig.from_directory(shelf.like("llama", "long", max_position_embeddings=LONG))
    draft = draft_of({**EAGLE, "model": path}, target)
    assert draft.max_position_embeddings is not None
    return draft.max_position_embeddings


def check_rope_type(rope_type: str, shelf: Checkpoints) -> None:
    """Raising the length never changes a rotation; and where it would not, the length is raised."""
    before = rotations(rope_type, SHORT)
    assert torch.equal(rotations(rope_type, raised_length(rope_type, shelf)), before)
    harmless = torch.equal(rotations(rope_type, LONG), before)
    assert (raised_length(rope_type, shelf) == LONG) is harmless


@pytest.mark.parametrize("rope_type", ROPE)
def test_raising_a_length_changes_no_rotation(rope_type: str, shelf: Checkpoints) -> None:
    check_rope_type(rope_type, shelf)


def test_every_rope_type_of_transformers_is_judged() -> None:
    assert set(ROPE) == {"default", *ROPE_INIT_FUNCTIONS}
    assert CACHE_ONLY_ROPE_TYPES - set(ROPE) == {"ntk"}  # vLLM's: a factor, fixed when the table is made


@pytest.mark.parametrize("rope_type", ["yarn", "longrope", "dynamic"])
def test_a_type_too_many_is_seen(rope_type: str, shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "CACHE_ONLY_ROPE_TYPES", CACHE_ONLY_ROPE_TYPES | {rope_type})
    assert raised_length(rope_type, shelf) == LONG
    with pytest.raises(AssertionError):
        check_rope_type(rope_type, shelf)


@pytest.mark.parametrize("rope_type", ["default", "linear", "llama3", "proportional"])
def test_a_type_too_few_is_seen(rope_type: str, shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "CACHE_ONLY_ROPE_TYPES", CACHE_ONLY_ROPE_TYPES - {rope_type})
    with pytest.raises(AssertionError):
        check_rope_type(rope_type, shelf)


# ---- other checks that can fail
def test_ranks_that_nobody_checks_are_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_spec.config.checks.check_draft_model", lambda speculator, target: iter(()))
    with pytest.raises(pytest.fail.Exception):
        check_ranks(2, 4, None, shelf)
    with pytest.raises(pytest.fail.Exception):
        check_heads(6, 4, False, shelf)


def test_dsparks_of_speculators_that_are_nothing_special_are_seen(
    shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint.ModelFacts, "speculators_type", None)
    path = shelf.like("dspark-speculators", "plain", architectures=["DSparkDraftModel"])
    with pytest.raises(ConfigError, match="left out unless"):
        draft_of({"method": "dspark", "model": path, "dspark_draft_topk": 4}, shelf.target())
    with pytest.raises(AssertionError):
        test_sampling_from_the_anchor("dspark-speculators", None, 1, shelf)


def test_raising_an_independent_model_is_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BUILT_IN["draft_model"], "shares_target_positions", True)
    with pytest.raises(AssertionError):
        test_an_independent_model_is_never_raised("default", "draft_model", shelf)
