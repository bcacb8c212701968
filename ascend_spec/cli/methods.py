"""``ascend-spec methods``: the methods, the acceptance rules and the fields of a config, read off the code."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ascend_spec.cli.contracts import class_facts, contracts, plain, symbolic
from ascend_spec.cli.errors import CommandError
from ascend_spec.config import BUILT_IN, RULES, AscendSpecConfig, SpeculativeConfig, SpeculatorConfig
from ascend_spec.config.embedded import VLLM_ONLY
from ascend_spec.config.methods import OURS

Rows = list[dict[str, Any]]
#: facts that count tokens, by the heading that they have
COUNTS = {
    "lookahead": "num_lookahead_tokens",
    "new slots": "max_num_new_slots_for_drafting",
    "prefill": "num_prefill_lookahead_tokens",
}
#: facts that are true or false, in a few words
TRAITS = {
    "uses_target_hidden_states": "hidden states",
    "uses_aux_hidden_states": "aux layers",
    "uses_draft_kv_cache": "own KV",
    "needs_eagle_block_drop": "block drop",
    "draft_has_own_vocab": "own vocab",
    "proposes_tree": "trees",
    "supports_pcp": "PCP",
    "supports_watermarking": "watermarking",
    "uses_separate_workspace_lane": "own lane",
    "needs_host_tokens": "host tokens",
}
#: the first field of each group, in the schema's order
GROUPS = {
    "model": "source and parallelism",
    "num_speculative_tokens": "budget",
    "quantization": "draft overrides",
    "rejection_sample_method": "verification",
    "prompt_lookup_min": "extras of single methods",
    "ascend_spec.method": "not in vLLM",
}


def run(args: argparse.Namespace) -> int:
    if args.markdown:
        renew(Path(args.markdown))
        return 0
    rows = TABLES[args.table]()
    if args.json:
        print(json.dumps({args.table: rows}))
    elif args.markdown is not None:
        print(markdown(args.table, rows))
    else:
        _print(args.table, rows)
    return 0


# ---- what there is
def method_rows() -> Rows:
    """A row a contract: a method's own, then those that some configurations or checkpoints make of it."""
    return [
        {
            **class_facts(contract),
            "method": name,
            "contract": contract.__name__,
            "special_case": contract is not (BUILT_IN.get(name) or contract),
            "summary": summary(contract),
            "built": contract.speculator_class is not None,
            "registered": name not in BUILT_IN,
            "in_vllm": name in BUILT_IN and name not in OURS,
            "uniform_decode_query_len": symbolic(contract, "uniform_decode_query_len"),
            **{fact: symbolic(contract, fact) for fact in COUNTS.values()},
        }
        for name, contract in contracts()
    ]


def summary(contract: type[SpeculatorConfig]) -> str:
    """The first sentence of the class's own description, or of its file's."""
    own = vars(contract).get("__doc__") or getattr(sys.modules.get(contract.__module__), "__doc__", None)
    text = " ".join((own or "").split())
    return text.partition(". ")[0].rstrip(".").replace("``", "'")


def rule_rows() -> Rows:
    return [{name: plain(value) for name, value in asdict(rule).items()} for rule in RULES.values()]


def field_rows() -> Rows:
    found, group = [], ""
    for name, field in (*_fields(SpeculativeConfig, ""), *_fields(AscendSpecConfig, "ascend_spec.")):
        group = GROUPS.get(name, group)
        default = plain(field.get_default())
        found.append(
            {
                "field": name,
                "group": group,
                "default": default,
                "allowed": field.description,
                "vllm_only": name in VLLM_ONLY,
            }
        )
    return found


def _fields(model: type[BaseModel], prefix: str) -> list[tuple[str, Any]]:
    return [(prefix + name, field) for name, field in model.model_fields.items() if name != "ascend_spec"]


TABLES = {"methods": method_rows, "rules": rule_rows, "fields": field_rows}


# ---- how it is written down
Cells = list[dict[str, str]]
#: columns whose words are names in code
_CODE = ("method", "rule", "field", "options", "default")


def _tables(table: str, rows: Rows) -> list[tuple[str, Cells]]:
    """Title and cells: heading -> text, a dictionary a row."""
    if table == "rules":
        return [("what there is", [_rule_cells(row) for row in rows]), _own_options(rows, "rule", "options")]
    if table == "fields":
        groups = dict.fromkeys(row["group"] for row in rows)
        return [(group, [_field_cells(row) for row in rows if row["group"] == group]) for group in groups]
    return [
        ("what there is", [_method_cells(row) for row in rows]),
        (
            "what it needs, in slots and tokens; K is num_speculative_tokens",
            [_contract_cells(row) for row in rows],
        ),
        _own_options(rows, "method", "supported_options"),
    ]


