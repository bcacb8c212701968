"""Broken copies of our own code: each is a small patch of one file of ``verify``, and a named test rejects it."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import golden
import laws
import rule_laws

from ascend_spec_ops.verify import reference

#: Files that import each other, the last one holding the operator.
FAMILIES = {
    "cpu": ("cpu_draw", "cpu_walks", "cpu"),
    "reference": ("reference_draw", "reference_rules", "reference"),
}


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    """the file of ``ops/verify`` that is patched, without its suffix"""
    old: str
    new: str
    test: str
    """the test of the suite that fails on it"""
    check: Callable[..., None] | str
    """what that test runs, on an implementation; or "enumeration" """
    number: int | None = None
    """in the list of known mistakes, where it has one"""
    full: bool = False
    """of the long setting alone: it costs a compilation and repeats what a mutant of the reference shows"""


def few(check: Callable[..., object], *arguments, rows: int = 60_000) -> Callable[[laws.Verify], object]:
    return lambda verify: check(verify, *arguments, num_rows=rows)


def block(*chains: rule_laws.Chain) -> Callable[[laws.Verify], None]:
    def check(verify: laws.Verify) -> None:
        for chain in chains:
            rule_laws.check_rule(verify, "block", chain, num_tokens=4, num_rows=100_000)

    return check


CHI, RULES, ENUMERATION = "test_chi_square.py", "test_rules.py", "test_enumeration.py"
KNOWN = f"{RULES}::test_known_numbers"
BLOCK = block(rule_laws.SUN, rule_laws.make_chain("sampled far"))

STANDARD_MUTANTS = [
    Mutant(
        "the first draft is not checked", "cpu_walks",
        "if not accepts_draft(r, j, r.position + j, STREAM_ACCEPT, 0):",
        "if j > 0 and not accepts_draft(r, j, r.position + j, STREAM_ACCEPT, 0):",
        f"{CHI}::test_contextual_pairs", few(laws.check_contextual_law, True),
    ),
    Mutant(
        "a draft that a mask forbids counts as an empty slot", "cpu",
        "    if r.q_scale == F(0.0):\n        return draw_without",
        "    if log_probability(r.p, r.row + j, r.scale, r.drafts[j]) == F(-np.inf):\n"
        "        return draw(r, j)\n    if r.q_scale == F(0.0):\n        return draw_without",
        f"{CHI}::test_drafts_that_a_mask_forbids", few(laws.check_masked_drafts_law), number=6,
    ),
    Mutant(
        "an empty residual gives id 0", "cpu_draw",
        "    if largest(log_masses) == MINUS_INF:\n        return draw(r, j)\n    at = r.position + j\n    b = _pick",
        "    if largest(log_masses) == MINUS_INF:\n        return 0\n    at = r.position + j\n    b = _pick",
        f"{CHI}::test_nothing_left_of_the_residual", laws.check_nothing_left, number=7,
    ),
    Mutant(
        "u may be 0 and the comparison is not strict", "cpu_walks",
        "return accepts(variate(r, position, stream, lane), log_p, log_q)",
        "return random_word(r.k0, r.k1, position, stream, lane) >> 16 <= 65535 * np.exp(log_p - log_q)",
        f"{CHI}::test_impossible_drafts", laws.check_impossible_draft, number=8,
    ),
    Mutant(
        "the accept test reads the noise of the draw", "cpu_walks",
        "STREAM_ACCEPT, STREAM_ROUND = 0, 5", "STREAM_ACCEPT, STREAM_ROUND = 2, 5",
        f"{CHI}::test_own_noise_for_drafts", few(laws.check_own_drafts_law), number=33,
    ),
    Mutant(
        "a sampled draft leaves the residual of a one-hot one", "cpu",
        "    if r.q_scale == F(0.0):\n        return draw_without",
        "    if r.drafts[j] < r.p.vocab_size:\n        return draw_without",
        f"{CHI}::test_contextual_pairs", few(laws.check_contextual_law, True),
    ),
    Mutant(
        "the block of the excluded token keeps its mass", "cpu_draw",
        "    log_masses[b] = log_sum_exp(rest, r.scale)\n", "",
        f"{CHI}::test_the_same_draft_everywhere", few(laws.check_fixed_draft_law),
    ),
    Mutant(
        "every lane above 2047 repeats the noise of the one below", "cpu_draw",
        "log_weights[i + HALF] += gumbel_f32(x1)", "log_weights[i + HALF] += gumbel_f32(x0)",
        f"{CHI}::test_three_blocks", few(laws.check_blocks_law, False, rows=20_000),
    ),
    Mutant(
        "the noise does not depend on the position", "cpu_draw",
        "c0 = uint32(position & 0xFFFFFFFF)", "c0 = uint32(0)",
        f"{CHI}::test_contextual_pairs", few(laws.check_contextual_law, True),
    ),
]  # fmt: skip

BLOCK_MUTANTS = [
    Mutant(
        "block: the first failure ends the walk", "reference_rules",
        "            kept = Walk(i, Last.RESIDUAL if i < num_drafts else Last.DRAW, log_p_i)\n",
        "            kept = Walk(i, Last.RESIDUAL if i < num_drafts else Last.DRAW, log_p_i)\n"
        "        else:\n            break\n",
        f"{ENUMERATION}::test_block_verification_of_the_golden_pair", "enumeration", number=1,
    ),
    Mutant(
        "block: the residual mass of the row before", "reference_rules",
        "mass = residual_mass(request, i, log_p_i)", "mass = residual_mass(request, i - 1, log_p_i)",
        f"{ENUMERATION}::test_joint_law_is_the_targets", "enumeration", number=2,
    ),
    Mutant(
        "block: the residual of the token-level rule", "reference_rules",
        "Last.DRAW, log_p_i)", "Last.DRAW, 0.0)",
        f"{ENUMERATION}::test_joint_law_is_the_targets", "enumeration", number=2,
    ),
    Mutant(
        "block: the first failure ends the walk (compiled)", "cpu_walks",
        "            kept = Walk(i, FROM_MEASURED_RESIDUAL if i < n else FROM_P, log_p_i, 0)\n",
        "            kept = Walk(i, FROM_MEASURED_RESIDUAL if i < n else FROM_P, log_p_i, 0)\n"
        "        else:\n            break\n",
        f"{RULES}::test_law", BLOCK, number=1, full=True,
    ),
    Mutant(
        "block: the residual of the token-level rule (compiled)", "cpu_walks",
        "FROM_MEASURED_RESIDUAL if i < n else FROM_P, log_p_i, 0)", "FROM_RESIDUAL if i < n else FROM_P, F(0.0), 0)",
        f"{RULES}::test_law", BLOCK, number=2, full=True,
    ),
    Mutant(
        "block: p_i is compared with the product of the uniforms", "cpu_walks",
        "if accepts(variate(r, r.position, STREAM_ROUND, i - 1), log_h, F(0.0)):",
        "product = variate(r, r.position, STREAM_ROUND, 0)\n"
        "        if i > 1:\n            product += variate(r, r.position, STREAM_ROUND, 1)\n"
        "        if accepts(product, log_p_i, F(0.0)):",
        f"{RULES}::test_block_accepts_eleven_ninths_where_standard_accepts_ten", BLOCK, number=3,
    ),
    Mutant(
        "block: a number that one round inspected decides in the next", "cpu_walks",
        "variate(r, r.position, STREAM_ROUND, i - 1)", "variate(r, r.position + i - 1, STREAM_ROUND, 0)",
        f"{RULES}::test_law", BLOCK, number=4,
    ),
]  # fmt: skip

LOSSY_MUTANTS = [
    Mutant(
        "typical: not strict", "reference_rules",
        "return log_p_draft > limit", "return log_p_draft >= limit",
        KNOWN, golden.check_typical_is_strict, number=15,
    ),
    Mutant(
        "typical: the entropy without 1e-5", "reference_rules",
        "(log_p.exp() + 1e-5).log()", "log_p.clamp(min=-700)",
        KNOWN, golden.check_typical_thresholds, number=15,
    ),
    Mutant(
        "typical: epsilon and delta exchanged", "reference_rules",
        "def typical(request: Request, epsilon: float, delta: float)",
        "def typical(request: Request, delta: float, epsilon: float)",
        KNOWN, golden.check_typical_thresholds, number=15,
    ),
    Mutant(
        "typical: nothing after a partial acceptance", "reference",
        "    return outcome\n", "    if rule == 'typical' and 0 < walk.count < counted:\n"
        "        outcome.tokens.pop()\n    return outcome\n",
        KNOWN, golden.check_typical_replacement, number=16,
    ),
    Mutant(
        "fly: a window may end after the drafts", "reference_rules",
        "if j + window >= len(request.drafts)", "if j + window > len(request.drafts)",
        KNOWN, golden.check_fly_patterns, number=17,
    ),
    Mutant(
        "fly: the entropy is renormalised", "reference_rules",
        "largest = log_p.topk(min(top_k, len(log_p))).values",
        "largest = torch.log_softmax(log_p.topk(min(top_k, len(log_p))).values, 0)",
        KNOWN, golden.check_fly_entropies, number=17,
    ),
    Mutant(
        "fly: a rejection inside a window is overlooked too", "reference_rules",
        "        elif deferred is not None:\n",
        "        elif deferred is not None and not defers(request, j, int(window), entropy_threshold, int(top_k)):\n",
        KNOWN, golden.check_fly_patterns, number=17,
    ),
    Mutant(
        "fly: the token comes from the row at which the window failed", "reference_rules",
        "return Walk(deferred, Last.RESIDUAL)", "return Walk(j, Last.RESIDUAL)",
        KNOWN, golden.check_fly_patterns, number=17,
    ),
    Mutant(
        "synthetic: rates multiplied up once more", "reference_rules",
        "log_rate = log_or_minus_inf(rates[j])", "log_rate = log_or_minus_inf(math.prod(rates[: j + 1]))",
        KNOWN, few(golden.check_synthetic_rates, rows=1500), number=18,
    ),
    Mutant(
        "typical: not strict (compiled)", "cpu_walks",
        "if not (log_p > log_epsilon or", "if not (log_p >= log_epsilon or",
        KNOWN, golden.check_typical_is_strict, number=15, full=True,
    ),
    Mutant(
        "typical: the entropy without 1e-5 (compiled)", "cpu_draw",
        "log_f32(x + F(1e-5))", "log_f32(x + F(1e-30))",
        KNOWN, golden.check_typical_thresholds, number=15, full=True,
    ),
    Mutant(
        "fly: a window may end after the drafts (compiled)", "cpu_walks",
        "elif j + window < n and", "elif j + window <= n and",
        KNOWN, golden.check_fly_patterns, number=17, full=True,
    ),
    Mutant(
        "synthetic: the rate of the first draft for all (compiled)", "cpu_walks",
        "log_rates_given[j]", "log_rates_given[0]",
        KNOWN, golden.check_synthetic_rates, number=18, full=True,
    ),
]  # fmt: skip

MUTANTS = [*STANDARD_MUTANTS, *BLOCK_MUTANTS, *LOSSY_MUTANTS]
_counter = itertools.count()


def load(mutant: Mutant, folder: Path) -> ModuleType:
    """A package with the mutant's family of files, one of them patched; the operator is ``verify`` in it."""
    family = next(files for files in FAMILIES.values() if mutant.file in files)
    source = Path(reference.__file__).parent
    name = f"mutant_of_verify_{next(_counter)}"
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text(
        "from ascend_spec_ops.verify import RULES, RULES_WITHOUT_Q, VOCAB_BLOCK, check_arguments\n"
    )
    for file in family:
        text = (source / f"{file}.py").read_text()
        if file == mutant.file:
            assert text.count(mutant.old) == 1, "the mutant no longer fits the code: write it anew"
            text = text.replace(mutant.old, mutant.new)
        (package / f"{file}.py").write_text(text.replace("ascend_spec_ops.verify", name))
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        for file in family:
            importlib.import_module(f"{name}.{file}")
    finally:
        sys.path.remove(str(folder))
    loaded = sys.modules[name]
    loaded.verify = sys.modules[f"{name}.{family[-1]}"].verify
    return loaded
