"""The embedded engine: continuous batching with speculative decoding in one process."""

from __future__ import annotations

import logging
import os
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch

from ascend_spec.config import SpeculativeConfig, load_speculative_config
from ascend_spec.drafters import create_drafter
from ascend_spec.engine.block_manager import BlockManager
from ascend_spec.engine.detokenizer import Detokenizer
from ascend_spec.engine.outputs import append_tokens, finished_output, new_chunk
from ascend_spec.engine.pool import TokenPool, check_draft, trim_draft
from ascend_spec.engine.request import (
    Callback,
    OutputChunk,
    Request,
    RequestError,
    RequestOutput,
    check_params,
    check_prompt,
    read_token_ids,
)
from ascend_spec.engine.scheduler import Scheduler
from ascend_spec.engine.step import StepRunner, device_step
from ascend_spec.metrics import SpecDecodeMetrics
from ascend_spec.models import CausalLM, load_tokenizer
from ascend_spec.runtime import DeviceFacts, Eager, device_facts, kv_cache_budget
from ascend_spec.samplers import RejectionSampler
from ascend_spec.scorer import MQAScorer
from ascend_spec.types import Draft, SamplingParams, ScheduledRequest

logger = logging.getLogger(__name__)
Prompt = str | Sequence[int]


@dataclass
class _Live:
    """A request and its text while it is in the engine."""

    request: Request
    detokenizer: Detokenizer | None
    output: RequestOutput | None = None
    """Set when it has finished."""


