"""Common parts of every search over settings: the reported trials, their errors, and the slowdown limit.

A trial is a number of whole iterations of the running job at one setting. Trials of a setting are pooled, so
a second one at the reference improves every relative value.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from ...errors import MeasurementError, UsageError
from ...records import Setting
from ..objective import Energy, EnergyWithin, Objective, check_iterations
from ..space import SettingSpace

if TYPE_CHECKING:
    from ..surrogates.response_surface import Response

Z = 1.96
LOWEST_GEAR_MHZ, GEAR_MHZ = 210, 15  # the clock steps of NVIDIA's cards
Steps = Generator[tuple[int, str], bool, None]  # yields a row, receives whether it could be tried

# Tuned constants of the trials of every search: their assumed error and their length.
#
# Set manually; `benchmarks.clocks --only search` and `--only online` score the searches with them.
SCATTER = 0.01  # relative, of the length of iterations, until it is known
SCATTER_ITERATIONS = 8.0  # number of iterations that this first guess counts for
# relative: temperature and similar effects; no trial predicts the next minutes more precisely
LEAST_SD = 0.003
# uncertain energy at an edge of a window, as seconds of power, if the counter refreshes every 0.1 s
EDGE_S = 0.025
TRIAL_ERROR = 0.01  # relative 95 % error that determines the length of a trial
LONGEST_TRIAL_S = 15.0  # of a trial, unless one iteration takes longer


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
        time_sd, energy_sd: Their relative standard deviations.
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


class Pooled(NamedTuple):
    """All trials of one setting as one: an iteration's s and J, and their relative standard errors."""

    time_s: float
    energy_j: float
    time_error: float
    energy_error: float


