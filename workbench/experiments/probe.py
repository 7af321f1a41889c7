"""One probe: let a setting settle, then measure whole iterations, their time and their energy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..measurement.energy_estimate import EnergyEstimate
from ..measurement.meter import Meter
from ..records import Setting
from .iteration_sources import Count, Guess, IterationSource, Marked

# Tuned constants of `Probe`; set by hand, `benchmarks.truth` scores whole jobs with them.
READ_S = 0.25  # after a stretch's end: the sensors have refreshed
WAIT_S = 2.5  # after a stretch's end: its last edge is known
CHECK_SHARE = 0.25  # of an iteration, between looks at the power trace
TRACE_SD = 0.012  # relative error of a length from the trace that ends a probe
PATIENCE_ITERATIONS = 6.0  # that show nothing, or more than wanted, before a probe is given up
LONG_RATIO = 1.3  # times the wanted time, after which what there is will do
LEAST_ITERATIONS = 4  # of a row that is cut short and still kept
STILL_S = 1.0  # for which a counter may stand still while its GPU draws power


@dataclass(frozen=True)
class Reading:
    """Time (s) and energy (J) of whole iterations at a setting.

    `energy_uncertainty_j` is a 95 % half width, `sd_s` the standard error of the mean length of an iteration.
    """

    setting: Setting
    iterations: int
    time_s: float
    energy_j: float
    energy_uncertainty_j: float
    sd_s: float
    start_s: float
    end_s: float

    @property
    def iteration_sd_s(self) -> float:
        """Standard deviation of one iteration's length, such that the mean's error is `sd_s`."""
        return self.sd_s * math.sqrt(self.iterations)


class Probe:
    """A probe that is under way: `advance` it until there is a `reading`, or `failed` gives the reason there
    is none.

    Args:
        kind: "baseline", "probe" or "re-check".
        meter: Measures the energy.
        source: Counts the iterations.
        setting: The active setting.
        from_s: When it begins; may be in the past.
        iterations, seconds: Least that it measures.
        guess: How long an iteration should take.
        settled_s: When the setting was active, which may be after `from_s` (None: not yet), at a time.

    Attributes:
        since_s: Since when its time counts as that of the probe.
    """

    def __init__(
        self, kind: str, meter: Meter, source: IterationSource, setting: Setting, from_s: float,
        iterations: int, seconds: float, guess: Guess, *,
        settled_s: Callable[[float], float | None] | None = None,
    ) -> None:
        self.kind = kind
        self._meter, self._source, self.setting = meter, source, setting
        self.iterations, self.seconds, self.guess = max(iterations, 1), seconds, guess
        self._settled_s = settled_s
        self.reading: Reading | None = None
        self.failed = ""
        self.count: Count | None = None
        self._check_s = -math.inf
        self.since_s = meter.clock()
        self._begin(from_s, self.since_s)

    def _begin(self, from_s: float, now_s: float) -> None:
        """Count from a time on."""
        wanted_s = max(self.seconds, self.iterations * self.guess.seconds)
        patience_s = PATIENCE_ITERATIONS * self.guess.seconds + WAIT_S
        self.from_s, begins_s = from_s, max(from_s, now_s)
        self._long_s = begins_s + LONG_RATIO * wanted_s
        self._give_up_s = begins_s + 2.0 * LONG_RATIO * wanted_s + patience_s
        # Three of the longest iterations that there can be would have shown a period.
        self._blind_s = begins_s + max(self.seconds, min(3.0 * self.guess.most_s, patience_s)) + WAIT_S

    @property
    def over(self) -> bool:
        return self.reading is not None or bool(self.failed)

    def advance(self, now_s: float) -> None:
        """Look once."""
        if self._settled_s is not None:
            settled_s = self._settled_s(now_s)
            if settled_s is None:
                return
            self._settled_s = None
            self._begin(max(settled_s, self.from_s), now_s)
        if self.over or now_s < self.from_s:
            return
        if self.count is None:
            self._count(now_s)
        elif now_s >= self.count.end_s + READ_S:
            self._read(self.count, now_s)

    def cut(self, now_s: float, least: int = LEAST_ITERATIONS) -> None:
        """No more iterations will follow in a row: read now what there is, where it is enough."""
        count = self.count or self._longest(now_s)
        if count is not None and count.iterations >= least:
            self._read(count, math.inf)

    def _longest(self, now_s: float) -> Count | None:
        runs = self._source.runs(self.from_s, now_s, self.guess)
        return max(runs, key=lambda run: run.iterations, default=None)

    def _count(self, now_s: float) -> None:
        if now_s < self._check_s:
            return
        marked, self._check_s = isinstance(self._source, Marked), now_s
        if not marked:
            self._check_s += max(READ_S, CHECK_SHARE * self.guess.seconds)
        found = self._longest(now_s)
        if found is not None:
            enough = found.iterations >= self.iterations and found.time_s >= self.seconds
            traced = self._source.name == "power"
            if enough and traced:
                long_s = 2 * max(self.seconds, self.iterations * self.guess.seconds)
                enough = found.sd_s <= TRACE_SD * found.iteration_s or found.time_s >= long_s
            if marked and now_s > max(self._long_s, found.end_s + 3.0 * self.guess.most_s):
                # Checkpoints may leave no longer row.
                enough = enough or found.iterations >= max(LEAST_ITERATIONS, self.iterations / 3)
            if enough:
                self.count = found
                return
        elif not marked and now_s > self._blind_s:
            self.failed = f"no iteration is seen in {now_s - self.from_s:.0f} s"
        if now_s > self._give_up_s and not self.over:
            what = "no iteration ended" if found is None else f"{found.iterations} iterations ended"
            self.failed = f"{what} in {now_s - self.from_s:.0f} s"

    def _read(self, count: Count, now_s: float) -> None:
        found = energy(self._meter, count.start_s, count.end_s)
        if found is None:
            if now_s > count.end_s + WAIT_S:
                self.failed = (
                    "the energy could not be measured: its counter does not move, or too few readings fell "
                    "around the probe"
                )
            return
        self.reading = Reading(
            self.setting, count.iterations, count.time_s, found.energy_j, found.uncertainty_j, count.sd_s,
            count.start_s, count.end_s,
        )


def energy(meter: Meter, start_s: float, end_s: float) -> EnergyEstimate | None:
    """Energy of all GPUs between two times; None if unknown, as with a counter that stopped."""
    found, recorder = meter.energy(start_s, end_s), meter.recorder
    if found is None or found.energy_j <= 0 or recorder is None:
        return None
    for device in meter.devices if end_s - start_s >= STILL_S else ():
        joules = recorder.rows(device.uuid, start_s, end_s)["energy_j"]
        moves = np.isfinite(joules).any() and float(np.nanmax(joules) - np.nanmin(joules)) > 0.0
        if device.can("energy") and len(joules) >= 4 and not moves:
            return None
    return found
