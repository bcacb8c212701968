"""kv_write: every implementation against the definition, on every cache layout; padding writes nothing."""

from __future__ import annotations

import pytest
import torch

import ascend_spec_ops
from ascend_spec_ops.kv_write import cpu, launch, npu, reference

IMPLEMENTATIONS = {"cpu": cpu.kv_write, "triton": launch.kv_write}
NUM_BLOCKS = 5


def separate(block_size, heads, dim, dtype):
    """[num_blocks, block_size, H, D] twice, as Ascend holds them."""
    return tuple(torch.zeros(NUM_BLOCKS, block_size, heads, dim, dtype=dtype) for _ in range(2))


def key_then_value(block_size, heads, dim, dtype):
    """[num_blocks, 2, block_size, H, D], unbound."""
    return torch.zeros(NUM_BLOCKS, 2, block_size, heads, dim, dtype=dtype).unbind(1)


def heads_first(block_size, heads, dim, dtype):
    """[num_blocks, H, block_size, 2 D], transposed and split."""
    cache = torch.zeros(NUM_BLOCKS, heads, block_size, 2 * dim, dtype=dtype)
    return cache.transpose(1, 2).split(dim, -1)


def halves_of_a_head(block_size, heads, dim, dtype):
    """[num_blocks, H, 2 block_size, D], transposed; keys in the first half of a head's slots."""
    cache = torch.zeros(NUM_BLOCKS, heads, 2 * block_size, dim, dtype=dtype).transpose(1, 2)
    return cache[:, :block_size], cache[:, block_size:]


LAYOUTS = (separate, key_then_value, heads_first, halves_of_a_head)


def new_rows(num_tokens, heads, dim, dtype):
    """Keys and values as slices of one packed projection: the row stride is not heads * dim."""
    packed = torch.randn(num_tokens, 3 * heads, dim).to(dtype)
    return packed[:, heads : 2 * heads], packed[:, 2 * heads :]


def slots(num_tokens, block_size):
    """Distinct slots in no order; every third row is padding of either kind."""
    mapping = torch.randperm(NUM_BLOCKS * block_size)[:num_tokens]
    mapping[1::3] = -1
    mapping[4::6] = -(2**40)
    return mapping


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("num_tokens", "block_size", "heads", "dim", "dtype"),
    [
        (0, 16, 2, 16, torch.float32),
        (1, 16, 3, 64, torch.float32),
        (5, 1, 1, 16, torch.float16),
        (7, 3, 3, 80, torch.bfloat16),
        (40, 16, 2, 128, torch.bfloat16),
        (9, 128, 8, 32, torch.float32),
    ],
)
def test_equals_reference(name, layout, num_tokens, block_size, heads, dim, dtype):
    torch.manual_seed(num_tokens)
    key, value = new_rows(num_tokens, heads, dim, dtype)
    mapping = slots(num_tokens, block_size)
    expected, got = layout(block_size, heads, dim, dtype), layout(block_size, heads, dim, dtype)
    reference.kv_write(key, value, *expected, mapping)
    IMPLEMENTATIONS[name](key, value, *got, mapping)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_padding_alone_writes_nothing(name):
    key, value = new_rows(3, 2, 16, torch.float32)
    caches = separate(4, 2, 16, torch.float32)
    IMPLEMENTATIONS[name](key, value, *caches, torch.full((3,), -1))
    assert not caches[0].any()
    assert not caches[1].any()


def test_the_last_slot_would_show_a_wrapped_index():
    """A mutant that lets -1 through writes to the last slot: the check above must be able to see it."""
    key, value = new_rows(1, 2, 16, torch.float32)
    caches = separate(4, 2, 16, torch.float32)
    cpu.kv_write(key, value, *caches, torch.tensor([-1]) % (NUM_BLOCKS * 4))
    assert caches[0][-1, -1].all()


def test_operator_and_opcheck():
    key, value = new_rows(5, 2, 16, torch.float32)
    caches = heads_first(4, 2, 16, torch.float32)
    mapping = slots(5, 4)
    ascend_spec_ops.kv_write(key, value, *caches, mapping)
    assert torch.equal(caches[0][mapping[0] // 4, mapping[0] % 4], key[0])
    torch.library.opcheck(torch.ops.ascend_spec.kv_write.default, (key, value, *caches, mapping))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": torch.zeros(5, 3, 16)}, "both be \\[T, Hkv, D\\]"),
        ({"key_cache": torch.zeros(2, 4, 2, 8)}, "Hkv, D"),
        ({"key_cache": torch.zeros(2, 4, 2, 16, dtype=torch.float16)}, "one dtype"),
        ({"key_cache": torch.zeros(2, 4, 16, 2).transpose(2, 3)}, "contiguous"),
        ({"slot_mapping": torch.zeros(5, dtype=torch.int32)}, "\\[5\\] int64, got"),
        ({"slot_mapping": torch.zeros(4, dtype=torch.int64)}, "\\[5\\] int64, got"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {
        "key": torch.zeros(5, 2, 16),
        "value": torch.zeros(5, 2, 16),
        "key_cache": torch.zeros(2, 4, 2, 16),
        "value_cache": torch.zeros(2, 4, 2, 16),
        "slot_mapping": torch.zeros(5, dtype=torch.int64),
    }
    with pytest.raises(RuntimeError, match=message):
        ascend_spec_ops.kv_write(**{**arguments, **change})


@pytest.fixture
def scatter(monkeypatch):
    """CANN's operator, by its documentation: contiguous tensors, plain layout."""

    def operator(key, value, key_cache, value_cache, slot_mapping, *, cache_mode="PA_NZ"):
        assert cache_mode == "Norm"
        assert all(tensor.is_contiguous() for tensor in (key, value, key_cache, value_cache, slot_mapping))
        reference.kv_write(key, value, key_cache, value_cache, slot_mapping)

    monkeypatch.setattr(torch.ops.npu, "npu_scatter_pa_kv_cache", operator, raising=False)


@pytest.mark.usefixtures("scatter")
def test_npu_hands_over_contiguous_rows():
    key, value = new_rows(5, 2, 16, torch.float16)
    expected, got = separate(16, 2, 16, torch.float16), separate(16, 2, 16, torch.float16)
    mapping = slots(5, 16)
    reference.kv_write(key, value, *expected, mapping)
    npu.kv_write(key, value, *got, mapping)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


@pytest.mark.usefixtures("scatter")
def test_npu_leaves_strided_caches_to_triton():
    key, value = new_rows(5, 2, 16, torch.float16)
    assert npu.supports(key, value, *separate(16, 2, 16, torch.float16), slots(5, 16)) is None
    for layout in LAYOUTS[1:]:
        assert "contiguous" in npu.supports(key, value, *layout(16, 2, 16, torch.float16), slots(5, 16))
