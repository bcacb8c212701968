"""Every implementation of every operator on the device, against the references on the host."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from device.support import load_ops_tests, move, on_kinds, runs
from verify_cases import NEAR, assert_equals_reference, make_case
from verify_rule_cases import peaked_case

from ascend_spec_ops import selection
from ascend_spec_ops.apply_token_bitmask import reference as bitmask_reference
from ascend_spec_ops.draft_inputs import reference as draft_inputs_reference
from ascend_spec_ops.kv_write import reference as kv_write_reference
from ascend_spec_ops.mqa_attention import reference as attention_reference
from ascend_spec_ops.ngram_match import reference as ngram_reference
from ascend_spec_ops.uniforms import reference as uniforms_reference
from ascend_spec_ops.verify import RULES
from ascend_spec_ops.verify import reference as verify_reference

uniforms, verify, ngram, draft_inputs, kv_write, attention = (
    load_ops_tests(f"test_{name}")
    for name in ("uniforms", "verify", "ngram_match", "draft_inputs", "kv_write", "mqa_attention")
)
filters, penalties, bitmask = (
    load_ops_tests(f"test_{name}") for name in ("filter_logits", "apply_penalties", "apply_token_bitmask")
)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
FULL = pytest.mark.full


# --------------------------------------------------------------------------------------- random numbers
@pytest.mark.parametrize("num_lanes", [1, 2047, 4096, 5000])
@pytest.mark.parametrize("stream", [0, 4, 255])
@pytest.mark.parametrize("run", runs("random_bits"))
def test_random_bits(run, stream, num_lanes):
    args = (torch.tensor(uniforms.SEEDS), torch.tensor(uniforms.POSITIONS), stream, num_lanes)
    assert torch.equal(run(*args), uniforms_reference.random_bits(*args))


@pytest.mark.parametrize("kind", on_kinds())
def test_transforms_are_accurate(kind):
    """The device's own log1p and log decide here."""
    bits = uniforms.edge_and_random_words()
    results = torch.empty(2, bits.numel(), device=kind)
    uniforms.transform_kernel[(1,)](bits.to(kind), results[0], results[1], N=bits.numel())
    exponentials, gumbels = results.cpu()
    exact = uniforms_reference.exponential_of(bits)
    assert ((exponentials.double() - exact).abs() / exact).max() < 2e-6
    exact = uniforms_reference.gumbel_of(bits)
    assert ((gumbels.double() - exact).abs() / exact.abs().clamp(min=1)).max() < 2e-6


# ------------------------------------------------------------------------------------- verify and sample
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sampled", [False, True], ids=["one-hot", "sampled"])
@pytest.mark.parametrize(
    ("num_requests", "max_spec_len", "vocab_size"),
    [
        (1, 0, 1),
        (3, 2, 17),
        (5, 3, 4095),
        (4, 2, 4097),
        pytest.param(257, 1, 300, marks=FULL),  # slow in a rehearsal
        (7, 4, 49152),
        pytest.param(8, 4, 151936, marks=FULL),
    ],
)
@pytest.mark.parametrize("run", runs("verify"))
def test_verify(run, num_requests, max_spec_len, vocab_size, sampled, dtype):
    case = make_case(num_requests, max_spec_len, vocab_size, sampled=sampled, placeholders=True, dtype=dtype)
    assert_equals_reference(case, run(*case.arguments()))