class Probing:
    """State of a search; subclasses define `next` and `choice`.

    Args:
        space: The settings.
        objective: The cost to minimise. `EnergyWithin` has its own slowdown limit, which `max_slowdown` may
            not contradict.
        max_slowdown: Allowed share of additional time of an iteration; None for no limit.
        prior: A prediction made before any trial (`predictor.Prediction`).
        counter_update_s: Update interval of the energy counter.
        gpus: Number of GPUs in the summed energies.
    """

    name = ""

    def __init__(
        self, space: SettingSpace, objective: Objective | None = None, max_slowdown: float | None = 0.05, *,
        prior: Any = None, counter_update_s: float = 0.1, gpus: int = 1,
    ) -> None:
        self.space = space
        self.objective, self.max_slowdown = bounded(objective, max_slowdown)
        self.prior = prior
        self.counter_update_s = counter_update_s
        self.gpus = gpus
        self.unreachable: dict[Setting, str] = {}
        self._measured: list[tuple[int, int, float, float, float, float | None]] = []
        if prior is not None and prior.space.settings != space.settings:
            raise UsageError(
                "the prediction is for other settings than those of this search; predict for the same space"
            )

    # reports

    def tell(
        self, setting: Setting, iterations: int, time_s: float, energy_j: float,
        energy_uncertainty_j: float = 0.0, iteration_sd_s: float | None = None,
    ) -> None:
        """Report the time (s) and energy (J, all GPUs together) of a trial.

        Args:
            setting: Any of the space, requested or not; the reference any number of times.
            iterations: Whole iterations of the trial.
            time_s: Their total time.
            energy_j: Their total energy.
            energy_uncertainty_j: Half width of the 95 % interval of `energy_j`.
            iteration_sd_s: Scatter of single iterations; None if they were not timed.

        Raises:
            MeasurementError: Impossible values; nothing is changed.
            UsageError: A setting that is not in this space.
        """
        check_iterations("probe", iterations, time_s, energy_j, energy_uncertainty_j)
        if iteration_sd_s is not None and not (iteration_sd_s >= 0 and math.isfinite(iteration_sd_s)):
            raise MeasurementError(f"the scatter of iterations must be 0 s or more, not {iteration_sd_s:g} s")
        row = self.space.row(setting)
        numbers = float(time_s), float(energy_j), float(energy_uncertainty_j)
        self._measured.append((row, int(iterations), *numbers, iteration_sd_s))
        self._changed(row)

    def cannot(self, setting: Setting, reason: str) -> None:
        """Report a setting that could not be set; it is excluded from now on."""
        self.unreachable.setdefault(self.space.settings[self.space.row(setting)], reason)

    def breaks_bound(self, setting: Setting, iterations: int, time_s: float) -> bool:
        """Whether a trial that still runs certainly exceeds the slowdown limit, so that it can be ended.

        Args:
            setting: The setting of the trial.
            iterations: Finished iterations, in `time_s` seconds. 0: the first has lasted so long and has not
                ended.
        """
        reference = self.pooled(self.space.reference_row)
        if self.max_slowdown is None or reference is None or not time_s > 0:
            return False
        if self.space.row(setting) == self.space.reference_row:
            return False
        count = max(iterations, 1)
        error = math.hypot(self.scatter / math.sqrt(count), reference.time_error)
        return math.log(time_s / count / reference.time_s) > math.log1p(self.max_slowdown) + Z * error

    @property
    def measured_rows(self) -> list[int]:
        """Row of each reported probe, in order."""
        return [entry[0] for entry in self._measured]

    # arithmetic that searches share

    def asked(self, objective: Objective | None, bound: float | None) -> tuple[Objective, float | None]:
        """An objective and a slowdown limit as `bounded`, the search's own if None."""
        return bounded(objective or self.objective, self.max_slowdown if bound is None else bound)

    def _changed(self, row: int) -> None:
        """Called after every reported trial."""

    @property
    def scatter(self) -> float:
        """Relative scatter of single iterations, from timed ones and the first guess."""
        count = SCATTER_ITERATIONS
        squares = count * SCATTER**2
        for _, iterations, time_s, _, _, sd_s in self._measured:
            if sd_s is not None and math.isfinite(sd_s) and iterations > 1:
                count += iterations - 1
                squares += (iterations - 1) * (sd_s * iterations / time_s) ** 2
        return math.sqrt(squares / count)

    def errors(self) -> np.ndarray:
        """Relative standard errors of every trial's time and energy, (trials, 2)."""
        scatter = self.scatter
        rows = []
        for _, iterations, _, energy_j, uncertainty_j, _ in self._measured:
            time_error, least = scatter / math.sqrt(iterations), LEAST_SD
            energy_error = math.hypot(uncertainty_j / energy_j / Z, 0.5 * time_error, least)
            rows.append((math.hypot(time_error, least), energy_error))
        return np.array(rows).reshape(len(rows), 2)

    def fitted(self, **options: Any) -> Response:
        """Posterior of time and energy at every setting, given all trials; options as of `fit`."""
        from ..surrogates.response_surface import fit

        rows, iterations, times, energies = np.reshape([each[:4] for each in self._measured], (-1, 4)).T
        return fit(
            self.space, rows, times / iterations, energies / iterations, self.errors(), prior=self.prior,
            **options,
        )

    def pooled(self, row: int) -> Pooled | None:
        """All trials of a setting as one; None if it was not tried."""
        pairs = zip(self._measured, self.errors(), strict=True)
        mine = [(entry, error) for entry, error in pairs if entry[0] == row]
        if not mine:
            return None
        parts = np.array(
            [(math.log(entry[2] / entry[1]), math.log(entry[3] / entry[1])) for entry, _ in mine]
        )
        weights = np.array([1 / error**2 for _, error in mine])
        middle = (weights * parts).sum(axis=0) / weights.sum(axis=0)
        spread = 1 / np.sqrt(weights.sum(axis=0))
        return Pooled(math.exp(middle[0]), math.exp(middle[1]), float(spread[0]), float(spread[1]))

    def trial(self, row: int, reason: str, error: float | None = None) -> Trial:
        """A trial long enough for a relative 95 % error of time and energy."""
        error = TRIAL_ERROR if error is None else error
        iterations = math.ceil((Z * self.scatter / error) ** 2)
        edge_s = EDGE_S * self.counter_update_s / 0.1
        if self._measured:  # an edge's error is in joules, for a window of any length
            # one iteration that was not timed is evidence of another run, and has no edges
            edges = [entry[4] / (entry[3] / entry[2]) for entry in self._measured
                     if entry[1] > 1 or entry[5] is not None]
            edge_s = max(edges, default=0.0) or edge_s
            iteration_s = self._measured[-1][2] / self._measured[-1][1]
            iterations = max(1, min(iterations, math.ceil(LONGEST_TRIAL_S / iteration_s)))
        seconds = min(max(edge_s / error, 2 * self.counter_update_s), LONGEST_TRIAL_S)
        return Trial(self.space.settings[row], max(iterations, 1), seconds, reason)

    def first(self) -> Trial | Done | None:
        """The reference, if it was not tried yet; otherwise None."""
        if any(entry[0] == self.space.reference_row for entry in self._measured):
            return None
        if self.space.reference in self.unreachable:
            return Done(f"the reference cannot be set: {self.unreachable[self.space.reference]}")
        return self.trial(self.space.reference_row, "the reference: the GPU's default setting")


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


