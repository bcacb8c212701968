"""The vLLM plugin: this project's drafters and samplers inside a stock vLLM, attached to its worker.

Installed next to vLLM, it does nothing until ``additional_config`` has the key ``ascend_spec``. Only this
package imports vllm, and only when a worker asks for it.
"""

from ascend_spec.vllm.plugin import Extension, register

__all__ = ["Extension", "register"]
