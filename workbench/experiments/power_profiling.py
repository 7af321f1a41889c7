"""Power limits profiled inside a running job, whole iterations at a time (Zeus, NSDI'23, section 4.2).

A slice is looked at where an iteration ends. An epoch's end cuts it short; where epochs are too short for
any, or iterations are not marked, slices are whole epochs. The best limit stays active when the profile is
done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..device.lease import Lease
from ..errors import DeviceError, DeviceHeld, NotPermitted, NotSupported, WorkbenchError
from ..measurement.meter import Meter
from ..records import Setting, Window
from ..search.clocks.descent import Plan
from ..search.clocks.power_profile import PowerProfile
from .iteration_sources import MarkSource
from .stretch_energy import READ_S, WAIT_S, energy

SETTLE_S = 0.5  # a new limit is active after some 0.1 s, and the clock then settles
LATE = 1.3  # times the wanted time, after which fewer iterations will do; after twice that the slice is lost
PATIENCE = 6.0  # iterations more before a slice is lost
LEAST_ITERATIONS = 4  # of a slice
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
    """One profile of power limits in a running job: the slices that the profile asks for.

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
        self._plan: Plan | None = None  # of the slice
        self._from_s = self._iteration_s = math.nan  # when it begins; the expected length of its iterations
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
        now_s, plan = self._source.steps[-1], self._plan
        if self._whole is None:
            self._whole = self._meter.open("power profile", sync=False)
        if plan is not None:
            why = self._measure(plan, now_s)
            if why is None:
                return
            if self._over(why):
                self.profile.cannot(plan.row, why)
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
            self._plan, self._iteration_s = plan, self.profile.iteration_s(plan.row)
            self._from_s = now_s + SETTLE_S * (changed and not self._iteration_s > LONG_S)
            return
        self._finish(plan)

    def _measure(self, plan: Plan, now_s: float, *, cut: bool = False) -> str | None:
        """Report the slice to the profile if it is long enough, or ends here. Returns why it has no result,
        nothing if it has one, and None while it goes on.
        """
        passed_s, soon = now_s - self._from_s, cut or self.by_epoch
        if not soon and passed_s < plan.seconds:
            return None
        runs = self._source.runs(self._from_s, now_s if soon else now_s - READ_S, self._iteration_s)
        run = max(runs, key=lambda each: each.iterations, default=None)
        late_s = LATE * max(plan.seconds, plan.count * self._iteration_s)
        done = 0 if run is None else run.iterations
        least = max(LEAST_ITERATIONS, plan.count / 3) if passed_s > late_s else plan.count
        if soon:
            least = LEAST_ITERATIONS if cut else 1
        if run is not None and done >= least and (soon or passed_s > late_s or run.time_s >= plan.seconds):
            found = energy(self._meter, run.start_s, run.end_s)
            if found is not None and found.uncertainty_j <= 0.2 * found.energy_j:
                self.profile.tell(plan.row, done, run.time_s, found.energy_j, found.uncertainty_j,
                                  run.sd_s * math.sqrt(done))
                return ""
            lost = soon or passed_s > 2 * late_s + WAIT_S
            return "its energy could not be measured" if lost else None
        lost = not self.by_epoch and passed_s > 2 * late_s + PATIENCE * self._iteration_s + WAIT_S
        return f"{done} iterations ended in {passed_s:.0f} s" if cut or lost else None

    def _cut(self) -> bool:
        """End the slice where no iteration follows directly; returns as `_over`."""
        return self._over("no slice" if self._plan is None else self._measure(
            self._plan, self._meter.clock(), cut=True))

    def _over(self, why: str | None) -> bool:
        """Leave the slice; returns whether it is the second in a row without a result."""
        lost_before, self._lost, self._plan = self._lost, bool(why), None
        return self._lost and lost_before

    def _finish(self, reason: str) -> None:
        self.reason, self._plan = reason, None
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