class LLM:
    """Generate with a target model and, if configured, drafts.

    Output does not depend on drafts: greedy, token for token; sampled, in distribution.

    Args:
        model: a path that :meth:`CausalLM.load` takes, or a loaded :class:`CausalLM`.
        tokenizer: anything with ``encode(text)`` and ``decode(ids, skip_special_tokens=True)``. None: taken
            from a model path; with a loaded model prompts are then token ids, and outputs have no text.
        speculative_config: vLLM's vocabulary, as JSON text, dict or :class:`SpeculativeConfig`. None: plain
            decoding.
        drafter: an object to use in place of the configured method's; with ``speculative_config`` saying how
            many drafts it may make.
        dtype, device: of a model given by path.
        max_model_len: most tokens of a request, prompt and output; None: what the model was trained for.
        block_size: tokens a KV block; None: what the device's attention reads best (16; Ascend 128).
        num_kv_blocks: size of the KV pool; None: ``max_num_seqs`` full requests, or what memory allows.
        max_num_seqs: most requests in one step.
        max_num_batched_tokens: most rows in one step, drafts included; longer prompts are computed in chunks.
        seed: of the seeds that requests without one are given.
        scorer: how drafts are packed, a class: :class:`MQAScorer`, or ``BatchExpansionScorer`` for attention
            that takes one query a request.
        facts, capturer: what the device is taken to be, and how a step is captured.

    Raises:
        ValueError: sizes that don't fit each other; the message names them.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | CausalLM,
        *,
        tokenizer: Any = None,
        speculative_config: str | dict | SpeculativeConfig | None = None,
        drafter: Any = None,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        max_model_len: int | None = None,
        block_size: int | None = None,
        num_kv_blocks: int | None = None,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 512,
        seed: int | None = None,
        scorer: type[MQAScorer] = MQAScorer,
        facts: DeviceFacts | None = None,
        capturer: Any = None,
    ) -> None:
        if not isinstance(speculative_config, SpeculativeConfig):
            speculative_config = load_speculative_config(speculative_config)
        if isinstance(model, str | os.PathLike):
            tokenizer = tokenizer or load_tokenizer(model)
            model = CausalLM.load(model, dtype=dtype, device=device)
        self.model, self.tokenizer = model, tokenizer
        self.max_model_len = _check_max_model_len(max_model_len, model.info.max_model_len)
        self.num_speculative_tokens = speculative_config.num_speculative_tokens if speculative_config else 0
        _check_drafts(self.num_speculative_tokens, self.max_model_len, drafter)
        self.drafter = drafter or (create_drafter(speculative_config) if speculative_config else None)
        self.facts = facts or device_facts(model.info.device)
        block_size = self.facts.block_size if block_size is None else block_size
        _check_positive(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, block_size=block_size
        )
        if num_kv_blocks is None:
            num_kv_blocks = _affordable_blocks(model, block_size, self.max_model_len, max_num_seqs)
        _check_pool(num_kv_blocks, block_size, self.max_model_len)
        self.kv_caches = model.allocate_kv_cache(num_kv_blocks, block_size)
        self.metrics = SpecDecodeMetrics()
        self.blocks = BlockManager(num_kv_blocks, block_size)
        self.scheduler = Scheduler(self.blocks, max_num_seqs, max_num_batched_tokens, self.metrics)
        # empty slots behind a request's drafts may stand beyond max_model_len; attention counts them
        table_blocks = -(-(self.max_model_len + self.num_speculative_tokens) // block_size)
        self.pool = TokenPool(max_num_seqs, self.max_model_len, table_blocks, model.info.device)
        self.runner = StepRunner(
            device_step(model, RejectionSampler(), self.kv_caches),
            scorer(block_size, self.max_model_len, self.num_speculative_tokens),
            self.pool,
            capturer or Eager(),
            static_shapes=self.facts.static_shapes,
            max_num_seqs=max_num_seqs,
        )
        self.draft: Draft | None = None
        self._live: dict[str, _Live] = {}
        self._chunks: deque[tuple[Callback | None, OutputChunk]] = deque()  # not yet delivered
        self._request_ids = count()
        self._random = random.Random(seed)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        callback: Callback | None = None,
    ) -> list[RequestOutput]:
        """Generate for one prompt (text or token ids) or several; outputs come in the order of the prompts.

        Raises:
            RequestError: the only prompt is bad. In a batch a bad prompt gets an output with ``error`` set.
        """
        batch: list[Prompt] = list(prompts)  # type: ignore[arg-type]
        if isinstance(prompts, str) or (batch and _is_number(batch[0])):
            batch = [prompts]  # type: ignore[list-item]
        if not isinstance(sampling_params, Sequence):
            sampling_params = [sampling_params or SamplingParams()] * len(batch)
        if len(sampling_params) != len(batch):
            raise RequestError(
                f"{len(sampling_params)} sampling_params were given for {len(batch)} prompts: give one each"
            )
        outputs: list[RequestOutput | _Live] = []
        try:
            for prompt, params in zip(batch, sampling_params, strict=True):
                try:
                    request_id = self.add_request(prompt, params, callback=callback)
                    outputs.append(self._live[request_id])
                except RequestError as error:
                    if len(batch) == 1:
                        raise
                    outputs.append(RequestOutput("", (), finish_reason="error", error=str(error)))
            live = [item for item in outputs if isinstance(item, _Live)]
            while any(item.output is None for item in live):
                self.step()
        except BaseException:  # from a callback perhaps: its requests must not stay behind
            own = {item.request.request_id for item in outputs if isinstance(item, _Live)}
            self._chunks = deque(entry for entry in self._chunks if entry[1].request_id not in own)
            for item in outputs:
                if isinstance(item, _Live) and item.output is None:
                    item.request.finish_reason = "abort"
                    self._finish(item)
            raise
        return [item.output if isinstance(item, _Live) else item for item in outputs]  # type: ignore[misc]

    def add_request(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        callback: Callback | None = None,
        request_id: str | None = None,
    ) -> str:
        """Queue a request for the next steps; returns its id.

        Raises:
            RequestError: bad prompt or parameters, or an id that is in use.
        """
        params = sampling_params or SamplingParams()
        if request_id is None:
            unused = (f"request-{n}" for n in self._request_ids)
            request_id = next(name for name in unused if name not in self._live)
        if request_id in self._live:
            raise RequestError(f"request_id={request_id!r} was given, which is in use: choose another one")
        token_ids = self._encode(prompt)
        check_prompt(token_ids, self.model.info.vocab_size, self.max_model_len)
        check_params(params, self.model.info.vocab_size, self.tokenizer is not None)
        request = Request(
            request_id=request_id,
            prompt_token_ids=tuple(token_ids),
            params=params,
            seed=_as_int64(params.seed if params.seed is not None else self._random.getrandbits(64)),
            max_num_tokens=min(len(token_ids) + params.max_tokens, self.max_model_len),
            eos_token_ids=tuple(self.model.info.eos_token_ids),
            recompute_beyond=self.model.info.longrope_boundary,
            callback=callback,
        )
        has_text = self.tokenizer is not None
        detokenizer = Detokenizer(self.tokenizer, token_ids, params.stop) if has_text else None
        self._live[request_id] = _Live(request, detokenizer)
        self.scheduler.add(request)
        return request_id

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request; returns what it has so far, or None if there is no such request."""
        live = self._live.get(request_id)
        if live is None:
            return None
        live.request.finish_reason = "abort"
        self._chunks.append((live.request.callback, new_chunk(live.request, 0, live.detokenizer)))
        output = self._finish(live)
        self._deliver()
        return output

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self._live)

    @torch.inference_mode()
    def step(self) -> list[RequestOutput]:
        """Run one batch; returns the requests that finished."""
        scheduled = self.scheduler.schedule()
        if not scheduled:
            return []
        self._update_pool(scheduled)
        try:
            output_token_ids = self.runner.run(scheduled, self.draft)
            self._propose(scheduled)
            rows = iter(output_token_ids.tolist())  # the one device-to-host copy of the step
        except BaseException:  # the step never was; drafts that continue it must not be judged
            self.draft = None
            self._count_drafts()
            raise
        finished = []
        for item in scheduled:
            live = self._live[item.request_id]
            if not item.samples:
                live.request.num_computed_tokens += item.num_new_tokens
                continue
            num_new = self._commit(live, item, next(rows))
            self._chunks.append((live.request.callback, new_chunk(live.request, num_new, live.detokenizer)))
            if live.request.finish_reason is not None:
                finished.append(self._finish(live))
        self._count_drafts()
        self._deliver()
        return finished

    def _deliver(self) -> None:
        """Callbacks come last, when the engine's books are in order: they may abort, add, or raise. One that
        raises does not cost other requests their chunks."""
        failure = None
        while self._chunks:
            callback, chunk = self._chunks.popleft()
            try:
                if callback is not None:
                    callback(chunk)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _update_pool(self, scheduled: Sequence[ScheduledRequest]) -> None:
        for item in scheduled:
            request = self._live[item.request_id].request
            if item.num_computed_tokens == 0:
                self.pool.admit(request)
            self.pool.update_block_table(request)

    def _propose(self, scheduled: Sequence[ScheduledRequest]) -> None:
        """Drafts for the next step, from what the device knows: the host has not seen this step's tokens."""
        self.draft = None
        if self.drafter is None:
            return
        slots = {item.slot for item in scheduled if item.samples}
        # and those a tight budget left out: their history is unchanged, and so are their drafts
        slots.update(request.slot for request in self.scheduler.running if request.decodes)
        batch = self.pool.draft_batch(sorted(slots), self.num_speculative_tokens)
        try:
            draft = self.drafter.propose(batch)
            check_draft(draft, batch.token_ids.shape[0], self.model.info.vocab_size)
            self.draft = replace(draft, token_ids=trim_draft(draft, batch, self.model.info.vocab_size))
        except Exception as error:  # whatever a drafter does, output goes on without it
            reason = f"drafter failed: {type(error).__name__}"
            if reason not in self.metrics.fallbacks:
                logger.warning("%s; this step has no drafts", reason, exc_info=True)
            self.metrics.fallbacks[reason] += 1

    def _commit(self, live: _Live, item: ScheduledRequest, row: list[int]) -> int:
        """Take over what the sampler emitted for one request; returns how many tokens it kept."""
        request, num_emitted = live.request, row[0]
        if num_emitted == 0:
            request.finish_reason = "error"
            request.error = (
                "the model gave logits that are not finite for this request; it was stopped, others go on: "
                "check the checkpoint and the dtype"
            )
            self._clear_blocks(request)
            return 0
        if item.decodes and self.drafter is not None:
            self.metrics.observe(item.num_drafts, num_emitted - 1)
        num_new = append_tokens(request, row[1 : 1 + num_emitted], live.detokenizer)
        request.roll_back(num_new)
        return num_new

    def _count_drafts(self) -> None:
        """How many drafts each request has. Where the host cannot look, that is how many were asked for, and
        empty slots are judged for nothing."""
        counts = None
        width = 0 if self.draft is None else min(self.num_speculative_tokens, self.draft.token_ids.shape[1])
        if self.draft is not None and self.facts.host_readable:
            counts = (self.draft.token_ids >= 0).sum(1).tolist()
        for request in self.scheduler.running:
            wanted = request.max_useful_drafts(width)
            if not request.decodes:
                wanted = 0
            request.num_drafts = wanted if counts is None else min(wanted, counts[request.slot])

    def _clear_blocks(self, request: Request) -> None:
        """Not-a-numbers must not wait in freed blocks for a kernel that multiplies them by a zero weight."""
        blocks = torch.tensor(request.block_ids, device=self.pool.token_ids.device)
        for caches in self.kv_caches:
            for cache in caches:
                cache[blocks] = 0

    def _finish(self, live: _Live) -> RequestOutput:
        self.scheduler.remove(live.request)
        del self._live[live.request.request_id]
        live.output = finished_output(live.request, live.detokenizer)
        return live.output

    def _encode(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return read_token_ids(prompt)
        if self.tokenizer is None:
            raise RequestError(
                "a text prompt was given to an engine without a tokenizer: pass token ids, or give it one"
            )
        try:
            return list(self.tokenizer.encode(prompt))
        except Exception as error:  # a lone surrogate for instance; its neighbours in the batch go on
            raise RequestError(
                f"the tokenizer cannot encode the prompt {prompt[:80]!r} ({type(error).__name__}: {error}): "
                "take out what is not plain text"
            ) from error


def _is_number(item: Any) -> bool:
    """A token id, NumPy's and torch's included: then what holds it is one prompt and not several."""
    return isinstance(item, int) or getattr(item, "ndim", None) == 0


def _check_max_model_len(given: int | None, supported: int) -> int:
    if given is not None and not 2 <= given <= supported:
        raise ValueError(f"max_model_len={given} was given; this model allows 2 to {supported}")
    return given or supported


def _check_positive(**sizes: int) -> None:
    for name, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} was given; choose an integer, 1 or more")


