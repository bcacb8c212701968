"""``num_speculative_tokens_per_batch_size``: how many drafts a request gets at which batch size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter

from ascend_spec.config.errors import Finding, wrong

FIELD = "num_speculative_tokens_per_batch_size"
Range = tuple[int, int, int]


def check_ranges(ranges: Sequence[Range]) -> Iterator[Finding]:
    """Inclusive ranges ``(first, last, K)`` from batch size 1 up that do not overlap; K may be 0."""
    if not ranges:
        yield wrong(FIELD, list(ranges), "a list with at least one range", "Add one, or leave the field out.")
        return
    broken = False
    for first, last, num_tokens in ranges:
        entry = [first, last, num_tokens]
        if not 1 <= first <= last:
            broken = True
            yield wrong(FIELD, entry, "[first, last, K] with 1 <= first <= last in every range")
        if num_tokens < 0:
            yield wrong(FIELD, entry, "[first, last, K] with K of 0 or more in every range")
    if broken:  # nothing can be said of their order
        return
    widest, *others = sorted(map(list, ranges))
    if widest[0] > 1:
        yield wrong(FIELD, widest, "ranges that begin at batch size 1", "Add or extend the first one.")
    for entry in others:
        if entry[0] <= widest[1]:
            yield wrong(FIELD, [widest, entry], "ranges that do not overlap", "Shorten one of them.")
        widest = max(widest, entry, key=itemgetter(1))


def dense_lookup(ranges: Sequence[Range], num_speculative_tokens: int, max_num_seqs: int) -> tuple[int, ...]:
    """K by batch size, for checked ranges.

    A batch size between two ranges, or beyond the last, inherits from the range below it.

    Returns:
        ``max_num_seqs + 1`` numbers, none above ``num_speculative_tokens``; that of an empty batch is 0.
    """
    starts = sorted((first, min(num_tokens, num_speculative_tokens)) for first, _, num_tokens in ranges)
    table = [0]  # of the empty batch
    for (first, num_tokens), (following, _) in pairwise([*starts, (max_num_seqs + 1, 0)]):
        table += [num_tokens] * (min(following, max_num_seqs + 1) - first)
    return tuple(table)
