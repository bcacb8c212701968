"""What the demo asks: real sources and documentation from Python's standard library, and plain questions."""

from __future__ import annotations

import colorsys
import inspect
import shlex
import string
import textwrap
from collections.abc import Callable

#: characters of a documentation topic that are quoted
TOPIC_LENGTH = 700


def _edit(task: str, function: Callable) -> str:
    return f"{task} Answer with the whole changed code.\n```python\n{inspect.getsource(function)}```"


def _summary(topic: str) -> str:
    from pydoc_data.topics import topics  # half a megabyte of text

    text = textwrap.shorten(topics[topic], TOPIC_LENGTH, placeholder=" ...")
    return f"Summarize this text in three sentences and quote its most important one.\n\n{text}"


def demo_prompts(per_kind: int) -> dict[str, list[str]]:
    """Kind -> prompts, at most ``per_kind`` (1 to 3) each. Drafts from the prompt pay in edits and
    summaries; in code and chat little of the answer stands in the question."""
    prompts = {
        "edit": [
            _edit("Rename the parameter `s` to `text` in this function.", shlex.quote),
            _edit("Add a short comment above every line of this function.", colorsys.rgb_to_yiq),
            _edit("Rename the parameter `sep` to `separator` in this function.", string.capwords),
        ],
        "summary": [_summary(topic) for topic in ("assert", "continue", "integers")],
        "code": [
            "Write a Python function that returns the prime numbers below n.",
            "Write a Python class for a stack with push, pop and peek, and show how it is used.",
            "Write a Python function that counts how often each word occurs in a text file.",
        ],
        "chat": [
            "Tell a short story about a lighthouse keeper who finds a letter in a bottle.",
            "I slept badly and have a long day of work before me. What would you advise?",
            "Explain to a child why the moon changes its shape.",
        ],
    }
    return {kind: texts[:per_kind] for kind, texts in prompts.items()}
