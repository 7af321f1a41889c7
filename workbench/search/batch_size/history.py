"""Input of a policy: `Space`, the possible choices, and `Evidence`, runs and profiled epochs counted per
batch size.

States of a run: "running", "reached" (the target), "stopped" (by a stop rule or manually), "failed" (all
epochs done, target not reached), "crashed" (out of memory, an error).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from ...errors import UsageError, check_fields
from ..objective import Objective

MOST_RUNS = 3  # of one recurrence: a run and two more after failures. If all three fail, it is lost.

# Prior scatter of the runs of one batch size: a relative deviation, a share that fails, and the number of
# runs that both count for. Half or twice as much changes nothing beyond chance.
SPREAD = 0.3
FAILURE_RATE = 0.02
PRIOR_RUNS = 4.0

# Two successive runs belong to another job if their epochs take so many times the profiled time, or both so
# many times less. A single run may have been disturbed.
DRIFT_TIME = 1.15
# Of log epochs, by cumulative sums (Page, 1954): deviations beyond half a standard deviation add up, to 6 by
# chance about once in 3,000 runs.
CUSUM_SLACK = 0.5
CUSUM_LIMIT = 6.0
VAIN_CHANCE = 1e-4  # probability of a series of failed runs below which it is another job, too


@dataclass(frozen=True)
class Space:
    """Batch sizes and power limits that a policy may choose from.

    Attributes:
        batch_sizes: Allowed ones, ascending.
        default: The user's own choice; assumed to reach the target.
        power_limits_w: Allowed limits of one GPU; the fallback is the highest.
        max_epochs: Number of epochs after which a run has failed.
        target, gpu: Of the present job; rows of `RUNS` and `PROFILES` with others are evidence of another
            type.
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
                f"batch sizes {list(self.batch_sizes)} are not ascending or contain one twice; give "
                "sorted(set(...))"
            )
        if self.default not in self.batch_sizes:
            raise UsageError(
                f"the default batch size {self.default} is not one of {list(self.batch_sizes)}; add it or "
                "choose one of them"
            )
        if self.max_epochs < 1:
            raise UsageError(f"max_epochs is {self.max_epochs}; a run needs at least one epoch")

    @property
    def octaves(self) -> np.ndarray:
        """log2 of the batch sizes."""
        return np.log2(np.asarray(self.batch_sizes, dtype=float))


@dataclass(slots=True)
class Run:
    """One attempt as a policy sees it; `arm` is the index of its batch size."""

    arm: int
    state: str
    epochs: float
    time_s: float  # including profiling
    energy_j: float
    profile_time_s: float = 0.0
    profile_energy_j: float = 0.0
    recurrence: int = 0
    power_limit_w: float | None = None


