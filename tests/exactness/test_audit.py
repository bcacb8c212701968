"""The audit that anyone can run: sound rules pass, biased ones are named, other implementations can be judged."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

import ascend_spec_ops
from ascend_spec.samplers import audit
from ascend_spec_ops.verify import RULES

SAMPLES = 60_000


def lines(capsys, *argv: str) -> tuple[int, list[dict]]:
    code = audit.main([*argv, "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("rule", audit.EXACT)
def test_exact_rules_are_sound(rule, capsys, request):
    samples = 1_000_000 if request.config.getoption("full") else SAMPLES
    code, found = lines(capsys, "--rule", rule, "--samples", str(samples))
    assert code == 0, found
    assert {line["drafts"] for line in found} == set(audit.KINDS)
    assert all(line["sound"] and line["exact"] for line in found)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in audit.EXACT])
def test_lossy_rules_are_seen_to_be_lossy(rule, capsys):
    code, found = lines(capsys, "--rule", rule, "--samples", str(SAMPLES), "--temperature", "1")
    assert code == 0  # nobody promised anything
    assert min(line["p_value"] for line in found) < 1e-6
    assert max(line["total_variation"] for line in found) > 0.02


def test_block_accepts_at_least_as_many():
    for kind, temperature in itertools.product(audit.KINDS, (0.5, 1.0, 2.0)):
        tables = audit.make_tables(kind)
        standard, block = (
            audit.expected_accepted(tables, rule, kind, temperature) for rule in ("standard", "block")
        )
        assert block >= standard - 1e-12
        if kind in ("near", "far"):
            assert block > standard + 1e-3


def biased(*args: torch.Tensor | int) -> torch.Tensor:
    """Another implementation, which judges sampled drafts as if they were deterministic ones of a flatter q."""
    if len(args) > 7:
        args = (*args[:7], args[7] * 0.7, args[8])
    return ascend_spec_ops.verify(*args)


def test_another_implementation_is_judged(capsys):
    code, found = lines(
        capsys, "--callable", "ascend_spec_ops:verify", "--rule", "standard", "--samples", str(SAMPLES)
    )
    assert code == 0, found
    broken = list(audit.run(["standard"], SAMPLES, [1.0], "cpu", biased))
    assert [line.drafts for line in broken if not line.is_sound] == ["near", "far", "truncated"]


def test_what_looks_broken_by_chance_is_measured_again(monkeypatch, capsys):
    """By a narrow bound a sound rule looks broken here and there."""
    monkeypatch.setattr(audit, "STANDARD_ERRORS", 0.5)
    found = list(audit.run(["standard"], 5000, [1.0], "cpu", None))
    again = [line for line in found if line.samples == audit.AGAIN * 5000]
    assert again
    assert len(again) < len(found) == len([line for line in found if line.samples in (5000, 20_000)])
    monkeypatch.setattr(audit, "STANDARD_ERRORS", 3)
    assert all(line.is_sound for line in found)
    with monkeypatch.context() as patched:
        patched.setattr(audit, "run", lambda *_: iter(found))
        audit.main(["--samples", "5000"])
    assert capsys.readouterr().out.count(" x4\n") == len(again)


def test_a_wrong_mean_is_noticed():
    """The law of a rule that throws good drafts away is right; its length is not."""

    def wasteful(*args):
        drafts = args[1].clone()
        drafts[::3] = -1
        return ascend_spec_ops.verify(args[0], drafts, *args[2:])

    (line,) = (
        line for line in audit.run(["standard"], SAMPLES, [1.0], "cpu", wasteful) if line.drafts == "near"
    )
    assert line.p_value > audit.SIGNIFICANCE
    assert not line.is_sound


@pytest.mark.parametrize(
    "argv",
    [
        ["--callable", "nowhere:x"],
        ["--callable", "json"],
        ["--samples", "0"],
        ["--temperature", "0"],
        ["--rule", "stand"],
        ["--device", "elsewhere"],
        ["--device", "cuda:99"],
        ["--device", "meta"],
        ["--callable", "sys:path"],
    ],
)
def test_bad_arguments(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        audit.main(argv)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert argv[0] in said or argv[1] in said


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (lambda batch, k: torch.zeros(batch, k + 2, dtype=torch.int32), "counts are 0 to 0"),
        (lambda batch, k: torch.full((batch, k + 2), 9, dtype=torch.int32), "counts are 9 to 9"),
        (lambda batch, k: torch.tensor([[1, 7, *[-1] * k]] * batch), "tokens are 7 to 7"),
        (lambda batch, k: torch.ones(batch, k + 1, dtype=torch.int32), "the output is [1000, 4]"),
        (lambda batch, k: torch.ones(batch, k + 2), "torch.float32"),
        (lambda batch, k: None, "AttributeError"),
        (lambda batch, k: 1 // 0, "ZeroDivisionError"),
    ],
)
def test_what_is_no_output_is_broken(output, said, monkeypatch, capsys):
    monkeypatch.setattr(ascend_spec_ops, "wrong", lambda *args: output(len(args[2]), args[6]), raising=False)
    argv = [
        "--callable",
        "ascend_spec_ops:wrong",
        "--rule",
        "typical",
        "--samples",
        "1000",
        "--temperature",
        "1",
    ]
    assert audit.main(argv) == 1
    rows = capsys.readouterr().out.splitlines()[1:-1]
    assert len(rows) == 4
    assert all("BROKEN: " in row and said in row for row in rows)
    code, found = lines(capsys, *argv)
    assert code == 1
    assert all(line["total_variation"] is None and said in line["failure"] for line in found)


def test_rare_pairs_are_taken_together():
    """One hit where a thousandth is expected is no wonder; that it were would be a chi-square of a thousand."""
    counts, expected = torch.tensor([501.0, 498, 1, 0]), torch.tensor([500, 499, 0.001, 0.999])
    assert audit._chi_square(counts.double(), expected.double())[1] > 0.1


def test_the_table(capsys):
    assert (
        audit.main(["--rule", "typical", "--rule", "block", "--samples", "2000", "--temperature", "1"]) == 0
    )
    head, *rows, verdict = capsys.readouterr().out.splitlines()
    assert verdict.startswith("sound. ")
    assert head.split() == ["rule", "drafts", "T", "TV", "chi2", "p", "accepted", "expected", "z"]
    assert len(rows) == 8
    assert all(row.endswith("lossy") for row in rows[:4])
    assert audit.main(["--rule", "typical", "--samples", "2000", "--temperature", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("no exact rule was audited. ")
