"""Why a request came to a row that nothing can be drawn from, as far as the host can tell without its logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ascend_spec.types import ScheduledRequest

STOPPED = "the request was stopped, others go on"


def why_no_token(request: ScheduledRequest, vocab_size: int) -> str:
    """Said of the first row of ``request``: parameters that forbid all before a later one only end its step."""
    left, names = np.ones(vocab_size, bool), []
    for name, allowed in _allowed(request, vocab_size):
        left &= allowed
        names.append(name)
    after = f"after {request.num_tokens - request.num_prompt_tokens} tokens of output"
    if not left.any():
        one = len(names) == 1
        return (
            f"{' and '.join(names)} {'leaves' if one else 'together leave'} no token to draw {after}; {STOPPED}: give "
            f"{'it' if one else 'them'} room, or leave {'it' if one else 'one'} out"
        )
    if request.params.logits_processors:
        return (
            f"logits_processors left no token to draw {after}, or the model gave logits that are not finite; "
            f"{STOPPED}: check the processors, the checkpoint and the dtype"
        )
    return (
        f"the model gave logits that are not finite {after}; {STOPPED}: check the checkpoint and the dtype; its "
        "parameters do leave tokens to draw"
    )


def _allowed(request: ScheduledRequest, vocab_size: int) -> Iterator[tuple[str, np.ndarray]]:
    """Each parameter that forbids something, and ``[V]`` bool, what it allows."""
    params = request.params
    if request.grammar is not None:
        bits = np.unpackbits(request.grammar.bitmasks(())[0].view(np.uint8), bitorder="little")
        yield "structured_outputs", bits[:vocab_size].astype(bool)
    if params.allowed_token_ids is not None:
        yield "allowed_token_ids", ~_all_but(params.allowed_token_ids, vocab_size)
    if request.num_banned_rows and request.banned_token_ids:
        yield "min_tokens", _all_but(request.banned_token_ids, vocab_size)
    output = tuple(request.token_ids[request.num_prompt_tokens :])
    words = [
        word for word in request.bad_words_token_ids if output[len(output) + 1 - len(word) :] == word[:-1]
    ]
    if words:
        yield "bad_words", _all_but([word[-1] for word in words], vocab_size)


def _all_but(token_ids: Sequence[int], vocab_size: int) -> np.ndarray:
    allowed = np.ones(vocab_size, bool)
    allowed[list(token_ids)] = False
    return allowed
