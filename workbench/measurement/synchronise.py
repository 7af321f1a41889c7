"""Waits for GPU work that a framework has queued; one that has not started CUDA is not asked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def synchronise() -> tuple[str, ...]:
    """Wait for queued work of torch, JAX and CuPy; returns the names of those that had a device."""
    waited = []
    for name, wait in _WAITS.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        try:
            if wait(module):
                waited.append(name)
        except Exception:  # a broken framework must not cost the measurement
            continue
    return tuple(waited)


def _torch(torch: Any) -> bool:
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return False
    if getattr(cuda, "is_current_stream_capturing", bool)():
        return False  # waiting would spoil the graph that is being captured
    # Waiting for a GPU that this process does not use would make a context on it: some hundred MB, and watts.
    current = cuda.current_device()
    for index in range(cuda.device_count()):
        if index == current or cuda.memory_reserved(index) > 0:
            cuda.synchronize(index)
    return True


def _jax(jax: Any) -> bool:
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None or not getattr(bridge, "_backends", None):
        return False  # no backend was started yet; asking for devices would start one
    devices = [device for device in jax.local_devices() if device.platform in ("gpu", "cuda")]
    for device in devices:
        # A transfer alone has a stream of its own and overtakes what computes; the sum queues behind it.
        (jax.device_put(0.0, device) + 0).block_until_ready()
    return bool(devices)


def _cupy(cupy: Any) -> bool:
    driver = getattr(getattr(cupy, "cuda", None), "driver", None)
    if driver is None or not driver.ctxGetCurrent():
        return False  # merely imported: waiting would make the context
    cupy.cuda.runtime.deviceSynchronize()
    return True


_WAITS: dict[str, Callable[[Any], bool]] = {"torch": _torch, "jax": _jax, "cupy": _cupy}
