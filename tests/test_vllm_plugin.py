"""Registering with a vLLM of any shape: fakes, called so, of the modules that are looked at."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ascend_spec.vllm import plugin

WORKER = "vllm.v1.worker.worker_base"
Modules = dict[str, dict[str, Any] | None]


class FakeWorkerWrapper:
    """``WorkerWrapperBase`` as far as the plugin sees it."""

    def init_device(self) -> str:
        return "initialised"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    monkeypatch.delenv(plugin.SWITCH, raising=False)
    monkeypatch.setattr(plugin.logger, "propagate", True)
    caplog.set_level(logging.INFO, plugin.logger.name)
    return caplog


def install(monkeypatch: pytest.MonkeyPatch, modules: Modules) -> None:
    """Fake modules with these attributes; None: a module that cannot be imported."""
    for name in ("vllm", "vllm.v1", "vllm.v1.worker"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name, attributes in modules.items():
        fake = ModuleType(name)
        vars(fake).update(attributes or {})
        monkeypatch.setitem(sys.modules, name, None if attributes is None else fake)


def with_wrapper(wrapper: Any) -> Modules:
    return {WORKER: {"WorkerWrapperBase": wrapper}}


def fresh_wrapper() -> type:
    return type("WorkerWrapperBase", (FakeWorkerWrapper,), dict(vars(FakeWorkerWrapper)))


@pytest.mark.parametrize(
    ("modules", "why"),
    [
        ({WORKER: None}, WORKER),
        ({WORKER: {}}, "WorkerWrapperBase"),
        (with_wrapper(type("Empty", (), {})), "init_device"),
    ],
    ids=["no module", "no class", "no method"],
)
def test_a_vllm_without_the_seam_starts_and_says_so(
    monkeypatch: pytest.MonkeyPatch, lines: pytest.LogCaptureFixture, modules: Modules, why: str
) -> None:
    install(monkeypatch, modules)
    plugin.register()
    (record,) = lines.records
    assert record.levelname == "WARNING"
    assert f"is not attached: this vLLM has no {plugin.SEAM}" in record.getMessage()
    assert why in record.getMessage()
    assert "its own speculation runs" in record.getMessage()


def test_the_wrap_is_made_once_and_attaches_afterwards(
    monkeypatch: pytest.MonkeyPatch, lines: pytest.LogCaptureFixture
) -> None:
    wrapper, attached = fresh_wrapper(), []
    install(monkeypatch, with_wrapper(wrapper))
    monkeypatch.setattr(plugin, "attach_once", attached.append)
    plugin.register()
    wrapped = wrapper.init_device
    plugin.register()
    assert wrapper.init_device is wrapped
    each = wrapper()
    each.worker = "the worker"
    assert each.init_device() == "initialised"
    assert attached == ["the worker"]
    assert not lines.records


def test_a_registry_of_methods_is_told_of_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, lines: pytest.LogCaptureFixture
) -> None:
    def register_speculative_method(name: str, config_cls: type) -> None:
        raise AssertionError(f"{name} was registered, and no drafter of ours would run")

    registry = {plugin.REGISTRY: register_speculative_method}
    install(monkeypatch, {**with_wrapper(fresh_wrapper()), "vllm.config": registry})
    plugin.register()
    (record,) = lines.records
    assert record.getMessage() == (
        "ascend-spec: this vLLM has register_speculative_method; nothing is registered there yet"
    )


def test_switched_off_nothing_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, lines: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, {WORKER: None})
    monkeypatch.setenv(plugin.SWITCH, "1")
    plugin.register()
    assert not lines.records


@pytest.mark.parametrize(
    ("given", "installed", "told"),
    [
        ("ascend_spec", True, True),
        ("ascend_spec,ascend", True, False),
        ("ascend_spec", False, False),
        (None, True, False),
    ],
)
def test_a_list_of_plugins_without_the_ascend_platform_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
    lines: pytest.LogCaptureFixture,
    given: str | None,
    installed: bool,
    told: bool,
) -> None:
    def found(group: str, name: str) -> list[str]:
        assert (group, name) == ("vllm.platform_plugins", "ascend")
        return ["its entry point"] * installed

    install(monkeypatch, with_wrapper(fresh_wrapper()))
    monkeypatch.setattr(plugin, "entry_points", found)
    if given is None:
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    else:
        monkeypatch.setenv("VLLM_PLUGINS", given)
    plugin.register()
    assert [record.levelname for record in lines.records] == ["WARNING"] * told
    assert all("shuts out vllm-ascend's platform" in record.getMessage() for record in lines.records)


@pytest.mark.parametrize(
    ("additional", "said"),
    [
        (None, ""),
        ({1: 2, "enable_x": True}, ""),
        ({"ascend_spec": None}, "'ascend_spec' is null in additional_config; give {} for the defaults"),
        ({"ascend-spec": {}}, "has the key 'ascend-spec', not 'ascend_spec'"),
        ({"ASCEND_SPEC": {}, 1: 2}, "has the key 'ASCEND_SPEC', not 'ascend_spec'"),
        ({"AscendSpec": {}}, "has the key 'AscendSpec', not 'ascend_spec'"),
        ({"mqa_attention": True}, "has no key 'ascend_spec'; if 'mqa_attention' was meant for it"),
    ],
)
def test_without_the_key_nothing_is_attached(
    lines: pytest.LogCaptureFixture, additional: dict[Any, Any] | None, said: str
) -> None:
    config = SimpleNamespace(additional_config=additional)
    plugin.attach_once(SimpleNamespace(vllm_config=config))  # which has no runner that could be attached to
    assert [said in record.getMessage() for record in lines.records] == [True] * bool(said)


@pytest.mark.parametrize(
    ("value", "off"),
    [
        ("1", True),
        ("true", True),
        ("0", False),
        ("", False),
        (" 0 ", False),
        ("False", False),
        ("off", False),
    ],
)
def test_what_switches_it_off(monkeypatch: pytest.MonkeyPatch, value: str, off: bool) -> None:
    monkeypatch.setenv(plugin.SWITCH, value)
    assert plugin.switched_off() is off
