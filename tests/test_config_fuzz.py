"""Whatever is given: a configuration, a plan, or a ConfigError. Never another exception, and no change of the
input. Examples are the same in every run; ``--full`` draws more of them."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from config_fixtures import CHECKPOINTS, Checkpoints, write
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from wrong_configs import fields

from ascend_spec.config import (
    BUILT_IN,
    RULES,
    ConfigError,
    Plan,
    SpeculativeConfig,
    TargetConfig,
    checkpoint,
    checks,
    load,
    load_speculative_config,
    resolve,
)
from ascend_spec.config.checkpoint import KINDS
from ascend_spec.config.errors import choices

Shelf = Checkpoints


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    shelf = Checkpoints(tmp_path_factory.mktemp("checkpoints"))
    for name in CHECKPOINTS:
        shelf[name]
    return shelf


OPTIONS: dict[str, Any] = {}


def explore(
    request: pytest.FixtureRequest,
    strategy: st.SearchStrategy[Any],
    check: Callable[[Any], None],
    examples: int,
) -> None:
    """Run ``check`` on ``examples`` values, on twenty times as many in the full setting."""
    full = request.config.getoption("--full")
    run = given(strategy)(lambda value: check(value))
    settings(
        max_examples=examples * (20 if full else 1),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        **OPTIONS,
    )(run)()


# ---- what is drawn
NUMBERS = (
    st.integers(-3, 70) | st.integers() | st.floats(-1, 6) | st.floats() | st.sampled_from([2**31, 10**400])
)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
PATHS = [f"{{shelf}}/{name}" for name in CHECKPOINTS]
WORDS: dict[str, st.SearchStrategy[Any]] = {
    "method": st.sampled_from([*BUILT_IN, "deepseek_mtp", "[ngram]"]),
    "ascend_spec.method": st.sampled_from(list(BUILT_IN)),
    "ascend_spec.rejection_sample_method": st.sampled_from(list(RULES)),
    "model": st.sampled_from([*PATHS, "org/eagle-head", "a.b.Drafter", "ngram", "/nowhere"]),
    "custom_method": st.just("unheard_of"),
    "num_speculative_tokens": st.integers(1, 8),
    "num_speculative_tokens_per_batch_size": st.lists(
        st.tuples(*[st.integers(-1, 9)] * 3).map(list), max_size=4
    )
    | st.lists(st.integers(0, 5), min_size=1, max_size=4).map(
        lambda counts: [[i + 1, i + 1, k] for i, k in enumerate(counts)]
    ),
    "synthetic_acceptance_rates": st.lists(st.floats(-0.1, 1.1), max_size=5)
    | st.lists(st.floats(0, 1), min_size=1, max_size=8).map(lambda rates: sorted(rates, reverse=True)),
}


def plausible(path: str) -> st.SearchStrategy[Any]:
    """Mostly what a field takes."""
    annotation = str(fields()[path][0])
    if path in WORDS:
        return WORDS[path]
    if names := choices(fields()[path][0]):
        return st.sampled_from(names)
    for sign, strategy in (
        ("dict", st.dictionaries(st.text(max_size=3), SCALARS, max_size=2)),
        ("bool", st.booleans()),
        ("float", st.floats(-0.1, 6) | st.integers(0, 5)),
        ("int", st.integers(0, 9)),
    ):
        if sign in annotation:
            return strategy
    return st.text(min_size=1, max_size=5)


def values(path: str) -> st.SearchStrategy[Any]:
    return st.integers(0, 9).flatmap(lambda dice: JSON if dice == 0 else plausible(path))


OURS = {
    path.partition(".")[2]: values(path) for path in fields() if path.startswith("ascend_spec.")
}  # fmt: skip
SCHEMA = {path: values(path) for path in fields() if "." not in path and path != "ascend_spec"}
NOISE = st.dictionaries(st.text(max_size=12) | st.sampled_from(list(SCHEMA)), JSON, max_size=2)


@st.composite
def configs(draw: st.DrawFn) -> dict[Any, Any]:
    """A few fields of the schema, often a method with its model, rarely something else."""
    names = draw(st.lists(st.sampled_from(list(SCHEMA)), max_size=6, unique=True))
    config: dict[Any, Any] = {}
    if draw(st.integers(0, 9)):
        config = {"method": draw(SCHEMA["method"]), "num_speculative_tokens": draw(st.integers(1, 6))}
    if draw(st.booleans()):
        config["model"] = draw(SCHEMA["model"])
    config |= {name: draw(SCHEMA[name]) for name in names}
    if draw(st.booleans()):
        ours = draw(st.lists(st.sampled_from(list(OURS)), max_size=3, unique=True))
        config["ascend_spec"] = {name: draw(OURS[name]) for name in ours}
    if not draw(st.integers(0, 4)):
        config |= draw(NOISE)
    return config


GOOD: list[dict[str, Any]] = [
    {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    {"method": "eagle3", "model": "{shelf}/eagle3", "num_speculative_tokens": 3,
     "num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 32, 2], [33, 128, 0]],
     "draft_lm_head_quantization": "fp8", "draft_tensor_parallel_size": 1, "disable_eagle_block_drop": False},
    {"model": "{shelf}/draft", "num_speculative_tokens": 2, "parallel_drafting": True, "max_model_len": 48},
    {"method": "mtp", "model": "{shelf}/deepseek-3", "num_speculative_tokens": 3, "moe_backend": "triton"},
    {"method": "suffix", "suffix_decoding_max_spec_factor": 2.0, "ascend_spec": {"suffix_memory_path": "x"}},
    {"method": "dflash", "model": "{shelf}/xpress", "num_speculative_tokens": 4, "xpress_topc": 0,
     "attention_backend": "auto"},
    {"method": "ngram", "num_speculative_tokens": 4, "rejection_sample_method": "synthetic",
     "synthetic_acceptance_rates": [0.9, 0.5, 0.5, 0]},
    {"method": "draft_model", "model": "{shelf}/draft", "num_speculative_tokens": 3,
     "rejection_sample_method": "fly", "fly_window_size": 2, "use_heterogeneous_vocab": True,
     "ascend_spec": {"heterogeneous_vocab_method": "slem", "on_error": "raise"}},
]  # fmt: skip


@st.composite
def mutations(draw: st.DrawFn) -> dict[Any, Any]:
    """A good configuration with one field dropped, renamed or of another value."""
    config = copy.deepcopy(draw(st.sampled_from(GOOD)))
    holder = config
    if "ascend_spec" in config and draw(st.booleans()):
        holder = config["ascend_spec"]
    name = draw(st.sampled_from(list(holder)))
    what = draw(st.sampled_from(["drop", "rename", "retype", "wrap", "quote"]))
    value = holder.pop(name)
    if what == "rename":
        holder[draw(st.text(max_size=8) | st.sampled_from(list(SCHEMA)))] = value
    elif what == "retype":
        holder[name] = draw(JSON)
    elif what == "wrap":
        holder[name] = draw(st.sampled_from([[value], {"value": value}, [[value]], (value,), {name: value}]))
    elif what == "quote":
        holder[name] = str(value)
    return config


def targets(shelf: Shelf) -> st.SearchStrategy[TargetConfig]:
    """Any target that can be run."""
    small = st.integers(1, 4)
    facts = {
        "max_model_len": st.none() | st.integers(2, 64),
        "max_num_seqs": st.integers(1, 20),
        "max_num_batched_tokens": st.integers(1, 300),
        "block_size": st.integers(1, 32),
        "num_kv_blocks": st.none() | st.integers(0, 100),
        "kv_cache_bytes": st.none() | st.integers(0, 10**6),
        "kv_bytes_per_token": st.none() | st.integers(1, 10**4),
        "max_query_len": st.none() | st.integers(1, 16),
        "attention_takes_trees": st.booleans(),
        "runner": st.sampled_from(["embedded", "v1", "v2"]),
        "graph_mode": st.sampled_from(["none", "piecewise", "full"]),
        **{f"{kind}_parallel_size": small for kind in ("tensor", "pipeline", "data", "prefill_context")},
        "dtype": st.sampled_from(["float32", "bfloat16", "float16"]),
        "num_threads": st.integers(1, 64),
    }
    flags = ("enforce_eager", "enable_prefix_caching", "has_kv_connector", "watermarking")
    return st.builds(
        lambda name, given: shelf.target(name, **given),
        st.sampled_from(["llama", "deepseek", "mixtral"]),
        st.fixed_dictionaries({}, optional={**facts, **{flag: st.booleans() for flag in flags}}),
    )


# ---- what must hold
def placed(value: Any, shelf: Shelf) -> Any:
    if isinstance(value, dict) and isinstance(value.get("model"), str):
        return {**value, "model": value["model"].replace("{shelf}", str(shelf.root))}
    return value


def frozen(value: Any) -> Any:
    """Something that shows any change of a value."""
    if isinstance(value, dict):
        return ("dict", [(key, frozen(item)) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return (type(value).__name__, [frozen(item) for item in value])
    return (type(value).__name__, id(value))


def findings_or(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a function returns, or its findings as a set, after a look at the message."""
    try:
        return function(*args, **options)
    except ConfigError as error:
        refusal = error
    assert str(refusal).isprintable()
    return {*refusal.findings}


