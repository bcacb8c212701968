"""mqa_attention: every implementation against float64, over ragged batches; what is not read holds poison."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from ladder.interpreter import mend_bfloat16_dot

import ascend_spec_ops
from ascend_spec_ops import selection
from ascend_spec_ops.mqa_attention import cpu, cpu_few_rows, kernel, launch, npu, reference

mend_bfloat16_dot()

IMPLEMENTATIONS = {
    "torch": cpu.mqa_attention,
    "numba": cpu_few_rows.mqa_attention,
    "triton": launch.mqa_attention,
}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
NOWHERE = 2**30  # a block id that crashes whoever follows it


@dataclass(frozen=True)
class Case:
    """A batch. ``tree`` gives the new rows random ancestors; positions that nobody sees hold NaN."""

    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    heads: tuple[int, int] = (4, 2)
    dim: int = 16
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    tree: bool = False
    sliding_window: int = 0
    soft_cap: float = 0.0
    layout: str = "separate"
    spare_rows: int = 0
    """Rows beyond the last request."""
    spare_columns: int = 0
    """max_query_len above the longest query."""

    def __str__(self) -> str:
        flags = ["tree"] * self.tree + [f"window {self.sliding_window}"] * bool(self.sliding_window)
        flags += ["cap"] * bool(self.soft_cap) + [self.layout] * (self.layout != "separate")
        shape = f"{self.heads[0]}/{self.heads[1]} heads of {self.dim}, blocks of {self.block_size}"
        return " ".join([str(self.query_lens), shape, str(self.dtype)[6:], *flags])


MIXED = Case((5, 0, 1, 17, 3, 2), (20, 9, 33, 17, 130, 0), spare_rows=2, spare_columns=1)
GRID = [
    MIXED,
    Case((1,), (1,)),
    Case((4,), (16,)),  # the new rows end a block
    Case((4,), (17,)),  # and begin one
    Case((6, 2), (3, 2)),  # more rows than tokens: padding sees what is there
    replace(MIXED, heads=(9, 3), dim=64),
    replace(MIXED, heads=(8, 1), dim=32, block_size=64),
    replace(MIXED, heads=(4, 4), dim=80, block_size=1),
    replace(MIXED, heads=(7, 1), dim=96, block_size=8),
    replace(MIXED, heads=(2, 1), dim=128, block_size=128),
    replace(MIXED, heads=(2, 1), dim=256, block_size=48),
    replace(MIXED, tree=True),
    replace(MIXED, tree=True, heads=(9, 3), dim=64, block_size=4),
    replace(MIXED, sliding_window=1),
    replace(MIXED, sliding_window=6, block_size=1),
    replace(MIXED, sliding_window=24, block_size=128),
    replace(MIXED, sliding_window=130),
    replace(MIXED, tree=True, sliding_window=18),
    replace(MIXED, soft_cap=2.0),
    replace(MIXED, soft_cap=2.0, tree=True, sliding_window=25),
    replace(MIXED, layout="key_then_value"),
    replace(MIXED, layout="heads_first"),
    replace(MIXED, layout="halves_of_a_head"),
    replace(MIXED, layout="transposed_keys"),
    replace(MIXED, layout="transposed_keys", tree=True, soft_cap=2.0, sliding_window=25),
    replace(MIXED, layout="transposed_keys", dtype=torch.bfloat16),
    replace(MIXED, dtype=torch.float16),
    replace(MIXED, dtype=torch.bfloat16, tree=True),
    replace(MIXED, dtype=torch.bfloat16, heads=(4, 1), dim=128, block_size=128, sliding_window=24),
    replace(MIXED, dtype=torch.float16, soft_cap=2.0),
]


def empty_caches(layout: str, num_blocks: int, block_size: int, heads: int, dim: int, dtype: torch.dtype):
    """The KV layouts of vLLM and vllm-ascend as [num_blocks, block_size, heads, dim] views of NaN."""
    nan = float("nan")
    if layout == "separate":
        return tuple(torch.full((num_blocks, block_size, heads, dim), nan, dtype=dtype) for _ in range(2))
    if layout == "key_then_value":
        return torch.full((num_blocks, 2, block_size, heads, dim), nan, dtype=dtype).unbind(1)
    if layout == "heads_first":
        cache = torch.full((num_blocks, heads, block_size, 2 * dim), nan, dtype=dtype)
        return cache.transpose(1, 2).split(dim, -1)
    cache = torch.full((num_blocks, heads, 2 * block_size, dim), nan, dtype=dtype)
    keys, values = cache[:, :, :block_size], cache[:, :, block_size:]
    if layout == "transposed_keys":
        keys = keys.flatten(2).unflatten(2, (dim, block_size)).transpose(2, 3)
    return keys.transpose(1, 2), values.transpose(1, 2)


def tree_mask(case: Case, starts: list[int], num_rows: int) -> torch.Tensor:
    """Each new row continues a random earlier one; the first stands for the last sampled token."""
    mask = torch.zeros(num_rows, max(case.query_lens) + case.spare_columns, dtype=torch.bool)
    for first, last in pairwise(starts):
        for t in range(first, last):
            if t > first:
                mask[t] = mask[first + int(torch.randint(t - first, ()))]
            mask[t, t - first] = True
    return mask


def build(case: Case) -> tuple[tuple, dict]:
    """Arguments of the operator. Only what some row sees is written to the cache and the block table."""
    torch.manual_seed(7)
    num_heads, num_kv_heads = case.heads
    starts = [0, *torch.tensor(case.query_lens).cumsum(0).tolist()]
    num_rows = starts[-1] + case.spare_rows
    mask = tree_mask(case, starts, num_rows) if case.tree else None
    most_blocks = max(-(-length // case.block_size) for length in case.seq_lens) + 1
    num_blocks = len(case.seq_lens) * most_blocks
    ids = torch.randperm(num_blocks).view(len(case.seq_lens), most_blocks).to(torch.int32)
    table = torch.full_like(ids, NOWHERE)
    caches = empty_caches(case.layout, num_blocks, case.block_size, num_kv_heads, case.dim, case.dtype)
    for b, (query_len, seq_len) in enumerate(zip(case.query_lens, case.seq_lens, strict=True)):
        seen = set()
        for row in range(query_len):
            row_mask = None if mask is None else mask[starts[b] + row]
            seen |= set(
                reference.visible_positions(
                    row, seq_len - query_len, query_len, seq_len, row_mask, case.sliding_window
                )
            )
        positions = torch.tensor(sorted(seen), dtype=torch.int64)
        blocks = positions // case.block_size
        table[b, blocks] = ids[b, blocks]
        for cache in caches:
            written = torch.randn(len(positions), num_kv_heads, case.dim).to(case.dtype)
            cache[ids[b, blocks].long(), positions % case.block_size] = written
    packed = torch.randn(num_rows, num_heads + 2 * num_kv_heads, case.dim).to(case.dtype)
    args = (
        packed[:, :num_heads],
        *caches,
        table,
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(case.seq_lens, dtype=torch.int32),
        max(case.query_lens) + case.spare_columns,
        1.3 * case.dim**-0.5,
    )
    return args, {"mask": mask, "sliding_window": case.sliding_window, "soft_cap": case.soft_cap}


def error(implementation, case: Case) -> float:
    """Largest deviation from the definition; NaN and infinity count as infinite."""
    args, options = build(case)
    expected = reference.mqa_attention(*args, **options)
    got = implementation(*args, **options)
    assert got.dtype == case.dtype
    assert got.is_contiguous()
    return (got.double() - expected).abs().nan_to_num(float("inf")).max().item()


def right(implementation, case: Case) -> bool:
    return error(implementation, case) < TOLERANCE[case.dtype]


def refusal(name: str, *args) -> str | None:
    """Why the table of a device passes an implementation over."""
    device = "cuda" if name == "triton" else "cpu"
    (chosen,) = (each for each in selection.table["mqa_attention"][device] if each.name == name)
    return chosen.supports(*args)


@pytest.mark.parametrize("case", GRID, ids=str)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_equals_reference(name, case):
    if name == "numba" and case.dtype != torch.float32:
        assert selection.choose("mqa_attention", "cpu", *build(case)[0]).name == "torch"
        return
    if name != "torch" and case.layout == "transposed_keys":
        assert "keys is not contiguous" in refusal(name, *build(replace(case, query_lens=(1,) * 6))[0])
        return
    assert error(IMPLEMENTATIONS[name], case) < TOLERANCE[case.dtype]


def has_other_tiles_on_ascend(case: Case) -> bool:
    return case.layout != "transposed_keys" and (case.tree or case.block_size < 16 or case.dim > 128)


@pytest.mark.parametrize("case", [case for case in GRID if has_other_tiles_on_ascend(case)], ids=str)
def test_triton_with_the_tiles_of_ascend(monkeypatch, case):
    ascend = launch.tiles("npu", case.dtype, case.dim)
    monkeypatch.setattr(launch, "tiles", lambda *_: ascend)
    assert error(launch.mqa_attention, case) < TOLERANCE[case.dtype]


def test_reference_by_hand():
    """One head of one dimension, two past tokens, two new rows: softmax weights a person can check."""
    keys = torch.tensor([0.0, 1.0, 2.0, 3.0]).log1p().view(2, 2, 1, 1)
    values = torch.tensor([1.0, 10.0, 100.0, 1000.0]).view(2, 2, 1, 1)
    args = (
        torch.ones(2, 1, 1),
        keys,
        values,
        torch.tensor([[0, 1]], dtype=torch.int32),
        torch.tensor([0, 2], dtype=torch.int32),
        torch.tensor([4], dtype=torch.int32),
        2,
        1.0,
    )
    causal = reference.mqa_attention(*args).flatten().tolist()
    assert causal == pytest.approx([(1 + 20 + 300) / 6, (1 + 20 + 300 + 4000) / 10])
    window = reference.mqa_attention(*args, sliding_window=2).flatten().tolist()
    assert window == pytest.approx([(20 + 300) / 5, (300 + 4000) / 7])
    siblings = torch.tensor([[True, False], [False, True]])
    tree = reference.mqa_attention(*args, mask=siblings).flatten().tolist()
    assert tree == pytest.approx([(1 + 20 + 300) / 6, (1 + 20 + 4000) / 7])


def test_a_chain_mask_is_causal():
    args, options = build(MIXED)
    starts = args[4].tolist()
    chain = torch.zeros(args[0].shape[0], args[6], dtype=torch.bool)
    for first, last in pairwise(starts):
        chain[first:last, : last - first] = torch.ones(last - first, last - first).tril().bool()
    expected = cpu.mqa_attention(*args, **options)
    for implementation in IMPLEMENTATIONS.values():
        torch.testing.assert_close(implementation(*args, **{**options, "mask": chain}), expected)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_padded_rows_are_zero(name):
    args, options = build(MIXED)
    out = IMPLEMENTATIONS[name](*args, **options)
    assert (out.flatten(1) == 0).all(1).nonzero().flatten().tolist() == [26, 27, 28, 29]


@pytest.mark.parametrize("name", ["torch", "numba"])
def test_given_host_lengths_replace_the_tensors(name):
    args, options = build(MIXED)
    expected = IMPLEMENTATIONS[name](*args, **options)
    stale = (*args[:4], torch.zeros_like(args[4]), torch.zeros_like(args[5]), *args[6:])
    host = {"query_lens_cpu": MIXED.query_lens, "seq_lens_cpu": MIXED.seq_lens}
    assert torch.equal(IMPLEMENTATIONS[name](*stale, **options, **host), expected)


@pytest.mark.parametrize("name", ["torch", "numba"])
@pytest.mark.parametrize(
    "host", [{"query_lens_cpu": (40, 0, 0, 0, 0, 0)}, {"seq_lens_cpu": (0, 0, 0, 0, 0, 999)}]
)
def test_lengths_beyond_the_tensors_are_refused(name, host):
    args, options = build(MIXED)
    with pytest.raises(RuntimeError, match="block table"):
        IMPLEMENTATIONS[name](*args, **options, **host)


# --- mutants: the grid must be able to see the mistakes that are easy to make ---

KERNEL_MUTANTS = {
    "a row does not see itself": ("p1[None, :] <= position[:, None],", "p1[None, :] < position[:, None],"),
    "a row sees the next": ("p1[None, :] <= position[:, None],", "p1[None, :] <= position[:, None] + 1,"),
    "window one too long": ("position[:, None] - window", "position[:, None] - window - 1"),
    "window one too short": ("position[:, None] - window", "position[:, None] - window + 1"),
    "tree mask ignored": ("1.0 - seen.to(tl.float32)", "0.0"),
    "last tile dropped": ("past + first + BLOCK_Q)", "past + first)"),
    "sum not rescaled": ("total * shrink", "total"),
    "stale values read": ("(n >= begin) & (n < end) & (d < D)", "(d < D)"),
    "window start not read as such": ("(n >= begin) & (n < end)", "(n < end)"),
    "padding rows averaged": ("top > 0.5 * MASKED", "top > 2.0 * MASKED"),
    "depth is the row": ("past + depth)", "past + first + q1)"),
}
SMALL = Case((5, 1, 2), (20, 33, 0))
MUTANT_CASES = [SMALL, Case((6, 2), (3, 2)), replace(SMALL, sliding_window=6), replace(SMALL, tree=True)]
MUTANT_CASES += [replace(case, sliding_window=7) for case in (SMALL, replace(SMALL, tree=True))]


def test_small_cases_are_right():
    assert all(right(launch.mqa_attention, case) for case in MUTANT_CASES)


@pytest.mark.parametrize("mutant", KERNEL_MUTANTS)
def test_kernel_mutants_are_killed(monkeypatch, tmp_path, mutant):
    source = Path(kernel.__file__).read_text()
    before, after = KERNEL_MUTANTS[mutant]
    assert before in source
    path = tmp_path / "mutant.py"
    path.write_text(source.replace(before, after))
    spec = importlib.util.spec_from_file_location("mutant", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(launch, "mqa_attention_kernel", module.mqa_attention_kernel)
    assert not all(right(launch.mqa_attention, case) for case in MUTANT_CASES)


# --- the operator ---


def test_the_table_chooses_by_rows():
    chosen = {
        rows: selection.choose("mqa_attention", "cpu", *build(Case((rows,), (40,)))[0]).name
        for rows in (1, 4, 5)
    }
    assert chosen == {1: "numba", 4: "numba", 5: "torch"}


@pytest.mark.parametrize("case", [MIXED, replace(MIXED, tree=True, dtype=torch.bfloat16)], ids=str)
def test_operator_and_opcheck(case):
    args, options = build(case)
    expected = reference.mqa_attention(*args, **options)
    host = {"query_lens_cpu": list(case.query_lens), "seq_lens_cpu": list(case.seq_lens)}
    out = ascend_spec_ops.mqa_attention(*args, **options, **host)
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[case.dtype], rtol=0)
    torch.library.opcheck(torch.ops.ascend_spec.mqa_attention.default, args, {**options, **host})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(3, 64)}, "query must be"),
        ({"query": torch.zeros(3, 4, 16, dtype=torch.float64)}, "one dtype"),
        ({"query": torch.zeros(3, 3, 16)}, "divide the query's"),
        ({"query": torch.zeros(3, 16, 4).transpose(1, 2)}, "contiguous"),
        ({"seq_lens": torch.zeros(2, dtype=torch.int64)}, "all int32"),
        ({"query_start_loc": torch.zeros(2, dtype=torch.int32)}, "all int32"),
        ({"mask": torch.zeros(3, 5, dtype=torch.bool)}, "mask must be"),
        ({"sliding_window": -1}, "positive"),
        ({"sliding_window": 1, "mask": torch.zeros(3, 2, dtype=torch.bool)}, "must not be shorter"),
        ({"query_lens_cpu": [2]}, "query_lens_cpu must have 2"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {
        "query": torch.zeros(3, 4, 16),
        "key_cache": torch.zeros(4, 16, 2, 16),
        "value_cache": torch.zeros(4, 16, 2, 16),
        "block_table": torch.zeros(2, 2, dtype=torch.int32),
        "query_start_loc": torch.zeros(3, dtype=torch.int32),
        "seq_lens": torch.zeros(2, dtype=torch.int32),
        "max_query_len": 2,
        "scale": 1.0,
    }
    with pytest.raises(RuntimeError, match=message):
        ascend_spec_ops.mqa_attention(**{**arguments, **change})


def test_triton_refuses_what_it_cannot_tile():
    def reason(block_size, dim=128, dtype=torch.bfloat16):
        return launch.supports(
            torch.zeros(1, 2, dim, dtype=dtype), torch.zeros(1, block_size, 1, dim, dtype=dtype)
        )

    assert [reason(size) for size in (1, 8, 16, 48, 64, 128)] == [None] * 6
    assert "block size 24" in reason(24)
    assert "head size 512" in reason(16, dim=512)
    assert "float32" in reason(8, dim=256, dtype=torch.float32)


@pytest.mark.parametrize("block_size", [1, 2, 8, 16, 48, 64, 128, 640])
@pytest.mark.parametrize("device", ["cuda", "npu"])
def test_pieces_tile_a_page_or_pages(device, block_size):
    limits = launch.tiles(device, torch.bfloat16, 128)
    piece, count = launch.pieces(block_size, limits)
    assert launch.MIN_DOT <= piece * count <= limits.positions
    assert block_size % piece == 0
    assert count == 1 or piece == block_size


# --- Ascend's fused operator ---


def fused_infer_attention_score(
    query, key, value, *, atten_mask, actual_seq_lengths, actual_seq_lengths_kv, block_table, num_heads,
    num_key_value_heads, scale, input_layout, block_size, sparse_mode, pre_tokens, next_tokens,
):  # fmt: skip
    """The operator by its documentation, for TND and paged keys; the band of mode 4 hangs at the last key."""
    assert input_layout == "TND"
    assert query.shape[1] == num_heads
    assert query.shape[0] == actual_seq_lengths[-1]
    assert key.shape[1] == block_size
    assert torch.equal(atten_mask, torch.ones(2048, 2048, dtype=torch.int8).triu(1))
    assert len(actual_seq_lengths) == len(actual_seq_lengths_kv) == block_table.shape[0]
    if sparse_mode == 3:
        pre_tokens, next_tokens = 2**31 - 1, 0
    out = torch.empty_like(query)
    for b, (first, last) in enumerate(pairwise([0, *actual_seq_lengths])):
        length = actual_seq_lengths_kv[b]
        assert 0 < last - first <= length
        positions = torch.arange(length)
        rows = torch.arange(length - (last - first), length)[:, None]
        visible = (positions <= rows + next_tokens) & (positions >= rows - pre_tokens)
        blocks = block_table[b, : -(-length // block_size)].clamp(max=key.shape[0] - 1)
        # the operator reads every block up to the length; those that only hidden positions use are harmless
        k, v = (
            c[blocks].flatten(0, 1)[:length].unflatten(1, (num_key_value_heads, -1)) for c in (key, value)
        )
        k, v = k.nan_to_num(0.0), v.nan_to_num(0.0)
        out[first:last] = cpu.attend(query[first:last], k, v, visible, scale, 0.0)
    return out, torch.empty(0)


@pytest.fixture
def fused(monkeypatch):
    """Installs the operator; the fixture's value lists the arguments of its calls."""
    calls = []

    def operator(*args, **kwargs):
        calls.append(kwargs)
        return fused_infer_attention_score(*args, **kwargs)

    monkeypatch.setattr(torch.ops.npu, "npu_fused_infer_attention_score", operator, raising=False)
    return calls


