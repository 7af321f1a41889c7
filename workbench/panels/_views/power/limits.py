"""What the slider of a running cell's view sets, until the cell has ended."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

from ....device.protocol import Device
from ....errors import UsageError

SAME_DRAG_S = 2.0  # limit changes closer than this are one mark: a drag of the slider passes many values


class LimitControl:
    """Sets power limits of GPUs, and knows how a change is named in the picture.

    Args:
        devices: The GPUs of the view.
        change: Takes a UUID and watts, returns the watts applied.
    """

    def __init__(self, devices: Sequence[Device], change: Callable[[str, float], float]) -> None:
        self._numbers = {device.uuid: device.index for device in devices}
        self.change = change
        self._lock = threading.RLock()
        self.accepting = True  # with the lock held
        self._last = ("", -math.inf)  # whose limit was set, and when

    def refuse(self) -> None:
        """Take no more. A limit that is being set has been set when this returns."""
        with self._lock:
            self.accepting = False

    def set(self, uuids: Sequence[str], asked_w: float, applied_w: dict[str, float]) -> None:
        """Set a limit on GPUs; what was applied is in `applied_w` even where one of them fails.

        Raises:
            UsageError: the cell has ended.
            DeviceError: as `change`.
        """
        with self._lock:
            if not self.accepting:
                why = "the cell has ended, and the limit that it began with is back"
                raise UsageError(f"{asked_w:g} W was not set: {why}")
            for uuid in uuids:
                applied_w[uuid] = self.change(uuid, asked_w)

    def named(self, applied_w: dict[str, float], now_s: float) -> tuple[str, str, bool]:
        """Whose limit it is ("" for the only GPU's), both in words, and whether the drag before goes on."""
        watts = sorted({round(value) for value in applied_w.values()})
        who = "" if len(self._numbers) == 1 else "all GPUs "
        if len(applied_w) < len(self._numbers):
            who = f"GPU {', '.join(str(self._numbers.get(uuid, '?')) for uuid in applied_w)} "
        last_who, last_s = self._last
        self._last = (who, now_s)
        return who, f"{who}{'/'.join(map(str, watts))} W", last_who == who and now_s - last_s < SAME_DRAG_S