class Evidence:
    """A history, counted: the numbers that policies compute with.

    Attributes:
        runs: Finished attempts at the job's own target, oldest first. Epochs do not depend on the card, so
            runs on another GPU are included. Their times and costs are not comparable, so policies that use
            those select with `local`.
        local: Whether a run was on the job's own GPU, one per run.
        since: Index of the first run that still counts. When a run took other epochs or other time than
            similar runs before, the job has changed, and earlier runs no longer count.
        changes: Number of such changes.
        count, sum_log, sum_log2: Runs that reached the target per batch size, and sums of log epochs and its
            square.
        bounds: (batch size, epochs) within which runs did not reach the target, and how often.
        others: (arm, epochs) of runs that reached another target: their shape counts, not their level.
        in_flight: Active runs, per batch size.
        epoch_time_s, power_w: By batch size and power limit, NaN where not profiled.
        slices: Time (s) and energy (J) of each profiling window outside of any run.
        spent_time_s, spent_energy_j: Totals on this GPU.
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
        self._vain = self._row = 0  # failed runs before the present series of them; and in this series
        self._side = 0  # of the newest run, as returned by `_time_side`
        self._cusum = np.zeros((2, arms))  # upwards and downwards

    # additions

    def add(self, run: Run, *, local: bool = True) -> None:
        """Add a finished run."""
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
        """Add the time and energy of a profiling window outside of any run."""
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

    # change of the job

    def _time_side(self, run: Run) -> int:
        """1 where an epoch took longer than profiled, -1 where less, 0 where as long, or unknown."""
        if run.power_limit_w is None or run.profile_time_s > 0 or run.epochs < 1:
            return 0
        known_s = self.epoch_time_s[run.arm, self.column(run.power_limit_w)]
        if not known_s > 0:
            return 0
        off = math.log(max(run.time_s, 1e-9) / run.epochs / known_s)
        return 0 if abs(off) < math.log(DRIFT_TIME) else int(math.copysign(1, off))

    def _in_vain(self, run: Run) -> bool:
        """Whether more runs in a row have failed than their failure rate explains. If training takes much
        longer than before, all runs are stopped before they reach the target.
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
        """Whether the newest runs of a batch size needed other epochs than at least five before them."""
        n = self.count[run.arm]
        if run.state != "reached" or n < 5:
            return False
        off = (_log(run) - self.sum_log[run.arm] / n) / self.spreads[run.arm]
        # One run counts for two thirds of the limit at most, so that two are necessary.
        most = 2 / 3 * CUSUM_LIMIT
        off = min(max(off, -most), most)
        sums = self._cusum[:, run.arm]
        sums[:] = np.maximum(sums + np.array([off, -off]) - CUSUM_SLACK, 0)
        return bool(sums.max() > CUSUM_LIMIT)

    def _forget(self, *, profiles: bool) -> None:
        """Discard the runs before this one, as of another job; with `profiles`, also the cost of an epoch."""
        before = [(run.arm, run.epochs) for run in self.current[:-1] if run.state == "reached"]
        self.since = len(self.runs) - 1
        self.changes += 1
        self.count[:], self.sum_log[:], self.sum_log2[:] = 0, 0, 0
        # If the cost of an epoch is unchanged, ratios between batch sizes still count, like another target's
        # runs. If the change was only two exceptional runs, little is lost.
        self.bounds, self.others = {}, {} if profiles or not before else {-float(self.changes): before}
        self._vain = self._row = 0
        self._cusum[:] = 0
        if profiles:
            self.epoch_time_s[:], self.power_w[:] = np.nan, np.nan

    # results

    @property
    def current(self) -> list[Run]:
        """Runs since the last change."""
        return self.runs[self.since :]

    @property
    def means(self) -> np.ndarray:
        """Mean log epochs of the runs that reached the target, per batch size; 0 without such runs."""
        return self.sum_log / np.maximum(self.count, 1)

    @property
    def spreads(self) -> np.ndarray:
        """Standard deviations of log epochs of single runs, per batch size: from its own runs if possible,
        else from all runs, else `SPREAD`.
        """
        squares = np.maximum(self.sum_log2 - self.count * self.means**2, 0.0)
        freedom = np.maximum(self.count - 1, 0)
        pooled = (squares.sum() + PRIOR_RUNS * SPREAD**2) / (freedom.sum() + PRIOR_RUNS)
        return np.sqrt((squares + PRIOR_RUNS * pooled) / (freedom + PRIOR_RUNS))

    def column(self, power_limit_w: float | None) -> int:
        """The column of a power limit in the profile: the nearest of the space's, the highest for None."""
        limits = self.space.power_limits_w
        wanted = math.inf if power_limit_w is None else power_limit_w
        return min(range(len(limits)), key=lambda i: abs(min(wanted, max(limits)) - limits[i]), default=0)

    def epoch_costs(self, objective: Objective) -> np.ndarray:
        """Cost of an epoch, batch sizes x power limits; NaN where not profiled."""
        return np.asarray(objective.cost(self.epoch_time_s, self.epoch_time_s * self.power_w), dtype=float)

    def best_limit_w(self, arm: int, objective: Objective) -> float | None:
        """The limit of a batch size's cheapest epoch, the higher one of equals; None if none is known."""
        limits, costs = self.space.power_limits_w, self.epoch_costs(objective)[arm]
        known = [(cost, -limit_w) for cost, limit_w in zip(costs, limits, strict=False) if not np.isnan(cost)]
        return -min(known)[1] if known else None

    def known_limit_w(self, arm: int, objective: Objective) -> float | None:
        """The same if all limits were profiled; None requests that."""
        return self.best_limit_w(arm, objective) if self.fully_profiled[arm] else None

    @property
    def in_profile(self) -> np.ndarray:
        """Batch sizes with any profile, as a mask (arms,)."""
        return ~np.isnan(self.epoch_time_s).all(axis=1)

    @property
    def fully_profiled(self) -> np.ndarray:
        """Batch sizes whose best limit is known, as a mask (arms,): a profiling window covers one limit only.
        """
        known = ~np.isnan(self.epoch_time_s)
        return known.all(axis=1) | (known.sum(axis=1) > 1)

    def _unfinished(self) -> list[Run]:
        """Runs of the present recurrence, none of which has reached the target, newest first."""
        now = self.runs[-1].recurrence if self.runs else 0
        lost = list(takewhile(lambda run: run.state != "reached" and run.recurrence == now, self.runs[::-1]))
        return [] if sum(run.state != "crashed" for run in lost) >= MOST_RUNS else lost

    @property
    def lost_now(self) -> list[int]:
        """Batch sizes that have not reached the target in the present recurrence, one per run."""
        return [run.arm for run in self._unfinished()]

    @property
    def last_run_now(self) -> bool:
        """Whether one run is left in this recurrence: if that fails too, the recurrence is lost."""
        return sum(run.state != "crashed" for run in self._unfinished()) == MOST_RUNS - 1


def _log(run: Run) -> float:
    """Log epochs of a run, of at least half an epoch."""
    return math.log(max(run.epochs, 0.5))
