"""In the process that has vllm-ascend, its vLLM and a fake torch_npu: both sides' patches, and a real worker whose
tensors are on the CPU. Imported nowhere else."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch_npu
from vllm.platforms import current_platform
from vllm_snapshot import Snapshot, differences, snapshot

from ascend_spec.vllm import plugin

PACKAGES = ("vllm", "vllm_ascend")
#: parts of vllm-ascend that are patches, imported by it where they apply, or sources for CANN's own compiler
NOT_ENGINE = ("vllm_ascend.patch", "vllm_ascend._cann_ops_custom")
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}


def without_pinned_memory() -> None:
    """There is no device to pin memory for."""
    current_platform.is_pin_memory_available = lambda: False
    importlib.import_module("vllm.utils.platform_utils").is_pin_memory_available.cache_clear()
    for module in list(sys.modules.values()):
        if vars(module).get("PIN_MEMORY") is True:
            module.PIN_MEMORY = False


def apply_their_patches() -> None:
    """What vllm-ascend's entry points do in every process, and its worker when it is made."""
    from vllm.plugins import load_general_plugins
    from vllm_ascend.utils import adapt_patch

    load_general_plugins()
    adapt_patch()


def import_everything() -> dict[str, str]:
    """The rest of vllm-ascend: modules that cannot be imported here -> why."""
    import vllm_ascend

    root = Path(vllm_ascend.__file__).parent
    failed = {}
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not name.startswith(NOT_ENGINE):
            try:
                importlib.import_module(name)
            except (ImportError, RuntimeError) as error:
                failed[name] = f"{type(error).__name__}: {error}"
    return failed


def patched_by_them(state: Snapshot) -> list[str]:
    """Attributes of vLLM's modules and classes that hold functions and classes of vllm-ascend's patches."""
    return sorted(
        ".".join(key)
        for key, value in state.items()
        if key[0].split(".")[0] == "vllm"
        and str(getattr(value, "__module__", "")).startswith("vllm_ascend.patch")
    )


def register(ours_first: bool) -> dict[str, Any]:
    """Both sides' patches in one order, what each changed, and what is there in the end."""
    importlib.import_module(plugin.SEAM.partition(":")[0])
    without_pinned_memory()
    steps: list[Callable[[], None]] = [plugin.register, apply_their_patches]
    failed = {}
    if not ours_first:
        apply_their_patches()
        failed = import_everything()
        steps = [plugin.register]
    before = snapshot(*PACKAGES)
    steps[0]()
    after = snapshot(*PACKAGES)
    for step in steps[1:]:
        step()
    return {
        "changed": differences(before, after),
        "wrapped": is_wrapped(),
        "patched": patched_by_them(snapshot(*PACKAGES)),
        "failed": failed,
        "imported": sum(name.split(".")[0] == "vllm_ascend" for name in sys.modules),
        "vllm": importlib.import_module("vllm").__version__,
        "platform": type(current_platform).__name__,
    }


def is_wrapped() -> bool:
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    return hasattr(WorkerWrapperBase.init_device, "ascend_spec_original")


# ---- a worker
def engine_config(model: str, options: dict[str, Any], **engine: Any) -> Any:
    """vLLM's configuration, through vllm-ascend's platform."""
    from vllm.engine.arg_utils import EngineArgs

    additional = {"ascend_spec": options, **engine.pop("additional_config", {})}
    return EngineArgs(
        model=model, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=64,
        max_num_seqs=4, max_num_batched_tokens=256, async_scheduling=False, additional_config=additional,
        **{"speculative_config": NGRAM, **engine},
    ).create_engine_config()  # fmt: skip


def make_runner(config: Any) -> Any:
    """The NPUModelRunner that a real NPUWorker makes in vLLM's wrapper."""
    import triton
    from vllm.utils.network_utils import get_open_port
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    triton.runtime.driver.set_active(torch_npu.TritonDriver())
    wrapper = WorkerWrapperBase(0)
    where = f"tcp://127.0.0.1:{get_open_port()}"
    wrapper.init_worker(
        [{"vllm_config": config, "local_rank": 0, "rank": 0, "distributed_init_method": where,
          "is_driver_worker": True}]
    )  # fmt: skip
    init = wrapper.worker._init_device

    def init_on_cpu() -> torch.device:
        init()
        return torch.device("cpu")

    wrapper.worker._init_device = init_on_cpu
    wrapper.init_device()
    return wrapper.worker.model_runner


