"""What a user did wrong, apart from what we did wrong: the first is a line for each mistake, the second a
traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CommandError(Exception):
    """The command cannot be carried out as given. Each of its arguments is one thing that is wrong: what was
    given, what is allowed, what to do."""


@contextmanager
def judging_input(*kinds: type[Exception]) -> Iterator[None]:
    """Around code that judges what the user gave: configs, paths, model files, sizes, prompts. Errors of
    ``kinds`` (default: all that such code raises) are written for users. Around code that also computes, name
    the kind."""
    from ascend_spec.config import ConfigError

    kinds = kinds or (ValueError, OSError, ImportError)
    try:
        yield
    except ConfigError as error:
        raise CommandError(*(f"speculative config: {found.message}" for found in error.findings)) from error
    except kinds as error:
        raise CommandError(" ".join(str(error).split())) from error
