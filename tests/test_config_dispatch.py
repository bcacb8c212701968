"""Which method a configuration means: every way to say it, what a checkpoint says, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from config_fixtures import LLAMA, Checkpoints, Values, planned, restored_registry, warned, write

from ascend_spec.config import (
    BUILT_IN,
    ConfigError,
    SpeculatorConfig,
    TargetConfig,
    load_speculative_config,
    register_speculative_method,
    resolve,
)
from ascend_spec.config.methods.eagle import Eagle3Config, EagleConfig, PEagleConfig
from ascend_spec.config.methods.mtp import FAMILIES, LEGACY_NAMES, MultiModuleMTPConfig

K = {"num_speculative_tokens": 3}


@pytest.fixture
def shelf(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def refused(given: Values, target: TargetConfig) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        planned(given, target)
    return caught.value


def fields(error: ConfigError) -> list[str]:
    return [finding.field for finding in error.findings]


# ---- said outright
@pytest.mark.parametrize(
    "given", [{"method": "ngram"}, {"method": "[ngram]"}, {"model": "ngram"}, {"model": "[ngram]"}]
)
def test_every_word_for_ngram(given: Values, shelf: Checkpoints) -> None:
    plan = planned({**K, **given}, shelf.target())
    assert (plan.method, plan.name, plan.draft_model) == ("ngram", "ngram", None)
    assert not plan.warnings


def test_a_method_by_name(shelf: Checkpoints) -> None:
    plan = planned({**K, "method": "eagle", "model": shelf["eagle"]}, shelf.target())
    assert plan.method == "eagle"
    assert plan.why == ("'method' was given as 'eagle'",)


@pytest.mark.parametrize("model", ["my_module.MyDrafter", "a.b.c.Drafter"])
def test_a_dotted_path_is_a_custom_class(model: str, shelf: Checkpoints) -> None:
    plan = planned({**K, "model": model}, shelf.target())
    assert (plan.method, plan.config.model) == ("custom_class", model)


@pytest.mark.parametrize("model", ["org/model.v2", "https://a.b", "my-module.MyDrafter", "module.1st"])
def test_what_is_no_dotted_path(model: str, shelf: Checkpoints) -> None:
    plan = planned({**K, "model": model}, shelf.target())
    assert plan.method == "draft_model"
    assert "is no directory here" in warned(plan)["model"]


def test_a_directory_is_no_dotted_path(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.like("draft", "llama.tiny")
    monkeypatch.chdir(shelf.root)
    assert planned({**K, "model": "llama.tiny"}, shelf.target()).method == "draft_model"


@pytest.mark.parametrize("name", LEGACY_NAMES)
def test_older_names_fold_into_mtp(name: str, shelf: Checkpoints) -> None:
    plan = planned({**K, "method": name}, shelf.target("deepseek"))
    assert (plan.method, plan.name) == ("mtp", "mtp")
    deprecated = [finding for finding in plan.warnings if "deprecated" in finding.message]
    assert [finding.message for finding in deprecated] == [f"'method' {name!r} is deprecated: write 'mtp'."]


def test_mtp_itself_is_not_deprecated(shelf: Checkpoints) -> None:
    assert planned({**K, "method": "mtp"}, shelf.target("deepseek")).warnings == ()


def test_our_method_wins(shelf: Checkpoints) -> None:
    given = {**K, "method": "ngram", "model": shelf["medusa"], "ascend_spec": {"method": "medusa"}}
    plan = planned(given, shelf.target())
    assert plan.method == "medusa"
    assert "wins over 'method' 'ngram'" in plan.why[0]


def test_an_unknown_method_names_both_kinds_and_the_nearest(shelf: Checkpoints) -> None:
    with restored_registry():
        register_speculative_method("meadow", type("Meadow", (SpeculatorConfig,), {"method": "meadow"}))
        error = refused({**K, "method": "medow"}, shelf.target())
    assert fields(error) == ["method"]
    message = str(error)
    assert all(f'"{name}"' in message for name in BUILT_IN)
    assert 'registered ones ("meadow")' in message
    assert "Did you mean 'meadow'?" in message


def test_an_unknown_method_of_ours_is_named_by_its_own_field(shelf: Checkpoints) -> None:
    error = refused({**K, "ascend_spec": {"method": "medsua"}}, shelf.target())
    assert fields(error) == ["ascend_spec.method"]
    assert "Did you mean 'medusa'?" in str(error)


# ---- registered
class Own(Eagle3Config):
    base_method = "eagle3"


def test_a_registered_method_is_carried_by_its_base(shelf: Checkpoints) -> None:
    with restored_registry():
        register_speculative_method("own", Own)
        plan = planned({**K, "method": "own", "model": shelf["eagle3"]}, shelf.target())
        again = resolve(plan.config, plan.target)
    assert (plan.method, plan.config.custom_method, plan.name) == ("eagle3", "own", "own")
    assert type(plan.speculator) is Own
    assert again.speculator == plan.speculator


def test_a_registered_method_without_a_base_is_a_custom_class(shelf: Checkpoints) -> None:
    with restored_registry():
        register_speculative_method("meadow", type("Meadow", (SpeculatorConfig,), {"method": "meadow"}))
        plan = planned({**K, "method": "meadow"}, shelf.target())
    assert (plan.method, plan.config.custom_method) == ("custom_class", "meadow")


def test_custom_method_must_be_registered(shelf: Checkpoints) -> None:
    assert fields(refused({**K, "custom_method": "nobody"}, shelf.target())) == ["custom_method"]


# ---- inferred from what the checkpoint declares
@pytest.mark.parametrize(
    ("checkpoint", "method", "reason"),
    [
        ("eagle", "eagle", "its architecture is EagleLlamaForCausalLM"),
        ("eagle3", "eagle3", "its architecture is LlamaForCausalLMEagle3"),
        ("peagle", "eagle3", "its speculators_model_type is peagle"),
        ("nextn", "mtp", "its model_type is deepseek_mtp"),
        ("deepseek", "mtp", "its model_type is deepseek_v3"),
        ("gemma4", "mtp", "its model_type is gemma4_assistant"),
        ("dflash", "dflash", "its architecture is DFlashDraftModel"),
        ("xpress", "dflash", "its architecture is Qwen3XPressModel"),
        ("dspark", "dspark", "its architecture is Qwen3DSparkModel"),
        ("medusa", "medusa", "its model_type is medusa"),
        ("mlp", "mlp_speculator", "its model_type is mlp_speculator"),
    ],
)
def test_inferred_from_the_config(checkpoint: str, method: str, reason: str, shelf: Checkpoints) -> None:
    path = shelf.like(checkpoint, "nothing-in-its-name")
    plan = planned({**K, "model": path}, shelf.target())
    assert plan.method == method
    assert plan.why[0] == f"the method was inferred from the checkpoint: {reason}"
    assert "method" not in warned(plan)


@pytest.mark.parametrize("algorithm", ["eagle", "eagle3", "dflash", "dspark"])
def test_inferred_from_the_speculators_format(algorithm: str, shelf: Checkpoints) -> None:
    path = write(
        shelf.root / "head", {"speculators_model_type": algorithm, "transformer_layer_config": LLAMA}
    )
    assert planned({**K, "model": path}, shelf.target()).method == algorithm


def test_a_name_does_not_outweigh_a_config(shelf: Checkpoints) -> None:
    """Notes on EAGLE, a Medusa checkpoint."""
    path = shelf.like("medusa", "my-eagle-notes/medusa")
    plan = planned({**K, "model": path}, shelf.target())
    assert plan.method == "medusa"
    assert "method" not in warned(plan)
    odd = shelf.like("medusa", "eagle3-or-eagle-dflash")
    assert planned({**K, "model": odd}, shelf.target()).method == "medusa"


# ---- guessed from the last part of its path
@pytest.mark.parametrize(
    ("directory", "method", "hint"),
    [
        ("EAGLE-LLaMA3-Instruct", "eagle", "eagle-"),
        ("EAGLE3-LLaMA3.1-Instruct", "eagle3", "eagle3"),
        ("eagle-and-eagle3", "eagle3", "eagle3"),
        ("Qwen3-8B-DFlash-b16", "dflash", "dflash"),
        ("dspark_qwen3_8b_block7", "dspark", "dspark"),
    ],
)
def test_guessed_from_the_name(directory: str, method: str, hint: str, shelf: Checkpoints) -> None:
    path = shelf.like("draft", directory)
    plan = planned({**K, "model": path}, shelf.target())
    assert plan.method == method
    assert f"the name {directory.lower()!r}, which holds {hint!r}" in plan.why[0]
    assert warned(plan)["method"].endswith("a guess. Set 'method' to be sure.")


def test_parents_of_a_directory_say_nothing(shelf: Checkpoints) -> None:
    path = shelf.like("draft", "eagle-experiments/llama-small")
    plan = planned({**K, "model": path}, shelf.target())
    assert plan.method == "draft_model"
    assert plan.why == ("no method was given, and nothing tells one: an independent draft model is meant",)


def test_a_name_on_a_hub_is_guessed_from(shelf: Checkpoints) -> None:
    plan = planned({**K, "model": "org/EAGLE3-head"}, shelf.target())
    assert plan.method == "eagle3"
    assert set(warned(plan)) == {"method", "model"}


# ---- missing
def test_nothing_given_means_a_draft_model_that_must_be_named(shelf: Checkpoints) -> None:
    error = refused(K, shelf.target())
    assert fields(error) == ["model"]
    assert "MTP" not in str(error)


def test_the_targets_own_mtp_layers_are_pointed_out(shelf: Checkpoints) -> None:
    message = str(refused_at_resolution(K, shelf.target("deepseek")))
    assert "The target has MTP layers: 'method' \"mtp\" needs no other model." in message


def refused_at_resolution(given: Values, target: TargetConfig) -> ConfigError:
    """As an engine judges whose user goes past ``load_speculative_config``."""
    from ascend_spec.config import SpeculativeConfig

    with pytest.raises(ConfigError) as caught:
        resolve(SpeculativeConfig(**given), target)
    return caught.value


@pytest.mark.parametrize(
    "name", [name for name, contract in BUILT_IN.items() if contract.model == "required"]
)
def test_a_method_without_its_model(name: str, shelf: Checkpoints) -> None:
    error = refused({**K, "ascend_spec": {"method": name}}, shelf.target())
    assert fields(error) == ["model"]
    assert f"method {name!r} needs the directory" in str(error)


def test_a_path_without_a_checkpoint(shelf: Checkpoints) -> None:
    error = refused({**K, "method": "eagle", "model": str(shelf.root / "nowhere")}, shelf.target())
    assert "There is none: correct the path." in str(error)


# ---- against its checkpoint
@pytest.mark.parametrize(
    ("method", "checkpoint", "declared"),
    [
        ("eagle", "eagle3", "eagle3"),
        ("eagle3", "eagle", "eagle"),
        ("eagle", "medusa", "medusa"),
        ("draft_model", "eagle", "eagle"),
        ("draft_model", "nextn", "mtp"),
        ("draft_model", "gemma4", "mtp"),
        ("dflash", "dspark", "dspark"),
        ("dspark", "dflash", "dflash"),
        ("mtp", "eagle", "eagle"),
        ("eagle3", "nextn", "mtp"),
        ("draft_model", "nextn-v3", "mtp"),
        ("medusa", "mlp", "mlp_speculator"),
    ],
)
def test_an_explicit_method_against_its_checkpoint(
    method: str, checkpoint: str, declared: str, shelf: Checkpoints
) -> None:
    error = refused({**K, "ascend_spec": {"method": method}, "model": shelf[checkpoint]}, shelf.target())
    assert fields(error)[0] == "method"
    assert f"given as {method!r}" in str(error)
    assert f"is of method {declared!r}" in str(error)


@pytest.mark.parametrize("method", ["draft_model", "dspark", "eagle"])
def test_a_whole_model_may_have_mtp_layers_besides(method: str, shelf: Checkpoints) -> None:
    """As a draft model; as what holds a head's weights too; or as the config that a head was published with."""
    given = {**K, "method": method, "model": shelf.like("deepseek", "small-deepseek")}
    assert planned(given, shelf.target("deepseek")).method == method


