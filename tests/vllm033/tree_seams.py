"""What speculation on a tree of drafts will hold on to in vLLM's second runner, made to tell when it is used.

Runs in the process that has vLLM, without our plugin.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock


class Layer:
    """In place of ``layer.impl`` once the model is loaded: all that a layer does goes to what stood there."""

    def __init__(self, impl: Any, tell: Callable[..., None]) -> None:
        self.impl, self.tell = impl, tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self.impl, name)

    def forward(
        self, layer: Any, query: Any, key: Any, value: Any, cache: Any, step: Any, **rest: Any
    ) -> Any:
        if step is not None:
            self.tell("layer.impl.forward", len(query))
        return self.impl.forward(layer, query, key, value, cache, step, **rest)


@contextlib.contextmanager
def in_the_log(tell: Callable[..., None]) -> Iterator[None]:
    """``tell(seam, what could be seen there)``."""
    from vllm.model_executor.models.llama import LlamaForCausalLM
    from vllm.v1.worker.gpu.model_states.default import DefaultModelState
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    class Judge(RejectionSampler):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            tell("rejection sampler", None)
            return super().__call__(*args, **kwargs)

    class State(DefaultModelState):
        """What a model's ``get_model_state_cls`` would give."""

        def custom_sampler(self, sampler: Any) -> Any:
            tell("custom_sampler", None)
            for layer in self.vllm_config.compilation_config.static_forward_context.values():
                layer.impl = Layer(layer.impl, tell)
            return sampler, Judge(sampler, self.vllm_config.speculative_config, self.device)

        def prepare_inputs(self, input_batch: Any, req_states: Any) -> Any:
            tell("prepare_inputs", input_batch.positions.data_ptr())
            return super().prepare_inputs(input_batch, req_states)

        def postprocess_state(self, idx_mapping: Any, num_sampled: Any, *rest: Any) -> Any:
            tell("postprocess_state", num_sampled if isinstance(num_sampled, int) else num_sampled.tolist())
            return super().postprocess_state(idx_mapping, num_sampled, *rest)

    with mock.patch.object(LlamaForCausalLM, "get_model_state_cls", create=True, return_value=State):
        yield
