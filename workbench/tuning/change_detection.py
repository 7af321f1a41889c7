"""Whether the job is still the one that was tuned, works at all, and has the GPU to itself."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..device.protocol import Device
from ..errors import DeviceError
from ..measurement.foreign import foreign_processes
from ..measurement.recorder import Recorder
from ..periods.online import aliasing
from ..records import Process, Setting

# Tuned constants of the watches; set by hand, `benchmarks.clocks --only online` scores them.
IDLE_S = 2.0  # without work, after which a GPU is idle
LEAST_SD = 0.03  # relative, of a stretch's time and power: re-checks follow slower changes
SLACK_SD = 1.0  # of the cumulative sums, in standard deviations
# of the cumulative sums, in standard deviations, is an alarm; one stretch counts at most half of it
ALARM = 8.0
LONGEST_ALARM_BACKOFF = 16.0  # times, after false alarms
LASTS_S = 15.0  # for how long the power must be another: a checkpoint takes seconds,
POWER_STEP = 0.1  # by how much (logarithm)
LAST_STRETCHES = 5  # stretches whose median is expected of the next one: jobs grow


@dataclass
class ModelWatch:
    """Length, power and scatter of iterations, as they would be at the default setting: two-sided cumulative
    sums (Page, Biometrika 41, 1954).

    The median of the last stretches is expected of the next: a late batch or a warm card is no new job.

    Args:
        tolerance: Times what stretches of a job differ by at least; more after alarms that were none.
        latest: Length of an iteration (s) in the last stretches, and its relative standard error.
    """

    tolerance: float = 1.0
    latest: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=3))
    _last: deque[tuple[float, ...]] = field(default_factory=lambda: deque(maxlen=LAST_STRETCHES))
    _sums: list[float] = field(default_factory=lambda: [0.0] * 6)
    _spread: list[float] = field(default_factory=lambda: [0.0] * 3)

    @property
    def calm(self) -> bool:
        return max(self._sums) == 0.0

    @property
    def suspicious(self) -> bool:
        """Whether the last stretches may be another job's; the next ones show it."""
        return max(self._sums) >= 0.5 * ALARM

    def feed(
        self, iteration_s: float, time_sd: float, power_w: float, count: float, scatter: float,
        ratios: tuple[float, float] = (1.0, 1.0),
    ) -> str:
        """Add a stretch; returns a sentence where it belongs to another job.

        Args:
            iteration_s, time_sd: Mean length of its iterations, and the relative standard error of that.
            power_w: Its mean power.
            count, scatter: How many iterations it has, and the relative standard deviation of their lengths.
            ratios: Time of an iteration and power at its setting, relative to the default setting.
        """
        now = (iteration_s / ratios[0], power_w / ratios[1], max(scatter, LEAST_SD))
        self.latest.append((now[0], time_sd))
        if len(self._last) < 3:
            self._last.append(now)
            return ""
        expected = np.median(self._last, axis=0).tolist()
        off = [math.log(n / e) for n, e in zip(now, expected, strict=True)]
        least = self.tolerance * LEAST_SD
        # The logarithm of a standard deviation of n values has this error, and that of their median half.
        own = (max(least, time_sd), max(least, time_sd), self.tolerance * math.sqrt(0.75 / max(count - 1, 1)))
        sds = [max(each, math.sqrt(spread)) for each, spread in zip(own, self._spread, strict=True)]
        for k, sd in enumerate(sds):
            z = off[k] / sd
            for side, signed in ((2 * k, z), (2 * k + 1, -z)):
                self._sums[side] = max(0.0, self._sums[side] + min(signed, 0.5 * ALARM) - SLACK_SD)
                if self._sums[side] > ALARM:
                    if k == 2:
                        return f"iterations differ by {now[2]:.0%}, not by {expected[2]:.0%}"
                    what, unit = (("an iteration takes", "s"), ("the power is", "W"))[k]
                    there = [ratios[k] * each[k] for each in (now, expected)]
                    return f"{what} {there[0]:.4g} {unit}, not {there[1]:.4g} {unit}"
        if not self.suspicious:
            self._last.append(now)
            for k, sd in enumerate(sds):
                clipped = min(abs(off[k]), 0.5 * ALARM * sd)
                self._spread[k] += (clipped**2 - self._spread[k]) * 0.5 / LAST_STRETCHES
        return ""


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


class PowerLevelDetector:
    """The power of a job without marked iterations: a step of it that lasts is another job.

    Evaluations and checkpoints draw another power too, so it must last longer after each false alarm.
    """

    def __init__(self, recorder: Recorder, uuids: Sequence[str]) -> None:
        self._recorder, self._uuids = recorder, tuple(uuids)
        self.setting: Setting | None = None  # at which the power is watched
        self._off_s = math.nan  # since when it is another
        self._checked_s = -math.inf
        self.patience_s = LASTS_S

    def false_alarm(self) -> None:
        """Note that the last alarm was false: be slower to raise the next one."""
        self.patience_s = min(2.0 * self.patience_s, 120.0)

    def begin(self, setting: Setting, from_s: float) -> None:
        """Another setting is active from now on, and the power settled from `from_s`.

        A power that is another than expected at one setting, and then at the next one, was so all the time.
        """
        self.setting, self._checked_s = setting, from_s

    def observe(self, now_s: float, iteration_s: float, expected_w: float, tolerance: float) -> str:
        """A sentence, if the mean power over the last iterations was another for long enough.

        Args:
            now_s: When.
            iteration_s: Length of an iteration.
            expected_w: Mean power at this setting.
            tolerance: Relative, of the expected power.
        """
        window_s = max(LASTS_S / 6.0, 2.0 * iteration_s)
        if now_s < self._checked_s + window_s:
            return ""
        self._checked_s = now_s - 0.75 * window_s
        power_w = 0.0
        for uuid in self._uuids:
            mean_w = mean_power_w(self._recorder.rows(uuid, now_s - window_s, now_s))
            if mean_w is None:
                return ""
            power_w += mean_w
        if abs(math.log(power_w / expected_w)) < POWER_STEP + 3.0 * tolerance:
            self._off_s = math.nan
            return ""
        self._off_s = now_s - window_s if math.isnan(self._off_s) else self._off_s
        if now_s - self._off_s < max(self.patience_s, 1.5 * window_s):
            return ""
        return f"it draws {power_w:.0f} W, not {expected_w:.0f} W, for {now_s - self._off_s:.0f} s now"


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
