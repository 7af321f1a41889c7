"""Power limits profiled inside a running job, whole iterations at a time (Zeus, NSDI'23, section 4.2).

Each slice is a `Probe`, advanced where an iteration ends. An epoch's end cuts it short; where epochs are too
short for any, or iterations are not marked, the probes are of whole epochs. The best limit stays active
when the profile is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..device.lease import Lease
from ..errors import DeviceError, DeviceHeld, NotPermitted, NotSupported, WorkbenchError
from ..measurement.meter import Meter
from ..records import Setting, Window
from ..search.clocks.descent import Plan
from ..search.clocks.power_profile import PowerProfile
from .iteration_sources import MarkSource, guessed
from .probe import LEAST_ITERATIONS, Probe

SETTLE_S = 0.5  # a new limit is active after some 0.1 s, and the clock then settles
LONG_S = 10.0  # so long an iteration or epoch is not thrown away for the settling


class PowerLimitSetter:
    """The power limit of a job's GPUs: one for all, or the reason why it cannot be set."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self.limit_w: float | None = None
        self.refused = ""

    def set(self, limit_w: float) -> bool:
        """Whether the limit is active. Once there were no rights it is not tried again."""
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
    """One profile of power limits in a running job: a `Probe` for each slice that the profile asks for.

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
        self._source = MarkSource(meter.clock)  # of what is measured: iterations, or epochs
        self._probe: Probe | None = None
        self._row = 0  # of the probe's limit
        self._lost = False  # the last slice

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
        if not self.by_epoch:
            if self.steps and not self._cut():
                return
            self.by_epoch, self.profile = True, self._make()
        self._boundary()

    def end(self) -> None:
        """The job has ended, or wants no more of it."""
        if self.done:
            return
        if not self.by_epoch:
            self._cut()
        self._finish("the run ended before the profile did")

    # inside

    def _boundary(self) -> None:
        """Go on where an iteration, or a whole epoch, has ended."""
        self._source.step()
        now_s, probe = self._source.steps[-1], self._probe
        if self._whole is None:
            self._whole = self._meter.open("power profile", sync=False)
        if probe is not None:
            if self.by_epoch:
                probe.cut(now_s, 1)
            elif now_s >= probe.from_s + probe.seconds:
                probe.advance(now_s)
            if not probe.over:
                return
            if self._take():
                self.profile.cannot(self._row, probe.failed or "its energy could not be measured")
        if self.by_epoch or self.steps > LEAST_ITERATIONS:
            self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        """Put the GPUs to the next limit and probe it, if there is one."""
        plan = self.profile.next()
        while isinstance(plan, Plan):
            limit_w = self.profile.limits_w[plan.row]
            changed = self._limiter.limit_w != limit_w
            try:
                if not self._limiter.set(limit_w):
                    self._finish(f"no limit can be set: {self._limiter.refused}")
                    return
            except DeviceError as error:  # this limit only
                self.profile.cannot(plan.row, str(error))
                plan = self.profile.next()
                continue
            self._row = plan.row
            guess = guessed(self.profile.iteration_s(plan.row), 0.1)
            settles = changed and not guess.seconds > LONG_S
            self._probe = Probe(
                "probe", self._meter, self._source, Setting(power_limit_w=limit_w),
                now_s + settles * SETTLE_S, plan.count, plan.seconds, guess,
            )
            return
        self._finish(plan)

    def _cut(self) -> bool:
        """`_take` what there is now: no iteration follows in a row."""
        if self._probe is not None:
            self._probe.cut(self._meter.clock())
        return self._take()

    def _take(self) -> bool:
        """Report to the profile what the probe has measured; whether nothing came of two in a row."""
        probe, self._probe, lost_before, self._lost = self._probe, None, self._lost, True
        reading = probe.reading if probe is not None else None
        if reading is None or reading.energy_uncertainty_j > 0.2 * reading.energy_j:
            return lost_before
        self.profile.tell(
            self._row, reading.iterations, reading.time_s, reading.energy_j, reading.energy_uncertainty_j,
            reading.iteration_sd_s,
        )
        self._lost = False
        return False

    def _finish(self, reason: str) -> None:
        self.reason, self._probe = reason, None
        if self.profile.measured:
            best_w = self.profile.best_w
            try:
                self._limiter.set(best_w)
            except WorkbenchError as error:
                self.reason += f"; and {best_w:g} W could not be set: {error}"
        if self._whole is not None:
            measurement = self._meter.measure(self._meter.close(self._whole), settle=False)
            self.time_s, self.energy_j, self._whole = measurement.time_s, measurement.energy_j or 0.0, None


def default_limits_w(ranges: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """Limits that all GPUs of a job take, ascending, from their highest down in steps of 25 W.

    >>> default_limits_w([(100.0, 250.0), (125.0, 300.0)])
    (125.0, 150.0, 175.0, 200.0, 225.0, 250.0)
    """
    if not ranges:
        return ()
    low, high = max(r[0] for r in ranges), min(r[1] for r in ranges)
    count = int((high - low) / 25.0 + 1e-9)
    return tuple(high - 25.0 * i for i in range(count, -1, -1)) if high >= low else ()
