"""Power limits profiled inside a running job, whole iterations at a time (Zeus, NSDI'23, section 4.2).

An epoch's end cuts a slice short; where epochs are too short for any, or iterations are not told, whole
epochs are measured instead. The best limit stays in force when the profile is done.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

from ..device.lease import Lease
from ..errors import DeviceError, DeviceHeld, NotPermitted, NotSupported, WorkbenchError
from ..measurement.meter import Meter
from ..records import Setting, Window
from ..search.clocks.power_profile import PowerProfile, Slice

READ_S = 0.25  # after a slice's end: the sensors have refreshed, and its last edge is known
SHORTEST = 4  # iterations of a slice that is cut short and still kept
LONG_EPOCH = 20.0  # times the settling
SPOILT = 2  # slices that had a whole epoch and did not fit, before whole epochs are measured


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
        make: A new profile, of iterations or (True) of whole epochs.
    """

    def __init__(self, meter: Meter, limiter: PowerLimitSetter, make: Callable[[bool], PowerProfile]) -> None:
        self._meter, self._limiter, self._make = meter, limiter, make
        self.profile = make(False)
        self.by_epoch = False
        self.reason = ""  # why it is done
        self.steps = 0  # that passed while it was going on
        self.time_s = self.energy_j = 0.0  # of all that happened meanwhile, settling included
        self._whole: Window | None = None
        self._slice: Slice | None = None
        self._window: Window | None = None
        self._closed: Window | None = None
        self._count = self._passed = self._spoilt = 0
        self._in_epoch = 0  # iterations since the last epoch's end
        self._from_start = False  # the slice had a whole epoch to fit into
        self._epoch_s: tuple[float, float] | None = None  # when the last epoch ended, and how long it was
        self._since_s = 0.0
        self._moments: list[float] = []

    @property
    def done(self) -> bool:
        return bool(self.reason)

    def step(self) -> None:
        """An iteration has ended."""
        if self.done:
            return
        self.steps += 1
        self._in_epoch += 1
        if not self.by_epoch:
            self._boundary()

    def epoch(self) -> None:
        """An epoch has ended, and what belongs to no iteration may follow."""
        if self.done:
            return
        now_s = self._meter.clock()
        self._epoch_s = (now_s, now_s - self._epoch_s[0] if self._epoch_s else 0.0)
        self._in_epoch = 0
        if self.by_epoch:
            self._boundary()
            return
        if self._closed is None and self._slice is not None:
            if not self._salvage():
                self._spoilt += self._from_start
            self._drop()
        if self._spoilt >= SPOILT or self.steps == 0:
            self.by_epoch, self.profile, self._slice = True, self._make(True), None
            self._boundary()

    def end(self) -> None:
        """The job has ended, or wants no more of it; only a slice that has not ended is lost."""
        if self._closed is not None:
            self._read()
        self._drop()
        if not self.done:
            self._finish("the run ended before the profile did")

    # inside

    def _boundary(self) -> None:
        now_s = self._meter.clock()
        if self._whole is None:
            self._whole = self._meter.open("power profile", sync=False)
        if self._closed is not None:
            assert self._closed.end_s is not None
            if now_s - self._closed.end_s < READ_S and not self.by_epoch:
                return
            self._read()
        if self._slice is None and not self._begin(now_s):
            return
        assert self._slice is not None
        if self._window is None:
            self._passed += 1
            settled = self._passed > self._slice.warm_up and now_s - self._since_s >= self._slice.settle_s
            # A whole epoch is not thrown away for half a second of it.
            epoch_s = self._epoch_s[1] if self.by_epoch and self._epoch_s is not None else 0.0
            if settled or epoch_s > LONG_EPOCH * self._slice.settle_s:
                self._window, self._count = self._meter.open("power-limit slice"), 0
                self._moments = [self._meter.clock()]
            return
        self._count += 1
        self._moments.append(now_s)
        if self._count >= self._slice.iterations and now_s - self._window.start_s >= self._slice.seconds:
            self._closed, self._window = self._meter.close(self._window), None
            if self.by_epoch:
                self._boundary()

    def _begin(self, now_s: float) -> bool:
        """Put the GPUs to the next limit; whether there is one."""
        while isinstance(step := self.profile.next_slice(), Slice):
            changed = self._limiter.limit_w != step.limit_w
            try:
                if self._limiter.set(step.limit_w):
                    self._from_start = self._in_epoch <= 1
                    self._slice, self._passed = step, 0
                    self._since_s = now_s if changed else now_s - step.settle_s
                    return True
            except DeviceError as error:  # this limit only
                self.profile.cannot(step.limit_w, str(error))
                continue
            self._finish(f"no limit can be set: {self._limiter.refused}")
            return False
        self._finish(step.reason)
        return False

    def _read(self) -> None:
        """What the slice that has ended took."""
        assert self._closed is not None
        closed, slice_ = self._closed, self._slice
        self._closed = self._slice = None
        self._spoilt = 0
        measurement = self._meter.measure(closed, settle=self.by_epoch)
        energy_j, uncertainty_j = measurement.energy_j, measurement.energy_uncertainty_j
        assert slice_ is not None
        if energy_j is None or not energy_j > 0:
            self.profile.cannot(slice_.limit_w, "its energy could not be measured")
            return
        self.profile.tell(
            slice_.limit_w, self._count, measurement.time_s, energy_j, uncertainty_j or 0.0, self._scatter_s()
        )

    def _salvage(self) -> bool:
        """Keep the iterations of a slice that an epoch's end cuts short, without the evaluation."""
        if self._window is None or self._slice is None or self._count < SHORTEST:
            return False
        begin_s, end_s = self._moments[0], self._moments[-1]
        energy = self._meter.energy(begin_s, end_s)
        if energy is None or not energy.energy_j > 0 or energy.uncertainty_j > 0.2 * energy.energy_j:
            return False
        self.profile.tell(
            self._slice.limit_w, self._count, end_s - begin_s, energy.energy_j, energy.uncertainty_j,
            self._scatter_s(),
        )
        self._spoilt = 0
        return True

    def _scatter_s(self) -> float | None:
        lengths = [after - before for before, after in itertools.pairwise(self._moments)]
        return statistics.stdev(lengths) if len(lengths) > 2 else None

    def _drop(self) -> None:
        """Forget the slice that is under way; the same one is wanted again."""
        if self._window is not None:
            self._meter.close(self._window, sync=False)
        self._window = self._slice = self._closed = None

    def _finish(self, reason: str) -> None:
        self.reason = reason
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
