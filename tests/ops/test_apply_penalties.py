"""apply_penalties: a history by hand, the reference against Numba and Triton, properties, and mutants."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from source_mutants import Patch
from torch.library import opcheck

import ascend_spec_ops
from ascend_spec_ops.apply_penalties import cpu, kernel, launch, reference

IMPLEMENTATIONS = {
    "cpu": cpu.apply_penalties,
    "triton": launch.apply_penalties,
    "reference": reference.apply_penalties,
}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
STALE = 1


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def arguments(requests, vocab_size, dtype=torch.float32, logits=None, num_slots=None):
    """``requests``: dictionaries of prompt, output, drafts and penalties (repetition, presence, frequency).
    Slots run backwards, and behind each history stands a token that only a bug can count."""
    histories = [r["prompt"] + r["output"] for r in requests]
    width = max(map(len, histories), default=0) + 3
    num_slots = num_slots or len(requests) + 2
    pool = torch.full((num_slots, width), STALE, dtype=torch.int32)
    slots = [num_slots - 1 - b for b in range(len(requests))]
    for slot, history in zip(slots, histories, strict=True):
        pool[slot, : len(history)] = int32(history)
    drafts = [d for r in requests for d in r["drafts"]]
    counts = int32([len(r["drafts"]) for r in requests])
    if logits is None:
        generator = torch.Generator().manual_seed(vocab_size)
        logits = 3 * torch.randn(len(drafts) + len(requests), vocab_size, generator=generator)
    penalties = torch.tensor([r["penalties"] for r in requests], dtype=torch.float32).reshape(-1, 3)
    return (
        logits.to(dtype),
        pool,
        torch.tensor(slots, dtype=torch.int64),
        int32([len(r["prompt"]) for r in requests]),
        int32([len(h) for h in histories]),
        int32(drafts),
        counts.cumsum(0, dtype=torch.int32),
        *(column.contiguous() for column in penalties.unbind(1)),
    )


def request(prompt, output, drafts, *penalties):
    return {"prompt": prompt, "output": output, "drafts": drafts, "penalties": penalties}


#: request, expected rows; every logit is 2 but the one of token 4, which is -2
BY_HAND = [
    # repetition: the prompt counts, and token 4 is multiplied
    (request([0, 4], [2], [], 2.0, 0.0, 0.0), [[1, 2, 1, 2, -4, 2]]),
    # presence and frequency: the prompt does not count
    (request([0, 4], [2, 2], [], 1.0, 0.5, 0.0), [[2, 2, 1.5, 2, -2, 2]]),
    (request([0, 4], [2, 2, 4], [], 1.0, 0.0, 0.25), [[2, 2, 1.5, 2, -2.25, 2]]),
    (request([2], [2, 4], [], 2.0, 1.0, 0.5), [[2, 2, -0.5, 2, -5.5, 2]]),
    # row j sees drafts before j; draft j it judges
    (
        request([0], [], [3, 3, 4], 2.0, 0.0, 0.25),
        [[1, 2, 2, 2, -2, 2], [1, 2, 2, 0.75, -2, 2], [1, 2, 2, 0.5, -2, 2], [1, 2, 2, 0.5, -4.25, 2]],
    ),
    # a draft that the prompt has becomes output
    (request([3], [], [3], 1.0, 1.0, 0.0), [[2, 2, 2, 2, -2, 2], [2, 2, 2, 1, -2, 2]]),
    # a negative id ends the drafts, an id beyond the logits does not, and counts for nothing
    (
        request([6, -1], [7], [6, 5, -1, 4], 1.0, 1.0, 0.0),
        [[2, 2, 2, 2, -2, 2]] * 2 + [[2, 2, 2, 2, -2, 1]] * 3,
    ),
    (request([], [], [], 2.0, 1.0, 1.0), [[2, 2, 2, 2, -2, 2]]),
    (request([0, 1], [2, 3], [4], 1.0, 0.0, 0.0), [[2, 2, 2, 2, -2, 2]] * 2),
    # a boost, and a repetition penalty that raises
    (request([0], [4], [], 0.5, -1.0, 0.0), [[4, 2, 2, 2, 0, 2]]),
]


def check_by_hand(apply_penalties):
    """Each alone, and all in one batch."""
    batches = [[case] for case in BY_HAND] + [BY_HAND]
    for batch in batches:
        expected = torch.tensor([row for _, rows in batch for row in rows], dtype=torch.float32)
        logits = torch.tensor([2.0, 2, 2, 2, -2, 2]).repeat(len(expected), 1)
        args = arguments([r for r, _ in batch], 6, logits=logits)
        apply_penalties(*args)
        assert torch.equal(args[0], expected), batch


def random_requests(num_requests, vocab_size, generator, max_history=30, max_drafts=5):
    """Few distinct tokens, so that counts rise; ids outside the logits too."""

    def tokens(limit, least=-1):
        count = int(torch.randint(0, limit + 1, (), generator=generator))
        return torch.randint(least, vocab_size + 2, (count,), generator=generator).tolist()

    def penalty(off, low, high):
        value = low + (high - low) * float(torch.rand((), generator=generator))
        return value if torch.rand((), generator=generator) < 0.6 else off

    return [
        request(
            tokens(max_history), tokens(max_history), tokens(max_drafts),
            penalty(1.0, 0.3, 2.0), penalty(0.0, -2, 2), penalty(0.0, -2, 2),
        )
        for _ in range(num_requests)
    ]  # fmt: skip


def check(apply_penalties, args):
    expected = [args[0].clone(), *args[1:]]
    reference.apply_penalties(*expected)
    apply_penalties(*args)
    error = TOLERANCE[args[0].dtype]
    torch.testing.assert_close(args[0], expected[0], rtol=error, atol=error)


def check_random(apply_penalties, sizes=(9, 70)):
    for vocab_size in sizes:
        requests = random_requests(12, vocab_size, torch.Generator().manual_seed(vocab_size))
        check(apply_penalties, arguments(requests, vocab_size))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_by_hand(name):
    check_by_hand(IMPLEMENTATIONS[name])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("num_requests", "vocab_size"), [(1, 1), (3, 5), (40, 17), (9, 3000)])
@pytest.mark.parametrize("name", ["cpu", "triton"])
def test_equals_reference(name, num_requests, vocab_size, dtype):
    requests = random_requests(num_requests, vocab_size, torch.Generator().manual_seed(num_requests))
    check(IMPLEMENTATIONS[name], arguments(requests, vocab_size, dtype))


def test_a_long_history_in_a_large_vocabulary():
    requests = random_requests(2, 151936, torch.Generator().manual_seed(3), max_history=3000)
    check(cpu.apply_penalties, arguments(requests, 151936))


@pytest.mark.parametrize("name", ["cpu", "triton"])
class TestDefinition:
    """Small facts that hold for every implementation."""

    def test_rows_of_no_penalty_and_of_no_slot_keep_their_bits(self, name):
        one = request([0, 1], [1], [2], 1.5, 1.0, 1.0)
        neutral = request([0, 1], [1], [2], 1.0, 0.0, 0.0)
        args = arguments([neutral, one, one], 4)
        args[2][1] = -1
        args[0][0, 1] = torch.nan
        before = args[0].clone()
        IMPLEMENTATIONS[name](*args)
        assert torch.equal(args[0][:4].view(torch.int32), before[:4].view(torch.int32))
        assert not torch.equal(args[0][4:], before[4:])

    def test_masked_tokens_stay_masked(self, name):
        logits = torch.full((2, 4), -torch.inf)
        args = arguments([request([0, 1], [1], [2], 1.5, 1.0, 1.0)], 4, logits=logits)
        IMPLEMENTATIONS[name](*args)
        assert (args[0] == -torch.inf).all()

    def test_row_strides(self, name):
        requests = random_requests(4, 20, torch.Generator().manual_seed(1))
        args = arguments(requests, 20)
        wide = torch.full((len(args[0]), 30), 7.0)
        wide[:, :20] = args[0]
        check(IMPLEMENTATIONS[name], (wide[:, :20], *args[1:]))
        assert (wide[:, 20:] == 7.0).all()

    def test_lengths_are_clamped_and_slots_may_be_int32(self, name):
        args = list(arguments([request([0, 1], [1], [2], 1.5, 1.0, 1.0)] * 2, 4))
        args[2] = args[2].int()
        args[4] = int32([99, -3])
        check(IMPLEMENTATIONS[name], args)

    def test_no_requests(self, name):
        IMPLEMENTATIONS[name](*arguments([], 5, logits=torch.empty(0, 5)))


tokens = st.lists(st.integers(-1, 9), max_size=12)
penalties = st.tuples(
    st.sampled_from([1.0, 0.5, 1.3]), st.sampled_from([0.0, 0.7, -1.0]), st.sampled_from([0.0, 0.3, -0.5])
)
requests_strategy = st.lists(
    st.builds(lambda p, o, d, x: request(p, o, d, *x), tokens, tokens, tokens, penalties), min_size=1, max_size=4
)  # fmt: skip


@pytest.mark.parametrize("name", ["cpu", "triton"])
@settings(max_examples=50, deadline=None, derandomize=True)
@given(requests=requests_strategy)
def test_rows_are_those_of_plain_decoding(name, requests):
    """Row j is what a request without drafts gets whose output already has drafts 0 .. j-1."""
    args = arguments(requests, 8)
    expected, row = [], 0
    for r in requests:
        for j in range(len(r["drafts"]) + 1):
            plain = {**r, "output": r["output"] + reference.visible_drafts(r["drafts"], j), "drafts": []}
            one = arguments([plain], 8, logits=args[0][row : row + 1].clone())
            IMPLEMENTATIONS[name](*one)
            expected.append(one[0])
            row += 1
    IMPLEMENTATIONS[name](*args)
    torch.testing.assert_close(args[0], torch.cat(expected), rtol=1e-6, atol=1e-6)


#: as the walk goes on to the next row, before it is penalised
ROW = "        _penalise(x, distinct[:n]"
OWN_DRAFT = (
    "        if j < drafts.shape[0]:\n            n = _add(drafts[j], 1, place, distinct, counts, n)\n"
)
CPU_MUTANTS = [
    Patch("drafts before the row are not seen", "n = _add(drafts[j], 1,", "n = _add(-1, 1,", number=34),
    Patch("the row sees its own draft", ROW, OWN_DRAFT + ROW, number=34),
    Patch("the prompt is output", "1 if i >= num_prompt_tokens else 0", "1"),
    Patch("output does not count", "1 if i >= num_prompt_tokens else 0", "0"),
    Patch("presence once a time", "F(counts[i]) - presence", "F(counts[i]) - presence * F(counts[i])"),
    Patch("frequency once", "frequency * F(counts[i])", "frequency"),
    Patch("negative logits are divided", "else value * repetition", "else value / repetition"),
    Patch("repetition last", "F(counts[i]) - presence\n", "F(counts[i]) / repetition - presence\n"),
    Patch("drafts go on behind a negative id", "ended = ended or drafts[j] < 0", "ended = drafts[j] < 0"),
    Patch(
        "an id beyond the logits is the last token",
        "    if token < 0 or token >= place.shape[0]:",
        "    token = min(token, place.shape[0] - 1)\n    if token < 0:",
    ),
]

LOAD = "tl.load(draft_ptr + start + j)"
KERNEL_MUTANTS = [
    Patch("drafts before the row are not seen", "if ended == 0:", "if ended > 1:", number=34),
    Patch("the row sees its own draft", LOAD, LOAD[:-1] + " + (j + 1 < num_drafts))", number=34),
    Patch("a draft of the prompt is counted from -1", "tl.maximum(count, 0.0) + 1.0", "count + 1.0"),
    Patch("drafts go on behind a negative id", " ended = 1\n", " ended = 0\n"),
    Patch("the prompt is output", "count > 0.0, repeated", "count != 0.0, repeated"),
    Patch("a request sees its neighbour's drafts", LOAD, "tl.load(draft_ptr + j)"),
]


@pytest.mark.parametrize("mutant", CPU_MUTANTS, ids=str)
def test_cpu_mutants_are_killed(mutant, tmp_path):
    with pytest.raises(AssertionError):
        check_by_hand(mutant.load(cpu, tmp_path).apply_penalties)


@pytest.mark.parametrize("mutant", KERNEL_MUTANTS, ids=str)
def test_kernel_mutants_are_killed(mutant, tmp_path, monkeypatch):
    monkeypatch.setattr(
        launch, "apply_penalties_kernel", mutant.load(kernel, tmp_path).apply_penalties_kernel
    )
    with pytest.raises(AssertionError):
        check_by_hand(launch.apply_penalties)


@pytest.mark.parametrize(
    "mutant",
    [
        Patch("stale tokens are counted", "(position < num_tokens[:, None]) & ", ""),
        Patch("the prompt is output", "position >= num_prompt", "position >= 0 * num_prompt"),
        Patch(
            "what counts for nothing counts for the last token",
            "counted, tokens, vocab_size)",
            "counted, tokens, vocab_size - 1)",
        ),
    ],
    ids=str,
)
def test_history_mutants_are_killed(mutant, tmp_path):
    loaded = mutant.load(launch, tmp_path)
    with pytest.raises(AssertionError):
        check_by_hand(loaded.apply_penalties)


def test_operator_and_opcheck():
    requests = random_requests(3, 12, torch.Generator().manual_seed(4))
    opcheck(torch.ops.ascend_spec.apply_penalties.default, arguments(requests, 12))
    check(ascend_spec_ops.apply_penalties, arguments(requests, 12))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, torch.zeros(3, 4), "there must be 4"),
        (1, torch.zeros(4, 6, dtype=torch.int64), "token_ids must be"),
        (2, torch.zeros(2), "slots must be"),
        (2, torch.tensor([0, 4]), "slots must be below 4"),
        (3, torch.zeros(2, dtype=torch.int64), "num_prompt_tokens must be"),
        (6, int32([1, 1]), "end at the number of drafts"),
        (6, int32([3, 2]), "must not fall"),
        (7, torch.ones(3), "repetition_penalty must be"),
        (9, torch.ones(4)[::2], "frequency_penalty must be"),
    ],
)
def test_wrong_arguments_are_named(place, value, message):
    args = list(arguments([request([0, 1], [1], [2], 1.5, 1.0, 1.0)] * 2, 4))
    args[place] = value
    with pytest.raises(RuntimeError, match=message):
        ascend_spec_ops.apply_penalties(*args)