@pytest.mark.parametrize("method", ["eagle", "eagle3", "dflash", "dspark", "draft_model"])
def test_a_checkpoint_that_declares_nothing_is_believed(method: str, shelf: Checkpoints) -> None:
    assert planned({**K, "method": method, "model": shelf["draft"]}, shelf.target()).method == method


# ---- K that was left out
@pytest.mark.parametrize(
    ("given", "checkpoint", "target", "drafts"),
    [
        ({"method": "suffix"}, None, "llama", 24),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 9}, None, "llama", 9),
        ({"method": "mtp"}, None, "deepseek-3", 3),
        ({"method": "mtp"}, "nextn", "deepseek", 1),
        ({"method": "mtp"}, "gemma4", "llama", 1),
        ({"method": "dspark"}, "dspark", "llama", 7),
        ({"ascend_spec": {"method": "medusa"}}, "medusa", "llama", 5),
        ({}, "mlp", "llama", 5),
    ],
)
def test_number_of_drafts_by_default(
    given: Values, checkpoint: str | None, target: str, drafts: int, shelf: Checkpoints
) -> None:
    named = {"model": shelf[checkpoint]} if checkpoint else {}
    plan = planned({**given, **named}, shelf.target(target))
    assert plan.num_speculative_tokens == drafts


