"""Whether a GPU's energy counter only sums power readings: found once per GPU and driver, kept on disk."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

from .. import _paths
from ..device import driver
from ..device.protocol import Device
from ..errors import DeviceError
from .recorder import Recorder
from .sampled_counter import PART_TIME, sums_readings

HISTORY_S, AGAIN_S = 60.0, 4.0


class CounterKind:
    """Properties of the energy counter of one GPU.

    Args:
        device: The GPU.
        recorder: Its recorder; None: use earlier findings only.

    Attributes:
        part_time: Whether the counter only sums readings that average part of the time; None while that is
            not known.
    """

    def __init__(self, device: Device, recorder: Recorder | None) -> None:
        self._device, self._recorder = device, recorder
        self._due_s = -math.inf
        self.part_time: bool | None = self._kept() if device.can("energy") else False

    def learn(self) -> None:
        """Decide from the latest samples, unless it is decided already."""
        recorder, uuid = self._recorder, self._device.uuid
        update_s = recorder.update_s(uuid) if recorder is not None and self.part_time is None else None
        if recorder is None or update_s is None:
            return
        if self._device.power_window_s > PART_TIME * update_s:
            self.part_time = False
        elif (now_s := recorder.clock()) >= self._due_s:
            self._due_s = now_s + AGAIN_S
            rows = recorder.rows(uuid, now_s - HISTORY_S, now_s)
            self.part_time = sums_readings(rows, self._device.power_window_s)
            self._keep()

    def note(self) -> str:
        """A sentence for the reader of a measurement; empty where the counter integrates all the time."""
        if self.part_time is False:
            return ""
        window_ms = 1000 * self._device.power_window_s
        if self.part_time is None:
            return (
                "it is not known yet whether the energy counter of this GPU covers all the time or only sums "
                f"readings of {window_ms:.0f} ms, so the error bar allows for both; about 10 s of a changing "
                "load show which it is"
            )
        return (
            "the energy counter of this GPU only sums power readings, each an average over "
            f"{window_ms:.0f} ms; the error covers values between them"
        )

    def _keep(self) -> None:
        if self.part_time is None or self._device.simulated:  # which is gone with its process
            return
        with contextlib.suppress(OSError, DeviceError), _paths.replacing(self._path()) as file:
            found = {"driver": driver.current().driver_version(), "part_time": self.part_time}
            file.write(json.dumps(found).encode())

    def _kept(self) -> bool | None:
        if self._device.simulated:
            return None
        with contextlib.suppress(OSError, ValueError, DeviceError, AttributeError):
            found = json.loads(self._path().read_bytes())
            same_driver = found.get("driver") == driver.current().driver_version()
            if same_driver and isinstance(found.get("part_time"), bool):
                return bool(found["part_time"])
        return None

    def _path(self) -> Path:
        return _paths.home()[0] / "sensors" / _paths.named(self._device.uuid, ".json")
