"""Token ids to text, one token at a time: incomplete characters and possible stop strings are held back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

REPLACEMENT = "\ufffd"
#: A character's bytes may come as four tokens, so up to three replacement characters may still change.
MAX_PENDING = 3
#: Tokens of the prompt decoded with the first output tokens, since some tokenizers drop a leading space.
CONTEXT = 5


class Detokenizer:
    """Text of one request's output.

    Each token is decoded together with the tokens before it that it may combine with (a window), and what the
    window's text gained is the token's text.
    """

    def __init__(self, tokenizer: Any, prompt_token_ids: Sequence[int], stop: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
        self.text = ""
        self._window = list(prompt_token_ids[-CONTEXT:])
        self._last_clean = len(self._window)  # where the next window will begin
        self._known = len(self._decode())  # characters of the window's text that are in self.text already
        self._pieces: deque[tuple[str, bool]] = deque()  # text not yet taken

    def _decode(self) -> str:
        return self.tokenizer.decode(self._window, skip_special_tokens=True)

    def append(self, token_id: int, accepted: bool, may_stop: bool = True) -> str | None:
        """Add a token; returns the stop string it completed, whose text is then cut off, itself included."""
        self._window.append(token_id)
        window = self._decode()
        pending = min(MAX_PENDING, len(window) - len(window.rstrip(REPLACEMENT)))
        searched = len(self.text)
        self._add(window[self._known : len(window) - pending], accepted)
        self._known = max(self._known, len(window) - pending)
        if pending == 0:
            del self._window[: self._last_clean]
            self._last_clean = len(self._window)
            self._known = len(self._decode())
        return self._cut_at_stop(searched) if may_stop else None

    def flush(self) -> None:
        """The output is complete: incomplete characters become text as they are."""
        self._add(self._decode()[self._known :], accepted=False)

    def take(self, final: bool = False) -> tuple[tuple[str, bool], ...]:
        """Pieces of text that can no longer change; with ``final``, all."""
        available = sum(len(text) for text, _ in self._pieces)
        count = available if final else min(available, available - self._held_back())
        taken = []
        while count > 0:
            text, accepted = self._pieces.popleft()
            if len(text) > count:
                self._pieces.appendleft((text[count:], accepted))
                text = text[:count]
            taken.append((text, accepted))
            count -= len(text)
        return tuple(taken)

    def _add(self, text: str, accepted: bool) -> None:
        if text:
            self.text += text
            self._pieces.append((text, accepted))

    def _cut_at_stop(self, searched: int) -> str | None:
        """Look in the new text, and so far back that a stop string may begin in what was there before."""
        found = []
        for stop in self.stop:
            begin = self.text.find(stop, max(0, searched - len(stop) + 1))
            if begin >= 0:
                found.append((begin, stop))
        if not found:
            return None
        begin, stop = min(found)
        surplus = len(self.text) - begin
        self.text = self.text[:begin]
        while surplus > 0:
            text, accepted = self._pieces.pop()
            if len(text) > surplus:
                self._pieces.append((text[:-surplus], accepted))
            surplus -= len(text)
        return stop

    def _held_back(self) -> int:
        """Length of the longest end of the text with which a stop string begins."""
        longest = max((len(stop) - 1 for stop in self.stop), default=0)
        for length in range(min(longest, len(self.text)), 0, -1):
            if any(stop.startswith(self.text[-length:]) for stop in self.stop):
                return length
        return 0
