"""Broken copies of the kernels of ``verify``, each a small patch: the reference must reject every one."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import pytest
from verify_cases import assert_equals_reference
from verify_rule_cases import peaked_case

from ascend_spec_ops.verify import launch

FOLDER = Path(launch.__file__).parent


@dataclass(frozen=True)
class Mutant:
    """One change of a kernel's source. ``number``: of the mistake in the list of known ones."""

    rule: str
    name: str
    file: str
    old: str
    new: str
    number: int | None = None
    sampled: bool = True
    options: tuple[float, ...] = ()
    """Other than those of the random cases."""
    seeds: tuple[int, ...] = (1, 0, 2)
    """Of the cases that it must not survive all."""


WALKS, BLOCK, COUPLED = "kernel_walks", "kernel_block", "kernel_coupled"
MUTANTS = [
    Mutant("standard", "q is not looked at", WALKS, "threshold > log_q - log_p", "threshold > -log_p"),
    Mutant(
        "standard",
        "a rejected draft stays possible",
        WALKS,
        "            kind = WITHOUT_DRAFT\n",
        "            kind = PLAIN\n",
        sampled=False,
    ),
    Mutant(
        "synthetic", "every draft at the first rate", WALKS, "tl.load(rule_ptr + j)", "tl.load(rule_ptr)", 18
    ),
    Mutant(
        "synthetic",
        "an impossible draft may stay",
        WALKS,
        "accepted = possible & (threshold > tl.load",
        "accepted = (threshold > tl.load",
    ),
    Mutant(
        "typical",
        "epsilon alone decides",
        WALKS,
        "accepted = p > delta * tl.exp(",
        "accepted = p > 1.0 + delta * tl.exp(",
        15,
    ),
    Mutant("typical", "the rejected row is drawn from", WALKS, "ARGMAX=RULE == TYPICAL", "ARGMAX=False", 16),
    Mutant(
        "typical",
        "the entropy of one block",
        WALKS,
        "mask=lane < num_blocks, other=0.0",
        "mask=lane < 1, other=0.0",
    ),
    Mutant(
        "fly",
        "the window is one draft shorter",
        WALKS,
        "(j - count == first_option)",
        "(j - count == first_option - 1)",
        17,
        options=(2, 0.05, 3),
    ),
    Mutant(
        "fly",
        "an overlooked draft stays whatever follows",
        WALKS,
        "                                deferred = 1\n",
        "                                count = j + 1\n",
        17,
    ),
    Mutant(
        "fly",
        "a failed window is drawn where it fails",
        WALKS,
        "                        if (deferred == 0) | (j - count == first_option):\n",
        "                        if True:\n",
        17,
        options=(2, 0.05, 3),
    ),
    Mutant(
        "fly",
        "any entropy will do",
        WALKS,
        "if entropy >= second_option",
        "if entropy >= -1.0",
        17,
        options=(1, 0.9, 3),
    ),
    Mutant(
        "fly",
        "the numbers of the next round",
        WALKS,
        "k1, position, j, STREAM_ROUND",
        "k1, position + j, 0, STREAM_ROUND",
        4,
    ),
    Mutant(
        "block",
        "the walk ends at the first failure",
        BLOCK,
        "                if accept_threshold(k0, k1, position, j, STREAM_ROUND) > -log_rate:",
        "                if (count == j) & (accept_threshold(k0, k1, position, j, STREAM_ROUND) > -log_rate):",
        1,
    ),
    Mutant(
        "block",
        "the mass of the row before",
        BLOCK,
        "row_total(rest_ptr, start + j + 1,",
        "row_total(rest_ptr, start + tl.maximum(j, 1),",
        2,
    ),
    Mutant(
        "block",
        "the draw does not scale p",
        BLOCK,
        "                    log_scale = product\n",
        "                    log_scale = 0.0\n",
        2,
        seeds=(45,),
    ),
    Mutant(
        "block",
        "the mass of an unscaled p",
        BLOCK,
        "row_total(block_lse_ptr, row, num_blocks, block_lane) - product",
        "row_total(block_lse_ptr, row, num_blocks, block_lane)",
        2,
    ),
    Mutant(
        "block",
        "the running product decides",
        BLOCK,
        "                    log_rate = _log_rate(product, mass)\n",
        "",
        3,
    ),
    Mutant(
        "block",
        "the numbers of the next round",
        BLOCK,
        "k1, position, j, STREAM_ROUND",
        "k1, position + j, 0, STREAM_ROUND",
        4,
    ),
    Mutant(
        "block",
        "the product is not clipped",
        BLOCK,
        "tl.minimum(product + log_p - log_q, 0.0)",
        "product + log_p - log_q",
    ),
    Mutant(
        "block",
        "the masses of another row",
        BLOCK,
        "(start + count) * num_blocks + lane, mask",
        "(start + 1) * num_blocks + lane, mask",
    ),
    Mutant("coupled", "every row at the first position", COUPLED, "(position + j).to(", "(position + 0).to("),
    Mutant(
        "coupled",
        "the first draft is not compared",
        COUPLED,
        "(draft >= 0) & (draft == tl.load(tokens + 2 * j))",
        "(draft >= 0) & ((j == 0) | (draft == tl.load(tokens + 2 * j)))",
    ),
]


def compare(mutant: Mutant) -> None:
    for seed in mutant.seeds:
        case = peaked_case(mutant.rule, 14, 4, sampled=mutant.sampled, seed=seed)
        case.rule_options = mutant.options or case.rule_options
        assert_equals_reference(case, launch.verify(*case.arguments()))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.rule}: {m.name}")
def test_the_reference_rejects(mutant, tmp_path, monkeypatch):
    source = (FOLDER / f"{mutant.file}.py").read_text()
    assert source.count(mutant.old) == 1, "the mutant no longer fits the code: write it anew"
    path = tmp_path / "kernel.py"
    path.write_text(source.replace(mutant.old, mutant.new))
    spec = importlib.util.spec_from_file_location(f"kernel_mutant_{abs(hash(mutant))}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in vars(module):
        if name.endswith("_kernel") and hasattr(launch, name):
            monkeypatch.setattr(launch, name, getattr(module, name))
    with pytest.raises(AssertionError):
        compare(mutant)
