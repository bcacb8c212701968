"""From the requests of a step to what is done to their rows of logits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ascend_spec.runtime import Upload
from ascend_spec.types import (
    BadWords,
    Cuts,
    Draft,
    LogitsProcessing,
    LogitsProcessor,
    Penalties,
    ScheduledRequest,
    TokenBias,
)

#: stands in for requests that only pad a captured step
PADDED = ScheduledRequest("", 0, 0, 0, 0)
MINUS_INF = float("-inf")

#: request and the place of a row among those of the request
Row = tuple[ScheduledRequest, int]


def pack_processing(
    requests: Sequence[ScheduledRequest],
    num_draft_tokens: Sequence[int],
    draft: Draft | None,
    vocab_size: int,
    device: Upload,
    failures: dict[str, str],
) -> LogitsProcessing | None:
    """
    Args:
        requests: those that sample, in the order of the plan.
        num_draft_tokens: ``B`` counts; those beyond ``requests`` are padded requests'.
        draft: read on the host if a request has a grammar or callbacks, whose rows depend on the drafts.
        failures: where callbacks that fail will say so, by request; their rows become NaN, which ends the request.

    Returns:
        None: logits are drawn from as they are.
    """
    if not any(map(is_asked_for, requests)):
        return None
    padded = [*requests, *[PADDED] * (len(num_draft_tokens) - len(requests))]
    rows = [(r, j) for r, count in zip(padded, num_draft_tokens, strict=True) for j in range(count + 1)]
    drafts = {r.slot: _drafts(r, draft) for r in requests if needs_host_drafts(r)}
    owners = [b for b, count in enumerate(num_draft_tokens) for _ in range(count + 1)]
    return LogitsProcessing(
        row_requests=device.int64(owners),
        row_offsets=device.int64([j for _, j in rows]),
        bitmask=_bitmask(rows, drafts, vocab_size, device),
        bad_words=_bad_words(padded, device),
        callbacks=_callbacks(rows, drafts, failures),
        bias=_bias(rows, device),
        penalties=_penalties(padded, device),
        cuts=_cuts(rows, device),
    )


def is_asked_for(request: ScheduledRequest) -> bool:
    params = request.params
    return bool(
        request.num_banned_rows
        or params.logit_bias
        or params.allowed_token_ids is not None
        or request.bad_words_token_ids
        or params.has_penalties
        or params.cuts_tokens
        or needs_host_drafts(request)
    )


def needs_host_drafts(request: ScheduledRequest) -> bool:
    """Whether what is done to its rows is worked out on the host, draft by draft: no graph can hold that."""
    return request.grammar is not None or bool(request.params.logits_processors)


def _drafts(request: ScheduledRequest, draft: Draft | None) -> list[int]:
    if draft is None or not request.num_drafts:
        return []
    tokens = draft.token_ids[request.slot, : request.num_drafts].tolist()
    return tokens[: tokens.index(-1)] if -1 in tokens else tokens


def _bias(rows: Sequence[Row], device: Upload) -> TokenBias | None:
    """min_tokens, in a request's first rows, and logit_bias, in all of them."""
    added = []
    for request, j in rows:
        bias = dict(request.params.logit_bias or {})
        if j < request.num_banned_rows:
            bias.update(dict.fromkeys(request.banned_token_ids, MINUS_INF))
        added.append(bias)
    width = max(map(len, added))
    if not width:
        return None
    ids = [[*bias, *[0] * (width - len(bias))] for bias in added]
    values = [[*bias.values(), *[0.0] * (width - len(bias))] for bias in added]
    return TokenBias(device.int64(ids), device.float32(values))


