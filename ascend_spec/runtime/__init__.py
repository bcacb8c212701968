"""Devices, persistent buffers, capture: what makes a step static and sync-free."""

from ascend_spec.runtime.buffers import new_buffers, refill, shapes
from ascend_spec.runtime.capture import Eager, HostSyncError, Recorder
from ascend_spec.runtime.device import DeviceFacts, Upload, device_facts, kv_cache_budget

__all__ = [
    "DeviceFacts",
    "Eager",
    "HostSyncError",
    "Recorder",
    "Upload",
    "device_facts",
    "kv_cache_budget",
    "new_buffers",
    "refill",
    "shapes",
]
