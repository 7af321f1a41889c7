"""What sets GPUs to the choice of a frontier, and where the job that runs now lies among the points."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from ....device.protocol import Device
from ....errors import WorkbenchError
from ....measurement import marks, session
from ....records import Configuration
from ....search.tradeoff import FrontierAnalysis, Work
from ....tuning import selection
from ..apply.applier import Applier, gpu_choices

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


class ChoiceSetter:
    """The applier of a frontier's panel, made for its first view; without a GPU there is none."""

    def __init__(self) -> None:
        self._applier: Applier | None = None
        self.sent: dict[str, Any] | None = None  # the state that was asked for last

    @property
    def ready(self) -> bool:
        return self._applier is not None

    def prepare(self) -> None:
        """Find the GPU, if there is one."""
        with contextlib.suppress(WorkbenchError):
            self._applier = self._applier or Applier()

    def applier(self, chosen: Configuration | None) -> Applier:
        """What applies the choice. Raises NoDriver: there is no GPU."""
        self._applier = self._applier or Applier()
        self._applier.choose(chosen)
        return self._applier

    def state(
        self, chosen: Configuration | None, seen: FrontierAnalysis | None, work: Work
    ) -> dict[str, Any] | None:
        """What is active, what the last change did, and the running job's place; None without a GPU."""
        if self._applier is None:
            return None
        applier = self.applier(chosen)
        applier.refresh()
        sizes = [] if seen is None else seen.points["batch_size"].unique().to_list()
        size = selection.batch_size or (sizes[0] if len(sizes) == 1 else None)
        job = live_point(applier.hand.device, work, size)
        self.sent = {"gpus": gpu_choices(), **applier.state(), "job": job}
        return self.sent
