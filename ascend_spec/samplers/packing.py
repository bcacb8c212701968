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
    MinTokens,
    Penalties,
    ScheduledRequest,
    TokenBias,
)

#: stands in for requests that only pad a captured step
PADDED = ScheduledRequest("", 0, 0, 0, 0)

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
        failures: where callbacks that fail will say so, by request; nothing can be drawn from their rows.

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
        bias=_bias(padded, device),
        min_tokens=_min_tokens(padded, device),
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


def _bias(requests: Sequence[ScheduledRequest], device: Upload) -> TokenBias | None:
    found = [_once(r, "logit_bias", _bias_of) for r in requests]
    if not any(len(ids) for ids, _ in found):
        return None
    ids = _stacked([ids for ids, _ in found], 0)
    values = _stacked([values for _, values in found], 0)
    return TokenBias(device.int64(ids), device.float32(values))


def _bias_of(request: ScheduledRequest) -> tuple[np.ndarray, np.ndarray]:
    bias = request.params.logit_bias or {}
    return np.array(list(bias), np.int64), np.array(list(bias.values()), np.float32)


def _min_tokens(requests: Sequence[ScheduledRequest], device: Upload) -> MinTokens | None:
    if not any(r.num_banned_rows and r.banned_token_ids for r in requests):
        return None
    banned = [np.array(r.banned_token_ids if r.num_banned_rows else (), np.int64) for r in requests]
    table = _stacked(banned, -1)
    table = np.where(table < 0, table[:, :1], table)  # an id that is banned already, or nobody's
    num_rows = [r.num_banned_rows if len(ids) else 0 for r, ids in zip(requests, banned, strict=True)]
    return MinTokens(device.int64(table.clip(min=0)), device.int64(num_rows))


def _once(request: ScheduledRequest, name: str, make: Callable[[ScheduledRequest], Any]) -> Any:
    """What depends on the parameters alone is made in the request's first step."""
    if name not in request.memo:
        request.memo[name] = make(request)
    return request.memo[name]


def _stacked(arrays: Sequence[np.ndarray], fill: int) -> np.ndarray:
    """Arrays of one dtype and number of dimensions as one, filled up at their ends. Sizes are powers of two, since
    a step is captured for each shape it has."""
    sizes = zip(*(array.shape for array in arrays), strict=True)
    stacked = np.full((len(arrays), *(_power_of_two(max(size)) for size in sizes)), fill, arrays[0].dtype)
    for place, array in zip(stacked, arrays, strict=True):
        place[tuple(slice(size) for size in array.shape)] = array
    return stacked


def _power_of_two(size: int) -> int:
    """The least that is not below ``size``."""
    return 1 << max(0, size - 1).bit_length()


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
            allowed = np.full(words, -1, np.int32)
            if ids is not None:
                allowed = _once(request, "allowed_token_ids", partial(_allowed, words))
            by_grammar = (
                np.empty((0, words), np.int32) if grammar is None else grammar.bitmasks(drafts[request.slot])
            )
        mask[row] = allowed
        if j < len(by_grammar):  # rows behind a draft that the grammar refuses are never drawn from
            mask[row] &= by_grammar[j]
    return device.int32(mask)


def _allowed(words: int, request: ScheduledRequest) -> np.ndarray:
    return token_bitmask(request.params.allowed_token_ids or (), words)


def token_bitmask(token_ids: Sequence[int], words: int) -> np.ndarray:
    """``[words]`` int32 with the bits of ``token_ids`` set."""
    bits = np.zeros(words * 32, np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def _bad_words(requests: Sequence[ScheduledRequest], device: Upload) -> BadWords | None:
    if not any(r.bad_words_token_ids for r in requests):
        return None
    table = _stacked([_once(r, "bad_words", _bad_words_of) for r in requests], -1)
    return BadWords(device.int32(table.swapaxes(0, 1)), _prompt_lengths(requests, device))


def _bad_words_of(request: ScheduledRequest) -> np.ndarray:
    """``[L, W]`` int32, each word from its last token to its first, then -1."""
    words = request.bad_words_token_ids
    table = np.full((max(map(len, words), default=0), len(words)), -1, np.int32)
    for place, word in zip(table.T, words, strict=True):
        place[: len(word)] = word[::-1]
    return table


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
            # a request ends by its row 0; a draft before a later one may never be accepted
            report = partial((failures if j == 0 else {}).setdefault, request.request_id)
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
    """What the processor makes of ``logits [V]``: -inf all over if it fails, or if that is nothing one can draw
    from. It costs its own request, and no other."""
    shape, nothing = logits.shape, torch.full_like(logits, float("-inf"))  # it may resize what it is given
    try:
        result = processor(logits)
        is_tensor = isinstance(result, torch.Tensor)
        if not is_tensor or result.shape != shape or result.is_complex():
            what = type(result).__name__
            if is_tensor:
                what = f"{list(result.shape)}{' complex numbers' if result.is_complex() else ''}"
            raise TypeError(f"it returned {what} and not logits of shape {list(shape)}")
        result = result.to(nothing)  # what only a wider dtype can hold is not finite here
        return torch.where(result.amax().isfinite(), result, nothing)
    except Exception as error:
        report(f"a logits processor of this request failed: {type(error).__name__}: {_said(error)}")
        return nothing


def _said(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # the request ends, and not the step
        return "(it cannot say what)"