class ProbedSearch(Probing):
    """A search that uses only its trials, and chooses the best of them."""

    def belief(self) -> pl.DataFrame:
        """One row per setting, null where not tried; ratios and relative deviations are to the reference."""
        counts = np.bincount([entry[0] for entry in self._measured], minlength=len(self.space))
        choices = [self._choice_of(row) if count else None for row, count in enumerate(counts)]
        columns = [
            pl.Series(name, [getattr(each, name) if each else None for each in choices], dtype=pl.Float64)
            for name in ("time_ratio", "time_sd", "energy_ratio", "energy_sd", "p_allowed")
        ]
        return self.space.frame().with_columns(*columns, probes=pl.Series(counts.astype(np.int64)))

    def choice(self, objective: Objective | None = None, max_slowdown: float | None = None) -> Choice:
        """The best trial, of any objective and slowdown limit; the one with the least slowdown if none keeps
        it.

        Raises:
            MeasurementError: No setting was tried yet.
        """
        objective, bound = self.asked(objective, max_slowdown)
        here = self.space.reference_row
        if self.pooled(here) is None:
            raise MeasurementError("there is no trial yet; try the reference first")
        rows = sorted({
            entry[0] for entry in self._measured
            if entry[0] == here or self.space.settings[entry[0]] not in self.unreachable
        })
        found = self._choice_of(self.best_of(rows, objective, bound), bound)
        assert found is not None
        return found

    def best_of(
        self, rows: Sequence[int], objective: Objective | None = None, bound: float | None = None
    ) -> int:
        """The best of some tried rows by `better`; of equals the first."""
        best = rows[0]
        for row in rows[1:]:
            if self.better(row, best, objective, bound):
                best = row
        return best

    def better(
        self, row: int, other: int, objective: Objective | None = None, bound: float | None = None
    ) -> bool:
        """GPOEO's rule for two settings: the cheaper within the slowdown limit, beyond it the faster.

        Args:
            row: A setting.
            other: Another one.
            objective: The search's own if None.
            bound: Slowdown limit; the search's own if None.
        """
        objective = objective or self.objective
        bound = self.max_slowdown if bound is None else bound
        mine, theirs = self.slowdown(row), self.slowdown(other)
        allowed = [bound is None or each <= bound for each in (mine, theirs)]
        if allowed[0] != allowed[1]:
            return allowed[0]
        return self.reward(row, objective) < self.reward(other, objective) if allowed[0] else mine < theirs

    def _both(self, row: int) -> tuple[Pooled, Pooled]:
        """Pooled trials of a row, and of the reference."""
        here, reference = self.pooled(row), self.pooled(self.space.reference_row)
        assert here is not None
        assert reference is not None
        return here, reference

    def slowdown(self, row: int) -> float:
        """Relative growth of an iteration's time over the reference's, as measured."""
        here, reference = self._both(row)
        return here.time_s / reference.time_s - 1

    def reward(self, row: int, objective: Objective | None = None) -> float:
        """Cost over the reference's, as measured."""
        cost = (objective or self.objective).cost
        here, reference = self._both(row)
        return float(cost(here.time_s, here.energy_j) / cost(reference.time_s, reference.energy_j))

    def _choice_of(self, row: int, bound: float | None = None) -> Choice | None:
        here, reference = self.pooled(row), self.pooled(self.space.reference_row)
        if here is None or reference is None:
            return None
        bound = self.max_slowdown if bound is None else bound
        same = row == self.space.reference_row
        time_sd = 0.0 if same else math.hypot(here.time_error, reference.time_error)
        energy_sd = 0.0 if same else math.hypot(here.energy_error, reference.energy_error)
        ratio = here.time_s / reference.time_s
        p_allowed = 1.0
        if bound is not None and not same:
            p_allowed = 0.5 * math.erfc((math.log(ratio) - math.log1p(bound)) / time_sd / math.sqrt(2))
        return Choice(
            self.space.settings[row], ratio, here.energy_j / reference.energy_j, time_sd, energy_sd,
            p_allowed, True,
        )


