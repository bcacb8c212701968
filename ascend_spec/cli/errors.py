"""What a user did wrong, apart from what we did wrong: the first is a line for each mistake, the second a
traceback."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ascend_spec.config import Finding


class CommandError(Exception):
    """The command cannot be carried out as given. Each of its arguments is one thing that is wrong: what was
    given, what is allowed, what to do.

    Attributes:
        fields: of each argument, the field or option that should change; "": the command as a whole.
    """

    fields: tuple[str, ...]

    def __init__(self, *messages: str) -> None:
        super().__init__(*messages)
        self.fields = ("",) * len(messages)

    @classmethod
    def of(cls, findings: Iterable[Finding], prefix: str = "") -> CommandError:
        found = tuple(findings)
        error = cls(*(prefix + each.message for each in found))
        error.fields = tuple(each.field for each in found)
        return error

    def as_json(self) -> dict[str, object]:
        """What ``--json`` prints in place of a result."""
        errors = [
            {"field": field, "message": message}
            for field, message in zip(self.fields, self.args, strict=True)
        ]
        return {"ok": False, "errors": errors}


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
        raise CommandError.of(error.findings, "speculative config: ") from error
    except kinds as error:
        raise CommandError(" ".join(str(error).split())) from error
