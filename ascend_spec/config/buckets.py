"""Shape buckets of decode steps: one captured graph serves every step that pads to its bucket."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Bucket:
    """A decode step of ``num_requests`` requests with ``num_drafts`` drafts each."""

    num_requests: int
    num_drafts: int

    @property
    def num_rows(self) -> int:
        return self.num_requests * (self.num_drafts + 1)


def choose_bucket(num_requests: int, num_drafts: int, max_num_seqs: int, max_drafts: int) -> Bucket:
    """The smallest bucket for a decode step whose requests have at most ``num_drafts`` drafts.

    A single request gets exactly its number of rows: there a row more is a visible cost. Larger batches round
    the requests up to a power of two and the drafts to 0, a power of two, or the maximum.
    """
    if num_requests == 1:
        return Bucket(1, num_drafts)
    drafts = min(_power_of_two(num_drafts), max_drafts) if num_drafts else 0
    return Bucket(min(_power_of_two(num_requests), max_num_seqs), drafts)


def all_buckets(max_num_seqs: int, max_drafts: int) -> list[Bucket]:
    """Every bucket that :func:`choose_bucket` can return, smallest first: what is to be captured at start."""
    single = [Bucket(1, num_drafts) for num_drafts in range(max_drafts + 1)]
    drafts = [0, *_sizes(1, max_drafts)]
    return single + [Bucket(requests, n) for requests in _sizes(2, max_num_seqs) for n in drafts]


def _sizes(least: int, most: int) -> list[int]:
    """What the numbers from ``least`` to ``most`` are rounded up to."""
    if least > most:
        return []
    first, last = _power_of_two(least), _power_of_two(most)
    return [min(1 << i, most) for i in range(first.bit_length() - 1, last.bit_length())]


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
