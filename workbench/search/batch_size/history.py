"""Choices and evidence of a policy: `Space`, and `Evidence`, runs and profiled epochs
counted per batch size.

States of a run: "running", "reached" (the target), "stopped" (by a stop rule or by hand), "failed" (all
epochs done, target not reached), "crashed" (out of memory, an error).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from ...errors import UsageError, check_fields
from ..objective import Objective

MOST_RUNS = 3  # of one recurrence: a try and two more where that fails. Where all three do it is lost.

# How the runs of one batch size scatter before any is known: a relative deviation, a share that fails, and as
# many runs as both count for. Half or twice as much changes nothing beyond chance.
SPREAD = 0.3
FAILURE_RATE = 0.02
PRIOR_RUNS = 4.0

# Two runs in succession whose epochs take so many times more, or both so many times less, than profiled are
# another job's. One alone may have been disturbed.
DRIFT_TIME = 1.15
# Of log epochs, by cumulative sums (Page, 1954): deviations beyond half a standard deviation add up, to 6 by
# chance about once in 3,000 runs.
CUSUM_SLACK = 0.5
CUSUM_LIMIT = 6.0
VAIN_CHANCE = 1e-4  # of so many runs without success in a row, below which it is another job too


@dataclass(frozen=True, slots=True)
class Space:
    """Batch sizes and power limits that a policy may choose from.

    Attributes:
        batch_sizes: Allowed ones, ascending.
        default: The person's own choice; assumed to reach the target.
        power_limits_w: Limits of one GPU that may be set; the last resort is the highest.
        max_epochs: After so many a run has failed.
        target, gpu: Of the job at hand; rows of `RUNS` and `PROFILES` with others are evidence of another
            kind.
    """

    batch_sizes: tuple[int, ...]
    default: int
    power_limits_w: tuple[float, ...] = ()
    max_epochs: int = 100
    target: float | None = None
    gpu: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.batch_sizes:
            raise UsageError(
                "no batch size to choose from; give at least one, for example batch_sizes=[32, 64, 128]"
            )
        if any(b < 1 for b in self.batch_sizes):
            raise UsageError(f"batch size {min(self.batch_sizes)} is below 1")
        if list(self.batch_sizes) != sorted(set(self.batch_sizes)):
            raise UsageError(
                f"batch sizes {list(self.batch_sizes)} are not ascending or one stands twice; give "
                "sorted(set(...))"
            )
        if self.default not in self.batch_sizes:
            raise UsageError(
                f"the default batch size {self.default} is not one of {list(self.batch_sizes)}; add it or "
                "choose one of them"
            )
        if self.max_epochs < 1:
            raise UsageError(f"max_epochs is {self.max_epochs}; a run takes at least one epoch")

    @property
    def octaves(self) -> np.ndarray:
        """log2 of the batch sizes."""
        return np.asarray(np.log2(np.asarray(self.batch_sizes, dtype=float)))


@dataclass(slots=True)
class Run:
    """One attempt as a policy sees it; `arm` is the index of its batch size."""

    arm: int
    state: str
    epochs: float
    time_s: float  # profiling included
    energy_j: float
    profile_time_s: float = 0.0
    profile_energy_j: float = 0.0
    recurrence: int = 0
    power_limit_w: float | None = None


class Evidence:
    """A history, counted: what policies compute with.

    Attributes:
        runs: Attempts at the job's own target that have ended, oldest first. Epochs do not depend on the
            card, so runs on another GPU are here as well; their times and costs are not comparable, so
            policies that use those look at `local`.
        local: Whether a run was on the job's own GPU, one per run.
        since: Index of the first run that still counts: when a run took other epochs or other time than its
            like before, the job has changed, and what was before is past.
        changes: How often it has.
        count, sum_log, sum_log2: Runs that reached the target per batch size, and sums of log epochs and its
            square.
        bounds: (batch size, epochs) that runs did not reach the target in, and how often.
        others: (arm, epochs) of runs that reached another target: their level means nothing, their shape
            does.
        in_flight: Runs that have not ended, per batch size.
        epoch_time_s, power_w: By batch size and power limit, NaN where not profiled.
        slices: Time (s) and energy (J) of each slice outside of any run.
        spent_time_s, spent_energy_j: On this GPU, all in all.
    """

    def __init__(self, space: Space) -> None:
        arms, limits = len(space.batch_sizes), max(len(space.power_limits_w), 1)
        self.space, self.arms, self.octaves = space, arms, space.octaves
        self.index = {b: i for i, b in enumerate(space.batch_sizes)}
        self.default = self.index[space.default]
        self.count, self.sum_log, self.sum_log2 = np.zeros(arms), np.zeros(arms), np.zeros(arms)
        self.bounds: dict[tuple[int, float], int] = {}
        self.runs: list[Run] = []
        self.local: list[bool] = []
        self.in_flight = np.zeros(arms, dtype=int)
        self.others: dict[float, list[tuple[int, float]]] = {}
        self.epoch_time_s = np.full((arms, limits), np.nan)
        self.power_w = np.full((arms, limits), np.nan)
        self.slices: list[tuple[float, float]] = []
        self.spent_time_s = self.spent_energy_j = 0.0
        self.since = self.changes = 0
        self._vain = self._row = 0  # runs without success before the present row of them; and in this row
        self._side = 0  # of the newest run, as of `_time_side`
        self._cusum = np.zeros((2, arms))  # upwards and downwards

    # what is added

    def add(self, run: Run, *, local: bool = True) -> None:
        """Add a run that has ended."""
        self.runs.append(run)
        self.local.append(local)
        side, before = self._time_side(run) if local else 0, self._side
        self._side = side
        if (side and side == before) or self._in_vain(run):
            self._side = 0
            self._forget(profiles=True)
        elif self._drifts(run):
            self._forget(profiles=False)
        self._tally(run)
        if local:
            self.spent_time_s += run.time_s
            self.spent_energy_j += run.energy_j

    def add_profile(self, arm: int, power_limit_w: float | None, epoch_time_s: float, power_w: float) -> None:
        """Set the time and power of an epoch at a batch size and a power limit, over an older profile.

        Args:
            arm: Number of the batch size.
            power_limit_w: None for the default.
            epoch_time_s: Time of an epoch.
            power_w: Mean power of all GPUs.
        """
        column = self.column(power_limit_w)
        self.epoch_time_s[arm, column] = epoch_time_s
        self.power_w[arm, column] = power_w

    def add_slice(self, time_s: float, energy_j: float) -> None:
        """Add the time and energy of a slice outside of any run."""
        self.slices.append((time_s, energy_j))
        self.spent_time_s += time_s
        self.spent_energy_j += energy_j

    def _tally(self, run: Run) -> None:
        if run.state == "reached":
            log = _log(run)
            self.count[run.arm] += 1
            self.sum_log[run.arm] += log
            self.sum_log2[run.arm] += log * log
        elif run.state != "crashed" and run.epochs >= 1:
            self.bounds[run.arm, run.epochs] = self.bounds.get((run.arm, run.epochs), 0) + 1

    # whether it is still the same job

    def _time_side(self, run: Run) -> int:
        """1 where an epoch took longer than profiled, -1 where less, 0 where as long, or not known."""
        if run.power_limit_w is None or run.profile_time_s > 0 or run.epochs < 1:
            return 0
        known_s = self.epoch_time_s[run.arm, self.column(run.power_limit_w)]
        if not known_s > 0:
            return 0
        off = math.log(max(run.time_s, 1e-9) / run.epochs / known_s)
        return 0 if abs(off) < math.log(DRIFT_TIME) else int(math.copysign(1, off))

    def _in_vain(self, run: Run) -> bool:
        """Whether so many runs in a row have not reached the target that their failure rate does not explain
        it: all are given up before the end where training takes much longer than it did.
        """
        if run.state == "reached":
            self._vain, self._row = self._vain + self._row, 0
            return False
        done = self.count[run.arm]
        if run.state == "crashed" or not done or _log(run) < self.sum_log[run.arm] / done:
            return False
        self._row += 1
        rate = (self._vain + 1) / (self._vain + self.count.sum() + 2)
        return bool(rate**self._row < VAIN_CHANCE)

    def _drifts(self, run: Run) -> bool:
        """Whether the newest runs of a batch size took other epochs than at least five before them."""
        n = self.count[run.arm]
        if run.state != "reached" or n < 5:
            return False
        off = (_log(run) - self.sum_log[run.arm] / n) / self.spreads[run.arm]
        # One run counts for two thirds of the limit at most, so that it takes two.
        most = 2 / 3 * CUSUM_LIMIT
        off = min(max(off, -most), most)
        sums = self._cusum[:, run.arm]
        sums[:] = np.maximum(sums + np.array([off, -off]) - CUSUM_SLACK, 0)
        return bool(sums.max() > CUSUM_LIMIT)

    def _forget(self, *, profiles: bool) -> None:
        """What was before this run is of another job; what an epoch takes too, with `profiles`."""
        before = [(run.arm, run.epochs) for run in self.current[:-1] if run.state == "reached"]
        self.since = len(self.runs) - 1
        self.changes += 1
        self.count[:], self.sum_log[:], self.sum_log2[:] = 0, 0, 0
        # Where an epoch takes what it took, how batch sizes compare says something still, as another target's
        # runs do; and were there no change but two odd runs, little is lost.
        self.bounds, self.others = {}, {} if profiles or not before else {-float(self.changes): before}
        self._vain = self._row = 0
        self._cusum[:] = 0
        if profiles:
            self.epoch_time_s[:], self.power_w[:] = np.nan, np.nan

    # what is known

    @property
    def current(self) -> list[Run]:
        """Runs since the last change."""
        return self.runs[self.since :]

    @property
    def means(self) -> np.ndarray:
        """Mean log epochs of the runs that reached the target, per batch size; 0 where there are none."""
        return np.asarray(self.sum_log / np.maximum(self.count, 1))

    @property
    def spreads(self) -> np.ndarray:
        """Standard deviations of log epochs of single runs, per batch size: from its own runs, else those of
        all, else `SPREAD`.
        """
        squares = np.maximum(self.sum_log2 - self.count * self.means**2, 0.0)
        freedom = np.maximum(self.count - 1, 0)
        pooled = (squares.sum() + PRIOR_RUNS * SPREAD**2) / (freedom.sum() + PRIOR_RUNS)
        return np.asarray(np.sqrt((squares + PRIOR_RUNS * pooled) / (freedom + PRIOR_RUNS)))

    def column(self, power_limit_w: float | None) -> int:
        """The column of a power limit in the profile: the nearest of the space's, the highest for None."""
        limits = self.space.power_limits_w
        wanted = math.inf if power_limit_w is None else power_limit_w
        return min(range(len(limits)), key=lambda i: abs(min(wanted, max(limits)) - limits[i]), default=0)

    def epoch_costs(self, objective: Objective) -> np.ndarray:
        """Cost of an epoch, batch sizes x power limits; NaN where not profiled."""
        return np.asarray(objective.cost(self.epoch_time_s, self.epoch_time_s * self.power_w), dtype=float)

    def best_limit_w(self, arm: int, objective: Objective) -> float | None:
        """The limit of a batch size's cheapest epoch, the higher one of equals; None where none is known."""
        limits, costs = self.space.power_limits_w, self.epoch_costs(objective)[arm]
        known = [(cost, -limit_w) for cost, limit_w in zip(costs, limits, strict=False) if not np.isnan(cost)]
        return -min(known)[1] if known else None

    def known_limit_w(self, arm: int, objective: Objective) -> float | None:
        """The same where all limits were profiled; None asks for that."""
        return self.best_limit_w(arm, objective) if self.fully_profiled[arm] else None

    @property
    def in_profile(self) -> np.ndarray:
        """Batch sizes with any profile, as a mask (arms,)."""
        return np.asarray(~np.isnan(self.epoch_time_s).all(axis=1))

    @property
    def fully_profiled(self) -> np.ndarray:
        """Batch sizes whose best limit is known, as a mask (arms,): a slice shows one limit only."""
        known = ~np.isnan(self.epoch_time_s)
        return np.asarray(known.all(axis=1) | (known.sum(axis=1) > 1))

    def _unfinished(self) -> list[Run]:
        """Runs of the recurrence that is going on, none of which has reached the target, newest first."""
        now = self.runs[-1].recurrence if self.runs else 0
        lost = list(takewhile(lambda run: run.state != "reached" and run.recurrence == now, self.runs[::-1]))
        return [] if sum(run.state != "crashed" for run in lost) >= MOST_RUNS else lost

    @property
    def lost_now(self) -> list[int]:
        """Batch sizes that have not reached the target in the recurrence that is going on, one per run."""
        return [run.arm for run in self._unfinished()]

    @property
    def last_run_now(self) -> bool:
        """Whether one run is left in this recurrence: where that fails too, the recurrence is lost."""
        return sum(run.state != "crashed" for run in self._unfinished()) == MOST_RUNS - 1


def _log(run: Run) -> float:
    """Log epochs of a run, of at least half a one."""
    return math.log(max(run.epochs, 0.5))
