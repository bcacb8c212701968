"""What runs inside the process that has vLLM: engines, requests, and what is told of them."""

from __future__ import annotations

import gc
import logging
from typing import Any

from vllm import LLM, SamplingParams
from vllm.config.logging import LoggingConfig
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
from vllm.logger import configure_logging_if_needed

#: the tiny models need no tokenizer, and a test no more than this
ENGINE = {
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 4,
    "block_size": 32,
    "kv_cache_memory_bytes": 16 << 20,
    "enable_prefix_caching": False,
    "disable_log_stats": False,
}
PARAMS = {"temperature": 0.0, "max_tokens": 28, "ignore_eos": True, "detokenize": False}


class Messages(logging.Handler):
    """What our logger says while an engine starts and runs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.logger = logging.getLogger("vllm.ascend_spec")
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> Messages:
        configure_logging_if_needed(
            LoggingConfig()
        )  # otherwise the first engine does it, and takes the handler away
        self.logger.setLevel(logging.INFO)
        self.logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.logger.removeHandler(self)


class Engine:
    """A ``with`` block in which an LLM exists."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def __enter__(self) -> LLM:
        tiny = {} if "tokenizer" in self.settings else {"skip_tokenizer_init": True}
        try:
            self.llm = LLM(**{**ENGINE, **tiny, **self.settings})
        except BaseException:
            cleanup_dist_env_and_memory()
            raise
        return self.llm

    def __exit__(self, *_: object) -> None:
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()
        cleanup_dist_env_and_memory()


def generate(engine: dict[str, Any], batches: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Run batches of requests through one engine, one after the other.

    Args:
        engine: arguments of ``LLM`` beside :data:`ENGINE`.
        batches: lists of requests, each with "prompt" (token ids or text), "params" (beside :data:`PARAMS`), and as
            wanted "arrives" (the step before which it comes, 0 by default), "aborted_after" (tokens) and "adapter" (the
            directory of a LoRA adapter).

    Returns:
        "outputs": for each batch a request each, with "tokens", "text", "finish_reason" and "logprobs"; "metrics":
        for each batch vLLM's counters by name, of that batch alone; "log": what the plugin said.
    """
    outputs, metrics = [], []
    with Messages() as messages, Engine(engine) as llm:
        before = counters(llm)
        for requests in batches:
            outputs.append(run(llm, requests))
            after = counters(llm)
            metrics.append({name: value - before.get(name, 0) for name, value in after.items()})
            before = after
    return {"outputs": outputs, "metrics": metrics, "log": messages.lines}


def counters(llm: LLM) -> dict[str, float]:
    """vLLM's counters without their prefixes."""
    return {
        metric.name.removeprefix("vllm:").removeprefix("spec_decode_"): metric.value
        for metric in llm.get_metrics()
        if hasattr(metric, "value")
    }


def run(llm: LLM, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    core = llm.llm_engine
    waiting = sorted(enumerate(requests), key=lambda item: item[1].get("arrives", 0))
    outputs: dict[str, Any] = {}
    step = 0
    while waiting or core.has_unfinished_requests():
        while waiting and waiting[0][1].get("arrives", 0) <= step:
            index, request = waiting.pop(0)
            prompt = request["prompt"]
            core.add_request(
                str(index),
                prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt},
                sampling_params(request.get("params", {})),
                lora_request=_adapter(request.get("adapter")),
            )
        for output in core.step():
            outputs[output.request_id] = output.outputs[0]
            limit = requests[int(output.request_id)].get("aborted_after")
            if limit is not None and len(output.outputs[0].token_ids) >= limit and not output.finished:
                core.abort_request([output.request_id])
        step += 1
    return [_told(outputs[str(i)]) for i in range(len(requests))]


def _adapter(path: str | None) -> Any:
    from vllm.lora.request import LoRARequest

    return None if path is None else LoRARequest(path, 1, path)


def sampling_params(params: dict[str, Any]) -> SamplingParams:
    from vllm.sampling_params import StructuredOutputsParams

    params = {**PARAMS, **params}
    if "structured_outputs" in params:
        params["structured_outputs"] = StructuredOutputsParams(**params["structured_outputs"])
    made = SamplingParams(**{key: value for key, value in params.items() if key != "bad_words_token_ids"})
    if (
        "bad_words_token_ids" in params
    ):  # vLLM makes them of words, for which the tiny models have no tokenizer
        made._bad_words_token_ids = params["bad_words_token_ids"]
    return made


def _told(completion: Any) -> dict[str, Any]:
    logprobs = completion.logprobs
    return {
        "tokens": list(completion.token_ids),
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "logprobs": logprobs
        and [
            sorted((token, entry.logprob, entry.rank) for token, entry in each.items()) for each in logprobs
        ],
    }
