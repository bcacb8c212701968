"""The embedded engine: continuous batching with speculative decoding in one process."""

from __future__ import annotations

import logging
import os
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch

import ascend_spec_ops
from ascend_spec.config import SpeculativeConfig
from ascend_spec.drafters import Drafter, create_drafter
from ascend_spec.engine.block_manager import BlockManager
from ascend_spec.engine.detokenizer import Detokenizer
from ascend_spec.engine.outputs import append_tokens, finished_output, new_chunk
from ascend_spec.engine.params import check_params
from ascend_spec.engine.planning import allocate_draft_kv_cache, check_before_loading, make_plan
from ascend_spec.engine.pool import TokenPool, check_draft, most_missing, trim_draft
from ascend_spec.engine.protocol import SpecDecodeControl, decide_step, run_step
from ascend_spec.engine.request import (
    Callback,
    OutputChunk,
    Request,
    RequestError,
    RequestOutput,
    check_prompt,
)
from ascend_spec.engine.scheduler import Scheduler
from ascend_spec.engine.step import DeviceStep, StepRunner
from ascend_spec.engine.words import bad_words_token_ids, encode_prompt
from ascend_spec.metrics import SpecDecodeMetrics
from ascend_spec.models import CausalLM, load_tokenizer
from ascend_spec.runtime import DeviceFacts, Eager, device_facts
from ascend_spec.samplers import RejectionSampler
from ascend_spec.samplers.grammar import Grammar, GrammarCompiler
from ascend_spec.samplers.logprobs import TokenLogprobs, read_logprobs
from ascend_spec.scorer import MQAScorer
from ascend_spec.types import Draft, DraftBatch, SamplingParams, ScheduledRequest

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
        sizes: dict[str, Any] = {
            "max_model_len": max_model_len,
            "block_size": block_size,
            "num_kv_blocks": num_kv_blocks,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
        }
        if isinstance(model, str | os.PathLike):
            check_before_loading(speculative_config, model, facts or device_facts(device), sizes)
            tokenizer = tokenizer or load_tokenizer(model)
            model = CausalLM.load(model, dtype=dtype, device=device)
        self.model, self.tokenizer = model, tokenizer
        self.facts = facts or device_facts(model.info.device)
        self.plan = plan = make_plan(speculative_config, model.info, self.facts, sizes)
        if drafter is not None and plan.num_speculative_tokens == 0:
            raise ValueError(
                "a drafter was given without speculative_config: add one, whose num_speculative_tokens says "
                "how many drafts it may make"
            )
        self.metrics = SpecDecodeMetrics(plan.rule.name, plan.rule.lossless)
        self.drafter = drafter or self._load_drafter()
        ascend_spec_ops.limit_threads(plan.num_threads)
        ascend_spec_ops.warm_up(plan.warm_up, model.info.device)
        self.max_model_len = plan.target.max_model_len
        self.kv_caches = model.allocate_kv_cache(plan.kv.num_blocks, plan.kv.block_size)
        allocate_draft_kv_cache(self.drafter, plan)
        self.blocks = BlockManager(plan.kv.num_blocks, plan.kv.block_size)
        self.scheduler = Scheduler(self.blocks, plan, self.metrics)
        self.pool = TokenPool(max_num_seqs, self.max_model_len, plan.kv.blocks_per_request, model.info.device)
        self.runner = StepRunner(
            DeviceStep(
                model,
                RejectionSampler(plan.rule.name, plan.rule_options),
                self.kv_caches,
                self.pool.token_ids,
            ),
            scorer(plan.kv.block_size, self.max_model_len, plan.num_speculative_tokens),
            self.pool,
            capturer or Eager(),
            plan,
            model.info.vocab_size,
        )
        self.draft: Draft | None = None
        self._grammars: GrammarCompiler | None = None  # made for the first request that needs it
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
        token_ids = encode_prompt(self.tokenizer, prompt)
        check_prompt(token_ids, self.model.info.vocab_size, self.max_model_len)
        check_params(params, self.model.info.vocab_size, self.tokenizer is not None)
        request = Request(
            request_id=request_id,
            prompt_token_ids=tuple(token_ids),
            params=params,
            seed=_as_int64(int(params.seed) if params.seed is not None else self._random.getrandbits(64)),
            max_num_tokens=min(len(token_ids) + params.max_tokens, self.max_model_len),
            eos_token_ids=tuple(self.model.info.eos_token_ids),
            recompute_beyond=self.model.info.longrope_boundary,
            callback=callback,
            bad_words_token_ids=bad_words_token_ids(
                self.tokenizer,
                params.bad_words,
                self.model.info.vocab_size,
                max_tokens=min(params.max_tokens, self.max_model_len - len(token_ids)),
            ),
            grammar=self._grammar(params),
        )
        has_text = self.tokenizer is not None
        detokenizer = Detokenizer(self.tokenizer, token_ids, params.stop) if has_text else None
        self._live[request_id] = _Live(request, detokenizer)
        self.scheduler.add(request)
        return request_id

    def _grammar(self, params: SamplingParams) -> Grammar | None:
        if params.structured_outputs is None:
            return None
        info = self.model.info
        try:
            if self._grammars is None:
                self._grammars = GrammarCompiler(self.tokenizer, info.vocab_size, info.eos_token_ids)
            return self._grammars.compile(params.structured_outputs, params.stop_token_ids)
        except ImportError:
            raise RequestError(
                "structured_outputs was given, which needs the package xgrammar: pip install xgrammar"
            ) from None
        except ValueError as error:
            raise RequestError(str(error)) from error

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
        control = decide_step(
            scheduled,
            num_running=len(self.scheduler.running),
            num_lookahead_slots=self.plan.num_speculative_tokens_for(len(scheduled)),
            disable_by_batch_size=self.plan.config.ascend_spec.disable_by_batch_size,
        )
        if control.is_empty:
            return []
        scheduled = self._limited(scheduled, control)
        self._update_pool(scheduled)
        draft, self.draft = self.draft, None
        try:
            output_token_ids = run_step(
                control,
                target=lambda: self.runner.run(scheduled, draft),
                follow=lambda: self._follow(scheduled, control),
                propose=lambda num_draft_tokens: self._propose(scheduled, num_draft_tokens),
                propose_ahead=True,
            )
            assert output_token_ids is not None  # since the batch is not empty
            rows = iter(output_token_ids.tolist())  # the one device-to-host copy of the step
        except BaseException:  # the step never was; drafts that continue it must not be judged
            self.draft = None
            self._count_drafts(0)
            for request in self.scheduler.running:
                request.known_to_drafter = False
            raise
        logprobs = self._read_logprobs(scheduled)
        finished = []
        for item in scheduled:
            live = self._live[item.request_id]
            if not item.samples:
                live.request.num_computed_tokens += item.num_new_tokens
                continue
            num_new = self._commit(live, item, next(rows))
            live.request.logprobs += logprobs.get(item.request_id, [])[:num_new]
            self._chunks.append((live.request.callback, new_chunk(live.request, num_new, live.detokenizer)))
            if live.request.finish_reason is not None:
                finished.append(self._finish(live))
        self._count_drafts(control.num_lookahead_slots)
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

    def _limited(
        self, scheduled: list[ScheduledRequest], control: SpecDecodeControl
    ) -> list[ScheduledRequest]:
        """The batch with no more drafts than a batch of its size may have: they were proposed when its size was
        not known."""
        if control.disable_all_speculation:
            for item in scheduled:
                self._live[item.request_id].request.speculation_disabled = True
        most = control.num_lookahead_slots
        return [replace(item, num_drafts=most) if item.num_drafts > most else item for item in scheduled]

    def _follow(self, scheduled: Sequence[ScheduledRequest], control: SpecDecodeControl) -> None:
        """Keep a drafter's own K/V in step for the requests that are not proposed for."""
        follow = getattr(self.drafter, "follow", None)  # a KVDrafter's
        if follow is None:
            return
        proposed = control.num_lookahead_slots > 0
        items = [item for item in scheduled if not (item.speculation_disabled or (proposed and item.samples))]
        slots = {item.slot for item in items}
        if slots:
            with self._drafting(slots):
                follow(self._draft_batch(slots, 0, scheduled))

    def _propose(self, scheduled: Sequence[ScheduledRequest], num_draft_tokens: int) -> None:
        """Drafts for the next step, from what the device knows: the host has not seen this step's tokens."""
        slots = {item.slot for item in scheduled if item.samples and not item.speculation_disabled}
        # and those a tight budget left out: their history is unchanged, and so are their drafts
        running = self.scheduler.running
        slots.update(r.slot for r in running if r.decodes and not r.speculation_disabled)
        if self.drafter is None or not slots:
            return
        with self._drafting(slots):
            batch = self._draft_batch(slots, num_draft_tokens, scheduled)
            draft = self.drafter.propose(batch)
            check_draft(draft, batch.token_ids.shape[0], self.model.info.vocab_size)
            self.draft = replace(draft, token_ids=trim_draft(draft, batch, self.model.info.vocab_size))

    def _draft_batch(
        self, slots: Iterable[int], num_draft_tokens: int, scheduled: Sequence[ScheduledRequest]
    ) -> DraftBatch:
        running = self.scheduler.running
        batch = self.pool.draft_batch(sorted(slots), num_draft_tokens, self.plan.max_drafted_len, running)
        if not hasattr(self.drafter, "follow"):
            return batch
        batch = self.pool.add_kv_state(batch, scheduled, running)
        if self.facts.host_readable:
            return batch
        drafts_have_kv = not self.plan.config.parallel_drafting
        missing = most_missing(set(slots), len(batch.num_tokens), scheduled, running, drafts_have_kv)
        return replace(batch, most_missing=missing)

    @contextmanager
    def _drafting(self, slots: Iterable[int]) -> Iterator[None]:
        """Around a drafter's call: whatever it does, output goes on without it, unless ``on_error`` is "raise".
        What K/V it has after a failure nobody knows; its requests are then shown to it as new ones."""
        succeeded = False
        try:
            yield
            succeeded = True
        except Exception as error:
            if self.plan.config.ascend_spec.on_error == "raise":
                raise
            self._drafter_failed(error)
        for request in self.scheduler.running:
            if request.slot in slots:
                request.known_to_drafter = succeeded

    def _read_logprobs(self, scheduled: Sequence[ScheduledRequest]) -> dict[str, list[TokenLogprobs]]:
        """By request: of each of its rows, those that emitted nothing included."""
        if self.runner.logprobs is None:
            return {}
        items = [item for item in scheduled if item.samples and item.params.logprobs is not None]
        wanted = [item.params.logprobs or 0 for item in items for _ in range(item.num_drafts + 1)]
        entries = iter(read_logprobs(self.runner.logprobs, wanted))
        return {item.request_id: [next(entries) for _ in range(item.num_drafts + 1)] for item in items}

    def _load_drafter(self) -> Drafter | None:
        try:
            return create_drafter(self.plan)
        except Exception as error:
            if self.plan.config.ascend_spec.on_error != "disable":
                raise
            self._drafter_failed(error)
            return None

    def _drafter_failed(self, error: Exception) -> None:
        reason, what = f"drafter failed: {type(error).__name__}", "this step has no drafts"
        if self.plan.config.ascend_spec.on_error == "disable":
            self.drafter, what = None, "speculation is off from now on"
        if reason not in self.metrics.fallbacks:
            logger.warning("%s; %s", reason, what, exc_info=True)
        self.metrics.fallbacks[reason] += 1

    def _commit(self, live: _Live, item: ScheduledRequest, row: list[int]) -> int:
        """Take over what the sampler emitted for one request; returns how many tokens it kept."""
        request, num_emitted = live.request, row[0]
        if num_emitted == 0:
            self.metrics.num_non_finite_logits += 1
            request.finish_reason = "error"
            request.error = self.runner.why_no_token(item)
            self._clear_blocks(request)
            return 0
        if item.decodes and self.drafter is not None:
            self.metrics.observe(item.num_drafts, num_emitted - 1)
        num_new = append_tokens(request, row[1 : 1 + num_emitted], live.detokenizer)
        request.roll_back(num_new)
        return num_new

    def _count_drafts(self, num_draft_tokens: int) -> None:
        """How many drafts each request has. Where the host cannot look, that is how many were asked for, and
        empty slots are judged for nothing."""
        counts = None
        width = 0 if self.draft is None else min(num_draft_tokens, self.draft.token_ids.shape[1])
        if self.draft is not None and self.facts.host_readable:
            counts = (self.draft.token_ids >= 0).sum(1).tolist()
        for request in self.scheduler.running:
            wanted = request.max_useful_drafts(width, self.plan.max_drafted_len)
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


def _is_number(item: Any) -> bool:
    """A token id, NumPy's and torch's included: then what holds it is one prompt and not several."""
    return isinstance(item, int) or getattr(item, "ndim", None) == 0


def _as_int64(seed: int) -> int:
    return (seed + 2**63) % 2**64 - 2**63
