"""Have the target judge all drafts of a batch in one pass: pack requests into one multi-query batch."""

from ascend_spec.scorer.batch_expansion import BatchExpansionScorer
from ascend_spec.scorer.mqa import MQAScorer

__all__ = ["BatchExpansionScorer", "MQAScorer"]
