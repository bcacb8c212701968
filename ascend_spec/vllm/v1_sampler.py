"""Sampling in vLLM's V1 runner: its processors row by row, then this project's draw.

Steps with and without drafts go through the same code, so speculation on and off share one sampler.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch

import ascend_spec_ops
from ascend_spec.config import Plan
from ascend_spec.vllm.metrics import Metrics
from ascend_spec.vllm.workarounds import rewind_generators

#: temperatures below it are greedy, as in vLLM
EPS = 1e-5


@dataclass
class NextDraw:
    """What the drafts after a step are drawn with."""

    seeds: torch.Tensor
    """``[B]`` int64."""
    positions: torch.Tensor
    """``[B]`` int64: where the first draft will stand."""
    num_drafted: int = 0
    """Drafts of each request that have been drawn."""


class V1Sampler:
    """Stands in for ``GPUModelRunner._sample`` of one instance."""

    def __init__(self, runner: Any, plan: Plan, metrics: Metrics) -> None:
        self.runner, self.plan, self.metrics = runner, plan, metrics
        self.stock_sample = runner._sample
        self.seeds: dict[str, int] = {}
        self.random = random.Random(plan.target.seed)  # the same on every rank
        self.next_draw: NextDraw | None = None

    def __call__(self, logits: torch.Tensor | None, spec_decode_metadata: Any) -> Any:
        """``logits [N + B, V]`` and the drafts they judge, or ``[B, V]`` and None -> vLLM's SamplerOutput."""
        batch = self.runner.input_batch
        sampling = batch.sampling_metadata
        self.next_draw = None
        rewind_generators(batch.generators)
        if logits is None:
            return self.stock_sample(logits, spec_decode_metadata)
        batch.update_async_output_token_ids()
        drafts = spec_decode_metadata
        if drafts is not None:
            self._update_async_drafts()
        num_reqs = logits.shape[0] if drafts is None else len(drafts.num_draft_tokens)
        self._count_steps_without_drafts(drafts, num_reqs)
        wants_logprobs = sampling.max_num_logprobs is not None or bool(sampling.logprob_token_ids)
        rows = raw = logits.to(torch.float32)
        if wants_logprobs and not self._processed_logprobs:  # processors write into what they are given
            raw = rows.clone() if rows is logits else logits
        rows = self._process(rows, sampling, drafts)
        rows, temperature = self._constrain(rows, sampling, drafts, num_reqs)
        output = self._judge(rows, temperature, drafts, num_reqs)
        tokens = self._finite(output, rows, drafts)
        logprobs = None
        if wants_logprobs:
            source = rows if self._processed_logprobs else raw
            logprobs = self._logprobs(source, tokens, sampling, drafts)
        return _sampler_output(tokens, logprobs)

    # ---- processors
    def _process(self, rows: torch.Tensor, sampling: Any, drafts: Any) -> torch.Tensor:
        """What vLLM applies before temperature. A row that judges draft ``i`` sees the drafts before it.

        vLLM's own method for rows of drafts is told that a request has one draft more, so that it treats the
        bonus row as it treats the others; vLLM itself has another method for that one, which counts no drafts
        towards ``min_tokens``.
        """
        if drafts is None:
            return self.runner.sampler.apply_logits_processors(rows, sampling, False)
        holder = getattr(sampling, "thinking_budget_state_holder", None)
        thinking = {} if holder is None else {"thinking_budget_state_holder": None}
        spec = sampling.spec_token_ids or [[] for _ in drafts.num_draft_tokens]
        longer = replace(sampling, spec_token_ids=[[*tokens, 0] for tokens in spec], **thinking)
        each = [count + 1 for count in drafts.num_draft_tokens]
        ends = torch.tensor(each, dtype=torch.int32).cumsum(0, dtype=torch.int32)
        counts = SimpleNamespace(num_draft_tokens=each, cu_num_draft_tokens=ends.to(rows.device))
        rows = self.runner.rejection_sampler.apply_logits_processors(rows, longer, counts)
        if holder is not None and holder.has_tracked_requests():
            holder.update_state(sampling.output_token_ids, spec, repeat_indices=None)
            for index, is_bonus in (
                (drafts.bonus_logits_indices, True),
                (drafts.target_logits_indices, False),
            ):
                rows[index] = holder.apply_to_logits(rows[index], is_bonus, spec)
        return rows

    def _constrain(
        self, rows: torch.Tensor, sampling: Any, drafts: Any, num_reqs: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What vLLM does to sampled requests alone: min-p and the like, top-k, top-p. Returns the rows and the
        temperature that is left to apply, ``[B]``."""
        if sampling.all_greedy:
            return rows, torch.zeros(num_reqs, device=rows.device)
        temperature = sampling.temperature[:num_reqs].to(torch.float32)
        temperature = temperature.masked_fill(temperature < EPS, 0.0)
        processors, top_k, top_p = _argmax_invariant(sampling), sampling.top_k, sampling.top_p
        is_divided = bool(processors) or self._processed_logprobs  # they read what temperature has divided
        if not is_divided and top_k is None and top_p is None:
            return rows, temperature
        owner = self._owners(drafts, num_reqs, rows.device)
        if is_divided:
            rows = rows.div_(temperature.masked_fill(temperature == 0, 1.0)[owner, None])
            temperature = (temperature > 0).to(torch.float32)
        for processor in processors:
            rows = processor.apply(rows)
        if top_k is not None or top_p is not None:
            off = torch.zeros(len(rows), device=rows.device)
            ascend_spec_ops.filter_logits(
                rows,
                temperature[owner],
                off.to(torch.int32) if top_k is None else top_k[owner].to(torch.int32),
                off + 1 if top_p is None else top_p[owner].to(torch.float32),
                off,
            )
        return rows, temperature

    def _owners(self, drafts: Any, num_reqs: int, device: torch.device) -> torch.Tensor:
        """``[N + B]`` int64: the request each row belongs to."""
        requests = torch.arange(num_reqs, device=device)
        if drafts is None:
            return requests
        counts = torch.tensor(drafts.num_draft_tokens, device=device) + 1
        return requests.repeat_interleave(counts, output_size=sum(drafts.num_draft_tokens) + num_reqs)

    # ---- the draw
    def _judge(
        self, rows: torch.Tensor, temperature: torch.Tensor, drafts: Any, num_reqs: int
    ) -> torch.Tensor:
        """``[B, K + 2]`` int32, as :func:`ascend_spec_ops.verify` gives it."""
        seeds = self._seeds(num_reqs, rows.device)
        first = getattr(self.runner.seq_lens, "gpu", self.runner.seq_lens)[:num_reqs].to(torch.int64)
        if drafts is None:
            tokens = ascend_spec_ops.sample(rows, temperature, seeds, first)[:, None]
            output = torch.cat([(tokens >= 0).to(torch.int32), tokens], 1)
        else:
            # where the first token drawn will stand
            first = first - torch.tensor(drafts.num_draft_tokens, device=rows.device)
            draft_token_ids, draft_logits, draft_temperature = self._drafts(drafts, temperature)
            output = ascend_spec_ops.verify(
                rows,
                draft_token_ids,
                drafts.cu_num_draft_tokens.to(torch.int32),
                temperature,
                seeds,
                first,
                self.plan.num_speculative_tokens,  # as many as "synthetic" has rates; a step's most may be fewer
                draft_logits,
                draft_temperature,
                self.plan.rule.name,
                self.plan.rule_options,
            )[:, : drafts.max_spec_len + 2]
        self.next_draw = NextDraw(seeds, first + output[:, 0].clamp(min=1))
        return output

    def _drafts(
        self, drafts: Any, temperature: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Drafts and the distribution they were drawn from; greedy requests have deterministic ones."""
        tokens = drafts.draft_token_ids.to(torch.int32)
        if self.plan.speculator.draft_distribution == "one-hot" or not self.plan.rule.needs_q:
            return tokens, None, None
        sampled = temperature > 0
        probs = self.runner._get_spec_decode_draft_probs(drafts)
        if probs is None:
            # drafts of unknown distribution cannot be judged exactly; unjudged, they cost a step's gain
            counts = torch.tensor(drafts.num_draft_tokens, device=tokens.device)
            unknown = sampled.repeat_interleave(counts, output_size=tokens.shape[0])
            self.metrics.count_fallback("drafts of an unknown distribution")
            return tokens.masked_fill(unknown, -1), None, None
        return tokens, probs.log(), sampled.to(torch.float32)

    def _seeds(self, num_reqs: int, device: torch.device) -> torch.Tensor:
        """``[B]`` int64: a request's own seed, or one drawn for it when it is first seen."""
        batch = self.runner.input_batch
        generators, ids = batch.sampling_metadata.generators, batch.req_ids[:num_reqs]
        if len(self.seeds) > 8 * self.plan.target.max_num_seqs:
            self.seeds = {name: self.seeds[name] for name in ids if name in self.seeds}
        seeds = []
        for index, name in enumerate(ids):
            generator = generators.get(index)
            if generator is not None:
                seeds.append(_as_int64(generator.initial_seed()))
            else:
                seeds.append(self.seeds.setdefault(name, self.random.getrandbits(63)))
        return torch.tensor(seeds, dtype=torch.int64, device=device)

    def _update_async_drafts(self) -> None:
        """As the stock method does: penalties and bad words read the drafts from the host."""
        runner = self.runner
        if getattr(runner, "use_async_scheduling", False) and runner._draft_token_req_ids is not None:
            runner.input_batch.update_async_spec_token_ids(runner._get_draft_token_ids_cpu()[0])

    def _finite(self, output: torch.Tensor, rows: torch.Tensor, drafts: Any) -> torch.Tensor:
        """``[B, K + 1]`` int32. vLLM cannot fail one request: one whose logits are not finite gets the largest
        of those that are, as its own sampler would give it."""
        tokens = output[:, 1:].contiguous()
        bad = output[:, 0] == 0
        if rows.device.type == "cpu" and not bad.any():
            return tokens
        self.metrics.count_non_finite(bad)
        first = rows
        if drafts is not None:
            counts = torch.tensor(drafts.num_draft_tokens, device=rows.device)
            first = rows[drafts.bonus_logits_indices - counts]
        fallback = first.nan_to_num(nan=float("-inf")).argmax(-1).to(tokens.dtype)
        tokens[:, 0] = torch.where(bad, fallback, tokens[:, 0])
        return tokens

    def _count_steps_without_drafts(self, drafts: Any, num_reqs: int) -> None:
        """Of requests that have put out a token, so that they may have drafts."""
        counts = [0] * num_reqs if drafts is None else drafts.num_draft_tokens
        outputs = self.runner.input_batch.req_output_token_ids
        bare = sum(
            1 for num_drafts, output in zip(counts, outputs, strict=False) if output and not num_drafts
        )
        self.metrics.count_steps_without_drafts(bare)

    # ---- logprobs
    @property
    def _processed_logprobs(self) -> bool:
        return str(self.runner.sampler.logprobs_mode).startswith("processed")

    def _logprobs(self, source: torch.Tensor, tokens: torch.Tensor, sampling: Any, drafts: Any) -> Any:
        """Of ``tokens [B, K + 1]``, which the rows ``source [N + B, V]`` gave, by vLLM's methods for one token a row.

        A request may name the tokens it wants (``logprob_token_ids``); as in vLLM the others of the batch then have
        that of their own token alone. vLLM's rejection sampler gives none of them.
        """
        sampler, width = self.runner.sampler, tokens.shape[1]
        source = self._rows_of_tokens(source, tokens, drafts)
        if str(sampler.logprobs_mode).endswith("logits"):
            source = source.to(torch.float32)
        else:
            source = sampler.compute_logprobs(source)
        token_ids = tokens.flatten().clamp(min=0).to(torch.int64)
        if named := sampling.logprob_token_ids:
            by_row = {request * width + i: ids for request, ids in named.items() for i in range(width)}
            return sampler.gather_specific_token_logprobs(source, by_row, token_ids)
        return sampler.gather_logprobs(source, sampling.max_num_logprobs, token_ids=token_ids)

    def _rows_of_tokens(self, source: torch.Tensor, tokens: torch.Tensor, drafts: Any) -> torch.Tensor:
        """``[B * (K + 1), V]``. In places without a token is any row: vLLM leaves them out."""
        if drafts is None:
            return source
        first = drafts.bonus_logits_indices - torch.tensor(drafts.num_draft_tokens, device=source.device)
        places = first[:, None] + torch.arange(tokens.shape[1], device=source.device)
        return source[places.clamp(max=len(source) - 1).flatten()]


def _argmax_invariant(sampling: Any) -> list[Any]:
    """Processors that vLLM applies after temperature: min-p, if a request has it, and the user's. It loads none with
    speculation, and refuses requests that ask for one."""
    processors = sampling.logitsprocs.argmax_invariant
    return [each for each in processors if getattr(each, "min_p_count", True)]


def _sampler_output(tokens: torch.Tensor, logprobs: Any) -> Any:
    from vllm.v1.outputs import SamplerOutput

    return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=logprobs)


def _as_int64(seed: int) -> int:
    return (seed + 2**63) % 2**64 - 2**63
