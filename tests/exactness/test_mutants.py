"""Rung 7: broken copies of the CPU kernels. Each is a small patch of our code, and a law must reject it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import laws
import pytest

from ascend_spec_ops.uniforms import STREAM_LANE
from ascend_spec_ops.verify import cpu, verify


@dataclass(frozen=True)
class Mutant:
    """``number`` is the mutant's number in the list of known mistakes, where it has one."""

    name: str
    old: str
    new: str
    check: Callable[[laws.Verify], None]
    number: int | None = None


def few(check, *arguments, rows: int = 60_000) -> Callable[[laws.Verify], None]:
    return lambda verify: check(verify, *arguments, num_rows=rows)


MUTANTS = [
    Mutant(
        "the first draft is not checked",
        "if not _accepts(exponential_f32",
        "if count > 0 and not _accepts(exponential_f32",
        few(laws.check_contextual_law, True),
    ),
    Mutant(
        "an empty residual gives id 0",
        "    if _largest(mass) == MINUS_INF:\n"
        "        return _draw(p, row, p_stride, vocab_size, scale, block_lse, k0, k1, position)\n"
        "    b = _pick_block",
        "    if _largest(mass) == MINUS_INF:\n        return 0\n    b = _pick_block",
        laws.check_nothing_left,
        number=7,
    ),
    Mutant(
        "u may be 0 and the comparison is not strict",
        "if not _accepts(exponential_f32(word(k0, k1, at, STREAM_ACCEPT, 0)), log_p, log_q):",
        "if word(k0, k1, at, STREAM_ACCEPT, 0) >> 16 > 65535 * np.exp(log_p - log_q):",
        laws.check_impossible_draft,
        number=8,
    ),
    Mutant(
        "the accept test reads the noise of the draw",
        "word(k0, k1, at, STREAM_ACCEPT, 0)",
        "word(k0, k1, at, STREAM_LANE, 0)",
        few(laws.check_own_drafts_law),
        number=33,
    ),
    Mutant(
        "a sampled draft leaves the residual of a one-hot one",
        "                if sampled:\n                    token = _draw_residual(",
        "                if sampled and draft >= vocab_size:\n                    token = _draw_residual(",
        few(laws.check_contextual_law, True),
    ),
    Mutant(
        "the block of the excluded token keeps its mass",
        "    mass[b] = _log_sum_exp(rest, scale)\n",
        "    mass[b] = block_lse[b]\n",
        few(laws.check_fixed_draft_law),
    ),
    Mutant(
        "every lane above 2047 repeats the noise of the one below",
        "log_weights[i + HALF] += gumbel_f32(x1)",
        "log_weights[i + HALF] += gumbel_f32(x0)",
        few(laws.check_blocks_law, False, rows=20_000),
    ),
    Mutant(
        "the noise does not depend on the position",
        "c0 = uint32(position & 0xFFFFFFFF)",
        "c0 = uint32(0)",
        few(laws.check_contextual_law, True),
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_law_rejects(mutant, tmp_path):
    source = Path(cpu.__file__).read_text()
    assert source.count(mutant.old) == 1, "the mutant no longer fits the code: write it anew"
    path = tmp_path / "mutant.py"
    path.write_text(source.replace(mutant.old, mutant.new))
    spec = importlib.util.spec_from_file_location(f"mutant_of_verify_{abs(hash(mutant.name))}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(AssertionError):
        mutant.check(module.verify)


def test_drafts_truncated_behind_the_back_of_q():
    """Mutant 5: drafts come from the two likeliest tokens, and the full q is handed over."""
    with pytest.raises(AssertionError, match="first token"):
        laws.check_truncated_drafts_law(verify, q_given_is_q_used=False)


def test_draft_noise_without_a_stream_of_its_own():
    """Mutant 33: the drafter draws with the noise that the target's draw uses too."""
    with pytest.raises(AssertionError, match="first token"):
        laws.check_own_drafts_law(verify, stream=STREAM_LANE)
