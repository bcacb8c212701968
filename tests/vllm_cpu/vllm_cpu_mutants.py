"""Faults, put into the adapter in the process that has vLLM: name -> context manager."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

import ascend_spec_ops
from ascend_spec.drafters import ngram
from ascend_spec.vllm import v1, v1_drafters, v1_sampler, workarounds
from ascend_spec.vllm.v1_sampler import V1Sampler


@contextlib.contextmanager
def accept_all() -> Iterator[None]:
    """Drafts are taken as they are."""
    verify = ascend_spec_ops.verify

    def mutant(logits, tokens, cumulative, *rest):
        output = verify(logits, tokens, cumulative, *rest)
        start = 0
        for i, end in enumerate(cumulative.tolist()):
            output[i, 1 : 1 + end - start] = tokens[start:end]
            output[i, 0] = end - start + 1
            output[i, end - start + 1] = output[i, end - start + 1].clamp(min=0)
            start = end
        return output

    with mock.patch.object(ascend_spec_ops, "verify", mutant):
        yield


@contextlib.contextmanager
def reject_all() -> Iterator[None]:
    """No draft is judged."""
    verify = ascend_spec_ops.verify

    def mutant(logits, tokens, *rest):
        return verify(logits, torch.full_like(tokens, -1), *rest)

    with mock.patch.object(ascend_spec_ops, "verify", mutant):
        yield


@contextlib.contextmanager
def forget_seeds() -> Iterator[None]:
    """A request's seed is not looked at."""

    def mutant(self: V1Sampler, num_reqs: int, device: Any) -> torch.Tensor:
        return torch.tensor([random.getrandbits(63) for _ in range(num_reqs)], dtype=torch.int64)

    with mock.patch.object(V1Sampler, "_seeds", mutant):
        yield


@contextlib.contextmanager
def stock_draft_draw() -> Iterator[None]:
    """vLLM's own drafters draw with whatever random numbers come."""

    def mutant(self: v1_drafters.V1DraftSampler, logits: torch.Tensor, sampling: Any) -> Any:
        return self.stock(logits, sampling)

    with mock.patch.object(v1_drafters.V1DraftSampler, "__call__", mutant):
        yield


@contextlib.contextmanager
def stock_bonus_row() -> Iterator[None]:
    """The bonus row goes through vLLM's own method for it."""

    def mutant(self: V1Sampler, rows: torch.Tensor, sampling: Any, drafts: Any) -> torch.Tensor:
        sampler, rejection = self.runner.sampler, self.runner.rejection_sampler
        if drafts is None:
            return sampler.apply_logits_processors(rows, sampling, False)
        bonus, target = drafts.bonus_logits_indices, drafts.target_logits_indices
        rows[bonus] = sampler.apply_logits_processors(rows[bonus], sampling, True)
        rows[target] = rejection.apply_logits_processors(rows[target], sampling, drafts)
        return rows

    with mock.patch.object(V1Sampler, "_process", mutant):
        yield


@contextlib.contextmanager
def processors_see_no_drafts() -> Iterator[None]:
    """Every row is treated as if it stood where the first does."""

    def mutant(self: V1Sampler, rows: torch.Tensor, sampling: Any, drafts: Any) -> torch.Tensor:
        if drafts is None:
            return self.runner.sampler.apply_logits_processors(rows, sampling, False)
        ends = [count + 1 for count in drafts.num_draft_tokens]
        starts = [sum(ends[:i]) for i in range(len(ends))]
        for offset in range(max(ends)):
            index = torch.tensor(
                [start + min(offset, end - 1) for start, end in zip(starts, ends, strict=True)]
            )
            rows[index] = self.runner.sampler.apply_logits_processors(rows[index], sampling, False)
        return rows

    with mock.patch.object(V1Sampler, "_process", mutant):
        yield


@contextlib.contextmanager
def shifted_logprobs() -> Iterator[None]:
    """Log-probabilities of the wrong rows."""
    original = V1Sampler._logprobs

    def mutant(self: V1Sampler, source: torch.Tensor, *rest: Any) -> Any:
        return original(self, source.roll(1, 0), *rest)

    with mock.patch.object(V1Sampler, "_logprobs", mutant):
        yield


@contextlib.contextmanager
def ignore_temperature() -> Iterator[None]:
    """Sampled requests are drawn at temperature 1 and not cut to top-k or top-p."""

    def mutant(self: V1Sampler, rows: torch.Tensor, sampling: Any, drafts: Any, num_reqs: int) -> Any:
        return rows, (sampling.temperature[:num_reqs] > v1_sampler.EPS).to(torch.float32)

    with mock.patch.object(V1Sampler, "_constrain", mutant):
        yield


@contextlib.contextmanager
def drafts_as_certain() -> Iterator[None]:
    """Sampled drafts are judged as if they had been certain: right, but fewer are accepted."""

    def mutant(self: V1Sampler, drafts: Any, temperature: torch.Tensor) -> Any:
        return drafts.draft_token_ids.to(torch.int32), None, None

    with mock.patch.object(V1Sampler, "_drafts", mutant):
        yield


@contextlib.contextmanager
def drafts_as_sampled() -> Iterator[None]:
    """Certain drafts are judged as if any token could have come."""

    def mutant(self: V1Sampler, drafts: Any, temperature: torch.Tensor) -> Any:
        tokens = drafts.draft_token_ids.to(torch.int32)
        anything = torch.zeros(tokens.shape[0], self.runner.input_batch.vocab_size)
        return tokens, anything, torch.ones_like(temperature)

    with mock.patch.object(V1Sampler, "_drafts", mutant):
        yield


