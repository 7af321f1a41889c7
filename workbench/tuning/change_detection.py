"""Whether the GPUs work, and whether the job has them to itself."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from ..device.protocol import Device
from ..errors import DeviceError
from ..measurement.foreign import foreign_processes
from ..measurement.recorder import Recorder
from ..periods.online import aliasing
from ..records import Process

IDLE_S = 2.0  # without work, after which a GPU is idle


class ForeignProcessMonitor:
    """Other processes on the GPUs, asked for now and then: some drivers take milliseconds to answer."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = tuple(devices)
        self._due_s = -math.inf
        self._last: deque[bool] = deque(maxlen=2)
        self.processes: tuple[Process, ...] = ()

    def observe(self, now_s: float) -> bool:
        """Whether others use the GPU too: asked every few seconds, gone after two looks without."""
        if now_s >= self._due_s:
            self._due_s = now_s + 5.0
            found: list[Process] = []
            for device in self._devices:
                with contextlib.suppress(DeviceError):
                    found += foreign_processes(device, graphics=False).named
            self._last.append(bool(found))
            if found or not any(self._last):
                self.processes = tuple(found)
        return any(self._last)

    @property
    def text(self) -> str:
        names = ", ".join(f"{each.name} ({each.pid})" for each in self.processes[:3])
        return f"other processes use this GPU ({names}), so its energy is not this job's alone"


class IdleMonitor:
    """Since when the GPUs are at rest."""

    def __init__(self, recorder: Recorder, uuids: Sequence[str]) -> None:
        self._recorder, self._uuids = recorder, tuple(uuids)
        self._checked_s = -math.inf
        # When one was last seen at all (a sampling that stutters says nothing of the GPU), and working.
        self._observed_s = self._busy_s = -math.inf

    def observe(self, now_s: float) -> None:
        if now_s < self._checked_s + 0.4:
            return
        for uuid in self._uuids:
            rows = self._recorder.rows(uuid, max(self._checked_s, now_s - 3.0), now_s)
            if len(rows):
                self._observed_s = max(self._observed_s, float(rows["time_s"][-1]))
            # A GPU that does not report is taken to be busy.
            active = np.flatnonzero(~(rows["utilisation"] <= 0))
            if len(active):
                self._busy_s = max(self._busy_s, float(rows["time_s"][active[-1]]))
        self._checked_s = now_s

    @property
    def idle_s(self) -> float:
        """For how long; 0 while nothing was seen working."""
        return max(0.0, self._observed_s - self._busy_s) if math.isfinite(self._busy_s) else 0.0


def mean_power_w(rows: np.ndarray) -> float | None:
    """Mean power (W) by the energy counter, else by readings; None for too few rows."""
    counted = aliasing.refreshes(rows["tick_s"])
    if len(counted) > 6 and np.isfinite(rows["energy_j"][counted]).all():
        first, last = rows[counted[0]], rows[counted[-1]]
        if last["energy_j"] > first["energy_j"]:
            return float((last["energy_j"] - first["energy_j"]) / (last["tick_s"] - first["tick_s"]))
    power_w = rows["power_w"][np.isfinite(rows["power_w"])]
    return float(power_w.mean()) if len(power_w) >= 8 else None


def busy_gpus(recorder: Recorder, devices: Sequence[Device], now_s: float) -> tuple[Device, ...]:
    """GPUs that have been working for the last two seconds."""
    found = []
    for device in devices:
        rows = recorder.rows(device.uuid, now_s - IDLE_S, now_s)
        used = rows["utilisation"]
        if len(rows) >= 3 and rows["time_s"][0] < now_s - 0.6 * IDLE_S and np.mean(~(used <= 0)) > 0.5:
            found.append(device)
    return tuple(found)
