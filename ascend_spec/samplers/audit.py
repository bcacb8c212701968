"""Whether an acceptance rule keeps the target's law, measured: ``python -m ascend_spec.samplers.audit``.

A small target whose rows depend on the tokens before them is drafted for and judged many times over. The first
token and the pair of the first two are held against the target's exact law, and the mean number of accepted drafts
against its exact expectation.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch

import ascend_spec_ops
from ascend_spec import config
from ascend_spec_ops.verify import RULES

VOCAB, K, CHUNK = 5, 3, 100_000
#: fewer say nothing
MIN_SAMPLES = 1000
EXACT = tuple(name for name, rule in config.RULES.items() if rule.lossless)
#: numbers of the lossy rules, which are audited for how far off they are
OPTIONS: dict[str, tuple[float, ...]] = {
    "typical": (0.09, 0.3),
    "synthetic": (0.9, 0.6, 0.5),
    "fly": (2.0, 0.3, 3.0),
}
KINDS = ("one-hot", "near", "far", "truncated")
#: an exact rule looks broken where its p-value is below the one or its mean further off than the other. Over 24 cells
#: a sound build looks so in one run of 15, so such a cell is measured AGAIN times as long with seeds of its own, and
#: that counts: a fault stands out twice as far, and chance comes back in one run of 5000
SIGNIFICANCE, STANDARD_ERRORS = 1e-4, 3
AGAIN = 4
Verify = Callable[..., torch.Tensor]


class _NoOutput(Exception):
    """There is nothing to measure."""


@dataclass(frozen=True)
class Tables:
    """Logits of rows 0 to K, by the tokens before them: ``rows[i]`` is ``[V] * (i + 1)``."""

    target: tuple[torch.Tensor, ...]
    draft: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Audit:
    """One line of the table."""

    rule: str
    drafts: str
    temperature: float
    total_variation: float
    """Of the pair of the first two tokens, from the target's law; noise alone gives about sqrt(V^2 / samples) / 2."""
    chi_square: float
    p_value: float
    mean_accepted: float
    expected_accepted: float | None
    """None: not known in closed form."""
    standard_error: float
    samples: int
    failure: str | None = None
    """Why there is nothing to measure: it raised, or what it gave is no output."""

    @property
    def is_sound(self) -> bool:
        """The law of an exact rule, and its mean, are as near as chance brings them."""
        if self.failure is not None:
            return False
        off = 0.0 if self.expected_accepted is None else abs(self.mean_accepted - self.expected_accepted)
        return self.p_value > SIGNIFICANCE and off <= STANDARD_ERRORS * self.standard_error


def make_tables(kind: str, seed: int = 0) -> Tables:
    """A target, and a draft that is near it, far from it, or near and cut to its two likeliest tokens. Drafts that
    are verified as one-hot are drawn from the near one."""
    generator = torch.Generator().manual_seed(seed)
    target, draft = [], []
    for row in range(K + 1):
        shape = (VOCAB,) * (row + 1)
        logits = 1.2 * torch.randn(shape, generator=generator)
        noise = torch.randn(shape, generator=generator)
        drafted = 1.5 * noise if kind == "far" else logits + 0.4 * noise
        if kind == "truncated":
            drafted = drafted.masked_fill(drafted < drafted.topk(2).values[..., -1:], -torch.inf)
        target.append(logits)
        draft.append(drafted)
    return Tables(tuple(target), tuple(draft))


