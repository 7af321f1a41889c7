"""Common parts of the searches over settings, and of peers that the method is compared with.

A trial is a number of whole iterations of the running job at one setting. Trials of a setting are pooled.
These searches know no errors: each trial counts as exact, as in GPOEO's code.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import MeasurementError, UsageError
from ...records import Setting
from ..objective import Energy, EnergyWithin, Objective, check_iterations
from ..space import SettingSpace

Z = 1.96
LOWEST_GEAR_MHZ, GEAR_MHZ = 210, 15  # the clock steps of NVIDIA's cards
Steps = Generator[tuple[int, str], bool, None]  # yields a row, receives whether it could be tried

# Constants of the trials, set manually.
TRIAL_ITERATIONS = 4  # at least: a relative 95 % error of 1 % where single iterations scatter by 1 %
TRIAL_ERROR = 0.01  # relative 95 % error of the energy that determines the length of a trial
EDGE_S = 0.025  # error of an energy as seconds of power, until trials show it
LONGEST_TRIAL_S = 15.0  # of a trial, unless one iteration takes longer
# A job without a prediction: shares of its time that follow the SM clock and the memory clock, and of its
# power that follow the cube of the SM clock and the memory clock. Only the start of a search depends on them.
TIME_SHARES, POWER_SHARES = (0.5, 0.2), (0.55, 0.15)


@dataclass(frozen=True)
class Done:
    """The end of the search, with the reason."""

    reason: str


@dataclass(frozen=True)
class Trial:
    """The next trial: a setting, and its minimum of whole iterations and seconds."""

    setting: Setting
    iterations: int
    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class Choice:
    """The estimated best setting.

    Attributes:
        time_ratio, energy_ratio: Time and energy of an iteration, relative to the reference.
        time_sd, energy_sd: Their relative standard deviations; NaN if unknown.
        p_allowed: Probability that it keeps the slowdown limit; 1 without a limit.
        measured: Whether it was tried.
    """

    setting: Setting
    time_ratio: float
    energy_ratio: float
    time_sd: float
    energy_sd: float
    p_allowed: float
    measured: bool


def bounded(objective: Objective | None, max_slowdown: float | None) -> tuple[Objective, float | None]:
    """The objective without its own slowdown limit, and the limit.

    Raises:
        UsageError: A limit below 0 or above 100 %.
    """
    mine = objective.slowdown - 1 if isinstance(objective, EnergyWithin) else None
    for bound in (max_slowdown, mine):
        if bound is not None and not 0 <= bound <= 1:
            raise UsageError(
                f"the allowed slowdown is {100 * bound:g} %; give a share from 0 to 1 (0.05 is 5 %), or None "
                "for no limit"
            )
    if mine is not None:
        return Energy(), mine if max_slowdown is None else min(mine, max_slowdown)
    return objective if objective is not None else Energy(), max_slowdown


class Scripted:
    """A search written as a generator of rows to try, which receives whether each could be tried.

    Args:
        space: The settings.
        objective: The cost to minimise. `EnergyWithin` has its own slowdown limit, which `max_slowdown` may
            not contradict.
        max_slowdown: Allowed share of additional time of an iteration; None for no limit.
        prior: A prediction made before any trial (`predictor.Prediction`).

    Attributes:
        measured_rows: Row of each reported trial, in order.
        unreachable: Settings that could not be set, with the reason.
    """

    name = ""

    def __init__(
        self, space: SettingSpace, objective: Objective | None = None, max_slowdown: float | None = 0.05, *,
        prior: Any = None,
    ) -> None:
        self.space, self.prior = space, prior
        self.objective, self.max_slowdown = bounded(objective, max_slowdown)
        self.unreachable: dict[Setting, str] = {}
        self.measured_rows: list[int] = []
        self._sums = np.zeros((len(space), 3))  # iterations, seconds and joules by row
        self._edge_s = self._iteration_s = 0.0
        self._steps: Steps | None = None
        self._asked: tuple[int, str] | None = None
        self._why = "the script has ended"
        if prior is not None and prior.space.settings != space.settings:
            raise UsageError(
                "the prediction is for other settings than those of this search; predict for the same space"
            )

    def script(self) -> Steps:
        raise NotImplementedError

    # reports

    def tell(
        self, setting: Setting, iterations: int, time_s: float, energy_j: float,
        energy_uncertainty_j: float = 0.0,
    ) -> None:
        """Report the time (s) and energy (J, all GPUs together) of a trial.

        Args:
            setting: Any of the space, requested or not; the reference any number of times.
            iterations: Whole iterations of the trial.
            time_s: Their total time.
            energy_j: Their total energy.
            energy_uncertainty_j: Half width of the 95 % interval of `energy_j`.

        Raises:
            MeasurementError: Impossible values; nothing is changed.
            UsageError: A setting that is not in this space.
        """
        check_iterations("probe", iterations, time_s, energy_j, energy_uncertainty_j)
        row = self.space.row(setting)
        self._sums[row] += iterations, time_s, energy_j
        self.measured_rows.append(row)
        self._edge_s = max(self._edge_s, energy_uncertainty_j / energy_j * time_s)
        self._iteration_s = time_s / iterations
        self._changed(row)

    def cannot(self, setting: Setting, reason: str) -> None:
        """Report a setting that could not be set; it is excluded from now on."""
        self.unreachable.setdefault(self.space.settings[self.space.row(setting)], reason)

    # requests

    def next(self) -> Trial | Done:
        """The next trial, or why there is none; unchanged until `tell` or `cannot`."""
        first = self.first()
        if first is not None:
            return first
        if self._steps is None:
            self._steps = self.script()
            self._go(None)
        while self._asked is not None and self.space.settings[self._asked[0]] in self.unreachable:
            self._go(False)
        return Done(self._why) if self._asked is None else self.trial(*self._asked)

    def first(self) -> Trial | Done | None:
        """The reference, if it was not tried yet; otherwise None."""
        here = self.space.reference_row
        if self.known(here):
            return None
        if self.space.reference in self.unreachable:
            return Done(f"the reference cannot be set: {self.unreachable[self.space.reference]}")
        return self.trial(here, "the reference: the GPU's default setting")

    def trial(self, row: int, reason: str) -> Trial:
        """A trial long enough for a relative 95 % error of the energy."""
        most = math.ceil(LONGEST_TRIAL_S / self._iteration_s) if self._iteration_s else TRIAL_ITERATIONS
        seconds = min((self._edge_s or EDGE_S) / TRIAL_ERROR, LONGEST_TRIAL_S)
        return Trial(self.space.settings[row], min(TRIAL_ITERATIONS, most), seconds, reason)

    def _changed(self, row: int) -> None:
        if self._asked is not None and row == self._asked[0]:
            self._go(True)

    def _go(self, entry: bool | None) -> None:
        assert self._steps is not None
        try:
            self._asked = next(self._steps) if entry is None else self._steps.send(entry)
        except StopIteration:
            self._asked = None

    def visit(self, row: int, reason: str) -> Generator[tuple[int, str], bool, bool]:
        """Try a row unless it was tried; returns whether it is known."""
        if self.known(row):
            return True
        if self.space.settings[row] in self.unreachable:
            return False
        return (yield row, reason)

    # what the trials have shown

    def known(self, row: int) -> bool:
        """Whether a row was tried."""
        return bool(self._sums[row, 0] > 0)

    def measured(self, row: int) -> tuple[float, float]:
        """Time (s) and energy (J) of an iteration at a row that was tried."""
        iterations, time_s, energy_j = self._sums[row].tolist()
        return time_s / iterations, energy_j / iterations

    def slowdown(self, row: int) -> float:
        """Relative growth of an iteration's time over the reference's, as measured."""
        return self.measured(row)[0] / self.measured(self.space.reference_row)[0] - 1

    def reward(self, row: int) -> float:
        """Cost over the reference's, as measured."""
        cost = self.objective.cost
        return float(cost(*self.measured(row)) / cost(*self.measured(self.space.reference_row)))

    def better(self, row: int, other: int) -> bool:
        """GPOEO's rule for two settings: the cheaper within the slowdown limit, beyond it the faster."""
        mine, theirs = self.slowdown(row), self.slowdown(other)
        bound = math.inf if self.max_slowdown is None else self.max_slowdown
        if (mine <= bound) != (theirs <= bound):
            return mine <= bound
        return self.reward(row) < self.reward(other) if mine <= bound else mine < theirs

    def best_of(self, rows: Sequence[int]) -> int:
        """The best of some tried rows by `better`; of equals the first."""
        best = rows[0]
        for row in rows[1:]:
            if self.better(row, best):
                best = row
        return best

    def choice(self) -> Choice:
        """The best trial; the one with the least slowdown if none keeps the limit.

        Raises:
            MeasurementError: No setting was tried yet.
        """
        here = self.space.reference_row
        if not self.known(here):
            raise MeasurementError("there is no trial yet; try the reference first")
        rows = [row for row in dict.fromkeys([here, *sorted(self.measured_rows)])
                if row == here or self.space.settings[row] not in self.unreachable]
        return self._as_choice(self.best_of(rows))

    def _as_choice(self, row: int, now: tuple[float, float] | None = None) -> Choice:
        """A row with time (s) and energy (J) of an iteration: as measured, or as estimated."""
        ratios = np.array(now or self.measured(row)) / self.measured(self.space.reference_row)
        kept = self.max_slowdown is None or ratios[0] <= 1 + self.max_slowdown
        time_ratio, energy_ratio = ratios.tolist()
        return Choice(
            self.space.settings[row], time_ratio, energy_ratio, math.nan, math.nan, float(kept),
            self.known(row),
        )

    # where to begin

    def predicted(self) -> int:
        """The row of least cost by the prediction, else by a rule of thumb."""
        space = self.space
        if self.prior is not None:
            logs = [self.prior.frame[name].to_numpy() for name in ("log_time", "log_energy")]
            time, energy = np.exp(np.array(logs, dtype=float))
        else:
            (a, b), (p, q) = TIME_SHARES, POWER_SHARES
            clock = space.x * np.sqrt(space.limit)
            time = 1 - a - b + a / clock + b / space.mu
            energy = time * (1 - p - q + p * clock**3 + q * space.mu)
        unit_s, unit_j = self.measured(space.reference_row)
        cost = np.asarray(self.objective.cost(unit_s * time, unit_j * energy), dtype=float)
        allowed = np.isfinite(cost) & [each not in self.unreachable for each in space.settings]
        if self.max_slowdown is not None:
            allowed &= time <= 1 + self.max_slowdown
        return int(np.argmin(np.where(allowed, cost, np.inf))) if allowed.any() else space.reference_row

    def _gears(self, rows: np.ndarray | list[int]) -> np.ndarray:
        """Clock step of each row: 15 MHz steps from 210 MHz, or 120 steps of the limits' range."""
        if self.space.max_sm_clock_mhz is None:
            return 120 * self.space.limit[rows]
        clocks = self.space.x[rows] * self.space.limit[rows] * self.space.max_sm_clock_mhz
        return (clocks - LOWEST_GEAR_MHZ) / GEAR_MHZ
