"""Suffix decoding: what followed the last tokens of a request most often, in its own text and in that of others.

Source: the counting of Arctic Inference's suffix tree, after "SuffixDecoding" (G. Oliaro and others, 2024).

A tree counts the substrings of its sequences, up to ``max_depth`` tokens; the tail of a sequence that goes on counts
as an occurrence of its own. For every length of match (the last 1, 2, .. tokens of a context, fewer than all of it
and than ``max_depth``) there is a candidate. As a *path* it steps to the most frequent next token for as long as the
share of the match's occurrences that go on like this is at least ``min_token_prob``, and has at most
``floor(max_spec_factor * match + max_spec_offset + 1e-6)`` tokens; as a *tree* it takes the most frequent
continuations wherever they are. The score is the sum of these shares: how many drafts may be expected to be right.
The best score wins, of equal ones the longest match. Lengths of match that occur equally often are continued alike, as
far as each can see, so that of those only the path that may go farthest is followed. Of tokens that are equally
frequent the one that was seen again last comes first, and those seen once stand in the order of their coming. An id
below 0 is never proposed.

The trees are state, hence no operator of torch: a :class:`SuffixTree` of many sequences, a :class:`SuffixForest` of
trees with one each, and :func:`suffix_extend` and :func:`suffix_match` on both.
"""

from ascend_spec_ops.suffix_match.extend import PARALLEL_TOKENS, suffix_extend
from ascend_spec_ops.suffix_match.match import PARALLEL_REQUESTS, SuffixDrafts, suffix_match
from ascend_spec_ops.suffix_match.tree import SuffixForest, SuffixTree

__all__ = [
    "PARALLEL_REQUESTS",
    "PARALLEL_TOKENS",
    "SuffixDrafts",
    "SuffixForest",
    "SuffixTree",
    "suffix_extend",
    "suffix_match",
]
