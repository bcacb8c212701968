"""The report of ``check-config`` on a screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ascend_spec.config import SpeculativeConfig

#: shown elsewhere in the report
_ELSEWHERE = ("method", "base_method", "speculator_class", "num_speculative_tokens")
#: inherited by the draft model as they stand, and rarely what one looks for
_MINOR = ("tokenizer_mode", "seed", "trust_remote_code", "max_logprobs", "config_format")


#: where it may run -> as it is called
PLACES = {
    "embedded_engine": "the embedded engine",
    "vllm_v1": "vLLM's V1 runner",
    "vllm_v2": "vLLM's V2 runner",
}


def print_report(report: Mapping[str, Any]) -> None:
    """The report of a config that can be honoured, section by section."""
    console = Console(highlight=False)
    method, rule, drafts = report["method"], report["rule"], report["num_speculative_tokens"]
    many = "K from the target's checkpoint" if drafts is None else f"{drafts} drafts a step"
    kind = "lossless" if rule["lossless"] else "lossy"
    console.print(
        Text(f"{_verdict(report)}: {method['name']}, {many}, {kind} ({rule['name']})", style="bold")
    )
    for place, title in PLACES.items():
        _list(
            console, f"{title}: {'can' if report[place]['ok'] else 'cannot'} run it", report[place]["errors"]
        )
    _list(console, "warnings", report["warnings"])
    if report["target"] is None:
        console.print("\nJudged alone: give --model to see draft model, KV cache, graphs and limits.")
    _section(console, "method", _method(method))
    _section(console, "config, with what was filled in", _config(report["config"]))
    _section(console, "contract", _contract(report["contract"]))
    _section(console, "rule", _known(rule))
    _section(console, "steps", _steps(report["steps"]))
    _section(console, "draft model", _set(report["draft_model"]))
    _section(console, "target", _set(report["target"]))
    _section(console, "KV cache, on one rank", _kv(report["kv"]))
    _section(console, "at start", _start(report["start"]))


def _verdict(report: Mapping[str, Any]) -> str:
    """That the words are right says little where they cannot be carried out."""
    runs = [report[place]["ok"] for place in PLACES]
    return "OK" if all(runs) else "Partly OK" if any(runs) else "Right, but nothing runs it"


def _section(console: Console, title: str, rows: Mapping[str, str] | None) -> None:
    if rows is None:
        return
    console.print(Text(f"\n{title}", style="bold"))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(Text(f"  {name}"), Text(value))
    console.print(table)


def _list(console: Console, title: str, findings: Sequence[Mapping[str, str]]) -> None:
    if not findings and title == "warnings":
        return
    console.print(Text(f"\n{title}", style="bold"))
    table = Table.grid(padding=(0, 1, 0, 0))
    for found in findings:
        table.add_row(Text("  -"), Text(found["message"]))
    if findings:
        console.print(table)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _contract(facts: Mapping[str, Any]) -> dict[str, str]:
    return {name: _value(value) for name, value in facts.items() if name not in _ELSEWHERE}


def _known(rows: Mapping[str, Any]) -> dict[str, str]:
    """Those that have a value."""
    return {name: _value(value) for name, value in rows.items() if value not in (None, [], "")}


def _set(rows: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Those that say more than that something is off."""
    if rows is None:
        return None
    return _known({name: value for name, value in rows.items() if value is not False and name not in _MINOR})


def _method(method: Mapping[str, Any]) -> dict[str, str]:
    name = method["name"]
    return {
        "name": name if method["carried_by"] == name else f"{name}, carried by {method['carried_by']}",
        "contract": method["contract"],
        "drafter": method["drafter"] or "not built yet",
        "why": "\n".join(method["why"]),
    }


def _config(config: Mapping[str, Any]) -> dict[str, str]:
    """Those that are not at their defaults."""
    defaults = SpeculativeConfig().model_dump()
    own, ours = config["ascend_spec"], defaults["ascend_spec"]
    return {
        **{
            name: _value(value)
            for name, value in config.items()
            if value != defaults[name] and value is not own
        },
        **{f"ascend_spec.{name}": _value(value) for name, value in own.items() if value != ours[name]},
    }


def _steps(steps: Mapping[str, Any] | None) -> dict[str, str] | None:
    if steps is None:
        return None
    table = steps["num_speculative_tokens_by_batch_size"]
    written = [f"{first} to {last}: {drafts}" for first, last, drafts in table or ()]
    rows = {
        name: _value(value) for name, value in steps.items() if name != "num_speculative_tokens_by_batch_size"
    }
    return {"K by batch size": "; ".join(written) or "the same for all", **rows}


def _kv(kv: Mapping[str, Any] | None) -> dict[str, str] | None:
    if kv is None:
        return None
    return {name: size(value) if "bytes" in name else _value(value) for name, value in kv.items()}


def size(num_bytes: int | None) -> str:
    """For people, and exactly."""
    if num_bytes is None:
        return "unknown: the config.json does not say"
    amount, unit = float(num_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    exact = f"{num_bytes:,} bytes"
    return exact if unit == "bytes" else f"{amount:.1f} {unit} ({exact})"


def _start(start: Mapping[str, Any] | None) -> dict[str, str] | None:
    if start is None:
        return None
    return {
        "graphs": start["graph_mode"],
        "sizes": _buckets(start["graph_buckets"]),
        "hash": start["graph_hash"],
        "warm-up": _value(start["warm_up"]),
        "threads": f"{start['num_threads']} a rank",
    }


def _buckets(buckets: Sequence[Sequence[int]]) -> str:
    """Numbers of requests that have the same numbers of drafts stand together."""
    drafts: dict[int, list[int]] = {}
    for num_requests, num_drafts in buckets:
        drafts.setdefault(num_requests, []).append(num_drafts)
    requests: dict[tuple[int, ...], list[int]] = {}
    for num_requests, sizes in drafts.items():
        requests.setdefault(tuple(sizes), []).append(num_requests)
    lines = [
        f"{_value(many)} request{'s' * (many != [1])} with {_value(sizes)} drafts"
        for sizes, many in requests.items()
    ]
    return "\n".join([*lines, f"{len(buckets)} in all"]) if buckets else "none"
