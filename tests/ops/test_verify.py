"""Rungs 1 and 2 for ``verify`` and ``sample``: the CPU path and the interpreted kernels equal the reference."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck
from verify_cases import Case, assert_equals_reference, make_case

import ascend_spec_ops
from ascend_spec_ops.verify import launch, reference

VOCABULARIES = [1, 17, 4095, 4097, 49152, 151936]


def one_request(logits: torch.Tensor, drafts: list[int], temperature: float = 1.0, **draft) -> Case:
    return Case(
        logits,
        torch.tensor(drafts, dtype=torch.int32),
        torch.tensor([len(drafts)], dtype=torch.int32),
        torch.tensor([temperature]),
        torch.tensor([7]),
        torch.tensor([11]),
        len(drafts),
        **draft,
    )


@pytest.mark.parametrize("sampled", [False, True], ids=["one-hot", "sampled"])
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize(("num_requests", "max_spec_len"), [(1, 0), (1, 4), (7, 3), (257, 1)])
def test_cpu_equals_reference(num_requests, max_spec_len, vocab_size, sampled):
    if num_requests * vocab_size > 2_000_000:
        vocab_size = 4097  # many requests and many tokens are each enough
    case = make_case(
        num_requests, max_spec_len, vocab_size, sampled=sampled, placeholders=True, seed=vocab_size
    )
    assert_equals_reference(case, ascend_spec_ops.verify(*case.arguments()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sampled", [False, True], ids=["one-hot", "sampled"])
@pytest.mark.parametrize(
    ("num_requests", "max_spec_len", "vocab_size"),
    [(1, 0, 1), (3, 2, 17), (5, 3, 4095), (4, 2, 4097), (2, 2, 20000)],
)
def test_triton_equals_reference(num_requests, max_spec_len, vocab_size, sampled, dtype):
    case = make_case(num_requests, max_spec_len, vocab_size, sampled=sampled, placeholders=True, dtype=dtype)
    assert_equals_reference(case, launch.verify(*case.arguments()))


@pytest.mark.parametrize("verify", [ascend_spec_ops.verify, launch.verify], ids=["cpu", "triton"])
class TestDefinition:
    """Small facts that hold for every implementation."""

    def test_row_strides(self, verify):
        case = make_case(4, 2, 4500, sampled=True)
        wide = torch.full((len(case.logits), 5000), torch.nan)
        wide[:, :4500] = case.logits
        expected = verify(*case.arguments())
        case.logits = wide[:, :4500]
        assert torch.equal(verify(*case.arguments()), expected)

    def test_neighbours_and_batch_order_do_not_matter(self, verify):
        case = make_case(6, 3, 300, sampled=True, mixed=False)
        whole = verify(*case.arguments())
        for b in range(6):
            alone = Case(
                case.logits[4 * b : 4 * b + 4],
                case.draft_token_ids[3 * b : 3 * b + 3],
                torch.tensor([3], dtype=torch.int32),
                *(x[b : b + 1] for x in (case.temperature, case.seeds, case.positions)),
                3,
                case.draft_logits[3 * b : 3 * b + 3],
                case.draft_temperature[b : b + 1],
            )
            assert torch.equal(verify(*alone.arguments())[0], whole[b])

    def test_greedy_ties_take_the_lowest_id(self, verify):
        logits = torch.zeros(2, 9000)
        logits[:, [5, 4100, 8999]] = 3.0
        assert verify(*one_request(logits, [5], 0.0).arguments()).tolist() == [[2, 5, 5]]
        assert verify(*one_request(logits, [4100], 0.0).arguments()).tolist() == [[1, 5, -1]]

    def test_equal_distributions_accept_everything(self, verify):
        case = make_case(20, 4, 97, sampled=True, mixed=False)
        rows = torch.arange(100).view(20, 5)[:, :4].flatten()
        case.draft_logits = case.logits[rows]
        case.draft_temperature = case.temperature
        case.draft_token_ids = case.draft_logits.argmax(1).int()
        assert verify(*case.arguments())[:, 0].tolist() == [5] * 20

    def test_the_first_draft_is_checked(self, verify):
        logits = torch.full((2, 8), -torch.inf)
        logits[:, 2] = 0.0
        for temperature in (0.0, 1.0):
            assert verify(*one_request(logits, [1], temperature).arguments()).tolist() == [[1, 2, -1]]

    def test_impossible_tokens_are_never_emitted(self, verify):
        logits = torch.full((3, 6000), -torch.inf)
        logits[:, [3, 5000]] = 0.0
        for seed in range(30):
            case = one_request(logits, [4, 3])
            case.seeds[0] = seed
            count, first, *_ = verify(*case.arguments())[0].tolist()
            assert count == 1
            assert first in (3, 5000)

    def test_draft_ids_outside_the_vocabulary_are_rejected(self, verify):
        case = one_request(torch.randn(2, 40), [40])
        assert_equals_reference(case, verify(*case.arguments()))
        assert verify(*case.arguments())[0, 0] == 1

    def test_an_empty_slot_ends_the_drafts_and_changes_nothing_before_it(self, verify):
        case = make_case(1, 4, 50, mixed=False)
        case.draft_token_ids = case.logits[:4].argmax(1).int()
        case.temperature[0] = 0.0
        full = verify(*case.arguments())[0].tolist()
        case.draft_token_ids[2] = -1
        assert verify(*case.arguments())[0].tolist() == [3, *full[1:4], -1, -1]

    def test_an_empty_slot_draws_what_no_draft_draws(self, verify):
        logits = torch.randn(2, 5000)
        with_slot = verify(*one_request(logits, [-1]).arguments())
        without = verify(*one_request(logits[:1], []).arguments())
        assert with_slot[0, 1] == without[0, 1]

    @pytest.mark.parametrize("poison", [torch.nan, torch.inf])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_row_that_is_not_finite_flags_its_request_alone(self, verify, poison, temperature):
        case = make_case(3, 2, 5000, mixed=False)
        case.temperature[:] = temperature
        clean = verify(*case.arguments())
        case.logits[3, 4321] = poison
        out = verify(*case.arguments())
        assert out[1].tolist() == [0, -1, -1, -1]
        assert torch.equal(out[[0, 2]], clean[[0, 2]])

    def test_a_row_of_nothing_but_minus_infinity_is_flagged(self, verify):
        logits = torch.full((1, 4200), -torch.inf)
        assert verify(*one_request(logits, []).arguments()).tolist() == [[0, -1]]

    def test_rows_after_the_first_rejection_do_not_decide(self, verify):
        logits = torch.zeros(3, 100)
        logits[:, 7] = 50.0
        expected = verify(*one_request(logits, [8, 7]).arguments())
        logits[2] = torch.nan
        assert torch.equal(verify(*one_request(logits, [8, 7]).arguments()), expected)

    def test_draft_logits_that_are_not_finite_end_the_drafts(self, verify):
        logits = torch.randn(2, 60)
        q = {"draft_logits": torch.full((1, 60), torch.nan), "draft_temperature": torch.ones(1)}
        out = verify(*one_request(logits, [3], **q).arguments())
        assert out[0, 0] == 1
        assert out[0, 1] == verify(*one_request(logits[:1], []).arguments())[0, 1]

    def test_no_requests(self, verify):
        case = make_case(0, 2, 30)
        assert verify(*case.arguments()).shape == (0, 4)


def test_sample_is_verify_without_drafts():
    case = make_case(9, 0, 4500)
    tokens = ascend_spec_ops.sample(case.logits, case.temperature, case.seeds, case.positions)
    assert torch.equal(tokens, reference.verify(*case.arguments())[:, 1])


def test_counts_must_fit():
    case = make_case(2, 2, 10, mixed=False)
    case.max_spec_len = 1
    with pytest.raises(RuntimeError, match="max_spec_len=1"):
        ascend_spec_ops.verify(*case.arguments())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("logits", torch.zeros(3, 10), "must be 6"),
        ("temperature", torch.zeros(2, dtype=torch.float64), "temperature must be"),
        ("draft_token_ids", torch.zeros(4, dtype=torch.int64), "must be .N. int32"),
        ("draft_token_ids", torch.zeros(4, 1, dtype=torch.int32), "must be .N. int32"),
        ("cu_num_draft_tokens", torch.tensor([[2], [4]], dtype=torch.int32), "must be .B. int32"),
        ("draft_logits", torch.zeros(4, 10), "go together"),
    ],
)
def test_wrong_arguments_are_named(field, value, message):
    case = make_case(2, 2, 10, mixed=False)
    setattr(case, field, value)
    for verify in (ascend_spec_ops.verify, launch.verify):
        with pytest.raises(RuntimeError, match=message):
            verify(*case.arguments())


@pytest.mark.parametrize("sampled", [False, True])
def test_opcheck(sampled):
    case = make_case(3, 2, 50, sampled=sampled)
    opcheck(torch.ops.ascend_spec.verify.default, case.arguments())
    opcheck(
        torch.ops.ascend_spec.sample.default, (torch.randn(3, 50), torch.ones(3), case.seeds, case.positions)
    )
