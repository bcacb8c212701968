"""Rung 1 for the rules of ``verify``: the CPU path equals the reference over ugly shapes, and small facts."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck
from verify_cases import Case, assert_equals_reference, make_case, rule_options

from ascend_spec_ops import verify
from ascend_spec_ops.verify import RULES

OTHER_RULES = [rule for rule in RULES if rule != "standard"]


@pytest.mark.parametrize("sampled", [False, True], ids=["one-hot", "sampled"])
@pytest.mark.parametrize(
    ("num_requests", "max_spec_len", "vocab_size"),
    [
        (1, 0, 17),
        (1, 4, 1),
        (1, 6, 50),
        (7, 3, 4095),
        (9, 5, 4097),
        (2, 4, 49152),
        (257, 6, 40),
        (1, 7, 151936),
    ],
)
@pytest.mark.parametrize("rule", OTHER_RULES)
def test_cpu_equals_reference(rule, num_requests, max_spec_len, vocab_size, sampled):
    case = make_case(
        num_requests, max_spec_len, vocab_size, rule=rule, sampled=sampled, placeholders=True, seed=vocab_size
    )
    assert_equals_reference(case, verify(*case.arguments()))


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("rule", RULES)
def test_rows_that_are_not_valid_as_in_the_reference(rule, poison):
    """One bad row anywhere: it counts where the rule looks at it, and nowhere else; q ends the drafts."""
    for row in range(0, 30, 3):
        case = make_case(6, 5, 60, rule=rule, sampled=True, seed=row)
        case.logits[row % len(case.logits), 7] = poison
        if len(case.draft_logits):
            case.draft_logits[row % len(case.draft_logits), 9] = poison
        assert_equals_reference(case, verify(*case.arguments()))


def request(case: Case, b: int, n: int) -> Case:
    """Request ``b`` alone, of a case in which every request has ``n`` drafts."""
    return Case(
        case.logits[(n + 1) * b : (n + 1) * (b + 1)],
        case.draft_token_ids[n * b : n * (b + 1)],
        torch.tensor([n], dtype=torch.int32),
        *(x[b : b + 1] for x in (case.temperature, case.seeds, case.positions)),
        n,
        case.draft_logits[n * b : n * (b + 1)],
        case.draft_temperature[b : b + 1],
        case.rule,
        case.rule_options,
    )


@pytest.mark.parametrize("rule", RULES)
def test_neighbours_and_batch_order_do_not_matter(rule):
    case = make_case(8, 4, 4500, rule=rule, sampled=True, mixed=False)
    whole = verify(*case.arguments())
    for b in range(8):
        assert torch.equal(verify(*request(case, b, 4).arguments())[0], whole[b])


@pytest.mark.parametrize("rule", RULES)
def test_without_drafts_every_rule_draws_the_same(rule):
    case = make_case(9, 0, 4500, rule=rule)
    expected = make_case(9, 0, 4500)
    assert torch.equal(verify(*case.arguments()), verify(*expected.arguments()))


@pytest.mark.parametrize("rule", OTHER_RULES)
def test_an_empty_slot_is_no_draft(rule):
    case = make_case(20, 3, 60, rule=rule, sampled=True, mixed=False)
    case.draft_token_ids.view(20, 3)[:, 1] = -1
    case.draft_token_ids.view(20, 3)[:, 2] = 5
    out = verify(*case.arguments())
    shorter = make_case(20, 3, 60, rule=rule, sampled=True, mixed=False)
    shorter.logits = case.logits.view(20, 4, 60)[:, :2].flatten(0, 1)
    shorter.draft_token_ids = case.draft_token_ids.view(20, 3)[:, 0].contiguous()
    shorter.draft_logits = case.draft_logits.view(20, 3, 60)[:, 0].contiguous()
    shorter.cu_num_draft_tokens = torch.arange(1, 21, dtype=torch.int32)
    assert torch.equal(out, verify(*shorter.arguments()))


@pytest.mark.parametrize("rule", ["standard", "block", "fly"])
def test_equal_distributions_accept_everything(rule):
    case = make_case(20, 4, 97, rule=rule, sampled=True, mixed=False)
    case.draft_logits = case.logits[torch.arange(100).view(20, 5)[:, :4].flatten()]
    case.draft_temperature = case.temperature
    assert verify(*case.arguments())[:, 0].tolist() == [5] * 20


@pytest.mark.parametrize("rule", ["block", "typical", "coupled"])
def test_greedy_requests_get_the_argmax(rule):
    case = make_case(12, 4, 300, rule=rule, sampled=True, placeholders=True)
    case.temperature[:] = 0.0
    expected = Case(*case.arguments()[:9])
    assert torch.equal(verify(*case.arguments()), verify(*expected.arguments()))


def test_coupled_gives_the_text_of_plain_decoding():
    """Whatever the drafts, and although half of them are the target's own draws."""
    case = make_case(30, 5, 200, rule="coupled", mixed=False, seed=3)
    rows = torch.arange(6)
    plain = torch.stack(
        [
            verify(
                case.logits.view(30, 6, 200)[b],
                torch.empty(0, dtype=torch.int32),
                torch.zeros(6, dtype=torch.int32),
                case.temperature[b].expand(6),
                case.seeds[b].expand(6),
                case.positions[b] + rows,
                0,
            )[:, 1]
            for b in range(30)
        ]
    )
    right = torch.rand(30, 5, generator=torch.Generator().manual_seed(1)) < 0.7
    case.draft_token_ids = torch.where(right, plain[:, :5], case.draft_token_ids.view(30, 5)).flatten()
    out = verify(*case.arguments())
    assert out[:, 0].unique().numel() > 2
    for b in range(30):
        count = int(out[b, 0])
        assert out[b, 1 : 1 + count].tolist() == plain[b, :count].tolist()


@pytest.mark.parametrize("rule", RULES)
def test_impossible_tokens_are_never_drawn(rule):
    logits = torch.full((3, 6000), -torch.inf)
    logits[:, [3, 5000]] = 0.0
    for seed in range(20):
        case = Case(
            logits, torch.tensor([4, 3], dtype=torch.int32), torch.tensor([2], dtype=torch.int32),
            torch.ones(1), torch.tensor([seed]), torch.tensor([2]), 2,
            rule=rule, rule_options=(0.0, 0.0) if rule == "synthetic" else rule_options(rule, 2),
        )  # fmt: skip
        out = verify(*case.arguments())[0]
        assert out[0] == 1
        assert out[1] in (3, 5000)


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        ("blocks", (), "one of standard, block, typical, synthetic, fly, coupled, not 'blocks'"),
        ("block", (1.0,), "block has 0 options .none., not 1"),
        ("typical", (0.1,), "typical has 2 options .epsilon, delta., not 1"),
        ("synthetic", (0.1,), "synthetic has 2 options"),
        ("fly", (1.0, 0.3), "fly has 3 options"),
        ("fly", (1.5, 0.3, 3.0), "window of fly must be a whole number"),
        ("fly", (1.0, 0.3, 0.0), "top k of fly must be a whole number"),
    ],
)
def test_wrong_rules_are_named(rule, options, message):
    case = make_case(2, 2, 10, mixed=False)
    case.rule, case.rule_options = rule, options
    with pytest.raises(RuntimeError, match=message):
        verify(*case.arguments())


@pytest.mark.parametrize("rule", OTHER_RULES)
def test_opcheck(rule):
    case = make_case(3, 2, 50, sampled=True, rule=rule)
    arguments = (*case.arguments()[:-1], list(case.rule_options))
    opcheck(torch.ops.ascend_spec.verify.default, arguments)
