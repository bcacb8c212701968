"""Memory beyond 2**31 elements: an offset held in 32 bits would wrap and read or write elsewhere."""

from __future__ import annotations

import pytest
import torch
from device import support
from device.support import on_kinds

import ascend_spec_ops
from ascend_spec_ops.mqa_attention import reference

pytestmark = pytest.mark.full
BLOCK_SIZE, HEADS, DIM = 128, 8, 128


def elements(kind: str, num_bytes: int) -> int:
    """How many make an offset wrap; few in a rehearsal."""
    if support.rehearsing:
        return 2**20
    free, _ = getattr(torch, kind).mem_get_info()
    if free < num_bytes:
        pytest.skip(f"{num_bytes >> 30} GiB of device memory are needed, {free >> 30} are free")
    return 2**31


@pytest.mark.parametrize("kind", on_kinds())
def test_the_last_block_of_a_large_cache(kind):
    block = BLOCK_SIZE * HEADS * DIM
    num_blocks = elements(kind, 10 << 30) // block + 2
    shape = (num_blocks, BLOCK_SIZE, HEADS, DIM)
    key_cache, value_cache = (torch.zeros(shape, dtype=torch.float16, device=kind) for _ in range(2))
    g = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(5, HEADS, DIM, generator=g).half() for _ in range(3))
    slots = (num_blocks - 1) * BLOCK_SIZE + torch.arange(5)
    ascend_spec_ops.kv_write(key.to(kind), value.to(kind), key_cache, value_cache, slots.to(kind))
    assert torch.equal(key_cache[-1, :5].cpu(), key)
    assert torch.equal(value_cache[-1, :5].cpu(), value)
    assert not key_cache[:-1].any()
    int32 = {"dtype": torch.int32}
    lengths = (torch.tensor([0, 5], **int32), torch.tensor([5], **int32))
    got = ascend_spec_ops.mqa_attention(
        query.to(kind), key_cache, value_cache, torch.tensor([[num_blocks - 1]], **int32).to(kind),
        *(x.to(kind) for x in lengths), 5, DIM**-0.5, query_lens_cpu=[5], seq_lens_cpu=[5],
    )  # fmt: skip
    one_block = [cache[-1:].cpu() for cache in (key_cache, value_cache)]
    table = torch.tensor([[0]], **int32)
    expected = reference.mqa_attention(query, *one_block, table, *lengths, 5, DIM**-0.5)
    torch.testing.assert_close(got.cpu().double(), expected, atol=3e-3, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", on_kinds())
def test_the_last_rows_of_many_logits(kind, temperature):
    vocab_size = 151936
    rows = elements(kind, 6 << 30) // vocab_size + 9
    logits = torch.zeros(rows, vocab_size, dtype=torch.bfloat16, device=kind)
    g = torch.Generator().manual_seed(0)
    logits[-8:] = (2 * torch.randn(8, vocab_size, generator=g)).bfloat16().to(kind)
    per_row = (torch.full((rows,), temperature), torch.arange(rows), torch.arange(rows))
    per_row = tuple(x.to(kind) for x in per_row)
    tokens = ascend_spec_ops.sample(logits, *per_row)
    few = ascend_spec_ops.sample(logits[-8:].clone(), *(x[-8:].clone() for x in per_row))
    assert torch.equal(tokens[-8:], few)
    assert few.unique().numel() > 1
