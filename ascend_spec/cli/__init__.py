"""The console script: ``ascend-spec COMMAND``, a command a module here.

Exit codes: 0 done; 1 some prompts failed; 2 wrong usage, configuration, model or only prompt; 130 Ctrl-C.
What is wrong is a line each on stderr; with ``--json``, one object on stdout.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ascend_spec.cli.arguments import build_parser
from ascend_spec.cli.errors import CommandError

#: set before transformers, tqdm and tokenizers are imported: their chatter is not the user's concern
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        parser = build_parser()
        args = parser.parse_args(argv)
        if args.command is None:
            parser.print_help(sys.stderr)
            return 2
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        with warnings.catch_warnings(), _warnings_on_stderr():
            warnings.simplefilter("ignore")
            # imported late: argument errors and the first line of progress need not wait for torch
            module = args.command.replace("-", "_")
            code = importlib.import_module(f"ascend_spec.cli.{module}").run(args)
            sys.stdout.flush()
            return code
    except CommandError as error:
        if "--json" in argv:  # of wrong usage there are no parsed arguments
            print(json.dumps(error.as_json()))
            return 2
        for message in error.args:
            print(f"ascend-spec: error: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nascend-spec: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has seen enough; the flush at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """What the library warns of, a line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("ascend-spec: warning: %(message)s"))
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger("ascend_spec")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