def loaded(value: Any) -> Any:
    """The configuration, or its findings as a set; the input stays as it was."""
    before = frozen(value)
    result = findings_or(load_speculative_config, value)
    assert frozen(value) == before, "the input was changed"
    return result


def check_config(value: Any) -> None:
    result = loaded(value)
    if isinstance(value, dict):
        turned = loaded(dict(reversed(value.items())))
        assert turned == result, "the order of keys matters"
    if result is not None and not isinstance(result, set):
        again = load_speculative_config(result.model_dump())
        assert again == result, "a configuration is read as another one"


def check_plan(drawn: tuple[Any, TargetConfig]) -> None:
    config = loaded(drawn[0])
    if isinstance(config, set):
        return
    for embedded in (False, True):
        plan = findings_or(resolve, config, drawn[1], embedded=embedded)
        if isinstance(plan, Plan):
            check_derived(plan)


def check_derived(plan: Plan) -> None:
    """Everything that is derived can be had, and is of use."""
    for name, member in vars(type(plan)).items():
        if isinstance(member, property):
            getattr(plan, name)
    assert len(plan.compute_hash()) == 64
    assert plan.method in {*BUILT_IN, "none"}
    counts = [plan.num_speculative_tokens_for(size) for size in range(1, plan.target.max_num_seqs + 1)]
    assert all(0 <= count <= plan.num_speculative_tokens for count in counts)
    assert plan.num_threads >= 1
    assert plan.kv.blocks_per_request >= 1
    assert all(warning.message.isprintable() for warning in plan.warnings)


