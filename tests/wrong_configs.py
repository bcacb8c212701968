"""Configurations that are wrong, what of them must be named, and what must be said.

In texts and paths ``{shelf}`` stands for a directory of tiny checkpoints (``config_fixtures.CHECKPOINTS``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import date
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic_core import PydanticUndefined

from ascend_spec.config import BUILT_IN, RULES, AscendSpecConfig, SpeculativeConfig
from ascend_spec.config.errors import choices

GOOD = {"method": "ngram", "num_speculative_tokens": 4}
RANGES = "num_speculative_tokens_per_batch_size"


class Wrong(NamedTuple):
    config: Any
    fields: tuple[str, ...]
    """Every field that a finding must name, and no other; "" for the configuration as a whole."""
    parts: tuple[str, ...] = ()
    """Pieces of the message."""
    separate: Mapping[str, Any] = MappingProxyType({})
    """The older separate arguments."""
    target: dict[str, Any] | None = None
    """Facts of the target, if it takes one to see what is wrong: "name" is its checkpoint's."""
    embedded: bool = False


# ---- every field with every kind of wrong value
HUGE, ENDLESS = 10**400, 10**5000  # more than a float holds; more digits than Python prints
NO_INTEGER = ("4", "", True, False, 2.5, 4.0, math.nan, math.inf, -1, HUGE, ENDLESS, [], [4], {"a": 1})
NO_NUMBER = ("0.5", True, math.nan, math.inf, -math.inf, -0.5, HUGE, ENDLESS, [0.5], {}, b"1")
NO_FLAG = ("true", "yes", "", 1, 0, 0.0, [], {"a": True})
NO_NAME = (1, 2.5, True, "", [], ["ngram"], {"ngram": 1}, b"ngram", math.nan)
NO_DICT = (1, "x", "", True, [], [["a", 1]], math.nan)
NO_LIST = (1, "1", "", True, 0.5, {}, {"1": 2}, math.nan)
TEXTS = ("model", "method", "custom_method", "revision", "code_revision", "quantization", "kv_cache_dtype")
#: numbers in an open or half-open range beyond those of NO_NUMBER, and lists of the wrong things
OTHERS: dict[str, tuple[Any, ...]] = {
    "num_speculative_tokens": (0, 2**20 + 1),
    "draft_tensor_parallel_size": (0,),
    "max_model_len": (0, 2**31),
    "fly_window_size": (0,),
    "fly_entropy_top_k": (0, 65),
    "prompt_lookup_min": (0,),
    "prompt_lookup_max": (0, 2**20 + 1),
    "suffix_decoding_max_tree_depth": (0, 2**20 + 1),
    "suffix_decoding_min_token_prob": (1.5, 2),
    "dspark_draft_topk": (0,),
    "ascend_spec.posterior_threshold": (0, 1.01),
    "ascend_spec.posterior_alpha": (0, 1.01),
    "ascend_spec.disable_by_batch_size": (0, 1),
    "synthetic_acceptance_rates": (["1"], [True], [None], [math.nan], [[1]], [HUGE], [0.5, math.inf]),
    RANGES: ([1], ["1"], [[1]], [[1, 8]], [[1, 8, 4, 2]], [[1, 8, "4"]], [[1, 8.0, 4]], [[1, True, 4]],
             [[1, 8, None]], [[[1], 8, 4]], [{"1": 8}], [[1, 8, 4], "x"], [[1, 8, math.nan]]),
}  # fmt: skip


def fields() -> dict[str, tuple[Any, Any]]:
    """(annotation, default) by dotted path, of everything that can be given."""
    found = {}
    for prefix, model in (("", SpeculativeConfig), ("ascend_spec.", AscendSpecConfig)):
        for name, field in model.model_fields.items():
            found[prefix + name] = (field.annotation, field.get_default())
            assert field.get_default() is not PydanticUndefined, name
    return found


def kind_of(annotation: Any) -> tuple[Any, ...]:
    text = str(annotation)
    if choices(annotation):
        return (*NO_NAME, "no such choice", "auto " if "FLASH_ATTN" in text else "AUTO")
    for sign, values in (("tuple", NO_LIST), ("dict", NO_DICT), ("bool", NO_FLAG), ("float", NO_NUMBER)):
        if sign in text:
            return values
    return NO_INTEGER if "int" in text else NO_DICT if "Config" in text else NO_NAME


def nested(path: str, value: Any, base: dict[str, Any] = GOOD) -> dict[str, Any]:
    """``base`` with the field at a dotted path."""
    outer, _, inner = path.partition(".")
    return {**base, outer: {inner: value} if inner else value}


