"""What kind of energy counter a GPU has, found out once per GPU and driver and kept in the home directory."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np

from .. import _paths
from ..device import nvml
from ..device.protocol import Device
from ..errors import DeviceError
from .glimpses import PART_TIME, adds_up_glimpses
from .recorder import Recorder

LOOK_BACK_S = 60.0
GROWTH = 1.5  # of the rows, before they are looked at again


class CounterKind:
    """Whether the counter of one GPU adds up power readings that look part of the time.

    Args:
        device: The GPU.
        recorder: What watches it; None: only what was found out before is known.

    Attributes:
        part_time: The answer; None while it is not known. It is False where readings look all the time.
    """

    def __init__(self, device: Device, recorder: Recorder | None) -> None:
        self._device, self._recorder = device, recorder
        self._seen = 0
        self.part_time: bool | None = None if device.can("energy") else False
        if self.part_time is None:
            self.part_time = self._kept()

    def learn(self) -> None:
        """Look at what was sampled lately, unless the answer is known."""
        if self.part_time is not None or self._recorder is None:
            return
        update_s = self._recorder.update_s(self._device.uuid)
        if update_s is None:
            return
        if self._device.power_window_s > PART_TIME * update_s:
            self.part_time = False
            return
        now_s = self._recorder.clock()
        rows = self._recorder.rows(self._device.uuid, now_s - LOOK_BACK_S, now_s)
        if len(rows) >= GROWTH * self._seen:
            self._seen = len(rows)
            self._judge(rows)

    def note(self) -> str:
        """What a reader of a measurement has to know; empty where the counter looks all the time."""
        if not self.part_time:
            return ""
        return (
            "this GPU's energy counter adds up its power readings, each the mean of "
            f"{1000 * self._device.power_window_s:.0f} ms; the error says what they may miss"
        )

    def _judge(self, rows: np.ndarray[Any, Any]) -> None:
        self.part_time = adds_up_glimpses(rows)
        if self.part_time is None or self._device.simulated:  # a simulated GPU is gone with its process
            return
        with contextlib.suppress(OSError, DeviceError), _paths.replacing(self._path()) as file:
            found = {"driver": nvml.driver_version(), "part_time": self.part_time}
            file.write(json.dumps(found).encode())

    def _kept(self) -> bool | None:
        with contextlib.suppress(OSError, ValueError, DeviceError, AttributeError):
            found = json.loads(self._path().read_bytes())
            if found.get("driver") == nvml.driver_version() and isinstance(found.get("part_time"), bool):
                return bool(found["part_time"])
        return None

    def _path(self) -> Any:
        return _paths.home()[0] / "sensors" / _paths.named(self._device.uuid, ".json")
