"""Launcher of the Triton kernels. No value is read on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import triton

from ascend_spec_ops import targets
from ascend_spec_ops.uniforms.launch import HALF, as_words
from ascend_spec_ops.verify import RULES_WITHOUT_Q, VOCAB_BLOCK, check_arguments
from ascend_spec_ops.verify.kernel import block_statistics_kernel, draw_kernel, residual_mass_kernel
from ascend_spec_ops.verify.kernel_block import (
    block_product_kernel,
    block_residual_kernel,
    block_walk_kernel,
)
from ascend_spec_ops.verify.kernel_coupled import coupled_match_kernel, coupled_rows_kernel
from ascend_spec_ops.verify.kernel_walks import (
    FLY,
    STANDARD,
    SYNTHETIC,
    TYPICAL,
    accept_kernel,
    entropy_kernel,
)

#: the rules of ``accept_kernel``, by the number it knows them by
ACCEPT_RULES = {
    "standard": STANDARD.value,
    "typical": TYPICAL.value,
    "synthetic": SYNTHETIC.value,
    "fly": FLY.value,
}


@dataclass(frozen=True)
class Batch:
    """The tensors of one call as the kernels want them. Without sampled drafts ``q`` stands for nothing: it is
    not read."""

    logits: torch.Tensor
    q: torch.Tensor
    draft_token_ids: torch.Tensor
    cu: torch.Tensor
    temperature: torch.Tensor
    q_temperature: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor
    max_spec_len: int
    sampled: bool

    @property
    def num_requests(self) -> int:
        return len(self.cu)

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[1]

    @property
    def num_blocks(self) -> int:
        return triton.cdiv(self.vocab_size, VOCAB_BLOCK)

    @property
    def padded_blocks(self) -> int:
        return triton.next_power_of_2(self.num_blocks)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.vocab_size, self.num_blocks, self.logits.stride(0), self.q.stride(0)

    def grid(self, work: int) -> tuple[int]:
        return targets.grid(work, self.logits.device)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.logits.device)


@dataclass(frozen=True)
class Statistics:
    """Of every block of every row: maximum, its index, log-sum-exp, the largest logits."""

    block_max: torch.Tensor
    block_arg: torch.Tensor
    block_lse: torch.Tensor
    top: torch.Tensor


@dataclass(frozen=True)
class Ending:
    """What a walk says of the last token of every request; see ``kernel.py``."""

    state: torch.Tensor
    totals: torch.Tensor
    mass: torch.Tensor
    out: torch.Tensor


def verify(
    logits: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    max_spec_len: int,
    draft_logits: torch.Tensor | None = None,
    draft_temperature: torch.Tensor | None = None,
    rule: str = "standard",
    rule_options: Sequence[float] = (),
) -> torch.Tensor:
    check_arguments(
        logits, draft_token_ids, cu_num_draft_tokens, temperature, seeds, positions, max_spec_len,
        draft_logits, draft_temperature, rule, rule_options,
    )  # fmt: skip
    out = logits.new_full((len(seeds), max_spec_len + 2), -1, dtype=torch.int32)
    if len(seeds) == 0:
        return out
    if len(draft_token_ids) == 0:
        # every rule gives the ordinary draw, and this one has nothing to prepare
        rule, rule_options = "standard", ()
    q, q_temperature, sampled = logits, temperature, False
    if draft_logits is not None and draft_temperature is not None:
        sampled = len(draft_token_ids) > 0 and rule not in RULES_WITHOUT_Q
        if sampled:
            q, q_temperature = draft_logits, draft_temperature
    batch = Batch(
        logits, q, draft_token_ids, cu_num_draft_tokens, temperature, q_temperature, as_words(seeds),
        as_words(positions), max_spec_len, sampled,
    )  # fmt: skip
    target = statistics(batch, logits, temperature, 1, top_k=top_k_of(batch, rule, rule_options))
    if rule == "coupled":
        match_coupled(batch, target, out)
        return out
    q_lse = statistics(batch, q, q_temperature, 0).block_lse if sampled else target.block_lse
    ending = Ending(
        batch.empty(batch.num_requests, 4, dtype=torch.int32),
        batch.empty(batch.num_requests, 2),
        batch.empty(batch.num_requests, batch.num_blocks),
        out,
    )
    if rule == "block":
        walk_block(batch, target, q_lse, ending)
    else:
        walk_rows(batch, target, q_lse, ending, rule, rule_options)
    residual_mass_kernel[batch.grid(batch.num_requests * batch.num_blocks)](
        logits, q, batch.cu, temperature, q_temperature, target.block_lse, ending.state, ending.totals,
        ending.mass, batch.num_requests, *batch.sizes, SAMPLED=sampled, BLOCK=VOCAB_BLOCK,
    )  # fmt: skip
    draw_kernel[batch.grid(batch.num_requests)](
        logits, q, batch.cu, temperature, q_temperature, batch.seeds, batch.positions, target.block_lse,
        ending.state, ending.totals, ending.mass, out, batch.num_requests, max_spec_len, *batch.sizes,
        SAMPLED=sampled, NUM_BLOCKS=batch.padded_blocks, HALF=HALF, num_warps=8,
    )  # fmt: skip
    return out


def top_k_of(batch: Batch, rule: str, options: Sequence[float]) -> int:
    """How many of the largest logits of every block a rule wants."""
    return min(int(options[2]), batch.vocab_size) if rule == "fly" else 0


def statistics(
    batch: Batch, rows: torch.Tensor, temperature: torch.Tensor, extra: int, top_k: int = 0
) -> Statistics:
    """``extra``: 1 for the target's rows, 0 for those of the drafts."""
    shape = (rows.shape[0], batch.num_blocks)
    found = Statistics(
        batch.empty(*shape), batch.empty(*shape, dtype=torch.int32), batch.empty(*shape), batch.empty(*shape, top_k)
    )  # fmt: skip
    rows_a_request = batch.max_spec_len + extra
    block_statistics_kernel[batch.grid(batch.num_requests * rows_a_request * batch.num_blocks)](
        rows, batch.cu, temperature, found.block_max, found.block_arg, found.block_lse, found.top,
        batch.num_requests, rows_a_request, batch.vocab_size, batch.num_blocks, rows.stride(0), EXTRA=extra,
        TOP_K=top_k, BLOCK=VOCAB_BLOCK,
    )  # fmt: skip
    return found


