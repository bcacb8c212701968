"""Entry points: ``register`` for ``vllm.general_plugins``, and ``Extension`` for ``--worker-extension-cls``.

vLLM loads general plugins in every process, before it knows whether they are wanted; so this is cheap, can be
called again, never raises, and imports neither numba nor a device.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import sys
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

#: under vLLM's own logger, whose handler the operator has configured
logger = logging.getLogger("vllm.ascend_spec")
#: of ``additional_config``: what stands under it are our options
KEY = "ascend_spec"
#: set to anything but 0, false, no, off or nothing, the plugin stays out of the way altogether
SWITCH = "ASCEND_SPEC_DISABLE"
#: the one place that is wrapped: after it a worker's runner and drafter exist, and no model is loaded yet
SEAM = "vllm.v1.worker.worker_base:WorkerWrapperBase.init_device"
#: vLLM's registry of methods, which its main branch has after 0.33
REGISTRY = "register_speculative_method"


def switched_off() -> bool:
    return os.environ.get(SWITCH, "0").strip().lower() not in ("", "0", "false", "no", "off")


def _seam() -> tuple[Any, str]:
    """The class and the name of its method."""
    module, _, path = SEAM.partition(":")
    owner, _, name = path.partition(".")
    return getattr(importlib.import_module(module), owner), name


def register() -> None:
    """Wrap :data:`SEAM`, once a process. A vLLM without it keeps its own speculation, and the log says so."""
    if switched_off():
        return
    _tell_of_platform()
    try:
        owner, name = _seam()
        original = getattr(owner, name)
    except Exception as error:  # whatever a future vLLM looks like, it must start
        logger.warning(
            "ascend-spec is not attached: this vLLM has no %s (%s); its own speculation runs", SEAM, error
        )
        return
    if not hasattr(original, "ascend_spec_original"):
        setattr(owner, name, _wrapped(original))
    _mend_platform()
    _tell_of_registry()
    with contextlib.suppress(Exception):  # metrics are no reason not to start
        from ascend_spec.vllm.metrics import expose

        expose()


def _tell_of_registry() -> None:
    """Methods of ours that vLLM has no word for belong there, once one of them is built for vLLM: what is registered
    can be asked for, and must then run. The carrier stays a method of vLLM's own until then."""
    modules = [sys.modules.get(name) for name in ("vllm.config", "vllm.config.speculative")]
    if any(hasattr(module, REGISTRY) for module in modules):
        logger.info("ascend-spec: this vLLM has %s; nothing is registered there yet", REGISTRY)


def _tell_of_platform() -> None:
    """vLLM itself says only that it found no device."""
    given = os.environ.get("VLLM_PLUGINS")
    if given is None or "ascend" in given.split(","):
        return
    if entry_points(group="vllm.platform_plugins", name="ascend"):
        logger.warning(
            "ascend-spec: VLLM_PLUGINS is %r, which shuts out vllm-ascend's platform; name ascend there too",
            given,
        )


def _mend_platform() -> None:
    """Before the first engine of a process replaces its kernels, whoever it belongs to."""
    from ascend_spec.vllm.workarounds import override_kernels_once

    with contextlib.suppress(Exception):  # whatever a future vLLM looks like
        from vllm.platforms import current_platform

        override_kernels_once(current_platform)


def unregister() -> None:
    """Undo :func:`register`; workers that are attached stay so."""
    owner, name = _seam()
    original = getattr(getattr(owner, name), "ascend_spec_original", None)
    if original is not None:
        setattr(owner, name, original)
        from ascend_spec.vllm.metrics import withdraw

        withdraw()


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


def _warn_of_near_miss(additional: dict[Any, Any]) -> None:
    """Of a key that was meant to be ours, or of ours without options."""
    if KEY in additional:
        logger.warning(
            "ascend-spec is not attached: %r is null in additional_config; give {} for the defaults", KEY
        )
        return
    names = {name.lower(): name for name in additional if isinstance(name, str)}
    for near in get_close_matches(KEY, names, n=1, cutoff=0.8):
        logger.warning(
            "ascend-spec is not attached: additional_config has the key %r, not %r", names[near], KEY
        )
        return
    if names:
        from ascend_spec.vllm.translate import misplaced_options

        for name in misplaced_options(additional):
            logger.warning(
                "ascend-spec is not attached: additional_config has no key %r; if %r was meant for it, it belongs "
                "inside that", KEY, name,
            )  # fmt: skip


def attach_once(worker: Any) -> None:
    """Attach to a worker whose configuration asks for it; a second call changes nothing."""
    additional = worker.vllm_config.additional_config or {}
    options = additional.get(KEY)
    if options is None:
        _warn_of_near_miss(additional)
        return
    if hasattr(worker.model_runner, "ascend_spec"):
        return
    from ascend_spec.vllm.attach import attach

    attach(worker, options)