# ---- tests
def test_configs_of_the_schema(request: pytest.FixtureRequest, shelf: Shelf) -> None:
    explore(request, configs(), lambda value: check_config(placed(value, shelf)), 1000)


def test_mutations_of_good_configs(request: pytest.FixtureRequest, shelf: Shelf) -> None:
    explore(request, mutations(), lambda value: check_config(placed(value, shelf)), 600)


def test_any_json(request: pytest.FixtureRequest) -> None:
    explore(request, JSON, check_config, 300)


def test_any_keys(request: pytest.FixtureRequest) -> None:
    keys = SCALARS | st.tuples(SCALARS) | st.binary(max_size=3)
    strategy = st.dictionaries(keys, JSON, max_size=5)
    explore(request, strategy | strategy.map(lambda ours: {"ascend_spec": ours}), check_config, 300)


def test_any_text(request: pytest.FixtureRequest) -> None:
    marks = st.sampled_from([*"{}[]:,\"'&*!|>-?#%@` \n\t\0", "method", "ngram", "num_speculative_tokens", ".json",
                             "<<", "!!int", "!!set", "&a", "*a", "~", "1e400", "\ud800", "\ufeff", "---"])  # fmt: skip
    texts = st.lists(marks, max_size=12).map("".join)
    explore(request, st.text() | texts | JSON.map(repr), check_config, 800)


def test_text_is_read_as_the_dictionary_it_says(request: pytest.FixtureRequest, shelf: Shelf) -> None:
    def check(value: Any) -> None:
        value = placed(value, shelf)
        text = json.dumps(value)
        assert loaded(text) == loaded(json.loads(text))

    plain = (configs() | mutations()).filter(lambda value: "nan" not in repr(value))
    explore(request, plain, check, 300)