def _check_drafts(num_speculative_tokens: int, max_model_len: int, drafter: Any) -> None:
    if drafter is not None and num_speculative_tokens == 0:
        raise ValueError(
            "a drafter was given without speculative_config: add one, whose num_speculative_tokens says how "
            "many drafts it may make"
        )
    if num_speculative_tokens >= max_model_len:
        raise ValueError(
            f"num_speculative_tokens={num_speculative_tokens} was given; with max_model_len={max_model_len} "
            f"at most {max_model_len - 1} can be used: lower it"
        )


def _check_pool(num_kv_blocks: int, block_size: int, max_model_len: int) -> None:
    num_tokens = num_kv_blocks * block_size
    if num_tokens < max_model_len:
        raise ValueError(
            f"a KV pool of {num_kv_blocks} blocks of {block_size} tokens ({num_tokens} tokens) cannot hold "
            f"one request of max_model_len={max_model_len}: raise num_kv_blocks or lower max_model_len"
        )


def _affordable_blocks(model: CausalLM, block_size: int, max_model_len: int, max_num_seqs: int) -> int:
    one_block = [cache for caches in model.allocate_kv_cache(1, block_size) for cache in caches]
    affordable = kv_cache_budget(model.info.device) // sum(cache.nbytes for cache in one_block)
    return min(max_num_seqs * -(-max_model_len // block_size), affordable)


def _as_int64(seed: int) -> int:
    return (seed + 2**63) % 2**64 - 2**63
