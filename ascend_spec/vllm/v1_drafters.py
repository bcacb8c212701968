"""Drafting in vLLM's V1 runner: our n-gram and suffix drafters, and the draw of vLLM's own drafters."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch

import ascend_spec_ops
from ascend_spec.config import Plan
from ascend_spec.drafters import create_drafter
from ascend_spec.drafters.draft_model import draft_seeds
from ascend_spec.types import DraftBatch
from ascend_spec.vllm.on_error import OnError
from ascend_spec.vllm.v1_sampler import EPS, V1Sampler
from ascend_spec_ops.uniforms import STREAM_DRAFT_LANE
from ascend_spec_ops.uniforms.reference import exponential_of


class _HostProposer:
    """Stands in for ``propose`` of one instance of a drafter of vLLM's that works on lists and arrays on the host."""

    def __init__(self, stock: Any, plan: Plan, on_error: OnError) -> None:
        self.on_error = on_error
        self.drafter: Any = on_error.load(lambda: create_drafter(plan))  # None: speculation is off
        self.k = plan.num_speculative_tokens
        self.max_model_len = plan.target.max_model_len
        # since 0.26 the scheduler's K of the step comes first
        first = next(iter(inspect.signature(stock.propose).parameters))
        self.takes_k = first == "num_speculative_tokens"

    def __call__(self, *args: Any, slot_mappings: Any = None) -> list[list[int]]:
        """Drafts of each request, none where nothing was sampled. The arguments are K, if this vLLM gives it, and among
        others of the drafter's own the only list, of the tokens that each request has sampled."""
        k, given = (args[0], args[1:]) if self.takes_k else (self.k, args)
        sampled = next(argument for argument in given if isinstance(argument, list))
        if not sampled:
            return []
        drafts = self.on_error.propose(lambda: self._propose(k, sampled, given))
        if drafts is None:
            return [[] for _ in sampled]
        return [row if row[-1] >= 0 else [token for token in row if token >= 0] for row in drafts.tolist()]

    def _propose(self, k: int, sampled: list[list[int]], given: tuple[Any, ...]) -> np.ndarray:
        """``[len(sampled), plan.num_speculative_tokens]`` int32, -1 behind a row's drafts."""
        raise NotImplementedError

    def _rows(
        self, sampled: list[list[int]], num_tokens: np.ndarray, token_ids: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Histories ``[n, max_model_len]`` and lengths ``[n]``, int32; a length of 0 where nothing was sampled."""
        num_reqs = len(sampled)
        has_sampled = np.fromiter(map(bool, sampled), np.int32, num_reqs)
        return (
            np.asarray(token_ids[:num_reqs, : self.max_model_len], np.int32),
            has_sampled * np.asarray(num_tokens[:num_reqs], np.int32),
        )


class V1NgramProposer(_HostProposer):
    """``([K,] sampled_token_ids, num_tokens_no_spec [max_reqs], token_ids_cpu [max_reqs, max_model_len])``, the last
    two left out by vllm-ascend 0.23."""

    def __init__(self, stock: Any, plan: Plan, on_error: OnError) -> None:
        super().__init__(stock, plan, on_error)
        self.runner: Any = getattr(stock, "runner", None)

    def _propose(self, k: int, sampled: list[list[int]], given: tuple[Any, ...]) -> np.ndarray:
        _, *histories = given[:3]
        if not histories:
            batch = self.runner.input_batch
            histories = [batch.num_tokens_no_spec, batch.token_ids_cpu]
        token_ids, lengths = self._rows(sampled, *histories)
        return self.drafter.propose_on_host(token_ids, lengths, np.full(len(sampled), k, np.int32))


class V1SuffixProposer(_HostProposer):
    """Reads the runner's batch: who the requests are, vLLM tells its n-gram drafter nothing of."""

    def __init__(self, runner: Any, plan: Plan, on_error: OnError) -> None:
        super().__init__(runner.drafter, plan, on_error)
        self.runner = runner

    def _propose(self, k: int, sampled: list[list[int]], given: tuple[Any, ...]) -> np.ndarray:
        batch, num_reqs = (
            self.runner.input_batch,
            len(sampled),
        )  # vLLM makes a new batch once it has the KV cache
        token_ids, lengths = self._rows(sampled, batch.num_tokens_no_spec, batch.token_ids_cpu)
        histories = DraftBatch(
            token_ids=torch.from_numpy(token_ids),
            num_tokens=torch.from_numpy(lengths),
            num_speculative_tokens=torch.full((num_reqs,), k, dtype=torch.int32),
            num_prompt_tokens=torch.from_numpy(np.asarray(batch.num_prompt_tokens[:num_reqs], np.int32)),
            request_ids=tuple(batch.req_ids[:num_reqs]),
        )
        return self.drafter.propose(histories).token_ids.numpy()


class V1DraftSampler:
    """Stands in for ``_sample_from_logits`` of a drafter that samples.

    The distribution is vLLM's own, the softmax over temperature; the draw is a function of the request's seed
    and of the position, so that a seeded request gets the same tokens again. Under the rule "coupled" it is the
    target's own draw, from the draft's logits: the more alike these are, the more often both draw the same.
    """

    def __init__(self, drafter: Any, sampler: V1Sampler) -> None:
        self.stock, self.sampler = drafter._sample_from_logits, sampler
        self.is_coupled = sampler.plan.rule.name == "coupled"

    def __call__(self, logits: torch.Tensor, sampling: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``logits [B * n, V]``, n rows a request -> tokens ``[B * n]`` int64, and their distributions
        ``[B * n, V]`` float32 (None where all requests are greedy, or nothing reads them)."""
        draw = self.sampler.next_draw
        if draw is None or sampling.all_greedy:
            return self.stock(logits, sampling)
        each = logits.shape[0] // draw.seeds.shape[0]
        offsets = torch.arange(each, device=logits.device) + draw.num_drafted
        draw.num_drafted += each
        positions = (draw.positions[:, None] + offsets).flatten()
        temperature = sampling.temperature[: draw.seeds.shape[0]].repeat_interleave(each)
        greedy = temperature < EPS
        seeds = draw.seeds.repeat_interleave(each)
        if self.is_coupled:
            temperature = temperature.to(torch.float32).masked_fill(greedy, 0.0)
            tokens = ascend_spec_ops.sample(logits, temperature, seeds, positions)
            return tokens.clamp(min=0).to(torch.int64), None  # rows that are not finite: any token
        probs = (logits.float() / temperature.masked_fill(greedy, 1.0)[:, None]).softmax(-1)
        rounds = draft_seeds(draw.seeds, draw.positions).repeat_interleave(each)
        bits = ascend_spec_ops.random_bits(rounds, positions, STREAM_DRAFT_LANE, probs.shape[1])
        noise = exponential_of(bits).to(torch.float32)
        return torch.where(greedy, probs.argmax(-1), (probs / noise).argmax(-1)), probs


def load_or_go_without(runner: Any, on_error: OnError) -> None:
    """Have vLLM's own drafter of one runner load, or speculation be off: then the runner is one that never had a
    speculative config, and the drafter's layers get no KV cache."""
    stock = runner.drafter.load_model
    layers = runner.vllm_config.compilation_config.static_forward_context

    def load_model(*args: Any, **kwargs: Any) -> None:
        of_target = set(layers)
        on_error.load(lambda: stock(*args, **kwargs))
        if on_error.is_off:
            for name in layers.keys() - of_target:
                del layers[name]
            runner.speculative_config, runner.num_spec_tokens = None, 0

    runner.drafter.load_model = load_model