def npu_arguments(case):
    args, options = build(case)
    return args, {**options, "query_lens_cpu": case.query_lens, "seq_lens_cpu": case.seq_lens}


VERIFY = Case(
    (5, 0, 1, 17, 3, 2, 0),
    (20, 9, 33, 17, 130, 0, 0),
    heads=(8, 2),
    dim=64,
    dtype=torch.float16,
    spare_rows=2,
)


@pytest.mark.parametrize("limit", [None, 1, 4, 16, 17])
@pytest.mark.parametrize("sliding_window", [0, 40])
def test_npu_equals_reference(monkeypatch, fused, limit, sliding_window):
    monkeypatch.setattr(npu, "row_limit", lambda head_dim: limit)
    case = replace(VERIFY, sliding_window=sliding_window)
    args, options = npu_arguments(case)
    assert npu.supports(*args, **options) is None
    expected = reference.mqa_attention(*args, **options)
    torch.testing.assert_close(npu.mqa_attention(*args, **options).double(), expected, atol=3e-3, rtol=0)
    lengths = [last - first for first, last in pairwise([0, *fused[0]["actual_seq_lengths"]])]
    assert max(lengths) == min(limit or 17, 17)


def test_npu_batch_of_padding(fused):
    args, options = npu_arguments(replace(VERIFY, query_lens=(0, 2), seq_lens=(9, 0)))
    assert not npu.mqa_attention(*args, **options).any()
    assert not fused