def _bitmask(
    rows: Sequence[Row], drafts: dict[int, list[int]], vocab_size: int, device: Upload
) -> torch.Tensor | None:
    """What ``allowed_token_ids`` and the grammar leave."""
    if not any(r.grammar is not None or r.params.allowed_token_ids is not None for r, _ in rows):
        return None
    words = -(-vocab_size // 32)
    mask = np.empty((len(rows), words), np.int32)
    allowed, by_grammar = np.full(words, -1, np.int32), np.empty((0, words), np.int32)
    for row, (request, j) in enumerate(rows):
        if j == 0:  # once a request
            ids, grammar = request.params.allowed_token_ids, request.grammar
            allowed = np.full(words, -1, np.int32) if ids is None else token_bitmask(ids, words)
            by_grammar = (
                np.empty((0, words), np.int32) if grammar is None else grammar.bitmasks(drafts[request.slot])
            )
        mask[row] = allowed
        if j < len(by_grammar):  # rows behind a draft that the grammar refuses are never drawn from
            mask[row] &= by_grammar[j]
    return device.int32(mask)


def token_bitmask(token_ids: Sequence[int], words: int) -> np.ndarray:
    """``[words]`` int32 with the bits of ``token_ids`` set."""
    bits = np.zeros(words * 32, np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def _bad_words(requests: Sequence[ScheduledRequest], device: Upload) -> BadWords | None:
    most = max(len(r.bad_words_token_ids) for r in requests)
    if not most:
        return None
    length = max(len(word) for r in requests for word in r.bad_words_token_ids)
    table = np.full((len(requests), most, length), -1, np.int64)
    for b, request in enumerate(requests):
        for w, word in enumerate(request.bad_words_token_ids):
            table[b, w, length - len(word) :] = word
    return BadWords(device.int64(table), _prompt_lengths(requests, device))


def _prompt_lengths(requests: Sequence[ScheduledRequest], device: Upload) -> torch.Tensor:
    return device.int32([r.num_prompt_tokens for r in requests])


def _penalties(requests: Sequence[ScheduledRequest], device: Upload) -> Penalties | None:
    if not any(r.params.has_penalties for r in requests):
        return None
    return Penalties(
        _prompt_lengths(requests, device),
        repetition=device.float32([r.params.repetition_penalty for r in requests]),
        presence=device.float32([r.params.presence_penalty for r in requests]),
        frequency=device.float32([r.params.frequency_penalty for r in requests]),
    )


def _cuts(rows: Sequence[Row], device: Upload) -> Cuts | None:
    if not any(r.params.cuts_tokens for r, _ in rows):
        return None
    return Cuts(
        top_k=device.int32([min(max(0, r.params.top_k), 2**31 - 1) for r, _ in rows]),
        top_p=device.float32([r.params.top_p for r, _ in rows]),
        min_p=device.float32([r.params.min_p for r, _ in rows]),
    )


def _callbacks(
    rows: Sequence[Row], drafts: dict[int, list[int]], failures: dict[str, str]
) -> tuple[tuple[int, Callable[[torch.Tensor], torch.Tensor]], ...]:
    found = []
    for row, (request, j) in enumerate(rows):
        processors = request.params.logits_processors
        if processors and j <= len(drafts[request.slot]):
            prompt = list(request.token_ids[: request.num_prompt_tokens])
            output = [*request.token_ids[request.num_prompt_tokens :], *drafts[request.slot][:j]]
            report = partial(failures.setdefault, request.request_id)
            found += [(row, partial(_call, _bound(p, prompt, output), report)) for p in processors]
    return tuple(found)


def _bound(
    processor: LogitsProcessor, prompt: list[int], output: list[int]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """vLLM's two forms: ``(output, logits)`` and ``(prompt, output, logits)``."""
    args: tuple[Any, ...] = (prompt, output) if num_arguments(processor) == 3 else (output,)
    return partial(processor, *args)


def num_arguments(processor: LogitsProcessor) -> int | None:
    """How many arguments must be given by position; None: it does not say."""
    try:
        parameters = inspect.signature(processor).parameters.values()
    except (TypeError, ValueError):
        return None
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in by_position and p.default is inspect.Parameter.empty for p in parameters)


def _call(
    processor: Callable[[torch.Tensor], torch.Tensor], report: Callable[[str], Any], logits: torch.Tensor
) -> torch.Tensor:
    """What the processor makes of ``logits [V]``. One that fails costs its own request, and no other."""
    try:
        result = processor(logits)
        if not isinstance(result, torch.Tensor) or result.shape != logits.shape:
            what = list(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
            raise TypeError(f"it returned {what} and not logits of shape {list(logits.shape)}")
    except Exception as error:
        report(f"a logits processor of this request failed: {type(error).__name__}: {error}")
        return torch.full_like(logits, float("nan"))
    return result
