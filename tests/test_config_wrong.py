"""Bad input: nothing but a ConfigError, which says what is wrong, all of it, and nothing else.

The configurations are in :mod:`wrong_configs` and :mod:`wrong_config_checks`.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wrong_config_checks
import wrong_configs
import yaml
from config_fixtures import HEAD, Checkpoints
from pydantic import create_model
from wrong_configs import BROKEN_CHECKPOINTS, Wrong

from ascend_spec.config import (
    ConfigError,
    Finding,
    SpeculativeConfig,
    checks,
    errors,
    load,
    load_speculative_config,
    opaque,
    resolution,
    schedule,
    synthetic,
)

GROUPS = {**wrong_configs.GROUPS, **wrong_config_checks.GROUPS}
#: what a user can do; every finding says one of it
TODO = (
    "Change", "Move", "Put", "Register", "Remove", "Add", "Correct", "Rename", "Lower", "Raise", "Use ", "Set ",
    "Write", "Shorten", "Choose", "correct the path", "download the model again", "pass a model's directory",
)  # fmt: skip
FOREIGN = (
    "pydantic",
    "Traceback",
    "validation error",
    "input_value",
    "https://",
    "object at 0x",
    "object has no",
)


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    shelf = Checkpoints(tmp_path_factory.mktemp("checkpoints"))
    for name in ("draft", "eagle", "medusa", "deepseek-3", "mixtral", "dspark", "xpress"):
        shelf[name]
    shelf.like("draft", "other-vocabulary", vocab_size=99)
    shelf.like("eagle", "half", head_dtype="float16")
    return shelf


def placed(value: Any, shelf: Checkpoints) -> Any:
    """``value`` with the checkpoints' directory where it is meant."""
    if isinstance(value, str):
        return value.replace("{shelf}", str(shelf.root))
    if isinstance(value, dict) and type(value.get("model")) is str:
        return {**value, "model": placed(value["model"], shelf)}
    return value


def raised(wrong: Wrong, shelf: Checkpoints) -> ConfigError:
    """The error of a configuration; it must not be of another kind, nor change what was given."""
    given = placed(wrong.config, shelf)
    before = copy.deepcopy(given)
    target = None if wrong.target is None else shelf.target(**wrong.target)
    with pytest.raises(ConfigError) as caught:
        load_speculative_config(given, **wrong.separate, target=target, embedded=wrong.embedded)
    assert repr_safe(given) == repr_safe(before), "the input was changed"
    return caught.value


def repr_safe(value: Any) -> object:
    try:
        return repr(value)
    except ValueError:  # digits beyond what Python prints
        return len(value) if isinstance(value, dict) else value


def check(wrong: Wrong, shelf: Checkpoints) -> None:
    error = raised(wrong, shelf)
    message = str(error)
    assert message.startswith("Speculative config: ")
    assert message.isprintable(), "one line, nothing that a terminal would interpret"
    assert len(message) <= 4000
    assert not [word for word in FOREIGN if word in message], message
    assert Counter(finding.field for finding in error.findings) == Counter(wrong.fields), message
    for finding in error.findings:
        assert finding.message in message
        assert finding.message.endswith((".", "?")), finding.message
        assert any(todo in finding.message for todo in TODO), finding.message
        named = {"method": "ethod '", "rejection_sample_method": "rule "}.get(finding.field, finding.field)
        assert f"'{finding.field}" in finding.message or named in finding.message, finding
    missing = [part for part in wrong.parts if part not in message]
    assert not missing, f"{missing} not in: {message}"


@pytest.mark.parametrize("index", range(len(GROUPS)), ids=list(GROUPS))
def test_wrong_configs(index: int, shelf: Checkpoints) -> None:
    for number, wrong in enumerate(list(GROUPS.values())[index]):
        try:
            check(wrong, shelf)
        except (Exception, pytest.fail.Exception) as error:
            raise AssertionError(f"case {number}: {wrong.fields}: {str(error)[:2000]}") from error


def test_there_are_enough_of_them() -> None:
    assert sum(map(len, GROUPS.values())) > 900
    assert sum(len(group) for name, group in GROUPS.items() if name not in ("value", "misspelt")) > 200


@pytest.mark.parametrize("content", BROKEN_CHECKPOINTS, ids=range(len(BROKEN_CHECKPOINTS)))
def test_broken_checkpoints(content: tuple[bytes, str], tmp_path: Path, shelf: Checkpoints) -> None:
    written, part = content
    (tmp_path / "config.json").write_bytes(written)
    for method in ("eagle", "mtp", "medusa", None):
        given = {"method": method, "model": str(tmp_path), "num_speculative_tokens": 1}
        check(Wrong(given, ("model",), (part, str(tmp_path), "config.json")), shelf)


def test_separate_lists_of_heads_are_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**HEAD, "num_attention_heads": [4, 8], "n_predict": None})
    )
    assert load_speculative_config({"model": str(tmp_path), "num_speculative_tokens": 1}) is not None


def test_several_keep_their_order_under_any_order_of_keys(shelf: Checkpoints) -> None:
    for wrong in GROUPS["several"] + GROUPS["check"]:
        turned = wrong._replace(config=dict(reversed(wrong.config.items())))
        assert {*raised(turned, shelf).findings} == {*raised(wrong, shelf).findings}


