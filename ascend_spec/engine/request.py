"""A request on its way through the engine, and what its owner gets back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, Literal

from ascend_spec.samplers.logprobs import TokenLogprobs
from ascend_spec.types import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


class RequestError(ValueError):
    """A request the engine cannot serve: the message says what was given, what is allowed, what to do."""


@dataclass(frozen=True)
class OutputChunk:
    """What a step added to a request's output; a streaming callback gets one whenever there is news."""

    request_id: str
    token_ids: tuple[int, ...]
    accepted: tuple[bool, ...]
    """Whether each token is an accepted draft."""
    pieces: tuple[tuple[str, bool], ...]
    """New text, piece by piece, and whether it comes from an accepted draft. Text lags behind tokens while it
    may still become a stop string or an incomplete character."""
    finish_reason: FinishReason | None = None

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)


Callback = Callable[[OutputChunk], None]


@dataclass(frozen=True)
class RequestOutput:
    """A finished request."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...] = ()
    """Ends with the token that stopped it, if one did."""
    text: str | None = ""
    """Without the stop string or the stop token; None when the engine has no tokenizer."""
    accepted: tuple[bool, ...] = ()
    """Whether each token of ``token_ids`` was a draft."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """Of each token of ``token_ids``; None: not asked for."""
    finish_reason: FinishReason = "stop"
    stop_reason: int | str | None = None
    """The stop token id or stop string that ended it; None for end of sequence."""
    error: str | None = None
    """What ended it, where ``finish_reason`` is "error". It keeps the tokens drawn before, as in plain decoding; but
    logits of the model that are not finite cost all tokens of their step, accepted drafts before them included."""


@dataclass
class Request:
    """The host's view. ``token_ids`` holds committed tokens only; drafts never get in."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    max_num_tokens: int
    """Prompt and output together: the smaller of what ``max_tokens`` and ``max_model_len`` allow."""
    eos_token_ids: tuple[int, ...] = ()
    recompute_beyond: int | None = None
    """With one token more than this, all K/V must be computed again: the model's rotary embedding changes."""
    callback: Callback | None = None
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    grammar: Any = None
    """A :class:`ascend_spec.samplers.grammar.Grammar`; None: its output is free."""
    memo: dict[str, Any] = field(default_factory=dict)
    """See :class:`ascend_spec.types.ScheduledRequest`."""
    token_ids: list[int] = field(init=False)
    accepted: list[bool] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_computed_tokens: int = 0
    """Tokens whose K/V is in the cache. Rejected drafts roll back by not being counted here."""
    num_drafts: int = 0
    """Drafts waiting in the row of its slot."""
    speculation_disabled: bool = False
    """A batch it was in reached ``disable_by_batch_size``: it is never speculated on again."""
    known_to_drafter: bool = False
    """The drafter has been shown all of it that is computed; K/V it keeps of the slot is this request's."""
    slot: int = -1
    block_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_token_ids) :]

    @property
    def banned_token_ids(self) -> tuple[int, ...]:
        """What ``min_tokens`` forbids; as in vLLM, end of sequence also where ``ignore_eos`` lets it pass."""
        return tuple({*self.eos_token_ids, *self.params.stop_token_ids})

    @property
    def decodes(self) -> bool:
        return self.num_computed_tokens + 1 == self.num_tokens

    def max_useful_drafts(self, num_speculative_tokens: int, max_len: int) -> int:
        """Drafts whose rows can still matter: a step with ``k`` drafts may commit ``k + 1`` tokens. None stands
        beyond ``max_len`` tokens of the sequence."""
        if self.speculation_disabled:
            return 0
        room = min(num_speculative_tokens, min(self.max_num_tokens - 1, max_len) - self.num_tokens)
        if self.recompute_beyond is not None and self.num_tokens <= self.recompute_beyond:
            room = min(room, self.recompute_beyond - self.num_tokens)
        return max(0, room)

    def roll_back(self, num_new: int) -> None:
        """After ``num_new`` tokens were committed: K/V of rejected drafts is simply not counted."""
        limit = self.recompute_beyond
        if limit is not None and self.num_tokens - num_new <= limit < self.num_tokens:
            self.restart()
        else:
            self.num_computed_tokens = self.num_tokens - 1

    def restart(self) -> None:
        """All K/V of it, the drafter's too, must be computed again."""
        self.num_computed_tokens = self.num_drafts = 0
        self.known_to_drafter = False


def read_token_ids(prompt: Sequence[int]) -> list[int]:
    """The prompt as Python integers. Raises :class:`RequestError` for what is no sequence of them."""
    try:
        if isinstance(prompt, bytes):
            raise TypeError
        return [index(token) for token in prompt]
    except TypeError:
        raise RequestError(
            f"a prompt {prompt!r:.80} of type {type(prompt).__name__} was given; pass text, or a sequence of "
            "token ids, which are integers"
        ) from None


def check_prompt(prompt: Sequence[int], vocab_size: int, max_model_len: int) -> None:
    """Raises :class:`RequestError` for a prompt of token ids that cannot be served."""
    if len(prompt) == 0:
        raise RequestError("an empty prompt was given; a prompt needs at least one token: add some text")
    if len(prompt) >= max_model_len:
        raise RequestError(
            f"a prompt of {len(prompt)} tokens was given; with max_model_len={max_model_len} at most "
            f"{max_model_len - 1} fit: shorten it or raise max_model_len"
        )
    bad = next((token for token in prompt if not 0 <= token < vocab_size), None)
    if bad is not None:
        raise RequestError(
            f"the prompt holds token id {bad}; the model's ids are 0 to {vocab_size - 1}: use its tokenizer"
        )
