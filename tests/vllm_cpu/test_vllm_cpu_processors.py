"""Our logits processors give what vLLM's own give, on the same logits."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(("num_rows", "vocab_size"), [(240, 50), (60, 3000), (9, 32000)])
def test_cuts(vllm, num_rows, vocab_size):
    """Equal but for the two differences that ours documents: equal logits at top-p's edge stay together, and a
    sum within rounding of top_p may fall either way."""
    counts = vllm("vllm_cpu_processors:cuts", num_rows=num_rows, vocab_size=vocab_size, seed=vocab_size)
    assert counts["wrong"] == 0, counts
    assert counts["equal"] >= 0.6 * num_rows, counts
    assert counts["near"] <= 0.1 * num_rows, counts


@pytest.mark.parametrize("vocab_size", [5, 40, 5000])
def test_penalties(vllm, vocab_size):
    """Few tokens, so that prompts and outputs repeat and overlap."""
    report = vllm("vllm_cpu_processors:penalties", num_rows=50, vocab_size=vocab_size, seed=1)
    assert report["error"] < 1e-5
    assert report["moved"] > 1


@pytest.mark.parametrize("vocab_size", [64, 77, 32003])
def test_bitmask(vllm, vocab_size):
    assert vllm("vllm_cpu_processors:bitmask", num_rows=6, vocab_size=vocab_size, seed=2)["equal"]
