"""The methods that are built in, one file a family. A new one is a subclass of SpeculatorConfig and its name
in ``BUILT_IN``."""

from __future__ import annotations

from ascend_spec.config.methods.custom_class import CustomClassConfig
from ascend_spec.config.methods.dflash import DFlashConfig
from ascend_spec.config.methods.draft_model import DraftModelSpeculatorConfig
from ascend_spec.config.methods.dspark import DSparkConfig
from ascend_spec.config.methods.eagle import Eagle3Config, EagleConfig
from ascend_spec.config.methods.extract_hidden_states import ExtractHiddenStatesConfig
from ascend_spec.config.methods.heads import MedusaConfig, MLPSpeculatorConfig
from ascend_spec.config.methods.mtp import MTPConfig
from ascend_spec.config.methods.ngram import NgramConfig, NgramGPUConfig
from ascend_spec.config.methods.self_speculative import SelfSpeculativeConfig
from ascend_spec.config.methods.suffix import SuffixConfig
from ascend_spec.config.speculator import SpeculatorConfig

#: method -> its contract. What a checkpoint declares, or its path hints at, is asked in this order: eagle3
#: before eagle, whose name it contains.
BUILT_IN: dict[str, type[SpeculatorConfig]] = {
    contract.method: contract
    for contract in (
        NgramConfig,
        NgramGPUConfig,
        SuffixConfig,
        DraftModelSpeculatorConfig,
        Eagle3Config,
        EagleConfig,
        DFlashConfig,
        DSparkConfig,
        MTPConfig,
        MedusaConfig,
        MLPSpeculatorConfig,
        ExtractHiddenStatesConfig,
        SelfSpeculativeConfig,
        CustomClassConfig,
    )
}
#: methods that vLLM 0.33 has no word for
OURS = ("medusa", "mlp_speculator", "self_speculative")
