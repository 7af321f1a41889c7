"""Control of a GPU that this process measures: `device.control`, for which tuners stop, and the power that
followed a change.

    gpu = workbench.gpu_control()                  # the first GPU of this process's session
    gpu.apply(Setting(power_limit_w=150.0))    # read back; knobs that are None are given back to the driver
    gpu.undo()                                 # step by step
    gpu.restore_default()
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..device.control import Applied, Control
from ..device.discovery import Gpus
from ..device.gpu import OpenGpu
from ..errors import NoDriver, UsageError, checked
from ..measurement import session

if TYPE_CHECKING:
    from .state_machine import Tuner as _Tuner


BEFORE_S, AFTER_S = 3.0, 5.0  # seconds of power shown around a change
SETTLED_S = 1.0  # of a stretch at the end of either, that stands for its level
SAME_SHARE, LEAST_W = 0.02, 2.0  # powers that differ by less are one


@dataclass(frozen=True)
class StepResponse:
    """The power of a GPU around a change at time 0; arrays of one length, seconds and watts."""

    time_s: np.ndarray
    power_w: np.ndarray
    before_w: float | None
    after_w: float | None
    text: str


def followed(time_s: np.ndarray, power_w: np.ndarray, at_s: float, *, update_s: float = 0.1) -> StepResponse:
    """How the power has followed a change.

    Args:
        time_s: Of readings, ascending, seconds.
        power_w: The readings; NaN where there is none.
        at_s: When the change was made, on the same clock.
        update_s: Time between two refreshes of the sensor: no response is known more finely.
    """
    known = np.isfinite(power_w) & (time_s >= at_s - BEFORE_S) & (time_s <= at_s + AFTER_S)
    t, p = time_s[known] - at_s, power_w[known]
    if not (t <= 0).any():
        return StepResponse(t, p, None, None, "the power before the change was not recorded")
    before_w = float(p[t <= 0].mean())
    if t[-1] <= 0:
        return StepResponse(t, p, before_w, None, "no reading of the power since the change yet")
    after_w = float(p[t > max(t[-1] - SETTLED_S, 0.0)].mean())
    step_w = abs(after_w - before_w)
    if step_w < max(SAME_SHARE * before_w, LEAST_W):
        return StepResponse(t, p, before_w, after_w, f"the power stays at {after_w:.0f} W")
    arrived_s = t[(t > 0) & (np.abs(p - after_w) <= max(0.1 * step_w, LEAST_W))]
    within = f" within {max(float(arrived_s[0]), update_s):.1f} s" if len(arrived_s) else ""
    text = f"the power went from {before_w:.0f} W to {after_w:.0f} W{within}"
    return StepResponse(t, p, before_w, after_w, text)


class ManualControl(Control):
    """Control of one GPU of this process's session."""

    def follow(self, change: Applied | None = None) -> StepResponse | None:
        """Recorded power (W) around a change, the last one where None; None where nothing was recorded."""
        change = change or (self.history[-1] if self.history else None)
        if change is None:
            return None
        mine = session.current()
        recorder = mine.recorder
        if recorder is None or self.device.uuid not in mine.open_devices:
            return None
        at_s = change.at_s
        rows = recorder.rows(self.device.uuid, at_s - BEFORE_S, at_s + AFTER_S)
        update_s = recorder.update_s(self.device.uuid) or 0.1
        return followed(
            np.asarray(rows["time_s"], float), np.asarray(rows["power_w"], float), at_s, update_s=update_s
        )

    def _wake(self) -> None:
        if (present := session.present()) is not None:
            present.wake()

    def _make_way(self) -> tuple[str, ...]:
        text: tuple[str, ...] = ()
        for tuner in _tuners():
            if tuner.works_on(self.device.uuid):
                tuner.stop()
                label = tuner.request.label
                named = f"the tuner of '{label}'" if label else "the tuner"
                text += (f"{named} was reported to stop",)
        return text + super()._make_way()


def _tuners() -> tuple[_Tuner, ...]:
    module = sys.modules.get(f"{__package__}.state_machine")  # none runs where nothing has loaded it
    return () if module is None else module.running()


_controls: dict[str, ManualControl] = {}
_guard = threading.Lock()


@checked
def gpu_control(gpus: Gpus = None) -> ManualControl:
    """Manual control of a GPU, always the same one for a GPU.

    Args:
        gpus: One GPU, as `devices` takes it; the first that this process measures where None.

    Raises:
        NoDriver, UnknownGpu: there is no such GPU.
        UsageError: several GPUs, or one that this process does not measure.
    """
    gpu = gpus
    if not isinstance(gpu, OpenGpu):
        mine = session.current()
        uuids = mine.uuids(gpus)
        if uuids is not None and len(uuids) != 1:
            raise UsageError(f"gpus={gpus!r}: one GPU at a time is controlled by hand; name one")
        gpu = next((each for each in mine.devices if uuids is None or each.uuid in uuids), None)
    if gpu is None:
        raise NoDriver(session.current().why_no_gpu())
    with _guard:
        known = _controls.get(gpu.uuid)
        if known is None or (known.device is not gpu and not known.history):
            known = _controls[gpu.uuid] = ManualControl(gpu)
        return known