#: what a checkpoint's n_predict says nothing to: dspark has a block, and Medusa heads
N_PREDICT = {"draft_model": "draft", "eagle": "eagle", "eagle3": "eagle3", "dflash": "dflash"}


@pytest.mark.parametrize("name", N_PREDICT)
@pytest.mark.parametrize(("drafts", "fits"), [(None, 3), (2, 2), (3, 3), (4, None), (6, 6)])
def test_heads_that_predict_several_tokens(
    name: str, drafts: int | None, fits: int | None, shelf: Checkpoints
) -> None:
    check_n_predict(name, drafts, fits, shelf)


def check_n_predict(name: str, drafts: int | None, fits: int | None, shelf: Checkpoints) -> None:
    given: Values = {"method": name, "model": shelf.like(N_PREDICT[name], "three", n_predict=3)}
    if drafts is not None:
        given["num_speculative_tokens"] = drafts
    if fits is None:
        assert "predicts 3 tokens at a time" in str(refused(given, shelf.target()))
    else:
        assert planned(given, shelf.target()).num_speculative_tokens == fits


def test_dspark_goes_by_its_block(shelf: Checkpoints) -> None:
    given = {"method": "dspark", "model": shelf.like("dspark", "three", n_predict=3)}
    assert planned(given, shelf.target()).num_speculative_tokens == 7
    assert planned({**given, "num_speculative_tokens": 4}, shelf.target()).num_speculative_tokens == 4


