"""Power limits profiled inside a running job, whole iterations at a time (Zeus, NSDI'23, section 4.2).

An epoch's end cuts a slice short; where epochs are too short for any, or iterations are not told, whole
epochs are measured instead. The best limit stays in force when the profile is done.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np

from ..device.lease import Lease
from ..errors import DeviceError, DeviceHeld, NotPermitted, NotSupported, WorkbenchError
from ..measurement.meter import Meter
from ..records import Setting, Window
from ..search.clocks.base import Done, Trial
from ..search.clocks.power_profile import PowerProfile

SETTLE_S = 0.5  # a new limit is in force after some 0.1 s, and the clock then settles
READ_S = 0.25  # after a slice's end: the sensors have refreshed, and its last edge is known
SHORTEST = 4  # iterations of a slice that is cut short and still kept, and that pass before the first one
LONG_EPOCH = 20.0  # times the settling: such an epoch is not thrown away for it


class PowerLimitSetter:
    """The power limit of a job's GPUs: one for all, or the reason why it cannot be set."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self.limit_w: float | None = None
        self.refused = ""

    def set(self, limit_w: float) -> bool:
        """Whether the limit is in force. Once there were no rights it is not tried again."""
        if self.refused:
            return False
        if self.limit_w == limit_w:
            return True
        try:
            self._lease.apply(Setting(power_limit_w=limit_w))
        except (NotPermitted, NotSupported, DeviceHeld) as error:
            self.refused = str(error)
            return False
        self.limit_w = limit_w
        return True


class OnlinePowerProfiler:
    """One profile of power limits in a running job.

    Args:
        meter: Measures the slices.
        limiter: Sets the limits.
        make: A new profile.

    Attributes:
        by_epoch: Whether the profile is of whole epochs.
        reason: Why it is done.
        steps: Iterations that passed while it was going on.
        time_s, energy_j: Of all that happened meanwhile, settling included.
    """

    def __init__(self, meter: Meter, limiter: PowerLimitSetter, make: Callable[[], PowerProfile]) -> None:
        self._meter, self._limiter, self._make = meter, limiter, make
        self.profile = make()
        self.by_epoch = False
        self.reason = ""
        self.steps = 0
        self.time_s = self.energy_j = 0.0
        self._whole: Window | None = None
        self._slice: Trial | None = None
        self._set_s = 0.0  # when its limit was set
        self._moments: list[float] = []  # between its iterations
        self._cut_short = False  # the last one, and it was lost
        self._epoch_s = self._longest_s = 0.0  # when the last epoch ended, and how long one takes

    @property
    def done(self) -> bool:
        return bool(self.reason)

    def step(self) -> None:
        """An iteration has ended."""
        if not self.done:
            self.steps += 1
            if not self.by_epoch:
                self._boundary()

    def epoch(self) -> None:
        """An epoch has ended, and what belongs to no iteration may follow."""
        if self.done:
            return
        now_s = self._meter.clock()
        self._longest_s, self._epoch_s = now_s - self._epoch_s if self._epoch_s else 0.0, now_s
        if not self.by_epoch:
            if self._slice is not None and not self._read(self._moments):
                self.by_epoch, self._cut_short = self._cut_short, True
            self._moments = []
            if self.steps and not self.by_epoch:
                return
            self.by_epoch, self.profile, self._slice = True, self._make(), None
        self._boundary()

    def end(self) -> None:
        """The job has ended, or wants no more of it."""
        if self.done:
            return
        if self._slice is not None and not self.by_epoch:
            self._read(self._moments)
        self._finish("the run ended before the profile did")

    # inside

    def _boundary(self) -> None:
        now_s = self._meter.clock()
        if self._whole is None:
            self._whole = self._meter.open("power profile", sync=False)
        if self._slice is not None and self._moments:
            self._moments.append(now_s)
            read_s = now_s if self.by_epoch else now_s - READ_S
            known = self._moments[: bisect_right(self._moments, read_s)]
            wanted = 1 if self.by_epoch else self._slice.iterations
            if len(known) <= wanted or known[-1] - known[0] < (0.0 if self.by_epoch else self._slice.seconds):
                return
            if not self._read(known):
                limit_w = self._slice.setting.power_limit_w
                assert limit_w is not None
                self.profile.cannot(limit_w, "its energy could not be measured")
                self._slice = None
        if self._slice is None and not self._begin(now_s):
            return
        warm = self.by_epoch or self.steps > SHORTEST
        if warm and (now_s - self._set_s >= SETTLE_S or self._longest_s > LONG_EPOCH * SETTLE_S):
            self._moments = [now_s]

    def _begin(self, now_s: float) -> bool:
        """Put the GPUs to the next limit; whether there is one."""
        self._moments = []
        step = self.profile.next()
        while isinstance(step, Trial):
            limit_w = step.setting.power_limit_w
            assert limit_w is not None
            changed = self._limiter.limit_w != limit_w
            try:
                if not self._limiter.set(limit_w):
                    self._finish(f"no limit can be set: {self._limiter.refused}")
                    return False
            except DeviceError as error:  # this limit only
                self.profile.cannot(limit_w, str(error))
                before, step = step, self.profile.next()
                if step == before:  # the highest, which all others are compared with
                    step = Done(str(error))
                continue
            self._slice, self._set_s = step, now_s if changed else -np.inf
            return True
        self._finish(step.reason)
        return False

    def _read(self, moments: Sequence[float]) -> bool:
        """Report the slice to the profile, where it is long enough and its energy is known."""
        assert self._slice is not None
        count = len(moments) - 1
        if count < (1 if self.by_epoch else SHORTEST):
            return False
        energy = self._meter.energy(moments[0], moments[-1])
        if energy is None or not energy.energy_j > 0 or energy.uncertainty_j > 0.2 * energy.energy_j:
            return False
        limit_w = self._slice.setting.power_limit_w
        assert limit_w is not None
        scatter_s = float(np.std(np.diff(moments), ddof=1)) if count > 2 else None
        self.profile.tell(
            limit_w, count, moments[-1] - moments[0], energy.energy_j, energy.uncertainty_j, scatter_s
        )
        self._slice, self._cut_short = None, False
        return True

    def _finish(self, reason: str) -> None:
        self.reason, self._slice = reason, None
        if self.profile.measured:
            best = self.profile.optimum()
            try:
                self._limiter.set(best.limit_w)
            except WorkbenchError as error:
                self.reason += f"; and {best.limit_w:g} W could not be set: {error}"
        if self._whole is not None:
            measurement = self._meter.measure(self._meter.close(self._whole), settle=False)
            self.time_s, self.energy_j, self._whole = measurement.time_s, measurement.energy_j or 0.0, None


def default_limits_w(ranges: Sequence[tuple[float, float]], step_w: float = 25.0) -> tuple[float, ...]:
    """Limits that all GPUs of a job take, ascending, from their highest down in equal steps.

    >>> default_limits_w([(100.0, 250.0), (125.0, 300.0)])
    (125.0, 150.0, 175.0, 200.0, 225.0, 250.0)
    """
    if not ranges:
        return ()
    low, high = max(r[0] for r in ranges), min(r[1] for r in ranges)
    count = int((high - low) / step_w + 1e-9)
    return tuple(high - step_w * i for i in range(count, -1, -1)) if high >= low else ()
