"""Entry points: ``register`` for ``vllm.general_plugins``, and ``Extension`` for ``--worker-extension-cls``.

vLLM loads general plugins in every process, before it knows whether they are wanted; so this is cheap, can be
called again, never raises, and imports neither numba nor a device.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from difflib import get_close_matches
from typing import Any

#: under vLLM's own logger, whose handler the operator has configured
logger = logging.getLogger("vllm.ascend_spec")
#: of ``additional_config``: what stands under it are our options
KEY = "ascend_spec"
#: set to anything but 0 or nothing, the plugin stays out of the way altogether
SWITCH = "ASCEND_SPEC_DISABLE"
#: the one place that is wrapped: after it a worker's runner and drafter exist, and no model is loaded yet
SEAM = "vllm.v1.worker.worker_base:WorkerWrapperBase.init_device"


def switched_off() -> bool:
    return os.environ.get(SWITCH, "0") not in ("", "0")


def register() -> None:
    """Wrap :data:`SEAM`, once a process. A vLLM without it keeps its own speculation, and the log says so."""
    if switched_off():
        return
    module, _, path = SEAM.partition(":")
    owner_name, _, name = path.partition(".")
    try:
        owner = getattr(importlib.import_module(module), owner_name)
        original = getattr(owner, name)
    except Exception as error:  # whatever a future vLLM looks like, it must start
        logger.warning(
            "ascend-spec is not attached: this vLLM has no %s (%s); its own speculation runs", SEAM, error
        )
        return
    if not hasattr(original, "ascend_spec_original"):
        setattr(owner, name, _wrapped(original))


def unregister() -> None:
    """Undo :func:`register`; workers that are attached stay so."""
    module, _, path = SEAM.partition(":")
    owner_name, _, name = path.partition(".")
    owner = getattr(importlib.import_module(module), owner_name)
    original = getattr(getattr(owner, name), "ascend_spec_original", None)
    if original is not None:
        setattr(owner, name, original)


def _wrapped(original: Any) -> Any:
    @functools.wraps(original)
    def init_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        attach_once(self.worker)
        return result

    init_device.ascend_spec_original = original  # type: ignore[attr-defined]
    return init_device


class Extension:
    """vLLM's official hook where it has one (0.33): ``--worker-extension-cls ascend_spec.vllm.Extension``."""

    @staticmethod
    def init_worker_extension(worker: Any) -> None:
        """Called by vLLM once a worker, when its runner exists and its model does not."""
        if not switched_off():
            attach_once(worker)


def attach_once(worker: Any) -> None:
    """Attach to a worker whose configuration asks for it; a second call changes nothing."""
    additional = worker.vllm_config.additional_config or {}
    options = additional.get(KEY)
    if options is None:
        for near in get_close_matches(KEY, additional, n=1, cutoff=0.8):
            logger.warning("ascend-spec is not attached: additional_config has the key %r, not %r", near, KEY)
        return
    if hasattr(worker.model_runner, "ascend_spec"):
        return
    from ascend_spec.vllm.attach import attach

    attach(worker, options)