class Scripted(ProbedSearch):
    """A search written as a generator of rows to try, which receives whether each could be tried."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._steps: Steps | None = None
        self._asked: tuple[int, str] | None = None
        self._why = "the script has ended"

    def script(self) -> Steps:
        raise NotImplementedError

    def next(self) -> Trial | Done:
        """The next trial, or why there is none."""
        first = self.first()
        if first is not None:
            return first
        if self._steps is None:
            self._steps = self.script()
            self._go(None)
        while self._asked is not None and self.space.settings[self._asked[0]] in self.unreachable:
            self._go(False)
        return Done(self._why) if self._asked is None else self.trial(*self._asked)

    def _changed(self, row: int) -> None:
        if self._asked is not None and row == self._asked[0]:
            self._go(True)

    def _go(self, entry: bool | None) -> None:
        assert self._steps is not None
        try:
            self._asked = next(self._steps) if entry is None else self._steps.send(entry)
        except StopIteration:
            self._asked = None

    def known(self, row: int) -> bool:
        return self.pooled(row) is not None

    def visit(self, row: int, reason: str) -> Generator[tuple[int, str], bool, bool]:
        """Try a row unless it was tried; returns whether it is known."""
        if self.known(row):
            return True
        if self.space.settings[row] in self.unreachable:
            return False
        return (yield row, reason)

    def _gears(self, rows: np.ndarray | list[int]) -> np.ndarray:
        """Clock step of each row: 15 MHz steps from 210 MHz, or 120 steps of the limits' range."""
        if self.space.max_sm_clock_mhz is None:
            return 120 * self.space.limit[rows]
        clocks = self.space.x[rows] * self.space.limit[rows] * self.space.max_sm_clock_mhz
        return (clocks - LOWEST_GEAR_MHZ) / GEAR_MHZ


def predicted(search: Probing) -> int:
    """The row of least cost by a prediction, else by physics: the start for searches that need one."""
    reference = search.pooled(search.space.reference_row)
    response = search.fitted()
    scale_s, scale_j = (reference.time_s, reference.energy_j) if reference is not None else (1.0, 1.0)
    time_s, energy_j = response.time_ratio * scale_s, response.energy_ratio * scale_j
    cost = np.asarray(search.objective.cost(time_s, energy_j), dtype=float)
    if search.max_slowdown is not None:
        cost = np.where(response.time_ratio <= 1 + search.max_slowdown, cost, np.inf)
    cost = np.where([each not in search.unreachable for each in search.space.settings], cost, np.inf)
    return int(np.argmin(cost)) if np.isfinite(cost).any() else search.space.reference_row