def walk_rows(
    batch: Batch, target: Statistics, q_lse: torch.Tensor, ending: Ending, rule: str, options: Sequence[float]
) -> None:
    """The rules that judge one row after another."""
    of_rule, first, second, top_k = target.block_lse, 0.0, 0.0, top_k_of(batch, rule, options)
    if rule == "typical":
        first, second = options
        of_rule = entropies(batch, target, epsilon=first)
    elif rule == "synthetic":
        of_rule = synthetic_thresholds(tuple(options), batch.logits.device)
    elif rule == "fly":
        of_rule, (first, second, _) = target.top, options
    accept_kernel[batch.grid(batch.num_requests)](
        batch.logits, batch.q, batch.draft_token_ids, batch.cu, batch.temperature, batch.q_temperature,
        batch.seeds, batch.positions, target.block_max, target.block_arg, target.block_lse, q_lse, of_rule,
        ending.state, ending.totals, ending.out, batch.num_requests, batch.max_spec_len, *batch.sizes,
        float(first), float(second), RULE=ACCEPT_RULES[rule], TOP_K=top_k,
        NUM_TOPS=triton.next_power_of_2(max(1, batch.num_blocks * top_k)), SAMPLED=batch.sampled,
        NUM_BLOCKS=batch.padded_blocks,
    )  # fmt: skip


def entropies(batch: Batch, target: Statistics, epsilon: float) -> torch.Tensor:
    """``[N, num_blocks]``, for the rows whose draft epsilon alone does not accept."""
    found = batch.empty(len(batch.draft_token_ids), batch.num_blocks)
    work = batch.num_requests * batch.max_spec_len * batch.num_blocks
    entropy_kernel[batch.grid(work)](
        batch.logits, batch.draft_token_ids, batch.cu, batch.temperature, target.block_lse, found,
        batch.num_requests, batch.max_spec_len, *batch.sizes[:3], float(epsilon),
        NUM_BLOCKS=batch.padded_blocks, BLOCK=VOCAB_BLOCK,
    )  # fmt: skip
    return found