@pytest.mark.parametrize("sampled", [pytest.param(False, marks=FULL), True], ids=["one-hot", "sampled"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("run", runs("verify"))
def test_walks_of_every_rule(run, rule, sampled):
    case = peaked_case(rule, 14, 4, sampled=sampled, seed=1)
    assert_equals_reference(case, run(*case.arguments()))


@pytest.mark.full
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("run", runs("verify"))
def test_rules_over_a_whole_vocabulary(run, rule, dtype):
    case = make_case(8, 4, 151936, rule=rule, sampled=True, placeholders=True, dtype=dtype)
    assert_equals_reference(case, run(*case.arguments()))


#: the small facts that hold for every implementation, without the host's implementations as parameters
FACTS = {name: fact for name, fact in vars(verify.TestDefinition).items() if name.startswith("test_")}
TestDefinition = pytest.mark.parametrize("verify", runs("verify"))(type("TestDefinition", (), FACTS))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("run", runs("sample"))
def test_sample(run, dtype):
    case = make_case(9, 0, 4500, dtype=dtype)
    expected, margins = verify_reference.verify_with_margins(*case.arguments())
    tokens = run(case.logits, case.temperature, case.seeds, case.positions)
    for token, wanted, margin in zip(tokens, expected[:, 1], margins, strict=True):
        assert token == wanted or margin < NEAR


# ------------------------------------------------------------------------------------ logits processors
def in_place(run):
    """``run`` as a function that changes its first argument, a tensor of the host."""

    def function(logits, *rest):
        on_device, *others = move((logits, *rest), run.kind)
        run.on_device(on_device, *others)
        logits.copy_(on_device.cpu())

    return function


@pytest.mark.parametrize("run", runs("filter_logits"))
def test_filter_golden(run):
    filters.check_golden(in_place(run))
    filters.check_not_valid(in_place(run))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_rows", "vocab_size"), [(1, 1), (20, 2), (9, 2049), pytest.param(70, 151936, marks=FULL)]
)
@pytest.mark.parametrize("run", runs("filter_logits"))
def test_filter_logits(run, num_rows, vocab_size, dtype):
    filters.check(in_place(run), *filters.random_case(num_rows, vocab_size, dtype))


@pytest.mark.parametrize("run", runs("apply_penalties"))
def test_penalties_by_hand(run):
    penalties.check_by_hand(in_place(run))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_requests", "vocab_size"), [(1, 1), (40, 17), (9, 3000)])
@pytest.mark.parametrize("run", runs("apply_penalties"))
def test_apply_penalties(run, num_requests, vocab_size, dtype):
    requests = penalties.random_requests(num_requests, vocab_size, torch.Generator().manual_seed(1))
    penalties.check(in_place(run), penalties.arguments(requests, vocab_size, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("run", runs("apply_token_bitmask"))
def test_token_bitmask(run, dtype):
    bitmask.check(in_place(run))
    words = torch.randint(-(2**31), 2**31, (9, 130), dtype=torch.int32)
    logits = torch.randn(9, 4100).to(dtype)
    expected = logits.clone()
    bitmask_reference.apply_token_bitmask(expected, words)
    in_place(run)(logits, words)
    assert torch.equal(logits, expected)


# ------------------------------------------------------------------------------------------ ngram_match
@pytest.mark.parametrize("run", runs("ngram_match"))
def test_ngram_golden(run):
    for tokens, min_n, max_n, wanted, draft in ngram.GOLDEN:
        assert ngram.call(run, [tokens], min_n, max_n, [wanted], 9) == [ngram.padded(draft, 9)]


@pytest.mark.parametrize(
    ("num_rows", "lengths", "min_n", "max_n", "max_drafts"),
    [
        (1, (0, 0), 1, 1, 1),
        (5, (0, 40), 1, 3, 4),
        (3, (1000, 1030), 2, 5, 3),
        (2, (2040, 4200), 3, 7, 8),
        (9, (0, 1100), 5, 5, 16),
        (70, (0, 20), 1, 30, 5),
    ],
)
@pytest.mark.parametrize("run", runs("ngram_match"))
def test_ngram_equals_brute_force(run, num_rows, lengths, min_n, max_n, max_drafts):
    rng = random.Random(num_rows)
    rows = [ngram.random_row(rng, rng.randint(*lengths)) for _ in range(num_rows)]
    args = (rows, min_n, max_n, [rng.randint(0, max_drafts) for _ in rows], max_drafts)
    assert ngram.call(run, *args) == ngram.call(ngram_reference.ngram_match, *args)


@pytest.mark.parametrize("position", [3, 1020, 1023, 1024, 1025, 3000, 4094, 5000, 8190])
@pytest.mark.parametrize("run", runs("ngram_match"))
def test_ngram_across_blocks(run, position):
    row = list(range(10, 9010))
    row[position : position + 4] = [1, 2, 3, 4]
    row[-4:] = [1, 2, 3, 4]
    assert ngram.call(run, [row], 2, 4, [3], 3) == [row[position + 4 : position + 7]]


# ----------------------------------------------------------------------------------------- draft_inputs
@pytest.mark.parametrize("run", runs("draft_inputs"))
def test_draft_inputs_by_hand(run):
    assert draft_inputs.run(run, draft_inputs.BY_HAND) == draft_inputs.EXPECTED


@pytest.mark.parametrize(
    ("num_requests", "max_k"), [(1, 0), (1, 40), (5, 1), (7, 40), (33, 7), (257, 0), (257, 3)]
)
@pytest.mark.parametrize(("block_size", "max_model_len"), [(1, 9), (3, 31), (16, 64), (128, 1000)])
@pytest.mark.parametrize("run", runs("draft_inputs"))
def test_draft_inputs(run, num_requests, max_k, block_size, max_model_len):
    args = draft_inputs.random_args(
        random.Random(num_requests), num_requests, max_k, block_size, max_model_len
    )
    for got, expected in zip(run(*args), draft_inputs_reference.draft_inputs(*args), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


# --------------------------------------------------------------------------------------------- kv_write
@pytest.mark.parametrize("layout", kv_write.LAYOUTS)
@pytest.mark.parametrize(
    ("num_tokens", "block_size", "heads", "dim", "dtype"),
    [
        (0, 16, 2, 16, torch.float32),
        (1, 16, 3, 64, torch.float32),
        (5, 1, 1, 16, torch.float16),
        (7, 3, 3, 80, torch.bfloat16),
        (40, 16, 2, 128, torch.bfloat16),
        (300, 128, 8, 64, torch.float16),
    ],
)
@pytest.mark.parametrize("run", runs("kv_write"))
def test_kv_write(run, num_tokens, block_size, heads, dim, dtype, layout):
    torch.manual_seed(num_tokens)
    key, value = kv_write.new_rows(num_tokens, heads, dim, dtype)
    mapping = kv_write.slots(num_tokens, block_size)
    expected = layout(block_size, heads, dim, dtype)
    got = move(layout(block_size, heads, dim, dtype), run.kind)
    kv_write_reference.kv_write(key, value, *expected, mapping)
    run.on_device(*move((key, value), run.kind), *got, *move((mapping,), run.kind))
    for cache, wanted in zip(got, expected, strict=True):
        assert torch.equal(cache.cpu(), wanted)


@pytest.mark.parametrize("run", runs("kv_write"))
def test_kv_write_of_padding_alone(run):
    key, value = kv_write.new_rows(3, 2, 16, torch.float16)
    caches = move(kv_write.separate(16, 2, 16, torch.float16), run.kind)
    run.on_device(*move((key, value), run.kind), *caches, *move((torch.full((3,), -1),), run.kind))
    assert not any(cache.any() for cache in caches)


# ---------------------------------------------------------------------------------------- mqa_attention
LARGE = attention.Case(
    (5, 1, 300, 0, 9), (2050, 700, 900, 0, 129), heads=(8, 2), dim=128, dtype=torch.float16, block_size=128
)
GRID = [
    *attention.GRID,
    *(pytest.param(replace(LARGE, dtype=dtype), marks=FULL) for dtype in DTYPES),
    pytest.param(replace(LARGE, sliding_window=640), marks=FULL),
    pytest.param(replace(LARGE, block_size=16, layout="key_then_value"), marks=FULL),
]


@pytest.mark.parametrize("case", GRID, ids=str)
@pytest.mark.parametrize("run", runs("mqa_attention"))
def test_mqa_attention(run, case):
    args, options = attention.build(case)
    options |= {"query_lens_cpu": case.query_lens, "seq_lens_cpu": case.seq_lens}
    expected = attention_reference.mqa_attention(*args, **options)
    got = run(*args, **options)
    assert got.dtype == case.dtype
    error = (got.double() - expected).abs().nan_to_num(float("inf")).max().item()
    assert error < attention.TOLERANCE[case.dtype]


@pytest.mark.parametrize("case", [attention.VERIFY, replace(attention.VERIFY, sliding_window=40)], ids=str)
@pytest.mark.parametrize("run", runs("mqa_attention"))
def test_mqa_attention_of_a_verification(run, case):
    """Shapes that Ascend's fused operator takes too."""
    args, options = attention.npu_arguments(case)
    expected = attention_reference.mqa_attention(*args, **options)
    torch.testing.assert_close(run(*args, **options).double(), expected, atol=3e-3, rtol=0)


# ------------------------------------------------------------------------------- all of them, dispatched
def arguments(op: str) -> tuple[tuple, dict]:
    """A call of each operator, in tensors of the host."""
    case = make_case(3, 2, 4500, sampled=True)
    cache = kv_write.separate(16, 2, 16, torch.float16)
    calls = {
        "random_bits": lambda: (torch.tensor([7, 8]), torch.tensor([1, 2]), 3, 4100),
        "verify": case.arguments,
        "sample": lambda: (case.logits[:3], case.temperature, case.seeds, case.positions),
        "ngram_match": lambda: (
            torch.tensor([[1, 2, 3, 4, 1, 2, 3, 0]], dtype=torch.int32),
            torch.tensor([7], dtype=torch.int32),
            2,
            3,
            torch.tensor([3], dtype=torch.int32),
            4,
            "recent",
            100,
        ),
        "draft_inputs": lambda: draft_inputs.BY_HAND,
        "filter_logits": lambda: (
            case.logits,
            *filters.parameters(
                filters.random_rows(len(case.logits), 4500, torch.Generator().manual_seed(1))
            ),
        ),
        "apply_penalties": lambda: penalties.arguments([penalties.BY_HAND[4][0]] * 3, 4500),
        "apply_token_bitmask": lambda: (case.logits, torch.ones(len(case.logits), 141, dtype=torch.int32)),
        "kv_write": lambda: (*kv_write.new_rows(5, 2, 16, torch.float16), *cache, kv_write.slots(5, 16)),
    }
    if op == "mqa_attention":
        return attention.npu_arguments(attention.VERIFY)
    return calls[op](), {}


@pytest.mark.parametrize("op", selection.table)
@pytest.mark.parametrize("kind", on_kinds())
def test_opcheck(kind, op):
    args, kwargs = move(arguments(op), kind)
    torch.library.opcheck(getattr(torch.ops.ascend_spec, op).default, args, kwargs)


@pytest.mark.parametrize("op", selection.table)
@pytest.mark.parametrize("kind", on_kinds())
def test_no_host_synchronisation(kind, op):
    check_no_host_synchronisation(kind, op, *arguments(op))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", on_kinds())
def test_no_host_synchronisation_under_any_rule(kind, rule):
    check_no_host_synchronisation(kind, "verify", peaked_case(rule, 3, 2, sampled=True).arguments(), {})


def check_no_host_synchronisation(kind, op, args, kwargs):
    """Only CUDA can tell, and a first call may compile, which does wait."""
    if kind != "cuda":
        pytest.skip("torch can watch for synchronisation on CUDA alone")
    args, kwargs = move((args, kwargs), kind)
    call = getattr(torch.ops.ascend_spec, op)
    call(*args, **kwargs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        call(*args, **kwargs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