def attach(model: str) -> dict[str, Any]:
    """Attach to a real runner, let it sample and draft, and say what changed."""
    seen: dict[str, Any] = {}
    original = plugin.attach_once

    def watched(worker: Any) -> None:
        kind = type(worker.model_runner)
        seen["before"] = snapshot(*PACKAGES)
        original(worker)
        seen["after"] = after = snapshot(*PACKAGES)
        seen["mutants"] = {}
        for mutant in MUTANTS:
            with mutant():
                seen["mutants"][mutant.__name__] = differences(after, snapshot(*PACKAGES))
        seen["same class"] = type(worker.model_runner) is kind

    with mock.patch.object(plugin, "attach_once", watched), Log() as log:
        runner = make_runner(engine_config(model, {}))
    found = {
        "attached": type(runner.ascend_spec).__name__,
        "runner": type(runner).__mro__[0].__module__,
        "sampler": type(runner._sample).__name__,
        "drafter": type(runner.drafter.propose).__name__,
        "signatures": signatures(runner),
        "steps": steps(runner),
    }
    after = {key: value for key, value in snapshot(*PACKAGES).items() if callable(seen["before"].get(key))}
    return {
        **found,
        "changed": differences(seen["before"], seen["after"]),
        "mutants": seen["mutants"],
        "same class": seen["same class"],
        "changed later": differences(seen["before"], after),
        "wrapped": is_wrapped(),
        "log": log.lines,
        "touched": sorted(torch_npu.touched),
    }


def signatures(runner: Any) -> dict[str, list[str]]:
    """Of the methods that ours replace or call, by the classes of these instances."""
    methods = {
        "_sample": type(runner)._sample,
        "propose": type(runner.drafter).propose,
        "apply_logits_processors": type(runner.rejection_sampler).apply_logits_processors,
        "rejection forward": type(runner.rejection_sampler).forward,
    }
    return {name: list(inspect.signature(method).parameters)[1:] for name, method in methods.items()}


def refusals(model: str, cases: list[dict[str, Any]]) -> list[str]:
    """What :func:`plan_for` says to a real configuration: ``engine`` arguments, and of the target's quantisation the
    description that ModelSlim writes."""
    from vllm_ascend.quantization.modelslim_config import AscendModelSlimConfig

    from ascend_spec.config import ConfigError
    from ascend_spec.vllm.translate import plan_for

    said = []
    for case in cases:
        config = engine_config(model, {}, **case.get("engine", {}))
        if "quantization" in case:
            config.quant_config = AscendModelSlimConfig(case["quantization"])
        try:
            said.append(f"K = {plan_for(config, {}, 'v1').num_speculative_tokens}")
        except ConfigError as error:
            said.append(str(error))
    return said


def other_runners() -> dict[str, str]:
    """What is said to vllm-ascend's runners that are not attached to."""
    from vllm_ascend._310p.model_runner_310p import NPUModelRunner310

    from ascend_spec.vllm.attach import runner_kind
    from ascend_spec.vllm.seams import SeamError
    from ascend_spec.vllm.v2 import probe_samplers

    runner = NPUModelRunner310.__new__(NPUModelRunner310)
    said = {}
    for name, check in {"310P": lambda: runner_kind(runner), "V2": probe_samplers}.items():
        try:
            said[name] = f"nothing: {check()}"
        except SeamError as error:
            said[name] = str(error)
    return said


# ---- steps of a runner, without its model
def steps(runner: Any) -> dict[str, Any]:
    """Two requests at a time: drafts judged, and drafted anew, through the runner's own methods."""
    greedy = {"temperature": 0.0, "logprobs": 2}
    set_requests(runner, {"a": ([7, 8, 9, 5, 7, 8], greedy), "b": ([1, 2, 3, 4], greedy)})
    found = {
        "accepted": step(runner, [[9, 5], []], peaks([9, 5, 7, 6])),
        "rejected": step(runner, [[1, 2], [3]], peaks([8, 0, 0, 3, 4])),
        "without drafts": step(runner, None, peaks([2, 1])),
    }
    penalized = {"temperature": 1.0, "top_k": 1, "presence_penalty": 2.0}
    seeded = {"temperature": 1.0, "top_p": 0.8, "seed": 7}
    set_requests(runner, {"c": ([1, 2, 3], penalized), "d": ([4, 4, 4], seeded)})
    second_best = peaks([5] * 4) + peaks([6] * 4) - 1.0 * one_hot([6] * 4)
    spread = torch.linspace(2.0, 0.0, 64).repeat(4, 1)
    found["constrained"] = step(runner, [[5, 5, 5], [0, 1, 2]], torch.cat([second_best, spread]))
    return found