@contextlib.contextmanager
def logprobs_of_first_row() -> Iterator[None]:
    """Log-probabilities are those of each request's first row."""
    original = V1Sampler._rows_of_tokens

    def mutant(self: V1Sampler, source: torch.Tensor, tokens: torch.Tensor, drafts: Any) -> torch.Tensor:
        if drafts is not None:
            counts = torch.tensor(drafts.num_draft_tokens)
            first = drafts.bonus_logits_indices - counts
            source = source[first.repeat_interleave(counts + 1)]
        return original(self, source, tokens, drafts)

    with mock.patch.object(V1Sampler, "_rows_of_tokens", mutant):
        yield


@contextlib.contextmanager
def rule_is_not_passed() -> Iterator[None]:
    """Whatever the rule, drafts are judged by the standard one."""
    verify = ascend_spec_ops.verify
    with mock.patch.object(ascend_spec_ops, "verify", lambda *arguments: verify(*arguments[:9])):
        yield


@contextlib.contextmanager
def options_are_swapped() -> Iterator[None]:
    """A rule gets its numbers from last to first."""
    verify = ascend_spec_ops.verify

    def mutant(*arguments: Any) -> torch.Tensor:
        return verify(*arguments[:10], arguments[10][::-1])

    with mock.patch.object(ascend_spec_ops, "verify", mutant):
        yield


@contextlib.contextmanager
def drafts_have_noise_of_their_own() -> Iterator[None]:
    """Under the rule "coupled" too."""
    original = v1_drafters.V1DraftSampler.__init__

    def mutant(self: v1_drafters.V1DraftSampler, *arguments: Any) -> None:
        original(self, *arguments)
        self.is_coupled = False

    with mock.patch.object(v1_drafters.V1DraftSampler, "__init__", mutant):
        yield


@contextlib.contextmanager
def min_p_is_ignored() -> Iterator[None]:
    """With all processors that temperature comes before."""
    with mock.patch.object(v1_sampler, "_argmax_invariant", return_value=[]):
        yield


@contextlib.contextmanager
def says_every_drafter_is_ours() -> Iterator[None]:
    original = v1.V1Adapter.__init__

    def mutant(self: v1.V1Adapter, runner: Any, plan: Any) -> None:
        original(self, runner, plan)
        self.drafter = "ours"

    with mock.patch.object(v1.V1Adapter, "__init__", mutant):
        yield


@contextlib.contextmanager
def no_workaround() -> Iterator[None]:
    """Kernels are overridden by every engine, as vLLM does it."""
    with mock.patch.object(workarounds, "_search_fails", return_value=False):
        yield


@contextlib.contextmanager
def patches_a_class() -> Iterator[None]:
    """Attaching changes vLLM's sampler for everybody."""
    from vllm.v1.sample.rejection_sampler import RejectionSampler

    original = v1.V1Adapter.__init__

    def mutant(self: v1.V1Adapter, runner: Any, plan: Any) -> None:
        RejectionSampler.parse_output = staticmethod(RejectionSampler.parse_output)
        original(self, runner, plan)

    with mock.patch.object(v1.V1Adapter, "__init__", mutant):
        yield


@contextlib.contextmanager
def patches_a_module() -> Iterator[None]:
    """The first sampled step changes a module of vLLM."""
    from vllm.v1.sample import rejection_sampler

    original = V1Sampler.__call__

    def mutant(self: V1Sampler, *args: Any) -> Any:
        rejection_sampler.rejection_sample = ascend_spec_ops.verify
        return original(self, *args)

    stock = rejection_sampler.rejection_sample
    with (
        mock.patch.object(V1Sampler, "__call__", mutant),
        mock.patch.object(rejection_sampler, "rejection_sample", stock),
    ):
        yield


@contextlib.contextmanager
def seam_is_gone() -> Iterator[None]:
    """A vLLM whose rejection sampler lacks a method."""
    from vllm.v1.sample.rejection_sampler import RejectionSampler

    kept = RejectionSampler.apply_logits_processors
    del RejectionSampler.apply_logits_processors
    try:
        yield
    finally:
        RejectionSampler.apply_logits_processors = kept


@contextlib.contextmanager
def ngram_fails() -> Iterator[None]:
    with mock.patch.object(
        ngram.NgramDrafter, "propose_on_host", side_effect=RuntimeError("no lookup today")
    ):
        yield


@contextlib.contextmanager
def expand_fails() -> Iterator[None]:
    """What spreads sampling parameters over draft rows in vLLM's own sampler cannot be called."""
    from vllm.v1.sample import rejection_sampler

    with mock.patch.object(rejection_sampler, "expand_batch_to_tokens", side_effect=RuntimeError("called")):
        yield


@contextlib.contextmanager
def keeps_a_file() -> Iterator[None]:
    """Every attached runner leaves a file open."""
    original, kept = v1.V1Adapter.__init__, []

    def mutant(self: v1.V1Adapter, runner: Any, plan: Any) -> None:
        kept.append(os.open(os.devnull, os.O_RDONLY))
        original(self, runner, plan)

    with mock.patch.object(v1.V1Adapter, "__init__", mutant):
        yield
    for descriptor in kept:
        os.close(descriptor)


MUTANTS = {
    mutant.__name__: mutant
    for mutant in (
        accept_all,
        reject_all,
        forget_seeds,
        stock_draft_draw,
        stock_bonus_row,
        processors_see_no_drafts,
        shifted_logprobs,
        ignore_temperature,
        drafts_as_certain,
        drafts_as_sampled,
        logprobs_of_first_row,
        rule_is_not_passed,
        options_are_swapped,
        drafts_have_noise_of_their_own,
        min_p_is_ignored,
        says_every_drafter_is_ours,
        no_workaround,
        patches_a_class,
        patches_a_module,
        seam_is_gone,
        ngram_fails,
        expand_fails,
        keeps_a_file,
    )
}
