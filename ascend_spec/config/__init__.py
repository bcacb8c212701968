"""The configuration layer: one checked object, a :class:`Plan`, decides every speculative path.

``load_speculative_config`` reads the user's words, ``resolve`` finds the method's contract
(:class:`SpeculatorConfig`), checks everything against the target, and returns the plan.
"""

from ascend_spec.config.buckets import Bucket, all_buckets, choose_bucket
from ascend_spec.config.checkpoint import ModelFacts, read_model_facts
from ascend_spec.config.draft_model import DraftModelConfig
from ascend_spec.config.errors import ConfigError, Finding
from ascend_spec.config.kv import KVPlan, pool_shortfall
from ascend_spec.config.load import load_speculative_config
from ascend_spec.config.methods import BUILT_IN
from ascend_spec.config.options import AscendSpecConfig
from ascend_spec.config.plan import Plan, resolve
from ascend_spec.config.registry import (
    method_class,
    register_speculative_method,
    registered_speculative_methods,
)
from ascend_spec.config.rules import RULES, Rule
from ascend_spec.config.speculative import SpeculativeConfig
from ascend_spec.config.speculator import SpeculatorConfig
from ascend_spec.config.target import TargetConfig, check_max_model_len

__all__ = [
    "BUILT_IN",
    "RULES",
    "AscendSpecConfig",
    "Bucket",
    "ConfigError",
    "DraftModelConfig",
    "Finding",
    "KVPlan",
    "ModelFacts",
    "Plan",
    "Rule",
    "SpeculativeConfig",
    "SpeculatorConfig",
    "TargetConfig",
    "all_buckets",
    "check_max_model_len",
    "choose_bucket",
    "load_speculative_config",
    "method_class",
    "pool_shortfall",
    "read_model_facts",
    "register_speculative_method",
    "registered_speculative_methods",
    "resolve",
]
