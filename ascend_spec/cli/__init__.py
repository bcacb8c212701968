"""The console script: ``ascend-spec demo | generate | doctor``.

Exit codes: 0 done; 1 some prompts failed; 2 wrong usage, configuration, model or only prompt; 130 Ctrl-C.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence

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
    try:
        args = build_parser().parse_args(argv)
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # imported late: argument errors and the first line of progress need not wait for torch
            code = importlib.import_module(f"ascend_spec.cli.{args.command}").run(args)
            sys.stdout.flush()
            return code
    except CommandError as error:
        print(f"ascend-spec: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nascend-spec: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has seen enough; the flush at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