def test_everything_wrong_at_once(shelf: Checkpoints) -> None:
    given = dict.fromkeys(SpeculativeConfig.model_fields, 1j)
    error = raised(Wrong(given, ()), shelf)
    assert [finding.field for finding in error.findings] == list(SpeculativeConfig.model_fields)


def test_hundreds_of_unknown_names_list_the_known_ones_once(shelf: Checkpoints) -> None:
    message = str(raised(Wrong({**wrong_configs.GOOD, **{f"%{i}": i for i in range(300)}}, ()), shelf))
    assert message.count("The fields are") == 1
    assert message.count("no such field") == 300


# ---- broken checks, and the cases that notice


def ranges_may_overlap(patch: pytest.MonkeyPatch) -> None:
    check_ranges = schedule.check_ranges
    patch.setattr(
        schedule, "check_ranges", lambda r: (f for f in check_ranges(r) if "overlap" not in f.message)
    )


def ranges_may_begin_anywhere(patch: pytest.MonkeyPatch) -> None:
    check_ranges = schedule.check_ranges
    patch.setattr(
        schedule, "check_ranges", lambda r: (f for f in check_ranges(r) if "begin" not in f.message)
    )


def only_neighbours_are_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schedule, "max", lambda _, entry, key: entry, raising=False)


def stops_at_the_first_error(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(load, "ConfigError", lambda findings: ConfigError(list(findings)[:1]))


def what_follows_is_reported_too(patch: pytest.MonkeyPatch) -> None:
    judge = load.judge
    patch.setattr(load, "judge", lambda *args, ignore, **options: judge(*args, **options))


def misspelt_fields_count_as_missing(patch: pytest.MonkeyPatch) -> None:
    take = load._take_unknown
    patch.setattr(load, "_take_unknown", lambda *args: take(*args) and set())


def conclusions_outlive_their_reasons(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Finding, "depends_on", property(lambda self: (), lambda self, value: None), raising=False)


def numbers_in_quotes_are_numbers(patch: pytest.MonkeyPatch) -> None:
    lax = create_model("Lax", __base__=SpeculativeConfig)
    lax.model_config = {**SpeculativeConfig.model_config, "strict": False}
    lax.model_rebuild(force=True)
    patch.setattr(load, "SpeculativeConfig", lax)


def window_may_equal_k(patch: pytest.MonkeyPatch) -> None:
    check_fly = checks._check_fly
    patch.setattr(checks, "_check_fly", lambda c: (f for f in check_fly(c) if f.field != "fly_window_size"))


def rates_may_increase(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(synthetic, "pairwise", lambda rates: ())


def unknown_keys_are_dropped(patch: pytest.MonkeyPatch) -> None:
    take = load._take_unknown
    patch.setattr(load, "_take_unknown", lambda fields, model, prefix, _: take(fields, model, prefix, []))


def repeated_keys_are_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(load, "_repeated", lambda fields, prefix: [])


def nothing_is_suggested(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(errors, "get_close_matches", lambda *args, **options: [])


def values_are_shown_in_full(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(load, "shortened", str)


def other_errors_escape(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(load, "RecursionError", ZeroDivisionError, raising=False)


def dates_are_json(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opaque, "_is_plain", lambda value: True)


def any_key_is_a_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opaque, "_bad_key", lambda path, key: None)


def deep_ones_are_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opaque, "MOST_LEVELS", 100)


def yaml_of_version_1_1(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(load._YAMLLoader, "yaml_implicit_resolvers", yaml.SafeLoader.yaml_implicit_resolvers)


def null_hides_an_unknown_name(patch: pytest.MonkeyPatch) -> None:
    underscored = load._underscored
    patch.setattr(
        load,
        "_underscored",
        lambda fields, *rest: {k: v for k, v in underscored(fields, *rest).items() if v is not None},
    )


def every_target_is_embedded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(resolution, "refused_target", lambda target: ())


def the_input_is_edited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(load, "_underscored", lambda fields, prefix, findings: fields)


MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    ranges_may_overlap: "table",
    ranges_may_begin_anywhere: "table",
    only_neighbours_are_compared: "table",
    stops_at_the_first_error: "several",
    what_follows_is_reported_too: "several",
    misspelt_fields_count_as_missing: "several",
    conclusions_outlive_their_reasons: "several",
    numbers_in_quotes_are_numbers: "value",
    window_may_equal_k: "check",
    rates_may_increase: "check",
    unknown_keys_are_dropped: "name",
    repeated_keys_are_dropped: "text",
    nothing_is_suggested: "misspelt",
    values_are_shown_in_full: "name",
    other_errors_escape: "text",
    the_input_is_edited: "name",
    dates_are_json: "opaque",
    any_key_is_a_name: "opaque",
    deep_ones_are_taken: "opaque",
    yaml_of_version_1_1: "text",
    null_hides_an_unknown_name: "name",
    every_target_is_embedded: "target",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_broken_checks_are_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    noticed = 0
    for wrong in GROUPS[MUTANTS[mutant]]:
        try:
            check(wrong, shelf)
        except (Exception, pytest.fail.Exception):
            noticed += 1
    assert 0 < noticed < len(GROUPS[MUTANTS[mutant]]), "a mutant breaks one thing"