def set_requests(runner: Any, requests: dict[str, tuple[list[int], dict[str, Any]]]) -> None:
    """By name: a prompt, and sampling parameters."""
    from vllm import SamplingParams
    from vllm.v1.worker.gpu_input_batch import CachedRequestState

    batch = runner.input_batch
    for name in list(batch.req_ids):
        batch.remove_request(name)
    batch.condense()
    for name, (prompt, parameters) in requests.items():
        generator = None
        if "seed" in parameters:
            generator = torch.Generator()
            generator.manual_seed(parameters["seed"])
        runner.requests[name] = state = CachedRequestState(
            req_id=name, prompt_token_ids=prompt, mm_features=[], generator=generator, block_ids=([0],),
            sampling_params=SamplingParams(max_tokens=20, **parameters), output_token_ids=[],
            num_computed_tokens=len(prompt) - 1,
        )  # fmt: skip
        batch.add_request(state)
    batch.refresh_metadata()


def one_hot(tokens: list[int]) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), 64).to(torch.float32)


def peaks(tokens: list[int]) -> torch.Tensor:
    """Logits ``[N, 64]`` whose largest are 40, at ``tokens``."""
    return 40.0 * one_hot(tokens)


def step(runner: Any, drafts: list[list[int]] | None, logits: torch.Tensor) -> dict[str, Any]:
    """What was sampled, what the runner made of it, and its next drafts."""
    batch = runner.input_batch
    counts = [0] * batch.num_reqs if drafts is None else [len(tokens) for tokens in drafts]
    runner.seq_lens[: len(counts)] = torch.tensor(batch.num_tokens_no_spec[: len(counts)] + counts)
    if drafts is not None and batch.sampling_metadata.spec_token_ids is not None:
        batch.sampling_metadata.spec_token_ids[:] = drafts
    metadata = None if drafts is None else spec_decode_metadata(drafts)
    output = runner._sample(logits.clone(), metadata)
    total = len(logits)
    scheduler_output = SimpleNamespace(
        num_scheduled_tokens={name: count + 1 for name, count in zip(batch.req_ids, counts, strict=True)},
        total_num_scheduled_tokens=total,
        num_spec_tokens_to_schedule=2,
    )
    logprobs, valid, *_ = runner._bookkeeping_sync(
        scheduler_output, output, logits, torch.zeros(total, 1), total, metadata
    )
    proposed = runner.propose_draft_token_ids(
        valid, batch.sampling_metadata, scheduler_output, metadata, None, None, total, None
    )
    return {
        "tokens": output.sampled_token_ids.tolist(),
        "valid": [list(map(int, row)) for row in valid],
        "logprobs of": None if logprobs is None else logprobs.logprob_token_ids[:, 0].tolist(),
        "drafts": [list(map(int, row)) for row in proposed],
    }


def spec_decode_metadata(drafts: list[list[int]]) -> Any:
    """As the runner lays it out: rows of one request after those of another, its bonus row last."""
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    counts = torch.tensor([len(tokens) for tokens in drafts], dtype=torch.int32)
    bonus = (counts + 1).cumsum(0) - 1
    total = int(counts.sum()) + len(drafts)
    target = torch.tensor([row for row in range(total) if row not in bonus.tolist()], dtype=torch.int64)
    return SpecDecodeMetadata(
        draft_token_ids=torch.tensor([token for tokens in drafts for token in tokens], dtype=torch.int32),
        num_draft_tokens=counts.tolist(),
        cu_num_draft_tokens=counts.cumsum(0, dtype=torch.int32),
        cu_num_sampled_tokens=(counts + 1).cumsum(0, dtype=torch.int32),
        target_logits_indices=target,
        bonus_logits_indices=bonus,
        logits_indices=torch.arange(total),
    )


class Log(logging.Handler):
    """What our logger says."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> Log:
        logger = logging.getLogger("vllm.ascend_spec")
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("vllm.ascend_spec").removeHandler(self)


# ---- mutants: what attaching must not do, and the snapshots must show
def patches_a_class() -> Any:
    from vllm_ascend.sample.rejection_sampler import AscendRejectionSampler

    return mock.patch.object(AscendRejectionSampler, "forward")


def patches_a_module() -> Any:
    return mock.patch("vllm_ascend.sample.sampler.random_sample")


def patches_vllm() -> Any:
    return mock.patch("vllm.v1.sample.sampler.Sampler.forward")


MUTANTS = (patches_a_class, patches_a_module, patches_vllm)
