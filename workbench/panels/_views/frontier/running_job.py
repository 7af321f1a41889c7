"""Where the job that runs now lies among the points of a frontier."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....device.protocol import Device
from ....measurement import marks, session
from ....search.tradeoff import Work

STEPS = 12  # iterations that a place is the mean of
FRESH = 3.0  # iterations without a mark, after which no job runs


def live_point(device: Device, work: Work, batch_size: int | None = None) -> dict[str, Any] | None:
    """Time (s), energy (J) and power (W) of a unit of work of the running job, a mean of its last iterations.

    None where nothing runs that marks its iterations (`workbench.step()`), or where the unit cannot be told:
    a sample's needs the batch size.
    """
    mine = session.present()
    recorder = mine.recorder if mine is not None and mine.open_devices else None
    per_unit = {"iteration": 1, "sample": batch_size}.get(work.unit)
    if mine is None or recorder is None or per_unit is None or device.uuid not in mine.open_devices:
        return None
    steps = marks.latest_steps(STEPS + 1)
    if len(steps) < 3:
        return None
    period_s = (steps[-1] - steps[0]) / (len(steps) - 1)
    if not period_s > 0.0 or recorder.clock() - steps[-1] > max(FRESH * period_s, 1.0):
        return None
    watts = recorder.rows(device.uuid, steps[0], steps[-1])["power_w"]
    power_w = float(np.nanmean(watts)) if np.isfinite(watts).any() else float("nan")
    if not np.isfinite(power_w):
        return None
    return {"time": period_s / per_unit, "energy": power_w * period_s / per_unit, "power": power_w}