@pytest.mark.parametrize("name", N_PREDICT)
@pytest.mark.parametrize("hook", ["configure", "check"])
def test_a_contract_that_forgets_n_predict_is_seen(
    name: str, hook: str, shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten = {"configure": classmethod(lambda cls, config, draft: config), "check": lambda speculator: ()}
    monkeypatch.setattr(BUILT_IN[name], hook, forgotten[hook])
    drafts, fits = (None, 3) if hook == "configure" else (4, None)
    with pytest.raises((ConfigError, pytest.fail.Exception)):
        check_n_predict(name, drafts, fits, shelf)


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "suffix"])
def test_number_of_drafts_that_nothing_says(name: str, shelf: Checkpoints) -> None:
    model = {"model": "pkg.Drafter"} if name == "custom_class" else {}
    if BUILT_IN[name].model != "none":
        silent = shelf.like("nextn", "silent", num_nextn_predict_layers=None)
        model = {"model": silent if name == "mtp" else shelf["draft"]}
    error = refused({"ascend_spec": {"method": name}, **model}, shelf.target())
    assert fields(error) == ["num_speculative_tokens"]
    assert "is missing" in str(error)


@pytest.mark.parametrize("checkpoint", [None, "draft"])
def test_mtp_without_mtp_layers(checkpoint: str | None, shelf: Checkpoints) -> None:
    located = {"model": shelf[checkpoint]} if checkpoint else {}
    error = refused({**K, "method": "mtp", **located}, shelf.target())
    assert fields(error) == ["method"]
    assert "has no MTP layers" in str(error)


@pytest.mark.parametrize(
    ("drafts", "fits"), [(1, True), (2, True), (3, True), (4, False), (5, False), (6, True)]
)
def test_multiples_of_the_mtp_layers(drafts: int, fits: bool, shelf: Checkpoints) -> None:
    check_multiple(drafts, fits, shelf)


def check_multiple(drafts: int, fits: bool, shelf: Checkpoints) -> None:
    given = {"method": "mtp", "num_speculative_tokens": drafts}
    if fits:
        assert planned(given, shelf.target("deepseek-3")).num_speculative_tokens == drafts
        return
    message = str(refused(given, shelf.target("deepseek-3")))
    assert "this checkpoint predicts 3 tokens at a time" in message
    assert message.endswith("Use 3 or 6.")


def test_more_drafts_than_heads(shelf: Checkpoints) -> None:
    given = {"ascend_spec": {"method": "medusa"}, "model": shelf.like("medusa", "three", medusa_num_heads=3)}
    message = str(refused({**given, "num_speculative_tokens": 4}, shelf.target()))
    assert "given as 4" in message
    assert "must be at most 3" in message


