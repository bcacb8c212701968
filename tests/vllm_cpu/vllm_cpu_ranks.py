"""Tensor parallel over two processes: what each rank drafted and drew, and faults of one rank.

The module is imported by the process that has vLLM, and by each worker, whose class gets the methods of :class:`Watch`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import vllm_cpu_engine

import ascend_spec
from ascend_spec.vllm import ranks

#: environment variable, inherited by the workers: the version that rank 1 says it has
OTHER_VERSION = "VLLM_CPU_TEST_OTHER_VERSION"


def _as_another_version() -> None:
    """Rank 1 says that it has the version named in the environment."""
    stock = ranks.require_same_version

    def mutant(group: Any) -> None:
        if torch.distributed.get_rank() == 1:
            ascend_spec.__version__ = os.environ[OTHER_VERSION]
        stock(group)

    ranks.require_same_version = mutant


if OTHER_VERSION in os.environ:
    _as_another_version()


TWO_RANKS = {
    "tensor_parallel_size": 2,
    "distributed_executor_backend": "mp",
    "worker_extension_cls": f"{__name__}.Watch",
}


def _fails(*arguments: Any) -> Any:
    raise OSError("no drafts on this rank")


class Watch:
    """Methods for vLLM's workers."""

    model_runner: Any
    rank: int

    def watch(self, fault: str | None, rank: int) -> None:
        """Write down drafts and drawn tokens from now on; ``fault`` befalls one rank."""
        runner = self.model_runner
        self.heard_drafts: list[Any] = []
        self.heard_tokens: list[Any] = []
        if not hasattr(self, "unwatched"):
            self.unwatched = runner.drafter.propose, runner._sample
            self.drafter = runner.drafter.propose.drafter
        propose, sample = self.unwatched
        broken = fault if self.rank == rank else None

        def proposing(*args: Any, **kwargs: Any) -> list[list[int]]:
            drafts = propose(*args, **kwargs)
            if broken == "other drafts":
                drafts = [[token ^ 1 for token in row] for row in drafts]
            self.heard_drafts.append(drafts)
            return drafts

        def sampling(*args: Any, **kwargs: Any) -> Any:
            output = sample(*args, **kwargs)
            self.heard_tokens.append(output.sampled_token_ids.tolist())
            return output

        propose.drafter = SimpleNamespace(propose_on_host=_fails) if broken == "no drafter" else self.drafter
        if broken == "other seeds":
            sample.random.seed(1)
        runner.drafter.propose, runner._sample = proposing, sampling

    def heard(self) -> dict[str, Any]:
        adapter = self.model_runner.ascend_spec
        return {
            "rank": self.rank,
            "drafter": adapter.drafter,
            "sampler": adapter.sampler,
            "drafts": self.heard_drafts,
            "tokens": self.heard_tokens,
        }


@contextlib.contextmanager
def two_ranks(engine: dict[str, Any]) -> Iterator[Any]:
    """An engine over two processes. They leave shared memory behind if they are stopped while they start, under the
    name of a file that vLLM makes in the directory for temporary ones, which is another one here."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(tempfile, "tempdir", folder),
    ):
        try:
            with vllm_cpu_engine.Engine({**engine, **TWO_RANKS}) as llm:
                yield llm
        finally:
            for file in Path(folder).glob("vllm_dist_*"):
                for shared in Path("/dev/shm").glob(f"{file.name}*"):
                    shared.unlink(missing_ok=True)


def generate(engine: dict[str, Any], batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each batch's ("requests", "fault", "rank": 1 if it is left out) texts and what each rank wrote down.

    Returns:
        for each batch "outputs", as of :func:`vllm_cpu_engine.generate`, "ranks", and vLLM's "accepted" and "drafted".
    """
    answers = []
    with two_ranks(engine) as llm:
        before = vllm_cpu_engine.counters(llm)
        for batch in batches:
            llm.collective_rpc("watch", args=(batch.get("fault"), batch.get("rank", 1)))
            outputs = vllm_cpu_engine.run(llm, batch["requests"])
            after = vllm_cpu_engine.counters(llm)
            answers.append(
                {
                    "outputs": outputs,
                    "ranks": llm.collective_rpc("heard"),
                    "drafted": after["num_draft_tokens"] - before["num_draft_tokens"],
                    "accepted": after["num_accepted_tokens"] - before["num_accepted_tokens"],
                }
            )
            before = after
    return answers


def start_with_another_version(engine: dict[str, Any], version: str) -> dict[str, str]:
    """Of an engine whose rank 1 has it: the error, and what the workers printed."""
    os.environ[OTHER_VERSION] = version
    kept = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile("w+") as said:
        try:
            for stream in (1, 2):
                os.dup2(said.fileno(), stream)
            with two_ranks(engine):
                error = ""
        except Exception as caught:
            error = str(caught)
        finally:
            for stream, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, stream)
                os.close(copy)
            del os.environ[OTHER_VERSION]
        said.seek(0)
        return {"error": error, "said": said.read()}
