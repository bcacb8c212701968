"""Rung 7 on the fast CPU path: the law of what is emitted, over a million rows and fixed seeds."""

import laws
import pytest

from ascend_spec_ops import verify
from ascend_spec_ops.verify import launch


@pytest.mark.parametrize("sampled", [False, True], ids=["one-hot", "sampled"])
def test_three_blocks(sampled):
    laws.check_blocks_law(verify, sampled)


@pytest.mark.parametrize("sampled", [False, True], ids=["one-hot", "sampled"])
def test_contextual_pairs(sampled):
    laws.check_contextual_law(verify, sampled)


def test_the_same_draft_everywhere():
    laws.check_fixed_draft_law(verify)


def test_own_noise_for_drafts():
    laws.check_own_drafts_law(verify)


def test_truncated_drafts_with_their_own_q():
    laws.check_truncated_drafts_law(verify, q_given_is_q_used=True)


def test_drafts_that_a_mask_forbids():
    laws.check_masked_drafts_law(verify)


def test_nothing_left_of_the_residual():
    laws.check_nothing_left(verify)


def test_impossible_drafts():
    laws.check_impossible_draft(verify)


@pytest.mark.parametrize("sampled", [False, True], ids=["one-hot", "sampled"])
def test_interpreted_kernels(sampled):
    """The same law of the Triton kernels; the interpreter is slow, hence the small number of rows."""
    laws.check_contextual_law(launch.verify, sampled, num_rows=300)
