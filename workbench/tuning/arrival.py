"""When a new setting has arrived: drivers take from some ms to seconds to follow a lock or a limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..device.protocol import Device
from ..measurement.recorder import Recorder
from ..records import POWER_CAP, Setting

Rows = npt.NDArray[Any]


# Set by hand; `benchmarks.truth` scores whole jobs with them.
MEAN_S = 1.0  # over which power is compared: an iteration, but so long at least
SAME_MHZ = 7.0  # half a step of an SM clock
FAR_BELOW = 0.9  # of a limit: a load that draws less does not meet it
MARGIN_S = 0.1  # between the arrival and the readings that count: a refresh of most sensors
LONGEST_S = 3.0  # after which it has arrived, whatever the readings show: late drivers take 2.5 s


class Arrival:
    """The last change of the GPUs' setting, and when it had arrived on all of them.

    What nothing shows (a limit that the load hardly meets) counts as arrived after a time-out.
    """

    def __init__(self, devices: Sequence[Device], recorder: Recorder) -> None:
        self._devices, self._recorder = devices, recorder
        self._before, self._wanted = Setting(), Setting()
        self._from_s, self._at_s, self._mean_s = -math.inf, -math.inf, MEAN_S
        self._hidden = False  # behind one that had not arrived when this one was changed

    def begin(self, before: Setting, wanted: Setting, now_s: float, iteration_s: float = 0.0) -> None:
        """A setting was changed just now, while iterations took so long; None is the original value.

        Where the one before has not arrived yet, what shows next may be of that one: then this one counts as
        arrived after the time-out.

        Args:
            before: Active until now.
            wanted: Active from now on.
            now_s: When.
            iteration_s: Length of an iteration.
        """
        self._hidden = self.at_s(now_s) is None
        self._mean_s = float(np.clip(iteration_s, MEAN_S, LONGEST_S))
        self._before, self._wanted, self._from_s, self._at_s = before, wanted, now_s, math.nan

    @property
    def _limited(self) -> bool:
        return self._before.power_limit_w != self._wanted.power_limit_w

    def at_s(self, now_s: float) -> float | None:
        """When it had arrived; None where it has not."""
        if math.isnan(self._at_s):
            found = [None if self._hidden else self._on(each.uuid, now_s) for each in self._devices]
            known = [each for each in found if each is not None]
            late = now_s >= self._from_s + LONGEST_S
            if len(known) < len(found) and not late:
                return None
            self._at_s = max(known) if len(known) == len(found) else now_s
        return self._at_s

    def _on(self, uuid: str, now_s: float) -> float | None:
        """When it had arrived on one GPU, as far as clocks and power show; None where nothing does yet."""
        rows = self._recorder.rows(uuid, self._from_s - self._mean_s, now_s)
        rows = rows[~(rows["utilisation"] <= 0.0)]  # at rest a GPU follows nothing
        new = rows["time_s"] > self._from_s
        earlier, later = rows[~new], rows[new]
        if not len(earlier) or not len(later):
            return None
        moments = [self._limit_at_s(earlier, later, now_s) if self._limited else self._from_s]
        for knob in ("sm_clock_mhz", "mem_clock_mhz"):
            before, wanted = (getattr(each, knob) or math.inf for each in (self._before, self._wanted))
            if before != wanted:
                moments.append(self._clock_at_s(earlier, later, knob, before, wanted))
        known = [each for each in moments if each is not None]
        return max(known) if len(known) == len(moments) else None

    def _clock_at_s(
        self, earlier: Rows, later: Rows, knob: str, before: float, wanted: float
    ) -> float | None:
        clocks, was_mhz = later[knob], float(earlier[knob][-1])
        capped = later["throttle"] & POWER_CAP != 0
        if wanted < before:
            if was_mhz <= wanted + SAME_MHZ:
                return self._from_s  # it was below already
            return _since(later["time_s"], clocks <= wanted + SAME_MHZ)
        if was_mhz < before - SAME_MHZ:
            return self._from_s  # something else held it
        return _since(later["time_s"], (clocks > was_mhz + SAME_MHZ) | capped)

    def _limit_at_s(self, earlier: Rows, later: Rows, now_s: float) -> float | None:
        before_w, wanted_w = float(earlier["power_limit_w"][-1]), float(later["power_limit_w"][-1])
        was_w = float(np.nanmean(earlier["power_w"]))
        capped = later["throttle"] & POWER_CAP != 0
        if not (earlier["throttle"] & POWER_CAP).any():
            if wanted_w > before_w or was_w < FAR_BELOW * wanted_w:
                return self._from_s  # it does not meet the limit
            return float(later["time_s"][np.argmax(capped)]) if capped.any() else None
        lately = later["time_s"] > now_s - self._mean_s
        power_w = np.concatenate([earlier["power_w"][earlier["time_s"] > now_s - self._mean_s],
                                  later["power_w"][lately]])
        step = float(np.nanmean(power_w)) / was_w - 1.0
        expected = wanted_w / before_w - 1.0
        if step * expected > 0 and abs(step) >= 0.5 * abs(expected):
            return max(self._from_s, now_s - 0.5 * self._mean_s)  # when half of the mean was of it
        if wanted_w > before_w and now_s - self._mean_s > self._from_s and not capped[lately].any():
            return max(self._from_s, now_s - self._mean_s)
        return None


def _since(times_s: Rows, there: Rows) -> float | None:
    """Since when a condition holds; None where it does not now."""
    if not there[-1]:
        return None
    misses = np.flatnonzero(~there)
    return float(times_s[misses[-1] + 1 if len(misses) else 0])
