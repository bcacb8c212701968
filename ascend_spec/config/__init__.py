"""The user's words, checked: ``load_speculative_config`` and what each method declares of itself."""

from ascend_spec.config.errors import ConfigError
from ascend_spec.config.load import load_speculative_config
from ascend_spec.config.speculative import AscendSpecConfig, SpeculativeConfig
from ascend_spec.config.speculator import SPECULATORS, SpeculatorConfig, speculator_config

__all__ = [
    "SPECULATORS",
    "AscendSpecConfig",
    "ConfigError",
    "SpeculativeConfig",
    "SpeculatorConfig",
    "load_speculative_config",
    "speculator_config",
]