def test_split_rows():
    assert npu.split_rows([16], [100], 16) == [(0, 16, 100)]
    assert npu.split_rows([17, 0, 1], [100, 5, 9], 16) == [(0, 16, 99), (0, 1, 100), (2, 1, 9)]
    assert npu.split_rows([33], [33], 16) == [(0, 16, 16), (0, 16, 32), (0, 1, 33)]
    assert npu.row_limit(512) == 16
    assert npu.row_limit(128) is None


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tree": True}, "tree mask"),
        ({"soft_cap": 2.0}, "soft cap"),
        ({"dtype": torch.float32}, "float16 and bfloat16"),
        ({"dim": 80, "heads": (2, 2)}, "head size 80"),
        ({"dim": 320}, "head size 320"),
        ({"block_size": 8}, "block size 8"),
        ({"heads": (65, 1)}, "64 a group"),
        ({"layout": "heads_first"}, "contiguous"),
        ({"sliding_window": 32}, "single rows"),
        ({"seq_lens": (20, 9, 0, 17, 130, 0, 0)}, "more rows than tokens"),
        ({"seq_lens": (4, 9, 33, 17, 130, 0, 0)}, "more rows than tokens"),
    ],
)
def test_npu_reasons(change, reason):
    args, options = npu_arguments(replace(VERIFY, **change))
    assert reason in npu.supports(*args, **options)


@pytest.mark.usefixtures("fused")
def test_npu_needs_host_lengths():
    args, options = build(VERIFY)
    assert "host" in npu.supports(*args, **options)
