"""In the process that has vLLM: its own logits processors, beside ours."""

from __future__ import annotations

import math
from typing import Any

import torch
from vllm.model_executor.layers.utils import apply_penalties
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch
from xgrammar import apply_token_bitmask_inplace

import ascend_spec_ops

#: of a sum of probabilities, by which vLLM's float32 sums may be wrong
SLACK = 1e-4


def cuts(num_rows: int, vocab_size: int, seed: int) -> dict[str, Any]:
    """How min-p, top-k and top-p of all rows differ from vLLM's, by kind of difference.

    Temperatures are powers of two, so that dividing by them makes no ties. Logits are all different, but for
    every third row, which is in steps of 1/4: there vLLM drops some of the equal tokens at top-p's edge.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = 2.5 * torch.randn(num_rows, vocab_size, generator=generator)
    logits[::3] = (4 * logits[::3]).round() / 4
    temperature = 2.0 ** torch.randint(-1, 2, (num_rows,), generator=generator)
    top_k = torch.randint(1, vocab_size + 1, (num_rows,), generator=generator, dtype=torch.int32)
    top_p, min_p = torch.rand(2, num_rows, generator=generator)
    top_k[::4], top_p[1::4], min_p[::2] = vocab_size, 1.0, 0.0
    theirs = _vllm_cuts(logits.clone(), temperature, top_k, top_p, min_p)
    ours = logits.clone()
    ascend_spec_ops.filter_logits(ours, temperature, top_k, top_p, min_p)
    counts = dict.fromkeys(("equal", "tie", "near", "wrong"), 0)
    for row in range(num_rows):
        counts[_difference(logits[row] / temperature[row], ours[row], theirs[row], float(top_p[row]))] += 1
    return counts


def _vllm_cuts(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """vLLM's sampler after temperature: the three lines of its min-p processor, then its top-k and top-p."""
    logits = logits.div_(temperature.unsqueeze(1))
    probabilities = torch.softmax(logits, dim=-1)
    least = probabilities.amax(-1, keepdim=True) * min_p.unsqueeze(1)
    logits.masked_fill_(probabilities < least, -math.inf)
    return apply_top_k_top_p_pytorch(logits, top_k, top_p, allow_cpu_sync=True)


def _difference(scaled: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor, top_p: float) -> str:
    ours, theirs = ours > -math.inf, theirs > -math.inf
    if torch.equal(ours, theirs):
        return "equal"
    only = ours ^ theirs
    values = scaled[only]
    if (
        (ours & ~theirs).equal(only)
        and (values == scaled[ours].min()).all()
        and (scaled[theirs] >= values[0]).all()
    ):
        return "tie"
    # the cumulative probability at the edge, of what both leave
    kept = torch.softmax(scaled[ours | theirs].double(), 0)
    above = kept[scaled[ours | theirs] > values.max()].sum()
    return "near" if abs(float(above) - top_p) < SLACK else "wrong"


def penalties(num_rows: int, vocab_size: int, seed: int) -> dict[str, Any]:
    """The largest difference from vLLM's penalties, and how far these moved a logit."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(num_rows, vocab_size, generator=generator)
    prompts, outputs = torch.randint(0, vocab_size, (2, num_rows, 20), generator=generator)
    repetition = 0.5 + torch.rand(num_rows, generator=generator)
    presence, frequency = 2 * torch.randn(2, num_rows, generator=generator)
    theirs = apply_penalties(logits.clone(), prompts, outputs, presence, frequency, repetition)
    ours = logits.clone()
    lengths = torch.full((num_rows,), 20, dtype=torch.int32)
    none = torch.empty(0, dtype=torch.int32)
    ascend_spec_ops.apply_penalties(
        ours, torch.cat([prompts, outputs], 1).int(), torch.arange(num_rows), lengths, 2 * lengths, none,
        torch.zeros_like(lengths), repetition, presence, frequency,
    )  # fmt: skip
    return {"error": (ours - theirs).abs().max().item(), "moved": (ours - logits).abs().max().item()}


def bitmask(num_rows: int, vocab_size: int, seed: int) -> dict[str, bool]:
    """Whether a random mask leaves what xgrammar leaves."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(
        -(2**31), 2**31, (num_rows, -(-vocab_size // 32)), generator=generator, dtype=torch.int32
    )
    theirs, ours = torch.randn(num_rows, vocab_size, generator=generator).repeat(2, 1, 1)
    apply_token_bitmask_inplace(theirs, words)
    ascend_spec_ops.apply_token_bitmask(ours, words)
    return {"equal": torch.equal(ours, theirs)}
