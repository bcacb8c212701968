"""Judging drafts: what a step calls, and the audit of its law."""

from ascend_spec.samplers.rejection import RejectionSampler

__all__ = ["RejectionSampler"]