@cache
def synthetic_thresholds(rates: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """``[K]`` float32, ``-log`` of the rates: an exponential variate above it accepts. Kept for ever, since a
    captured graph reads it; the rates belong to the configuration."""
    thresholds = [-math.log(rate) if rate > 0 else math.inf for rate in rates]
    return torch.tensor(thresholds, dtype=torch.float32, device=device)


def walk_block(batch: Batch, target: Statistics, q_lse: torch.Tensor, ending: Ending) -> None:
    num_slots = len(batch.draft_token_ids)
    num_drafts = batch.empty(batch.num_requests, dtype=torch.int32)
    product, rest = batch.empty(num_slots), ending.mass
    shape = (batch.num_requests, batch.max_spec_len)
    block_product_kernel[batch.grid(batch.num_requests)](
        batch.logits, batch.q, batch.draft_token_ids, batch.cu, batch.temperature, batch.q_temperature,
        target.block_lse, q_lse, num_drafts, product, *shape, *batch.sizes, SAMPLED=batch.sampled,
        NUM_BLOCKS=batch.padded_blocks,
    )  # fmt: skip
    if batch.sampled:
        rest = batch.empty(num_slots, batch.num_blocks)
        block_residual_kernel[batch.grid(batch.num_requests * batch.max_spec_len * batch.num_blocks)](
            batch.logits, batch.q, batch.cu, batch.temperature, batch.q_temperature, target.block_lse, q_lse,
            num_drafts, product, rest, *shape, *batch.sizes, NUM_BLOCKS=batch.padded_blocks, BLOCK=VOCAB_BLOCK,
        )  # fmt: skip
    block_walk_kernel[batch.grid(batch.num_requests)](
        batch.draft_token_ids, batch.cu, batch.temperature, batch.q_temperature, batch.seeds, batch.positions,
        target.block_max, target.block_arg, target.block_lse, q_lse, num_drafts, product, rest, ending.state,
        ending.totals, ending.mass, ending.out, *shape, batch.vocab_size, batch.num_blocks,
        SAMPLED=batch.sampled, NUM_BLOCKS=batch.padded_blocks,
    )  # fmt: skip


def match_coupled(batch: Batch, target: Statistics, out: torch.Tensor) -> None:
    """Every row is a request of its own without drafts, whose masses are those of its blocks."""
    num_rows = batch.logits.shape[0]
    temperature = batch.empty(num_rows)
    seeds, positions, tokens = (batch.empty(num_rows, 2, dtype=torch.int32) for _ in range(3))
    # zeros: rows that belong to no request are done, and no row has drafts
    zeros = batch.logits.new_zeros(5 * num_rows, dtype=torch.int32)
    state, no_drafts = zeros.split([4 * num_rows, num_rows])
    coupled_rows_kernel[batch.grid(batch.num_requests)](
        batch.cu, batch.temperature, batch.seeds, batch.positions, target.block_max, target.block_arg,
        target.block_lse, temperature, seeds, positions, state, tokens, batch.num_requests, batch.num_blocks,
        NUM_BLOCKS=batch.padded_blocks,
    )  # fmt: skip
    draw_kernel[batch.grid(num_rows)](
        batch.logits, batch.logits, no_drafts, temperature, temperature, seeds, positions, target.block_lse,
        state, temperature, target.block_lse, tokens, num_rows, 0, *batch.sizes, SAMPLED=False,
        NUM_BLOCKS=batch.padded_blocks, HALF=HALF, num_warps=8,
    )  # fmt: skip
    coupled_match_kernel[batch.grid(batch.num_requests)](
        batch.draft_token_ids, batch.cu, tokens, out, batch.num_requests, batch.max_spec_len
    )  # fmt: skip
