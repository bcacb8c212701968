"""Small launches of every kernel through its operator's launcher, beside what the reference gives."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch


@dataclass(frozen=True)
class Sample:
    """One operator call. ``run`` returns the results of the launcher and of the reference, pair by pair."""

    launcher: str
    """Module whose kernels are replaced."""
    run: Callable[[ModuleType], list[tuple[torch.Tensor, torch.Tensor]]]

    def module(self) -> ModuleType:
        return importlib.import_module(self.launcher)


def random_bits(launch: ModuleType) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from ascend_spec_ops.uniforms import reference

    seeds = torch.tensor([-5, (1 << 41) + 3, 7, -(1 << 63), 0])
    positions = torch.tensor([0, 123456, 1 << 33, 5, 2**31 - 1])
    sizes = [(0, 1), (2, 2049), (255, 5000)]
    return [
        (launch.random_bits(seeds, positions, stream, n), reference.random_bits(seeds, positions, stream, n))
        for stream, n in sizes
    ]


def kv_write(launch: ModuleType) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from ascend_spec_ops.kv_write import reference

    generator = torch.Generator().manual_seed(1)
    pairs = []
    for heads, size, dtype in ((3, 80, torch.bfloat16), (8, 64, torch.float32)):
        key, value = torch.randn(2, 7, heads, size, generator=generator).to(dtype)
        slots = torch.tensor([3, -1, 11, 0, -1, 19, 4])
        # key and value interleaved in one allocation, as one of vLLM's layouts has them
        caches = [torch.zeros(5, 2, 4, heads, size, dtype=dtype) for _ in range(2)]
        launch.kv_write(key, value, caches[0][:, 0], caches[0][:, 1], slots)
        reference.kv_write(key, value, caches[1][:, 0], caches[1][:, 1], slots)
        pairs.append((caches[0], caches[1]))
    return pairs


def ngram_match(launch: ModuleType) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from ascend_spec_ops.ngram_match import reference

    generator = torch.Generator().manual_seed(2)
    pairs = []
    for rows, length in ((1, 3000), (5, 600)):
        tokens = torch.randint(0, 6, (rows, length), generator=generator, dtype=torch.int32)
        lengths = torch.tensor([length, length // 2, 1, 0, 37], dtype=torch.int32)[:rows]
        drafts = torch.tensor([4, 5, 5, 5, 0], dtype=torch.int32)[:rows]
        for match in ("earliest", "recent"):
            args = (tokens, lengths, 2, 5, drafts, 5, match, 5)
            pairs.append((launch.ngram_match(*args), reference.ngram_match(*args)))
    return pairs


def draft_inputs(launch: ModuleType) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from ascend_spec_ops.draft_inputs import reference

    counts = [3, 0, 20, 1]
    cu = torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    drafts = torch.arange(100, 100 + sum(counts), dtype=torch.int32)
    drafts[1:3] = -1
    lengths = torch.tensor([16, 0, 45, 127], dtype=torch.int32)
    table = torch.randperm(64, generator=torch.Generator().manual_seed(3)).to(torch.int32).view(4, 16)
    args = (torch.tensor([7, 0, 9, 11], dtype=torch.int32), drafts, cu, lengths, table, 8, 128)
    return list(zip(launch.draft_inputs(*args), reference.draft_inputs(*args), strict=True))


def verify(launch: ModuleType) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from ascend_spec_ops.verify import reference

    generator = torch.Generator().manual_seed(4)
    counts = [2, 0, 3, 1, 2, 3, 2]
    cu = torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    num_requests, num_drafts, vocab_size = len(counts), sum(counts), 9001
    pairs = []
    for dtype in (torch.float32, torch.bfloat16):
        logits = 4 * torch.randn(num_requests + num_drafts, vocab_size, generator=generator)
        draft_logits = logits[:num_drafts] + torch.randn(num_drafts, vocab_size, generator=generator)
        logits, draft_logits = logits.to(dtype), draft_logits.to(dtype)
        logits[-1] = float("nan")
        drafts = logits[:num_drafts].argmax(-1).to(torch.int32)
        drafts[3], drafts[6] = -1, vocab_size
        temperature = torch.tensor([1.0, 0.7, 0.0, 1.0, 2.0, 0.0, 0.5])
        seeds = torch.tensor([1, -2, 3, 1 << 40, 5, 6, 7])
        positions = torch.arange(num_requests) * 1000
        args = (logits, drafts, cu, temperature, seeds, positions, 4)
        q = (draft_logits, torch.tensor([1.0, 1.0, 1.0, 0.0, 0.8, 1.0, 1.0]))
        pairs += [(launch.verify(*args), reference.verify(*args))]
        pairs += [(launch.verify(*args, *q), reference.verify(*args, *q))]
    return pairs


def verify_by_rule(
    launch: ModuleType, *rules: str, forms: tuple[bool, ...] = (False, True)
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """``forms``: whether the drafts are deterministic, or sampled, or both one after the other."""
    from verify_rule_cases import peaked_case

    from ascend_spec_ops.verify import reference

    pairs = []
    for rule in rules:
        for sampled in forms:
            arguments = peaked_case(rule, 14, 4, sampled=sampled, seed=1).arguments()
            pairs.append((launch.verify(*arguments), reference.verify(*arguments)))
    return pairs


def verify_synthetic_and_fly(launch: ModuleType) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return verify_by_rule(launch, "synthetic", "fly")


def verify_typical(launch: ModuleType) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return verify_by_rule(launch, "typical", forms=(True,))


def verify_block(launch: ModuleType) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return verify_by_rule(launch, "block")


def verify_coupled(launch: ModuleType) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return verify_by_rule(launch, "coupled", forms=(True,))


def filter_logits(launch: ModuleType) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from ascend_spec_ops.filter_logits import reference

    generator = torch.Generator().manual_seed(6)
    parameters = (
        torch.tensor([1.0, 0.7, 0.0, 1.3, 2.0, 0.5, 1.0]),
        torch.tensor([50, 0, 3, 9001, 7, 1, 5], dtype=torch.int32),
        torch.tensor([1.0, 0.9, 0.5, 0.4, 0.8, 1.0, 0.9]),
        torch.tensor([0.0, 0.0, 0.1, 0.05, 0.01, 0.0, 0.2]),
    )
    pairs = []
    for dtype in (torch.float32, torch.bfloat16):
        logits = (3 * torch.randn(7, 9001, generator=generator)).to(dtype)
        logits[6, 4500] = torch.nan
        expected = logits.clone()
        launch.filter_logits(logits, *parameters)
        reference.filter_logits(expected, *parameters)
        pairs.append((logits, expected))
    return pairs


def apply_penalties(launch: ModuleType) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from ascend_spec_ops.apply_penalties import reference

    generator = torch.Generator().manual_seed(7)
    counts = [3, 0, 2, 4]
    drafts = torch.randint(0, 5000, (sum(counts),), generator=generator, dtype=torch.int32)
    drafts[1], drafts[6] = -1, drafts[5]
    arguments = (
        torch.randint(0, 5002, (6, 40), generator=generator, dtype=torch.int32),
        torch.tensor([3, -1, 0, 5]),
        torch.tensor([3, 2, 19, 0], dtype=torch.int32),
        torch.tensor([17, 4, 32, 99], dtype=torch.int32),
        drafts,
        torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32),
        torch.tensor([1.3, 2.0, 0.5, 1.0]),
        torch.tensor([0.5, 1.0, -0.25, 0.0]),
        torch.tensor([0.125, 1.0, 0.7, 1.5]),
    )
    pairs = []
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.randn(sum(counts) + len(counts), 5000, generator=generator).to(dtype)
        expected = logits.clone()
        launch.apply_penalties(logits, *arguments)
        reference.apply_penalties(expected, *arguments)
        pairs.append((logits, expected))
    return pairs


def mqa_attention(launch: ModuleType) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from ascend_spec_ops.mqa_attention import reference

    generator = torch.Generator().manual_seed(5)
    query_lens, seq_lens = [3, 1, 0, 5], [37, 1, 20, 90]
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    longest = max(query_lens)
    mask = torch.zeros(sum(query_lens), longest, dtype=torch.bool)
    for start, rows in zip(starts.tolist(), query_lens, strict=False):
        mask[start : start + rows, :rows] = torch.rand(rows, rows, generator=generator).gt(0.5).tril()
        mask[start : start + rows].diagonal().fill_(True)
    pairs = []
    for block_size, dtype, options in (
        (16, torch.float32, {}),
        (64, torch.float32, {"mask": mask}),
        (16, torch.float32, {"sliding_window": 20, "soft_cap": 3.0}),
        (64, torch.bfloat16, {}),
    ):
        query = torch.randn(sum(query_lens), 6, 24, generator=generator).to(dtype)
        cache = torch.randn(32, 2, block_size, 2, 24, generator=generator).to(dtype)
        table = torch.randperm(32, generator=generator)[:24].to(torch.int32).view(4, 6)
        lengths = torch.tensor(seq_lens, dtype=torch.int32)
        args = (query, cache[:, 0], cache[:, 1], table, starts, lengths, longest, 24**-0.5)
        pairs.append((launch.mqa_attention(*args, **options), reference.mqa_attention(*args, **options)))
    return pairs


RANDOM_BITS = Sample("ascend_spec_ops.uniforms.launch", random_bits)
KV_WRITE = Sample("ascend_spec_ops.kv_write.launch", kv_write)
NGRAM_MATCH = Sample("ascend_spec_ops.ngram_match.launch", ngram_match)
DRAFT_INPUTS = Sample("ascend_spec_ops.draft_inputs.launch", draft_inputs)
VERIFY = Sample("ascend_spec_ops.verify.launch", verify)
VERIFY_SYNTHETIC_AND_FLY = Sample("ascend_spec_ops.verify.launch", verify_synthetic_and_fly)
VERIFY_TYPICAL = Sample("ascend_spec_ops.verify.launch", verify_typical)
VERIFY_BLOCK = Sample("ascend_spec_ops.verify.launch", verify_block)
VERIFY_COUPLED = Sample("ascend_spec_ops.verify.launch", verify_coupled)
APPLY_PENALTIES = Sample("ascend_spec_ops.apply_penalties.launch", apply_penalties)
FILTER_LOGITS = Sample("ascend_spec_ops.filter_logits.launch", filter_logits)
MQA_ATTENTION = Sample("ascend_spec_ops.mqa_attention.launch", mqa_attention)

#: calls that launch kernels of ``SAMPLES`` in further specialisations
MORE_SAMPLES = (VERIFY_SYNTHETIC_AND_FLY,)

#: kernel -> the call that launches it
SAMPLES = {
    "random_bits_kernel": RANDOM_BITS,
    "kv_write_kernel": KV_WRITE,
    "ngram_scan_kernel": NGRAM_MATCH,
    "ngram_copy_kernel": NGRAM_MATCH,
    "draft_inputs_kernel": DRAFT_INPUTS,
    "block_statistics_kernel": VERIFY,
    "accept_kernel": VERIFY,
    "entropy_kernel": VERIFY_TYPICAL,
    "block_product_kernel": VERIFY_BLOCK,
    "block_residual_kernel": VERIFY_BLOCK,
    "block_walk_kernel": VERIFY_BLOCK,
    "coupled_rows_kernel": VERIFY_COUPLED,
    "coupled_match_kernel": VERIFY_COUPLED,
    "residual_mass_kernel": VERIFY,
    "draw_kernel": VERIFY,
    "filter_logits_kernel": FILTER_LOGITS,
    "apply_penalties_kernel": APPLY_PENALTIES,
    "mqa_attention_kernel": MQA_ATTENTION,
}