def _name(row: dict[str, Any]) -> str:
    return row["contract"] if row.get("special_case") else row.get("method") or row["name"]


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def _method_cells(row: dict[str, Any]) -> dict[str, str]:
    return {
        "method": _name(row),
        "what it is": row["summary"],
        "built": _yes(row["built"]),
        "in vLLM": "registered" if row["registered"] else _yes(row["in_vllm"]),
        "draft model": {"target": "the target's"}.get(row["model"], row["model"]),
    }


def _contract_cells(row: dict[str, Any]) -> dict[str, str]:
    traits = [words for fact, words in TRAITS.items() if row[fact]]
    traits += ["sampled drafts"] if "sampled" in row["draft_distributions"] else []
    counts = {heading: row[fact] for heading, fact in COUNTS.items()}
    return {"method": _name(row), **counts, "traits": ", ".join(traits)}


def _own_options(rows: Rows, heading: str, key: str) -> tuple[str, Cells]:
    cells = [{heading: _name(row), "options": ", ".join(row[key])} for row in rows if row[key]]
    return "options of its own", cells


def _rule_cells(row: dict[str, Any]) -> dict[str, str]:
    return {
        "rule": _name(row),
        "what it is": row["summary"],
        "output": "lossless" if row["lossless"] else "lossy",
        "reads q": _yes(row["needs_q"]),
        "in vLLM": _yes(row["in_vllm"]),
        "trees": _yes(row["takes_trees"]),
    }


def _field_cells(row: dict[str, Any]) -> dict[str, str]:
    default = "" if row["default"] is None else json.dumps(row["default"])
    only = "vLLM" if row["vllm_only"] else ""
    return {"field": row["field"], "default": default, "allowed": row["allowed"], "only in": only}


def _print(table: str, rows: Rows) -> None:
    console = Console()
    for title, cells in _tables(table, rows):
        shown = Table(
            title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
        )
        for heading in cells[0]:
            shown.add_column(heading, no_wrap=heading in ("method", "rule"), overflow="fold")
        for row in cells:
            shown.add_row(*(Text(text) for text in row.values()))
        console.print(shown)


def markdown(table: str, rows: Rows) -> str:
    """As GitHub reads tables."""
    return "\n\n".join(_markdown_table(title, cells) for title, cells in _tables(table, rows))


def _markdown_table(title: str, cells: Cells) -> str:
    headings = list(cells[0])
    lines = [headings, ["---"] * len(headings)]
    lines += [[_markdown_cell(heading, text) for heading, text in row.items()] for row in cells]
    heading = f"**{title[0].upper()}{title[1:]}**\n\n" if title else ""
    return heading + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown_cell(heading: str, text: str) -> str:
    text = text.replace("|", "\\|")
    if heading in _CODE and text:
        return ", ".join(f"`{word}`" for word in text.split(", "))
    return text


def renew(file: Path) -> None:
    """Put the tables of today between the markers ``<!-- methods -->`` and ``<!-- end of methods -->`` (so, too,
    rules and fields) of a Markdown file.

    Raises:
        CommandError: no such file, or no markers in it.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--markdown {file} cannot be read ({error}): pass a Markdown file") from error
    renewed, found = _renewed(text)
    if not found:
        raise CommandError(
            f"--markdown {file} was given, which has no markers: write '<!-- methods -->' and "
            "'<!-- end of methods -->' (or rules, or fields) where the tables should stand"
        )
    file.write_text(renewed, encoding="utf-8")


def _renewed(text: str) -> tuple[str, int]:
    found = 0
    for table, rows in TABLES.items():
        begin, end = f"<!-- {table} -->", f"<!-- end of {table} -->"
        built_in = [
            row for row in rows() if not row.get("registered")
        ]  # not what happens to be installed here
        new = f"{begin}\n{markdown(table, built_in)}\n{end}"
        pattern = f"{re.escape(begin)}.*?{re.escape(end)}"
        text, count = re.subn(pattern, new.replace("\\", r"\\"), text, flags=re.DOTALL)
        found += count
    return text, found
