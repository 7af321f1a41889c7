"""The machine under test as its child processes see it: the true values, the settings and the faults.

The driver is our simulator, or a library with the functions of a stand-in driver (`mock_truth_j`, ...), which
`DRIVER_UNDER_TEST` names. With any other library only the driver's reports are known.
"""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any

LIBRARY = os.environ.get("DRIVER_UNDER_TEST", "")


class _StandIn:
    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        for name in ("mock_truth_j", "mock_get"):
            getattr(self._library, name).restype = ctypes.c_double
        self._library.mock_attach()

    def truth_j(self, gpu: int, from_s: float, to_s: float) -> float:
        first, last = (self._library.mock_truth_j(gpu, ctypes.c_double(at_s)) for at_s in (from_s, to_s))
        return float(last - first)

    def fault(self, function: str, code: int, hang_ms: float = 0.0) -> None:
        self._library.mock_fault(json.dumps({"func": f"{function}*", "code": code, "ms": hang_ms}).encode())

    def clear_faults(self) -> None:
        self._library.mock_clear_faults()

    def knob(self, gpu: int, name: str, value: float) -> None:
        assert self._library.mock_set(gpu, name.encode(), ctypes.c_double(value)) == 0

    def process(self, gpu: int, pid: int, kind: int) -> None:
        self._library.mock_context(gpu, ctypes.c_double(300.0), kind, pid)

    def kernel(self, gpu: int, seconds: float, clock_bound: float = 0.5) -> None:
        """Keep a GPU at work for so long at its highest clock; a share of the work follows the clock."""
        self._library.mock_kernel(gpu, ctypes.c_double(seconds), ctypes.c_double(0.9), ctypes.c_double(clock_bound))

    def active(self, gpu: int) -> dict[str, float]:
        names = ("limit_w", "lock_hi", "mlock_hi", "sm_mhz", "reloads")
        return {name: float(self._library.mock_get(gpu, name.encode())) for name in names}


class _Simulated:
    def __init__(self) -> None:
        from workbench.simulation.machine import attached

        self._machine: Any = attached()

    def truth_j(self, gpu: int, from_s: float, to_s: float) -> float:
        return float(self._machine.gain(gpu) * self._machine.true_energy_j(gpu, from_s, to_s))

    def fault(self, function: str, code: int) -> None:
        for name in dir(type(self._machine.library)):
            if name.startswith(f"_{function}"):
                self._machine.inject(name[1:], code)

    def clear_faults(self) -> None:
        self._machine.state.clear_faults()

    def active(self, gpu: int) -> dict[str, float]:
        limit_w, _, sm_mhz, _, mem_mhz = self._machine.state.effective(gpu, self._machine.clock() + 1.0)
        return {"limit_w": limit_w, "lock_hi": sm_mhz, "mlock_hi": mem_mhz}


def door() -> Any:
    return _StandIn() if LIBRARY else _Simulated()