# ---- special cases of a method
@pytest.mark.parametrize(
    ("layers", "drafts", "several"), [(1, 1, False), (1, 3, False), (3, 1, False), (3, 3, True)]
)
def test_several_modules(layers: int, drafts: int, several: bool, shelf: Checkpoints) -> None:
    path = shelf.like("deepseek", f"with-{layers}", num_nextn_predict_layers=layers)
    plan = planned({"method": "mtp", "num_speculative_tokens": drafts}, TargetConfig.from_directory(path))
    assert (type(plan.speculator) is MultiModuleMTPConfig) is several
    assert any("MultiModuleMTPConfig" in why for why in plan.why) is several


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
def test_every_family_has_mtp_layers(family: Any, shelf: Checkpoints) -> None:
    """By a target's model_type or architecture, and by the model_type of a checkpoint with the layers alone."""
    layers = {"num_nextn_predict_layers": 1, "mtp_num_hidden_layers": 1, "num_mtp_modules": 1}
    for number, name in enumerate((*family.targets, family.model_type)):
        named = {"architectures": [name]} if name[0].isupper() else {"model_type": name}
        path = shelf.like("llama", f"{family.model_type}-{number}", **named, **layers)
        plan = planned({"method": "mtp"}, TargetConfig.from_directory(path))
        assert plan.draft_model is not None
        assert plan.draft_model.facts.model_type == family.model_type
        assert plan.num_speculative_tokens == 1


def test_nemotron_without_mtp_layers_has_none(shelf: Checkpoints) -> None:
    path = shelf.like("llama", "nemotron", model_type="nemotron_h", num_nextn_predict_layers=0)
    assert planned({**K, "model": path}, shelf.target()).method == "draft_model"


# ---- what is resolved stays as it is
RESOLVED: dict[str, tuple[str, Values]] = {
    "ngram": ("llama", {"method": "ngram"}),
    "suffix": ("llama", {"method": "suffix"}),
    "mtp": ("deepseek-3", {"method": "deepseek_mtp"}),
    "dspark of the target": ("deepseek", {"method": "dspark"}),
    "guess": ("llama", {"model": "org/EAGLE3-head"}),
    "custom class": ("llama", {"model": "pkg.Drafter"}),
}


@pytest.mark.parametrize("name", RESOLVED)
def test_a_resolved_configuration_resolves_to_itself(name: str, shelf: Checkpoints) -> None:
    target, given = RESOLVED[name]
    plan = planned({**K, **given}, shelf.target(target))
    written = plan.config.model_dump()
    again = resolve(load_speculative_config(written), plan.target)
    assert again.config == plan.config
    assert again.speculator == plan.speculator


def test_parallel_drafting_survives(shelf: Checkpoints) -> None:
    plan = planned({**K, "model": shelf["peagle"]}, shelf.target())
    assert plan.config.parallel_drafting
    assert type(resolve(plan.config, plan.target).speculator) is PEagleConfig


# ---- every check above can fail
def test_eagle_before_eagle3_is_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    order = {"eagle": BUILT_IN["eagle"], **BUILT_IN}
    monkeypatch.setattr("ascend_spec.config.resolution.BUILT_IN", order)
    with pytest.raises(AssertionError):
        test_guessed_from_the_name("eagle-and-eagle3", "eagle3", "eagle3", shelf)


def test_whole_paths_as_hints_are_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    class Whole:
        def __init__(self, path: str) -> None:
            self.name = path

    monkeypatch.setattr("ascend_spec.config.resolution.PurePath", Whole)
    with pytest.raises(AssertionError):
        test_parents_of_a_directory_say_nothing(shelf)


def test_names_before_configs_are_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_spec.config.resolution._declaration", lambda draft: None)
    with pytest.raises(AssertionError):
        test_a_name_does_not_outweigh_a_config(shelf)


def test_a_subclass_that_passes_for_its_base_is_seen(
    shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert issubclass(Eagle3Config, EagleConfig)  # so nothing but the name tells them apart
    monkeypatch.setattr("ascend_spec.config.resolution._check_declared", lambda *args: None)
    with pytest.raises(pytest.fail.Exception):
        test_an_explicit_method_against_its_checkpoint("eagle3", "eagle", "eagle", shelf)


def test_a_dropped_rule_of_multiples_is_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpeculatorConfig, "check", lambda speculator: iter(()))
    with pytest.raises(pytest.fail.Exception):
        check_multiple(4, False, shelf)


def test_older_names_that_stay_are_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_spec.config.resolution.LEGACY_NAMES", LEGACY_NAMES[1:])
    with pytest.raises(ConfigError):
        test_older_names_fold_into_mtp(LEGACY_NAMES[0], shelf)
