"""The data of a live view about each GPU: its rows and its energy; and phases that a training named."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ....device.protocol import Device
from ....measurement.recorder import Recorder
from ....records import UNNAMED_KINDS
from ..._core import theme
from .conditions import GpuTrace
from .series import Rows, Series, rows_of
from .svg import TraceLine

if TYPE_CHECKING:
    import polars as pl

MOST_MARKS = 200  # vertical lines of one picture: more would cover each other


class WatchedGpu:
    """The data of a live view about one GPU since `start_s`, on the recorder's clock.

    Args:
        recorder: Watches the device already.
        number: Its place in the view.
    """

    def __init__(self, recorder: Recorder, device: Device, number: int, start_s: float) -> None:
        self.recorder, self.device, self.number, self.start_s = recorder, device, number, start_s
        self.series = Series(max(0.5, 4 * (recorder.update_s(device.uuid) or 0.0)))
        self._last_s = math.nextafter(start_s, -math.inf)
        self._counted_j: list[float] = []  # by the counter: the first, and the newest last

    @property
    def line(self) -> TraceLine:
        return TraceLine(self.number, f"GPU {self.device.index}", self.series.rows, self.series.seconds)

    @property
    def energy_j(self) -> float | None:
        """Energy to a millijoule; None if the GPU does not report it."""
        return round(self._counted_j[-1] - self._counted_j[0], 3) if self._counted_j else None

    def gather(self, now_s: float) -> Rows:
        """Add new rows; returns them in the form for views."""
        rows = self.recorder.rows(self.device.uuid, self._last_s, now_s)
        if len(rows):
            self._last_s = math.nextafter(float(rows["time_s"][-1]), math.inf)
            known_j = rows["energy_j"][~np.isnan(rows["energy_j"])]
            if len(known_j):
                self._counted_j = [*self._counted_j[:1], *known_j[[0, -1]].tolist()]
        return self.series.append(rows_of(rows, self.start_s))

    def trace(self, end_s: float) -> GpuTrace:
        """All its readings, until a time on the recorder's clock."""
        trace = self.recorder.trace(self.device.uuid, self.start_s, end_s)
        return GpuTrace(self.number, self.line.name, trace)

    def about(self) -> dict[str, Any]:
        """The constant facts for a view."""
        device, limits = self.device, self.device.limits
        low, high = limits.min_power_limit_w, limits.max_power_limit_w
        reason = ""
        if not device.can("set_power_limit"):
            reasons = [each.reason for each in device.capabilities if each.name == "set_power_limit"]
            reason = next(filter(None, reasons), f"{device.name} does not support power limits")
        if not reason and (low is None or high is None):
            reason = f"{device.name} does not report its allowed limits"
        return {
            "uuid": device.uuid, "index": device.index, "name": device.name, "simulated": device.simulated,
            "colour": theme.colour(self.number), "dash": list(theme.dash(self.number)), "low": low,
            "high": high, "default": limits.default_power_limit_w, "reason": reason,
        }


def named_phases(iterations: pl.DataFrame) -> list[tuple[float, str]]:
    """Phases that a training named itself, as evaluations: start on the trace's clock, and name."""
    named = iterations.filter(~iterations["kind"].is_in(UNNAMED_KINDS))
    rows = named.select("start_s", "kind").head(MOST_MARKS).iter_rows()
    return [(float(at_s), str(kind)) for at_s, kind in rows]
