"""Our counters at vLLM's ``/metrics``.

They are made in the worker, and shown by the API server, which is another process. Between them are value files of
Prometheus' own multiprocess mode: small, mapped into memory, one pair a worker. Where vLLM uses that mode itself
(several API servers, or PROMETHEUS_MULTIPROC_DIR in the environment) they lie in its directory, and vLLM merges
them. Elsewhere they lie among the temporary files, and a collector of ours reads them when it is asked.

A file's name holds a digest of multiprocessing's ``authkey``, a random number that a program shares with the
processes it starts through multiprocessing and with no others: so a server finds its own workers' files alone.
Workers on other machines, or started by Ray, are not seen.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterable
from itertools import count
from multiprocessing import current_process, parent_process, util
from typing import TYPE_CHECKING

import torch

from ascend_spec.metrics import FALLBACKS, NON_FINITE_LOGITS, RULE_INFO, STEPS_WITHOUT_DRAFTS

if TYPE_CHECKING:  # vLLM brings it
    from prometheus_client import Metric
    from prometheus_client.mmap_dict import MmapedDict

    from ascend_spec.config.rules import Rule

logger = logging.getLogger("vllm.ascend_spec")

HELP = {
    RULE_INFO: "The acceptance rule, and whether it keeps the target's distribution.",
    STEPS_WITHOUT_DRAFTS: "Requests' decode steps that had no draft to judge.",
    NON_FINITE_LOGITS: "Requests' steps whose logits were not finite.",
    FALLBACKS: "How often a slower exact way was taken, by reason.",
}
#: bytes of a new file, on disk from the start: a disk that is full later must not end the process
SIZE = 4096
#: runners of this process that have been attached to
_serial = count()


class Metrics:
    """Counters of one runner. They only grow."""

    def __init__(self, rule: Rule, is_published: bool) -> None:
        """``is_published``: of ranks that all draw the same tokens, one counts (:func:`is_first_tensor_rank`)."""
        self._counters: MmapedDict | None = None
        self._non_finite: tuple[torch.Tensor, torch.Tensor] | None = None
        if not is_published:
            return
        serial = next(_serial)
        try:
            info, self._counters = (self._create(kind, serial) for kind in ("gauge_max", "counter"))
        except OSError as error:
            logger.warning("ascend-spec has no metrics: %s", error)
            return
        labels = {"rule": rule.name, "lossless": str(rule.lossless).lower()}
        info.write_value(_key(RULE_INFO, RULE_INFO, labels), 1.0, 0.0)
        info.close()
        self._add(STEPS_WITHOUT_DRAFTS, 0)
        self._add(NON_FINITE_LOGITS, 0)

    def count_fallback(self, reason: str) -> None:
        self._add(FALLBACKS, 1, reason=reason)

    def count_steps_without_drafts(self, number: int) -> None:
        if number:
            self._add(STEPS_WITHOUT_DRAFTS, number)

    def count_non_finite(self, bad: torch.Tensor) -> None:
        """``bad [B]`` bool: requests whose logits are not finite. Does not wait for the device: what is not counted
        in this step is in the next one."""
        if self._counters is None:
            return
        if self._non_finite is None:
            on_host = torch.zeros((), dtype=torch.int64, pin_memory=bad.device.type != "cpu")
            self._non_finite = torch.zeros((), dtype=torch.int64, device=bad.device), on_host
        total, on_host = self._non_finite
        total += bad.sum()
        on_host.copy_(total, non_blocking=True)
        self._counters.write_value(_counter_key(NON_FINITE_LOGITS), float(on_host.item()), 0.0)

    def _add(self, name: str, number: int, **labels: str) -> None:
        if self._counters is not None:
            key = _counter_key(name, **labels)
            self._counters.write_value(key, self._counters.read_value(key)[0] + number, 0.0)

    def _create(self, kind: str, serial: int) -> MmapedDict:
        from prometheus_client.mmap_dict import MmapedDict

        path = os.path.join(_directory(), f"{kind}_{_own_name()}-{os.getpid()}-{serial}.db")
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            util.Finalize(self, _remove, args=([path],), exitpriority=0)
            file.write(bytes(SIZE))
        return MmapedDict(path)


def is_first_tensor_rank() -> bool:
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return get_tensor_model_parallel_rank() == 0


def is_last_pipeline_rank() -> bool:
    from vllm.distributed.parallel_state import get_pp_group

    return get_pp_group().is_last_rank


class Collector:
    """What Prometheus' registry asks for the counters of this server's workers."""

    def describe(self) -> list[Metric]:
        """Nothing before there are workers."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Of all workers together; of none where vLLM's own collector merges the files."""
        from prometheus_client.multiprocess import MultiProcessCollector

        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            return []
        try:
            return list(MultiProcessCollector.merge(_files()))
        except FileNotFoundError:  # a worker has just ended
            return []


_collector: Collector | None = None


def expose() -> None:
    """Have this process show the counters of its server's workers. A second call changes nothing."""
    from prometheus_client import REGISTRY

    global _collector
    if _collector is None:
        _collector = Collector()
        REGISTRY.register(_collector)
        if parent_process() is None:
            # workers that were killed could not remove their files; after them, since they are ended at priority 0
            util.Finalize(_collector, lambda: _remove(_files()), exitpriority=-1)


def withdraw() -> None:
    """Undo :func:`expose`."""
    from prometheus_client import REGISTRY

    global _collector
    if _collector is not None:
        REGISTRY.unregister(_collector)
        _collector = None


def _directory() -> str:
    return os.environ.get("PROMETHEUS_MULTIPROC_DIR") or tempfile.gettempdir()


def _own_name() -> str:
    """The same in all processes of a server, and in no other. Prometheus reads a kind out of what stands before
    each ``_``, so there is none in it."""
    return "ascend-spec-" + hashlib.sha256(b"ascend_spec" + current_process().authkey).hexdigest()[:16]


def _files() -> list[str]:
    return glob.glob(os.path.join(glob.escape(_directory()), f"*_{_own_name()}-*.db"))


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue


def _counter_key(name: str, **labels: str) -> str:
    return _key(name, f"{name}_total", labels)


def _key(metric: str, sample: str, labels: dict[str, str]) -> str:
    from prometheus_client.mmap_dict import mmap_key

    return mmap_key(metric, sample, list(labels), list(labels.values()), HELP[metric])
