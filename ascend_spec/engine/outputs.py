"""What a step's tokens mean for a request: append them in order and end it where it must end."""

from __future__ import annotations

from collections.abc import Sequence

from ascend_spec.engine.detokenizer import Detokenizer
from ascend_spec.engine.request import OutputChunk, Request, RequestOutput


def append_tokens(request: Request, tokens: Sequence[int], detokenizer: Detokenizer | None) -> int:
    """Commit ``tokens`` one by one; what stands behind the one that ends the request never gets in.

    All but the last of ``tokens`` are accepted drafts. Returns how many were committed.
    """
    for index, token in enumerate(tokens):
        accepted = index < len(tokens) - 1
        if request.grammar is not None and not request.grammar.accept(token):
            request.finish_reason = "error"
            request.error = (
                f"token {token} was drawn, which structured_outputs forbids here: a logits processor of this request "
                "has made it possible again; let what is -inf be -inf"
            )
            return index
        request.token_ids.append(token)
        request.accepted.append(accepted)
        _check_stop(request, token, accepted, detokenizer)
        if request.finish_reason is not None:
            return index + 1
    return len(tokens)


def _check_stop(request: Request, token: int, accepted: bool, detokenizer: Detokenizer | None) -> None:
    params = request.params
    may_stop = request.num_output_tokens > params.min_tokens
    if may_stop and token in request.eos_token_ids and not params.ignore_eos:
        request.finish_reason = "stop"
        return
    if may_stop and token in params.stop_token_ids:
        request.finish_reason, request.stop_reason = "stop", token
        return
    stop = detokenizer.append(token, accepted, may_stop) if detokenizer is not None else None
    if stop is not None:
        request.finish_reason, request.stop_reason = "stop", stop
    elif request.grammar is not None and request.grammar.has_ended:
        request.finish_reason = "stop"  # whatever ignore_eos and min_tokens say: no text can follow
    elif request.num_tokens >= request.max_num_tokens:
        request.finish_reason = "length"


def new_chunk(request: Request, num_new: int, detokenizer: Detokenizer | None) -> OutputChunk:
    """The news of a request, for its callback: its last ``num_new`` tokens, and text that is final."""
    finished = request.finish_reason is not None
    if finished and detokenizer is not None and not isinstance(request.stop_reason, str):
        detokenizer.flush()
    return OutputChunk(
        request_id=request.request_id,
        token_ids=tuple(request.token_ids[request.num_tokens - num_new :]),
        accepted=tuple(request.accepted[len(request.accepted) - num_new :]),
        pieces=detokenizer.take(final=finished) if detokenizer is not None else (),
        finish_reason=request.finish_reason,
    )


def finished_output(request: Request, detokenizer: Detokenizer | None) -> RequestOutput:
    assert request.finish_reason is not None
    return RequestOutput(
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        token_ids=tuple(request.output_token_ids),
        text=detokenizer.text if detokenizer is not None else None,
        accepted=tuple(request.accepted),
        logprobs=None if request.params.logprobs is None else tuple(request.logprobs),
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        error=request.error,
    )
