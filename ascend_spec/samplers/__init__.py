"""Rules that judge drafts: one file a rule."""

from ascend_spec.samplers.rejection import RejectionSampler

__all__ = ["RejectionSampler"]
