"""Where this project reads a configuration differently from vLLM 0.33 on purpose: what it makes of it, and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Difference(NamedTuple):
    reason: str
    method: str | None = None
    """None: refused here."""
    num_speculative_tokens: int | None = None


def _for(names: Iterable[str], difference: Difference) -> dict[str, Difference]:
    return dict.fromkeys(names, difference)


TYPES = Difference(
    "a number is a number and a truth is a truth: a string or the other kind is a likely mistake"
)
TWICE = Difference("a field given twice is an error however it is spelled; vLLM takes the later one silently")
SAMPLED = Difference(
    "drafts that are not drawn from a distribution cannot be probabilistic; vLLM ignores the wish"
)
HUB = "a name on a hub is not looked up, so it may exist; vLLM, which has no network in this test, refuses it"
DECLARED = Difference(
    "an explicit method against a checkpoint that declares another one is an error; vLLM changes the method"
)

DIFFERENCES: dict[str, Difference] = {
    # what vLLM takes and this project refuses
    **_for(("K/number as a string", "K/whole number as a float", "K/true"), TYPES),
    **_for(("fields/a number for a truth", "fields/a word for a truth"), TYPES),
    **_for(("fields/hyphens and underscores", "flags/tokens twice, once with hyphens"), TWICE),
    **_for(("tests/ngram, probabilistic drafts", "sampling/suffix cannot"), SAMPLED),
    **_for(
        (
            "tests/draft_model for an MTP checkpoint",
            "method/draft_model said of a dspark head",
            "tests/mtp for an EAGLE path",
            "tests/eagle for an MTP checkpoint",
        ),
        DECLARED,
    ),
    "sampling/local argmax of sampled drafts": Difference(
        "local argmax finds greedy drafts only; vLLM 0.33 checks that for some of its methods, and when they run"
    ),
    "suffix/bad depth of another method": Difference(
        "a field's bounds hold whether or not the method reads it; vLLM checks them for suffix decoding alone"
    ),
    "options/topk: ngram": Difference(
        "an option that a method does not have is an error with every method; vLLM asks those with a draft model"
    ),
    "options/hidden states of another method": Difference(
        "an option that a method does not have is an error; vLLM overwrites it silently"
    ),
    "schedule/empty": Difference(
        "a schedule without ranges says nothing; vLLM's own check refuses it too, but its scheduler does not call it"
    ),
    "slots/ngram needs no room": Difference(
        "a step must have room to verify all drafts of one request; vLLM counts only what the drafter needs"
    ),
    # what vLLM refuses and this project takes
    "vocabulary/sampled drafts": Difference(
        "token-level intersection takes sampled drafts too: both distributions are over the shared tokens",
        "draft_model",
        3,
    ),
    "fields/quantization that a package adds": Difference(
        "vLLM knows it where vllm-ascend is installed", "draft_model", 3
    ),
    **_for(
        ("fields/how weights are loaded, as a number", "fields/how weights are loaded, unknown"),
        Difference("its keys are vLLM's own, which judges them when it starts", "draft_model", 3),
    ),
    "docs/suffix without its package": Difference(
        "suffix decoding needs no other package here", "suffix", 32
    ),
    "docs/mlp speculator": Difference("kept here; vLLM dropped it after 0.26", "mlp_speculator", 3),
    "docs/medusa": Difference("kept here; vLLM dropped it after 0.26", "medusa", 3),
    "method/medusa without a method": Difference("kept here; vLLM dropped it after 0.26", "medusa", 3),
    "method/older spelling [ngram]": Difference("vLLM before and after 0.33 takes it", "ngram", 3),
    "method/path with both words": Difference(
        'a checkpoint\'s architecture decides before its path; vLLM finds "eagle-" in it first', "eagle3", 3
    ),
    "model/not a directory": Difference(HUB, "draft_model", 3),
    "model/dotted path with another method": Difference(HUB, "draft_model", 3),
    "fields/a truth of null": Difference("null counts as not given, for every field", "eagle", 3),
    "tests/MTP without K": Difference(
        "K is the number of MTP layers, whoever named the checkpoint; vLLM fills it in only for a named one",
        "mtp",
        3,
    ),
    "tests/MTP without K, with a model": Difference(
        "K is the number of MTP layers; vLLM 0.33 compares the missing K with 1, a known fault", "mtp", 1
    ),
    # what both take, and read differently
    "tests/a path does not decide against draft_model": Difference(
        "an explicit method is not changed for a word in a path; vLLM 0.33 makes it eagle", "draft_model", 3
    ),
    "method/eagle3 by architecture alone": Difference(
        "a checkpoint's architecture counts; vLLM goes by the path and runs an EAGLE-3 head as a draft model",
        "eagle3",
        3,
    ),
    "tests/eagle for DeepSeek, by path": Difference(
        'a checkpoint\'s model_type decides before its path; vLLM finds "eagle-" in that first', "mtp", 1
    ),
    "method/speculators: peagle by path": Difference(
        "the algorithm that a checkpoint declares counts; vLLM goes by the path", "eagle3", 3
    ),
    "method/speculators: P-EAGLE without its option": Difference(
        "the algorithm that a checkpoint declares says that it drafts in parallel; vLLM waits to be told",
        "eagle3",
        3,
    ),
}