def audit(
    verify: Verify,
    rule: str,
    kind: str,
    temperature: float,
    samples: int,
    device: str = "cpu",
    first_seed: int = 0,
) -> Audit:
    """Judge ``samples`` rounds of K drafts.

    Args:
        verify: with the arguments of :func:`ascend_spec_ops.verify` up to ``draft_temperature``, by position.
        rule: says what is expected; ``verify`` has been told already.
        first_seed: each round has a seed of its own, from here on.
    """
    tables = make_tables(kind)
    pairs = torch.zeros(VOCAB, VOCAB, dtype=torch.float64)
    accepted = torch.zeros(K + 1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(first_seed + 1)
    for start in range(0, samples, CHUNK):
        seeds = first_seed + torch.arange(start, min(start + CHUNK, samples))
        emitted, counts = _rounds(verify, rule, kind, tables, temperature, seeds, generator, device)
        flat = emitted[:, 0] * VOCAB + emitted[:, 1]
        pairs += torch.bincount(flat, minlength=pairs.numel()).view_as(pairs)
        accepted += torch.bincount(counts, minlength=K + 1)
    law = pair_law(tables, temperature)
    chi_square, p_value = _chi_square(pairs.flatten(), samples * law.flatten())
    lengths = torch.arange(K + 1, dtype=torch.float64)
    mean = float((accepted * lengths).sum() / samples)
    variance = float((accepted * (lengths - mean) ** 2).sum() / samples)
    return Audit(
        rule, kind, temperature, float((pairs / samples - law).abs().sum() / 2), chi_square, p_value, mean,
        expected_accepted(tables, rule, kind, temperature), max(variance / samples, samples**-2) ** 0.5,
        samples,
    )  # fmt: skip


def _chi_square(counts: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """And its p-value. Cells that expect fewer than 5 are taken together, as the test's approximation wants."""
    rare = expected < 5
    if rare.any():
        counts, expected = (torch.cat([x[~rare], x[rare].sum()[None]]) for x in (counts, expected))
    chi_square = ((counts - expected) ** 2 / expected.clamp(min=1e-300)).sum()
    half_freedom = chi_square.new_tensor((len(counts) - 1) / 2)
    return float(chi_square), float(torch.special.gammaincc(half_freedom, chi_square / 2))


def _rounds(
    verify: Verify, rule: str, kind: str, tables: Tables, temperature: float, seeds: torch.Tensor,
    generator: torch.Generator, device: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The first two tokens of each round, ``[B, 2]``, and the number of accepted drafts, ``[B]``."""
    num = len(seeds)
    positions = seeds % 97
    ones = torch.ones(num)
    drafts = torch.empty(num, 0, dtype=torch.int64)
    draft_rows = []
    for row in range(K):
        logits = tables.draft[row][tuple(drafts.T)].expand(num, VOCAB).contiguous()
        if rule == "coupled" and kind != "one-hot":  # drafts share the target's noise
            token = ascend_spec_ops.sample(logits, ones * temperature, seeds, positions + row).long()
        else:
            token = torch.multinomial((logits / temperature).softmax(1), 1, generator=generator)[:, 0]
        draft_rows.append(logits)
        drafts = torch.cat([drafts, token[:, None]], 1)
    target = torch.stack(
        [tables.target[i][tuple(drafts[:, :i].T)].expand(num, VOCAB) for i in range(K + 1)], 1
    )
    ends = torch.arange(1, num + 1, dtype=torch.int32) * K
    sampled = () if kind == "one-hot" else (torch.stack(draft_rows, 1).flatten(0, 1), ones * temperature)
    out = _on(
        device, verify, target.flatten(0, 1), drafts.flatten().int(), ends, ones * temperature, seeds, positions, K,
        *sampled,
    )  # fmt: skip
    emitted = out[:, 1:3].long()
    short = out[:, 0] == 1
    following = tables.target[1][emitted[short, 0]]
    left = int(short.sum())
    nothing = (torch.empty(0, dtype=torch.int32), torch.zeros(left, dtype=torch.int32))
    plain = (following, *nothing, ones[short] * temperature, seeds[short], positions[short] + 1, 0)
    emitted[short, 1] = _on(device, verify, *plain)[:, 1].long()
    return emitted, (out[:, 0] - 1).long()


def _on(device: str, verify: Verify, *args: torch.Tensor | int) -> torch.Tensor:
    """``[B, max_spec_len + 2]`` on the host.

    Raises:
        _NoOutput: what was called raised, or gave something else.
    """
    moved = [arg.to(device) if isinstance(arg, torch.Tensor) else arg for arg in args]
    ends, max_spec_len = args[2], args[6]
    assert isinstance(ends, torch.Tensor)
    assert isinstance(max_spec_len, int)
    try:
        out = verify(*moved).cpu()
    except Exception as error:  # whoever wrote it wants to see it in its row
        raise _NoOutput(f"{type(error).__name__}: {error}") from error
    if out.dim() != 2 or out.is_floating_point() or len(out) != len(ends) or out.shape[1] < max_spec_len + 2:
        raise _NoOutput(
            f"the output is {list(out.shape)} {out.dtype}, and not [{len(ends)}, {max_spec_len + 2}] int32"
        )
    if len(out) == 0:
        return out
    counts, tokens = out[:, 0], out[:, 1:]
    if counts.min() < 1 or counts.max() > max_spec_len + 1:
        raise _NoOutput(f"counts are {counts.min()} to {counts.max()}; they must be 1 to {max_spec_len + 1}")
    emitted = tokens[torch.arange(tokens.shape[1]) < counts[:, None]]
    if emitted.min() < 0 or emitted.max() >= VOCAB:
        raise _NoOutput(f"tokens are {emitted.min()} to {emitted.max()}; they must be 0 to {VOCAB - 1}")
    return out


def _law(rows: Sequence[torch.Tensor], temperature: float) -> list[torch.Tensor]:
    return [(row.double() / temperature).softmax(-1) for row in rows]


def pair_law(tables: Tables, temperature: float) -> torch.Tensor:
    """``[V, V]``: the target's law of two tokens."""
    first, second = _law(tables.target[:2], temperature)
    return first[:, None] * second


def expected_accepted(tables: Tables, rule: str, kind: str, temperature: float) -> float | None:
    """The exact mean number of accepted drafts: the sum over i of the chance that i and more are accepted."""
    if rule not in EXACT:
        return None
    p, q = _law(tables.target, temperature), _law(tables.draft, temperature)
    drawn = torch.ones(())  # chance of each path of drafts
    alive = torch.ones(())  # chance that a path is accepted whole
    total = 0.0
    for i in range(K):
        if rule == "coupled" and kind != "one-hot":
            alive = alive[..., None] * _agreement(p[i], q[i])
            total += float(alive.sum())
            continue
        drawn = drawn[..., None] * q[i]
        ratio = p[i] if kind == "one-hot" or rule == "coupled" else torch.where(q[i] > 0, p[i] / q[i], 0.0)
        if rule == "block" and kind != "one-hot":
            alive = (alive[..., None] * ratio).clamp(max=1)
        else:
            alive = alive[..., None] * ratio.clamp(max=1)
        total += float((drawn * alive).sum())
    return total


def _agreement(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The chance of each token to be drawn from p and q alike with the same Gumbel noise: token i wins both
    iff its noise beats that of every j by the larger of log(p_j / p_i) and log(q_j / q_i)."""
    worst = torch.maximum(p[..., None, :] / p[..., :, None], q[..., None, :] / q[..., :, None])
    return 1 / worst.nan_to_num(nan=torch.inf).sum(-1)


def run(
    rules: Sequence[str], samples: int, temperatures: Sequence[float], device: str, verify: Verify | None
) -> Iterator[Audit]:
    """Every rule with every kind of drafts. Of a cell that looks broken, the longer measurement."""
    for rule in rules:
        ours = partial(_ours, rule)
        for kind in KINDS:
            for temperature in temperatures:
                cell = (verify or ours, rule, kind, temperature)
                try:
                    line = audit(*cell, samples, device)
                    if rule in EXACT and not line.is_sound:
                        line = audit(*cell, AGAIN * samples, device, first_seed=samples)
                except _NoOutput as error:
                    nan = float("nan")
                    line = Audit(rule, kind, temperature, nan, nan, nan, nan, None, nan, samples, str(error))
                yield line


def _ours(rule: str, *args: torch.Tensor | int) -> torch.Tensor:
    options = OPTIONS.get(rule, ())
    if rule == "synthetic":  # a rate for each draft, and none for a call without drafts
        max_spec_len = args[6]
        assert isinstance(max_spec_len, int)
        options = options[:max_spec_len]
    verify: Verify = ascend_spec_ops.verify
    return verify(*args, rule=rule, rule_options=options)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ascend_spec.samplers.audit", description=__doc__)
    add = parser.add_argument
    add("--rule", action="append", choices=list(RULES), help="may be repeated; default: the exact ones")
    add("--samples", type=int, default=1_000_000, metavar="N", help="rounds a cell (default 1000000)")
    add("--temperature", type=float, action="append", metavar="T", help="may be repeated; default 0.7 and 1")
    add("--device", default="cpu", help="where the rule runs (default cpu)")
    add(
        "--callable",
        metavar="MODULE:NAME",
        help="audit this instead; it takes verify's arguments by position",
    )
    add("--json", action="store_true", help="a line of JSON for each cell")
    args = parser.parse_args(argv)
    if args.samples < MIN_SAMPLES or not all(0.1 <= t <= 10 for t in args.temperature or ()):
        parser.error(f"--samples must be {MIN_SAMPLES} or more, and --temperature from 0.1 to 10")
    try:
        torch.empty(0, device=args.device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        parser.error(
            f"--device {args.device!r} was given; it must be one that torch has here ({str(error).splitlines()[0]})"
        )
    verify = None
    if args.callable:
        module, _, name = args.callable.partition(":")
        try:
            verify = getattr(importlib.import_module(module), name)
            if not callable(verify):
                raise TypeError(f"{name} is a {type(verify).__name__}")
        except Exception as error:  # a module may raise anything
            parser.error(
                f"--callable {args.callable!r} was given; it must be MODULE:NAME of a function "
                f"({type(error).__name__}: {error})"
            )
    audits = run(args.rule or EXACT, args.samples, args.temperature or (0.7, 1.0), args.device, verify)
    return _report(audits, args.samples, args.json)


def _report(audits: Iterator[Audit], samples: int, as_json: bool) -> int:
    broken = num_exact = 0
    if not as_json:
        print("rule       drafts        T        TV         chi2          p  accepted  expected      z")
    for line in audits:
        bad = line.failure is not None or (line.rule in EXACT and not line.is_sound)
        broken += bad
        num_exact += line.rule in EXACT
        if as_json:
            values = {name: None if value != value else value for name, value in asdict(line).items()}
            print(json.dumps({**values, "exact": line.rule in EXACT, "sound": not bad}), flush=True)
        else:
            print(_row(line, samples, bad), flush=True)
    if not as_json:
        verdict = "sound" if num_exact else "no exact rule was audited"
        print(
            f"{'broken: ' + str(broken) if broken else verdict}. An exact rule is sound where p is above "
            f"{SIGNIFICANCE:g} and the mean within {STANDARD_ERRORS} standard errors (z); a row marked x{AGAIN} was "
            "not, at first, and was measured again for longer. What coupled emits does not depend on drafts, so its "
            "rows repeat; lossy rules are audited when --rule names them."
        )
    return 1 if broken else 0


def _row(line: Audit, samples: int, bad: bool) -> str:
    if line.failure is not None:
        return f"{line.rule:10} {line.drafts:10} {line.temperature:4g} BROKEN: {line.failure}"
    cells = [
        f"{line.rule:10} {line.drafts:10} {line.temperature:4g} {line.total_variation:9.6f}",
        f"{line.chi_square:12.2f} {line.p_value:10.3g} {line.mean_accepted:9.5f}",
    ]
    if line.expected_accepted is not None:
        z = (line.mean_accepted - line.expected_accepted) / line.standard_error
        cells.append(f"{line.expected_accepted:9.5f} {z:6.2f}")
    if line.samples > samples:
        cells.append(f"x{line.samples // samples}")
    if line.rule not in EXACT:
        cells.append("lossy")
    return " ".join([*cells, "BROKEN"] if bad else cells)


if __name__ == "__main__":
    sys.exit(main())