def quoted(value: Any) -> str:
    """The beginning of a value as an error shows it."""
    if isinstance(value, int) and abs(value) >= HUGE:
        return "too large to print" if abs(value) >= ENDLESS else "1000000000"
    return "[1000000000" if value == [HUGE] else repr(value)


def wrong_values() -> Iterator[Wrong]:
    for path, (annotation, _) in fields().items():
        for value in (*kind_of(annotation), *OTHERS.get(path, ())):
            if path == "synthetic_acceptance_length" and value in (-0.5,):
                continue  # a number, only too small: see CHECKS
            yield Wrong(nested(path, value), (path,), (f"'{path}' was given as ", quoted(value), "must be"))


# ---- names that are nearly right
def misspelt(name: str) -> str:
    """A letter in the middle is missing."""
    return name[: len(name) // 2] + name[len(name) // 2 + 1 :]


def misspelt_names() -> Iterator[Wrong]:
    for path in fields():
        outer, _, inner = path.rpartition(".")
        typo = misspelt(inner)
        dotted = f"{outer}.{typo}" if outer else typo
        base = {name: value for name, value in GOOD.items() if name != path}
        yield Wrong(
            nested(dotted, 1, base), (dotted,), (f"'{dotted}' was given as 1", f"Did you mean '{path}'?")
        )
    for method in BUILT_IN:
        typo = misspelt(method)
        yield Wrong({**GOOD, "method": typo}, ("method",), (repr(typo), f"Did you mean '{method}'?"))
        yield Wrong(
            nested("ascend_spec.method", typo, {"num_speculative_tokens": 4}),
            ("ascend_spec.method",),
            (repr(typo), f"Did you mean '{method}'?"),
        )
    for rule in RULES:
        yield Wrong(
            nested("ascend_spec.rejection_sample_method", misspelt(rule)),
            ("ascend_spec.rejection_sample_method",),
            (repr(misspelt(rule)), f"Did you mean '{rule}'?"),
        )
    for path, (annotation, _) in fields().items():
        for name in choices(annotation)[:3]:
            for typo in (misspelt(name), name + "s"):
                yield Wrong(nested(path, typo), (path,), (repr(typo), f"Did you mean '{name}'?"))


NAMES = [
    Wrong({**GOOD, "match": "recent"}, ("match",), ("'recent', but 'match' is an option of 'ascend_spec'",)),
    Wrong(
        {**GOOD, "mtch": "recent"}, ("mtch",), ("no such field", "Did you mean 'match' inside 'ascend_spec'?")
    ),
    Wrong(
        nested("ascend_spec.ascend_spec", {"match": "recent"}),
        ("ascend_spec.ascend_spec",),
        ("inside another 'ascend_spec'", "Put its options into the outer one."),
    ),
    Wrong(
        {"ascend_spec": {"method": "ngram", "num_speculative_tokens": 4}},
        ("ascend_spec.num_speculative_tokens",),
        (
            "given as 4, but 'num_speculative_tokens' is a field of the speculative config itself. Move it there",
        ),
    ),
    Wrong({**GOOD, "ascend_spec.match": "recent"}, ("ascend_spec.match",), ("'match' inside 'ascend_spec'",)),
    Wrong(
        nested("ascend_spec.prompt_lookup_max", 3),
        ("ascend_spec.prompt_lookup_max",),
        ("'prompt_lookup_max' is a field of the speculative config itself. Move it there",),
    ),
    Wrong({**GOOD, "Method": "ngram"}, ("Method",), ("Did you mean 'method'?",)),
    Wrong(
        {**GOOD, "colour": "red"}, ("colour",), ("'red'", "no such field", "The fields are model, method,")
    ),
    Wrong({**GOOD, "prompt_lookup_mx": None}, ("prompt_lookup_mx",), ("Did you mean 'prompt_lookup_max'?",)),
    Wrong({**GOOD, "colour": None}, ("colour",), ("given as None", "The fields are model, method,")),
    Wrong(nested("ascend_spec.mtch", None), ("ascend_spec.mtch",), ("Did you mean 'ascend_spec.match'?",)),
    Wrong({**GOOD, "method:": 1}, ("method:",), ("Did you mean 'method'?",)),
    Wrong(nested("ascend_spec.tree", 1), ("ascend_spec.tree",), ("The fields are method, rejection_sample",)),
    Wrong({**GOOD, "a": 1, "b": 2}, ("a", "b"), ("'a' was given as 1", "'b' was given as 2")),
    Wrong({**GOOD, "tensor_parallel_size": 2}, ("tensor_parallel_size",), ("'draft_tensor_parallel_size'",)),
    Wrong({**GOOD, "tensor-parallel-size": 2}, ("tensor_parallel_size",), ("given as 2", "Rename it")),
    Wrong({**GOOD, "": 1}, ("",), ("'' was given as 1",)),
    Wrong({**GOOD, "x\ny": 1}, ("x\\ny",), (r"'x\ny'",)),
    Wrong({**GOOD, "\x1b[31m": 1}, ("\\x1b[31m",), (r"'\x1b[31m'",)),
    Wrong({**GOOD, "\ud800": 1}, ("\\ud800",), (r"'\ud800'",)),
    Wrong({**GOOD, "method": "ngram\ud800"}, ("method",), (r"'ngram\ud800'",)),
    Wrong({**GOOD, "method": "ngram\n"}, ("method",), (r"'ngram\n'", "Did you mean 'ngram'?")),
    Wrong({**GOOD, "method": "x" * 100_000}, ("method",), ("xxx...xxx",)),
    Wrong({**GOOD, "method": "[ngrams]"}, ("method",), ("Did you mean 'ngram'?",)),
    Wrong({**GOOD, "method": " "}, ("method",), ("given as ' '",)),
    Wrong({**GOOD, 1: 2}, ("",), ("The key 1 was given",)),
    Wrong({**GOOD, None: 2}, ("",), ("The key None was given",)),
    Wrong({**GOOD, True: 2}, ("",), ("The key True was given",)),
    Wrong({**GOOD, ("a",): 2}, ("",), ("The key ('a',) was given",)),
    Wrong({**GOOD, b"method": 2}, ("",), ("The key b'method' was given",)),
    Wrong({**GOOD, ENDLESS: 2}, ("",), ("too large to print",)),
    Wrong(nested("ascend_spec", {3: 1}), ("ascend_spec",), ("The key 3 was given in 'ascend_spec'",)),
    Wrong(
        {"num_speculative_tokens": 4, "custom_method": "mine"}, ("custom_method",), ("a registered method",)
    ),
]

# ---- as a whole
TEXT = [
    Wrong(text, fields, parts)
    for text, fields, parts in (
        ("", ("",), ("'' was given", "JSON object", '{"method": "ngram"')),
        ("ngram", ("",), ("'ngram'", "single quotes")),
        (" \n", ("",), (r"' \n' was given", "no JSON object")),
        ("null", ("",), ("'null' was given", "no JSON object")),
        ("[1]", ("",), ("'[1]' was given", "no JSON object")),
        ("4", ("",), ("'4' was given", "no JSON object")),
        ("true", ("",), ("'true' was given",)),
        ('"method"', ("",), ("""'"method"' was given""",)),
        ("- method: ngram", ("",), ("'- method: ngram' was given",)),
        ('{"method": "ngram}', ("",), ("neither JSON nor YAML", "line 1 column 12")),
        ('{"method": "ngram"', ("",), ("neither JSON nor YAML", "single quotes")),
        ("{" * 50, ("",), ("neither JSON nor YAML",)),
        ("[" * 100_000, ("",), ("neither JSON nor YAML", "[[[...[[[", "nested too deeply")),
        ('{"a":' * 100_000, ("",), ("neither JSON nor YAML",)),
        ("method: [", ("",), ("neither JSON nor YAML", "line 1 column 10")),
        ("method: a: b", ("",), ("neither JSON nor YAML", "mapping values are not allowed")),
        ("method: @ngram", ("",), ("neither JSON nor YAML", "cannot start any token")),
        ("\tmethod: ngram", ("",), ("neither JSON nor YAML",)),
        ("method: !!python/name:os.system", ("",), ("neither JSON nor YAML", "python/name")),
        ("method: !!timestamp 2020-01-01", ("",), ("neither JSON nor YAML", "timestamp")),
        ("method: !!binary aGk=", ("",), ("neither JSON nor YAML", "binary")),
        ("method: !!bool x", ("",), ("neither JSON nor YAML", "a tag does not fit")),
        ("num_speculative_tokens: !!int 010", ("",), ("neither JSON nor YAML",)),
        ("a: &a {b: *a}", ("",), ("neither JSON nor YAML", "recursive")),
        ("a: &a {x: 1}\n<<: *a", ("",), ("neither JSON nor YAML",)),
        ("{[a]: 1}", ("",), ("neither JSON nor YAML",)),
        ("method: ngram\0", ("",), ("neither JSON nor YAML", r"\x00")),
        ('{"num_speculative_tokens": ' + "1" * 5000 + "}", ("",), ("111...111", "has 5000 digits).")),
        ("no such file.json", ("",), ("'no such file.json'", "cannot be read", "No such file")),
        ("{shelf}/no such file.yaml", ("",), ("cannot be read", "No such file")),
        ("{shelf}.yml", ("",), ("cannot be read", "No such file")),
        ("x" * 5000 + ".json", ("",), ("xxx...xxx", "cannot be read")),
        ("\0.json", ("",), (r"\x00", "cannot be read")),
        ("~nobody-of-that-name/x.json", ("",), ("cannot be read",)),
        ("{}", ("model", "num_speculative_tokens"), ("Neither",)),
        ('{"method": "ngram", "num_speculative_tokens": NaN}', ("num_speculative_tokens",), ("given as nan",)),
        ('{"method": "ngram", "num_speculative_tokens": 4e0}', ("num_speculative_tokens",), ("given as 4.0",)),
        ('{"method": "ngram", "num_speculative_tokens": "4"}', ("num_speculative_tokens",), ("given as '4'",)),
        ("method: ngram\nnum_speculative_tokens: four", ("num_speculative_tokens",), ("given as 'four'",)),
        ("method: on\nnum_speculative_tokens: 4", ("method",), ("given as 'on'",)),
        ("method: 2001-12-31\nnum_speculative_tokens: 4", ("method",), ("given as '2001-12-31'",)),
        # what YAML 1.1 makes other numbers of, or truths
        *(
            (f'{{"method": "ngram", "num_speculative_tokens": {number}}}', ("num_speculative_tokens",),
             (f"given as {number!r}",))
            for number in ("010", "1:30", "0x10", "0b11", "1_0", "+4", "04", "4.", ".5", "-.5", ".inf", ".nan")
        ),
        ("{method: ngram, num_speculative_tokens: 4, enforce_eager: yes}", ("enforce_eager",), ("given as 'yes'",)),
        # without quotes and spaces
        ("{method:ngram,num_speculative_tokens:4}", ("method:ngram", "num_speculative_tokens:4"),
         ("no space after the colon", "single quotes")),
        ("{method: ngram, num_speculative_tokens: 4, ascend_spec: {match:recent}}", ("ascend_spec.match:recent",),
         ("no space after the colon",)),
        ("{method: ngram, num_speculative_tokens: 4, 1: 2}", ("",), ("The key 1 was given",)),
        # keys that stand twice
        ('{"method": "ngram", "method": "ngram", "num_speculative_tokens": 4}', ("method",), ("given twice",)),
        ('{"num_speculative_tokens": 4, "num_speculative_tokens": 4, "a": 1, "a": 2}',
         ("a", "model", "num_speculative_tokens"), ("'num_speculative_tokens' was given twice",)),
        ('{"method": "ngram", "num_speculative_tokens": 4, "ascend_spec": {"match": "recent", "match": 1}}',
         ("ascend_spec.match",), ("'ascend_spec.match' was given twice",)),
        ('{"method": "ngram", "num_speculative_tokens": 4, "draft_load_config": {"a": 1, "a": 1}}',
         ("draft_load_config.a",), ("given twice",)),
        ('{"method": "ngram", "num_speculative_tokens": 4, "num-speculative-tokens": 4}',
         ("num_speculative_tokens",), ("twice, with hyphens",)),
        ("method: ngram\nnum_speculative_tokens: 4\nmethod: ngram", ("method",), ("given twice",)),
        ("{method: ngram, num_speculative_tokens: 4, ascend_spec: {match: a, match: b}}",
         ("ascend_spec.match",), ("'ascend_spec.match' was given twice",)),
    )
]  # fmt: skip
WHOLE = [
    Wrong(value, ("",), (part, "JSON object"))
    for value, part in (
        (4, "4 was"), (True, "True was"), (0.5, "0.5 was"), ([], "[] was"), ([GOOD], "[{"),
        (b"{}", "b'{}'"), (("method", "ngram"), "('method', 'ngram')"), (ENDLESS, "too large"), ({1}, "{1}"),
    )
]  # fmt: skip

#: contents of a config.json that is of no use, and what must be said
BROKEN_CHECKPOINTS: list[tuple[bytes, str]] = [
    (b"", "cannot be read as JSON"),
    (b"{", "cannot be read as JSON"),
    (b"\xff\xfe{}", "cannot be read as JSON"),
    (b"[" * 100_000, "cannot be read as JSON"),
    (b'{"vocab_size": ' + b"1" * 5000 + b"}", "cannot be read as JSON"),
    (b"[]", "holds []"),
    (b"3", "holds 3"),
    (b"null", "holds None"),
    (b'"text"', "holds 'text'"),
    (b"{}", "holds {}"),
    *(
        (f'{{"model_type": "llama", {pair}}}'.encode(), f"'{pair.split(chr(34))[1]}' as ")
        for pair in (
            '"vocab_size": "128"', '"vocab_size": -1', '"vocab_size": 1.5', '"vocab_size": true',
            '"max_position_embeddings": "long"', '"max_position_embeddings": [64]',
            '"max_position_embeddings": 0', '"n_positions": {}',
            '"num_attention_heads": "8"', '"num_attention_heads": -8', '"num_hidden_layers": [1]',
            '"num_experts": "many"', '"hidden_size": NaN', '"head_dim": Infinity', '"head_dtype": 3',
            '"architectures": "LlamaForCausalLM"', '"architectures": 3', '"architectures": [3]',
            '"architectures": [["a"]]', '"rope_scaling": [1]', '"rope_parameters": "linear"',
            '"speculators_model_type": 3', '"medusa_num_heads": 0', '"n_predict": "3"', '"block_size": "7"',
            '"num_nextn_predict_layers": -1', '"mtp_config": [1]', '"model_type": 3',
        )
    ),
    *(
        (f'{{"max_position_embeddings": 64, "rope_scaling": {{{pair}}}}}'.encode(), f"'{pair.split(chr(34))[1]}' as ")
        for pair in ('"factor": "2"', '"factor": 0.5', '"factor": Infinity', '"factor": NaN',
                     '"original_max_position_embeddings": "32"', '"original_max_position_embeddings": 0')
    ),
    (b'{"rope_parameters": {"full": {"factor": "2"}, "sliding": {}}}', "'factor' as '2'"),
    (b'{"text_config": {"vocab_size": "128"}}', "'vocab_size' as '128'"),
    (b'{"mtp_config": {"num_nextn_predict_layers": "1"}}', "'num_nextn_predict_layers' as '1'"),
]  # fmt: skip

# ---- dictionaries that are handed on: nothing but JSON in them
OWN = {"method": "custom_class", "model": "my_module.MyDrafter", "num_speculative_tokens": 4}


def endless() -> dict[str, Any]:
    """It holds itself."""
    options: dict[str, Any] = {"a": 1}
    options["self"] = [options]
    return options


def chain(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


OPAQUE = [
    Wrong({**OWN, "speculator_options": options}, fields, parts)
    for options, fields, parts in (
        ({"x": date(2020, 1, 1)}, ("speculator_options.x",), ("datetime.date(2020", "a text, a finite number")),
        ({"x": [1, {"y": math.nan}]}, ("speculator_options.x.1.y",), ("given as nan",)),
        ({"x": math.inf, "y": (b"1",), "z": {1}}, ("speculator_options.x", "speculator_options.y.0",
                                                  "speculator_options.z"), ("given as inf", "b'1'", "{1}")),
        ({"x": 2**64}, ("speculator_options.x",), ("64 bits",)),
        ({"x": ENDLESS}, ("speculator_options.x",), ("too large to print",)),
        ({1: 2}, ("speculator_options",), ("The key 1 was given",)),
        ({"x": {("a",): 2}}, ("speculator_options.x",), ("The key ('a',) was given",)),
        ({"x": {None: 2}, "y": {3: 4}}, ("speculator_options.x", "speculator_options.y"), ("None", "3")),
        ({"x\n": {"\x1b": 1j}}, ("speculator_options.x\\n.\\x1b",), ("given as 1j",)),
        ({"x": chain(70)}, ("speculator_options.x",), ("more than 64 levels", "Shorten")),
        (endless(), ("speculator_options.self",), ("more than 64 levels",)),
    )
] + [
    Wrong({**GOOD, "method": "extract_hidden_states", "draft_model_config": {"hf_config": {"x": b""}}},
          ("draft_model_config.hf_config.x",)),
    *(Wrong({**GOOD, name: {"x": math.nan}}, (f"{name}.x",))
      for name in ("draft_parallel_config", "draft_load_config")),
    Wrong('{"method": "custom_class", "model": "a.B", "num_speculative_tokens": 1, "speculator_options": {"x": NaN}}',
          ("speculator_options.x",), ("given as nan",)),
    Wrong("{method: custom_class, model: a.B, num_speculative_tokens: 1, speculator_options: {1: 2}}",
          ("speculator_options",), ("The key 1",)),
]  # fmt: skip

GROUPS: dict[str, list[Wrong]] = {
    "opaque": OPAQUE,
    "value": list(wrong_values()),
    "misspelt": list(misspelt_names()),
    "name": NAMES,
    "text": TEXT,
    "whole": WHOLE,
}