def test_plans_for_any_target(request: pytest.FixtureRequest, shelf: Shelf) -> None:
    plausible_configs = (configs() | st.sampled_from(GOOD)).map(lambda value: placed(value, shelf))
    explore(request, st.tuples(plausible_configs, targets(shelf)), check_plan, 1000)


def test_any_config_json(request: pytest.FixtureRequest, tmp_path: Path, shelf: Shelf) -> None:
    keys = [key for kind in KINDS for key in kind.keys]
    keys += ["text_config", "sample_from_anchor", "index_share_for_mtp_iteration"]
    finite = JSON.filter(lambda value: "nan" not in repr(value))
    changes = st.dictionaries(
        st.sampled_from(keys), finite | st.integers(0, 5) | st.sampled_from(["medusa", "eagle3"]), max_size=4
    )
    ropes = st.fixed_dictionaries(
        {}, optional={"rope_type": st.sampled_from(["yarn", "longrope", "linear"]) | finite,
                      "factor": finite | st.floats(1, 8), "original_max_position_embeddings": finite | st.just(32)}
    )  # fmt: skip
    base = st.sampled_from([{}, *CHECKPOINTS.values()])
    base |= st.tuples(base, ropes | st.fixed_dictionaries({"full": ropes})).map(
        lambda pair: {**pair[0], "rope_parameters": pair[1]}
    )
    target = shelf.target()

    def check(drawn: tuple[Any, Any, str | None]) -> None:
        path = write(tmp_path / "drawn", {**drawn[0], **drawn[1]})
        check_plan(({"method": drawn[2], "model": path, "num_speculative_tokens": 2}, target))
        with suppress(ValueError):
            other = TargetConfig.from_directory(path)
            check_plan(
                ({"method": "ngram", "num_speculative_tokens": 2}, replace(other, kv_cache_bytes=1000))
            )

    explore(request, st.tuples(base, changes, st.none() | WORDS["method"]), check, 600)


def test_good_ones_are_good(shelf: Shelf) -> None:
    for config in GOOD:
        assert not isinstance(loaded(placed(config, shelf)), set), config
    for target in (shelf.target(), shelf.target(max_num_batched_tokens=10)):
        check_plan((placed(GOOD[0], shelf), target))


# ---- broken code, and that it is found
def unknown_keys_reach_pydantic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(load, "_take_unknown", lambda *_: set())


def the_input_is_edited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(load, "_underscored", lambda fields, prefix, findings: fields)


def findings_follow_the_order_of_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(load, "sorted", list, raising=False)


def none_is_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checks, "_check_fly", lambda c: iter([c.fly_window_size < c.num_speculative_tokens] * 0))


def only_yaml_errors_are_expected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(load, "ValueError", RuntimeError, raising=False)


def keys_are_taken_for_text(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        load, "isinstance", lambda value, kind: kind is str or isinstance(value, kind), raising=False
    )


def config_json_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint, "_malformed", lambda values: None)


def unknown_sizes_are_zero(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint.ModelFacts, "kv_bytes_per_token", lambda *_: 0)


def text_loses_its_nested_options(patch: pytest.MonkeyPatch) -> None:
    parse = load._parse
    patch.setattr(load, "_parse", lambda text: {**parse(text), "ascend_spec": None})


def dumps_are_incomplete(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        SpeculativeConfig, "model_dump", lambda self: {"method": "ngram", "num_speculative_tokens": 1}
    )


MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], Callable[..., None]] = {
    unknown_keys_reach_pydantic: test_configs_of_the_schema,
    the_input_is_edited: test_mutations_of_good_configs,
    findings_follow_the_order_of_keys: test_any_keys,
    none_is_compared: test_configs_of_the_schema,
    only_yaml_errors_are_expected: test_any_text,
    keys_are_taken_for_text: test_any_keys,
    config_json_is_believed: test_any_config_json,
    unknown_sizes_are_zero: test_plans_for_any_target,
    text_loses_its_nested_options: test_text_is_read_as_the_dictionary_it_says,
    dumps_are_incomplete: test_mutations_of_good_configs,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_broken_code_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    test = MUTANTS[mutant]
    fixtures = {name: request.getfixturevalue(name) for name in inspect.signature(test).parameters}
    monkeypatch.setitem(OPTIONS, "phases", [Phase.generate])  # found is enough: no search for the smallest
    mutant(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017
        test(**fixtures)
