"""Random numbers of vLLM's own drafters on V1: a rule that judges drafts together has looked at those it rejects.
And what our suffix drafter takes from vLLM's batch."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from vllm_fake_config import plan

from ascend_spec.vllm import v1_drafters
from ascend_spec.vllm.metrics import Metrics
from ascend_spec.vllm.on_error import OnError
from ascend_spec.vllm.seams import SeamError
from ascend_spec.vllm.v1 import PROPOSE_SEAMS, V1Adapter
from ascend_spec.vllm.v1_drafters import V1DraftSampler, V1SuffixProposer
from ascend_spec.vllm.v1_sampler import NextDraw

REQUESTS, VOCAB = 4000, 3


def drawn(position: int, num_drafts: int) -> torch.Tensor:
    """``[REQUESTS, num_drafts]``, a round's drafts from flat distributions."""
    seeds = torch.arange(REQUESTS)
    sampler = SimpleNamespace(
        plan=SimpleNamespace(rule=SimpleNamespace(name="block")),
        next_draw=NextDraw(seeds, torch.full((REQUESTS,), position)),
    )
    draw = V1DraftSampler(SimpleNamespace(_sample_from_logits=None), sampler)
    sampling = SimpleNamespace(all_greedy=False, temperature=torch.ones(REQUESTS))
    logits = torch.zeros(REQUESTS, VOCAB)
    return torch.stack([draw(logits, sampling)[0] for _ in range(num_drafts)], 1)


def agreement() -> float:
    """How often the draft at position 6 is the same in the round that begins at 5 and in the one that begins there."""
    return float((drawn(5, 2)[:, 1] == drawn(6, 1)[:, 0]).float().mean())


def test_a_round_has_numbers_of_its_own():
    assert abs(agreement() - 1 / VOCAB) < 5 * (VOCAB * REQUESTS) ** -0.5
    assert torch.equal(drawn(5, 2), drawn(5, 2)), "and the same ones whenever it is made"
    with mock.patch.object(v1_drafters, "draft_seeds", lambda seeds, num_tokens: seeds):
        assert agreement() > 0.9


# ---- suffix: vLLM calls its n-gram drafter, or its own for suffix decoding
TEXT = [1, 2, 3, 4, 5, 6, 1, 2, 3]
CARRIERS = {
    "ngram": lambda num_speculative_tokens, sampled_token_ids, num_tokens_no_spec, token_ids_cpu: None,
    "suffix": lambda num_speculative_tokens, input_batch, sampled_token_ids: None,
}


def runner_of(carrier: str) -> SimpleNamespace:
    """One request that is there, and one whose prompt is still being computed."""
    token_ids = np.zeros((4, 64), np.int32)
    token_ids[:2, : len(TEXT)] = TEXT
    batch = SimpleNamespace(
        req_ids=["a", "b"], token_ids_cpu=token_ids, num_tokens_no_spec=np.array([len(TEXT)] * 2 + [0] * 2),
        num_prompt_tokens=np.array([8, 20, 0, 0]),
    )  # fmt: skip
    return SimpleNamespace(drafter=SimpleNamespace(propose=CARRIERS[carrier]), input_batch=batch)


def suffix_drafts(carrier: str, k: int) -> list[list[int]]:
    given = plan("cpu", options={"method": "suffix"})
    runner = runner_of(carrier)
    propose = V1SuffixProposer(runner, given, OnError(given, Metrics(given.rule, is_published=False)))
    batch, sampled = runner.input_batch, [[3], []]
    arguments = {
        "ngram": (sampled, batch.num_tokens_no_spec, batch.token_ids_cpu),
        "suffix": (batch, sampled),
    }
    return propose(k, *arguments[carrier], slot_mappings=None)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_suffix_drafts_come_from_the_batch(carrier):
    assert suffix_drafts(carrier, 4) == [[4, 5, 6], []], "as many as the match is long"
    assert suffix_drafts(carrier, 2) == [[4, 5], []], "or as vLLM asks for in this step"


def test_a_batch_that_suffix_cannot_read_is_named():
    given = plan("cpu", options={"method": "suffix"})
    for seam in PROPOSE_SEAMS["suffix"]:
        runner = runner_of("ngram")
        owner, _, name = seam.partition(".")
        delattr(getattr(runner, owner), name)
        with pytest.raises(SeamError, match=f"has no {seam}, which"):
            V1Adapter(runner, given)
