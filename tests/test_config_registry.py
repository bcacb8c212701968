"""Methods from outside: what may be registered, and that a broken package harms nobody else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from config_fixtures import Checkpoints, planned, restored_registry

from ascend_spec.config import (
    BUILT_IN,
    ConfigError,
    SpeculatorConfig,
    method_class,
    register_speculative_method,
    registered_speculative_methods,
    registry,
    resolution,
)
from ascend_spec.config.methods.eagle import Eagle3Config
from ascend_spec.config.methods.mtp import LEGACY_NAMES


class Meadow(SpeculatorConfig):
    """Registered by the tests: a method from outside."""

    method = "meadow"


class OtherMeadow(Meadow):
    """The same name, another class."""


class OnNothing(SpeculatorConfig):
    method = "on_nothing"
    base_method = "egale"


@pytest.fixture(autouse=True)
def registry_state() -> Iterator[None]:
    with restored_registry():
        yield


@pytest.fixture
def shelf(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


@pytest.mark.parametrize("name", [*BUILT_IN, *LEGACY_NAMES])
def test_built_in_and_older_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is a built-in speculative method"):
        register_speculative_method(name, Meadow)
    assert name not in registered_speculative_methods()


def test_a_name_is_taken_once() -> None:
    register_speculative_method("meadow", Meadow)
    with pytest.raises(ValueError, match=r"'meadow' is taken by .*Meadow"):
        register_speculative_method("meadow", OtherMeadow)
    assert method_class("meadow") is Meadow


def test_the_same_class_may_be_registered_again() -> None:
    register_speculative_method("meadow", Meadow)
    register_speculative_method("meadow", Meadow)
    register_speculative_method("field", Meadow)
    assert registered_speculative_methods() == ["field", "meadow"]


@pytest.mark.parametrize("wrong", [object, dict, Meadow.method, None, 3])
def test_other_classes_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"it must be a subclass of ascend_spec\.config\.SpeculatorConfig"):
        register_speculative_method("meadow", wrong)


@pytest.mark.parametrize("name", ["", None, 3])
def test_names_are_text(name: Any) -> None:
    with pytest.raises(ValueError, match="must be a text that is not empty"):
        register_speculative_method(name, Meadow)


def test_an_unknown_base_is_refused() -> None:
    with pytest.raises(ValueError, match=r"given base_method 'egale'.*Did you mean 'eagle'\?"):
        register_speculative_method("on_nothing", OnNothing)
    assert registered_speculative_methods() == []


def test_the_list_is_sorted() -> None:
    for name in ("zebra", "ant", "mole"):
        register_speculative_method(name, Meadow)
    assert registered_speculative_methods() == ["ant", "mole", "zebra"]


def test_nothing_leaks_out_of_a_test() -> None:
    with restored_registry():
        register_speculative_method("meadow", Meadow)
    assert registered_speculative_methods() == []
    assert method_class("meadow") is None


# ---- contracts that derive from built-in ones
class MyEagle3(Eagle3Config):
    """It inherits ``specialize``, which knows only the built-in special class."""

    base_method = "eagle3"


class Refined(MyEagle3):
    def specialize(self) -> type[SpeculatorConfig]:
        return InRefined if self.config.parallel_drafting else type(self)


class InRefined(Refined):
    """It is of the kind of the class that asks for it."""


@pytest.mark.parametrize(
    ("contract", "parallel", "becomes"),
    [(MyEagle3, True, MyEagle3), (MyEagle3, False, MyEagle3), (Refined, True, InRefined), (Refined, False, Refined)],
)  # fmt: skip
def test_a_registered_contract_is_refined_only_by_its_own(
    contract: Any, parallel: bool, becomes: Any, shelf: Checkpoints
) -> None:
    register_speculative_method("my_eagle3", contract)
    given = {"method": "my_eagle3", "model": "org/head", "num_speculative_tokens": 3}
    plan = planned({**given, "parallel_drafting": parallel}, shelf.target())
    assert type(plan.speculator) is becomes
    assert (plan.name, plan.method) == ("my_eagle3", "eagle3")
    assert plan.max_num_new_slots_for_drafting == (2 if parallel else 0)


# ---- entry points
class FakeEntryPoint:
    """Fake: what importlib.metadata gives of an installed package that declares a method."""

    def __init__(self, name: str, loaded: Any) -> None:
        self.name, self.loaded, self.value = name, loaded, f"package_of_{name}:Contract"

    def load(self) -> Any:
        if isinstance(self.loaded, BaseException):
            raise self.loaded
        return self.loaded


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[FakeEntryPoint]:
    """Fake distributions, to be filled by a test."""
    entries: list[FakeEntryPoint] = []

    def entry_points(*, group: str) -> list[FakeEntryPoint]:
        return entries if group == "ascend_spec.methods" else []

    monkeypatch.setattr(registry.metadata, "entry_points", entry_points)
    return entries


def test_installed_methods_are_found(installed: list[FakeEntryPoint], shelf: Checkpoints) -> None:
    installed.append(FakeEntryPoint("meadow", Meadow))
    plan = planned({"method": "meadow", "num_speculative_tokens": 2}, shelf.target())
    assert (plan.name, type(plan.speculator)) == ("meadow", Meadow)
    assert registered_speculative_methods() == ["meadow"]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (ImportError("no module named torch_meadow"), "no module named torch_meadow"),
        (RuntimeError("out of order"), "out of order"),
        (SystemExit(2), "SystemExit: 2"),
        (dict, "it must be a subclass"),
        (OnNothing, "given base_method 'egale'"),
    ],
)
def test_a_broken_entry_point_is_left_out(
    broken: Any, said: str, installed: list[FakeEntryPoint], caplog: pytest.LogCaptureFixture
) -> None:
    installed += [FakeEntryPoint("broken", broken), FakeEntryPoint("meadow", Meadow)]
    with caplog.at_level(logging.WARNING, logger="ascend_spec.config.registry"):
        assert registered_speculative_methods() == ["meadow"]
    [record] = caplog.records
    assert "'broken'" in record.getMessage()
    assert "package_of_broken:Contract" in record.getMessage()
    assert said in record.getMessage()


def test_an_entry_point_cannot_replace_a_built_in(
    installed: list[FakeEntryPoint], caplog: pytest.LogCaptureFixture
) -> None:
    installed.append(FakeEntryPoint("ngram", Meadow))
    assert registered_speculative_methods() == []
    assert method_class("ngram") is BUILT_IN["ngram"]
    assert "is a built-in speculative method" in caplog.text


def test_a_method_that_was_left_out_is_unknown(installed: list[FakeEntryPoint], shelf: Checkpoints) -> None:
    installed.append(FakeEntryPoint("meadow", ImportError("no module")))
    with pytest.raises(ConfigError, match=r"of the registered ones \(none\)"):
        planned({"method": "meadow", "num_speculative_tokens": 2}, shelf.target())


def test_installed_methods_are_looked_up_once(
    installed: list[FakeEntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    look_up = registry.metadata.entry_points
    monkeypatch.setattr(
        registry.metadata, "entry_points", lambda **group: calls.append(group) or look_up(**group)
    )
    for _ in range(3):
        method_class("meadow")
        registered_speculative_methods()
    assert calls == [{"group": "ascend_spec.methods"}]


# ---- contracts that are not sound
class Nameless(SpeculatorConfig):
    """It is known by the name that it is registered under."""

    model = "required"


def test_a_contract_without_a_name_is_called_by_its_registered_one(shelf: Checkpoints) -> None:
    register_speculative_method("nameless", Nameless)
    given = {"method": "nameless", "num_speculative_tokens": 2}
    with pytest.raises(ConfigError, match="method 'nameless' needs the directory"):
        planned(given, shelf.target())
    with pytest.raises(ConfigError, match="'method' was given as 'nameless', but the checkpoint"):
        planned({**given, "model": shelf["eagle"]}, shelf.target())
    assert planned({**given, "model": shelf["draft"]}, shelf.target()).name == "nameless"


class Careless(SpeculatorConfig):
    """Its hooks are replaced by ones that raise."""

    model = "required"


def raises(error: BaseException) -> Any:
    def hook(*_: Any, **__: Any) -> Any:
        raise error

    return hook


HOOKS: dict[str, Any] = {
    "default_model": classmethod, "adapt_draft_model_config": classmethod, "configure": classmethod,
    "specialize": None, "check": None, "num_lookahead_tokens": property,
    "max_num_new_slots_for_drafting": property, "max_model_len": property,
}  # fmt: skip


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("error", [RuntimeError("meadow"), SystemExit(2)], ids=["error", "exit"])
def test_a_hook_that_raises_is_a_finding(
    hook: str, error: BaseException, shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = HOOKS[hook] or (lambda function: function)
    monkeypatch.setattr(Careless, hook, wrapped(raises(error)), raising=False)
    register_speculative_method("careless", Careless)
    given: dict[str, Any] = {"method": "careless", "num_speculative_tokens": 9000}
    if hook != "default_model":
        given["model"] = shelf["draft"]
    message = f"contract of method 'careless', {__name__}.Careless, failed \\({type(error).__name__}: "
    with pytest.raises(ConfigError, match=message):
        planned(given, shelf.target())


def test_a_contract_that_returns_nothing_is_a_finding(
    shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Careless, "configure", classmethod(lambda cls, config, draft: None), raising=False)
    register_speculative_method("careless", Careless)
    given = {"method": "careless", "model": shelf["draft"], "num_speculative_tokens": 3}
    with pytest.raises(ConfigError, match="contract of method 'careless'"):
        planned(given, shelf.target())


def test_an_error_of_a_built_in_contract_is_ours(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BUILT_IN["ngram"], "check", raises(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        planned({"method": "ngram", "num_speculative_tokens": 3}, shelf.target())


# ---- two names
class OnEagle3(Eagle3Config):
    base_method = "eagle3"


@pytest.mark.parametrize(
    ("given", "rivals"),
    [
        ({"custom_method": "meadow"}, ()),
        ({"custom_method": "meadow", "method": "meadow"}, ()),
        ({"custom_method": "meadow", "method": "custom_class"}, ()),
        ({"custom_method": "meadow", "ascend_spec": {"method": "meadow"}}, ()),
        ({"custom_method": "meadow", "method": "ngram"}, ("'method' as 'ngram'",)),
        ({"custom_method": "meadow", "method": "on_eagle3"}, ("'method' as 'on_eagle3'",)),
        (
            {"custom_method": "meadow", "ascend_spec": {"method": "ngram"}},
            ("'ascend_spec.method' as 'ngram'",),
        ),
        (
            {"custom_method": "meadow", "method": "suffix", "ascend_spec": {"method": "ngram"}},
            ("'ascend_spec.method' as 'ngram'", "'method' as 'suffix'"),
        ),
        ({"custom_method": "on_eagle3", "method": "eagle3", "model": "org/head"}, ()),
        ({"custom_method": "on_eagle3", "method": "custom_class"}, ("'method' as 'custom_class'",)),
    ],
)
def test_two_names_must_agree(given: dict[str, Any], rivals: tuple[str, ...], shelf: Checkpoints) -> None:
    check_names(given, rivals, shelf)


def check_names(given: dict[str, Any], rivals: tuple[str, ...], shelf: Checkpoints) -> None:
    register_speculative_method("meadow", Meadow)
    register_speculative_method("on_eagle3", OnEagle3)
    given = {"num_speculative_tokens": 3, **given}
    if not rivals:
        plan = planned(given, shelf.target())
        assert plan.name == given["custom_method"]
        assert type(plan.speculator) is method_class(plan.name)
        return
    with pytest.raises(ConfigError) as caught:
        planned(given, shelf.target())
    assert [finding.field for finding in caught.value.findings] == ["custom_method"] * len(rivals)
    for rival in rivals:
        assert f"'custom_method' was given as '{given['custom_method']}' and {rival}" in str(caught.value)


# ---- every check above can fail
def test_a_registry_that_takes_anything_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "register_speculative_method", registry._registered.__setitem__)
    for check in (
        lambda: test_built_in_and_older_names_are_refused("ngram"),
        lambda: test_built_in_and_older_names_are_refused("deepseek_mtp"),
        test_a_name_is_taken_once,
        test_an_unknown_base_is_refused,
    ):
        with restored_registry(), pytest.raises(pytest.fail.Exception):
            check()


def test_one_broken_package_that_takes_the_others_with_it_is_seen(
    installed: list[FakeEntryPoint], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless() -> None:
        for entry in registry.metadata.entry_points(group=registry.ENTRY_POINTS):
            register_speculative_method(entry.name, entry.load())

    monkeypatch.setattr(registry, "_load_entry_points", careless)
    with pytest.raises(RuntimeError):
        test_a_broken_entry_point_is_left_out(RuntimeError("out of order"), "out of order", installed, caplog)


def test_a_contract_that_turns_into_a_built_in_one_is_seen(
    shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(speculator: SpeculatorConfig, verdict: Any) -> SpeculatorConfig:
        return speculator.specialize()(speculator.config, speculator.target, speculator.draft)

    monkeypatch.setattr(resolution, "_specialized", careless)
    with pytest.raises(AssertionError):
        test_a_registered_contract_is_refined_only_by_its_own(MyEagle3, True, MyEagle3, shelf)


def test_a_plugin_that_takes_the_command_with_it_is_seen(
    shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolution, "_hooks_of", lambda found, verdict: nullcontext())
    with pytest.raises(RuntimeError):
        test_a_hook_that_raises_is_a_finding("check", RuntimeError("meadow"), shelf, monkeypatch)


def test_names_that_nobody_compares_are_seen(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolution, "_check_custom", lambda config, verdict: True)
    for given in ({"method": "ngram"}, {"ascend_spec": {"method": "ngram"}}):
        with pytest.raises(pytest.fail.Exception):
            check_names({"custom_method": "meadow", **given}, ("",), shelf)
