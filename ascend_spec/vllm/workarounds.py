"""Faults of vLLM that would keep the plugin from working, and what is done about them: on instances or, for
threads, by torch's own setting; never on vLLM's modules or classes, and only while the fault is there."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

logger = logging.getLogger("vllm.ascend_spec")


def override_kernels_once(platform: Any, done: bool = False) -> None:
    """A second engine in a process that has imported numba fails to start (vLLM 0.32 and 0.33 on a CPU).

    vLLM replaces its Triton kernels on a CPU once an engine, by a search through the attributes of all loaded
    modules; an object of llvmlite's claims to have a ``__dict__`` that is none, and the search fails. The kernels
    stay replaced for the life of the process, so the platform object is told not to do it again where it would
    fail. Without an engine that uses this package too: the next one may.

    Args:
        platform: vLLM's platform object, which is changed; a second call changes nothing.
        done: the kernels have been replaced already.
    """
    name = "register_triton_kernel_overrides"
    if getattr(platform, "is_cpu", bool)() and hasattr(platform, name) and name not in vars(platform):
        setattr(platform, name, _Once(getattr(platform, name), done))


class _Once:
    """Replaces the kernels, unless that was done and would fail."""

    def __init__(self, stock: Callable[[], Any], done: bool) -> None:
        self.stock, self.done = stock, done

    def __call__(self) -> None:
        if self.done and _search_fails():
            # at this level, since the engine may have nothing to do with this package
            logger.debug(
                "ascend-spec workaround: Triton kernels stay replaced (replacing them again would fail)"
            )
            return
        self.stock()
        self.done = True


def keep_openmp_threads() -> str | None:
    """More threads than OMP_NUM_THREADS says, which wait for each other (vLLM 0.32 and 0.33 on a CPU).

    Starting Numba's pool, as vLLM's n-gram drafter does and we do, raises the limit of the OpenMP that torch shares
    with it to a thread a core; and vLLM's worker has replaced ``torch.set_num_threads`` by something that does
    nothing. The function that torch had is called.

    Returns:
        what was done, for the log; None: nothing is wrong here.
    """
    given = os.environ.get("OMP_NUM_THREADS", "")
    if not given.isdigit() or not 0 < int(given) < torch.get_num_threads():
        return None
    torch._C.set_num_threads(int(given))
    return f"torch's threads are {given} again, as OMP_NUM_THREADS says (Numba's pool had raised them)"


def _search_fails() -> bool:
    """Whether the search meets the object it fails at: what vLLM does to each attribute is done to that one."""
    lib = getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None)
    if not hasattr(lib, "__dict__"):  # numba is not there, or this is a plain object: the search skips it
        return False
    try:
        vars(lib).get("kernel")
    except AttributeError:
        return True
    return False


class RewindableGenerator(torch.Generator):
    """A generator on a CPU, which can be told to step back although it has no offset to do it with."""

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        """Our draw takes the seed alone, so there is nothing to step back."""
        return self


def rewind_generators(generators: dict[int, torch.Generator]) -> None:
    """A request with a seed whose prompt is computed in parts ends the engine (vLLM 0.23 to 0.33 on a CPU).

    For the token that is thrown away vLLM sets the offset of the request's generator back; generators on a CPU have
    none, and raise. They are replaced by ones that let it pass.

    Args:
        generators: by a request's place in the batch; changed in place.
    """
    for index, generator in generators.items():
        if not isinstance(generator, RewindableGenerator) and _cannot_rewind(generator):
            generators[index] = mended = RewindableGenerator()
            mended.set_state(generator.get_state())


def _cannot_rewind(generator: torch.Generator) -> bool:
    try:
        generator.get_offset()
    except RuntimeError:
        return True
    return False
