"""Earlier measurements of a job, as curves that a search weights by their fit.

A curve is time and energy of one job at some settings of a card, in units of its own. It is weighed against
the thought that it is of another job, by how well either foretells this run's measurements. As long as that
is open it only orders the trials. Where it is nearly certain, each of its points is a soft trial. Where it is
unlikely, all of it is left out. A choice is measured in any case.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ..records import Setting
from .objective import Objective
from .space import SettingSpace

PooledLogs = tuple[float, float, float, float]  # ln time, ln energy, and the relative errors of both
SAME_SD = 0.01  # relative, by which the same setting differs from run to run
ELSEWHERE_SD = 0.05  # the same on another card, at equal settings relative to the highest
AGREED, CONTRADICTED = 4.0, -2.0  # log odds that a curve is of this job
OTHER_JOB = 0.3  # sd of ln time and energy between jobs, for each ln of clock or limit below the highest
NEAR, NEAR_ELSEWHERE = 0.012, 0.04  # in ln clock or limit, within which two settings are one
MOST_POINTS = 24  # of one curve


@dataclass(frozen=True)
class EarlierCurve:
    """Time (s) and energy (J) of a unit of work of one job at settings of one card.

    Attributes:
        costs: At each setting; the unit is the curve's own.
        source: In words, such as "a sweep of 2026-11-22".
        batch_size: None where it is not known.
        elsewhere: The default limit and highest clocks of the other card that it was measured on: only values
            relative to those count. None for the same card.
    """

    costs: Mapping[Setting, tuple[float, float]]
    source: str = ""
    batch_size: int | None = None
    elsewhere: Setting | None = None

    @property
    def sd(self) -> float:
        """Relative standard deviation of a run today."""
        return SAME_SD if self.elsewhere is None else ELSEWHERE_SD


@dataclass(frozen=True)
class PlacedCurve:
    """A curve at rows of a space.

    Attributes:
        rows, logs: Measured rows, and (ln time, ln energy) there.
        sd: Relative standard deviation of this run from the curve.
        depths: Difference of each row to the highest clock or limit, in ln.
        expected: ln time, ln energy and their sds at other rows too, if they were computed.
    """

    rows: np.ndarray
    logs: np.ndarray
    sd: float
    source: str
    depths: np.ndarray
    expected: Mapping[int, PooledLogs] = field(default_factory=dict)

    @cached_property
    def foretold(self) -> dict[int, PooledLogs]:
        """ln time, ln energy and the sds of either by row."""
        pairs = zip(self.rows.tolist(), self.logs.tolist(), strict=True)
        return {**self.expected, **{row: (*logs, self.sd, self.sd) for row, logs in pairs}}


def place(curve: EarlierCurve, settings: Sequence[Setting], top: Setting) -> PlacedCurve | None:
    """A curve at those of `settings` that it knows, each once; None where it knows fewer than two.

    Args:
        curve: The measured rows.
        settings: Of the space, by row.
        top: Values of the knobs that are left alone, if known.
    """
    own_top = top if curve.elsewhere is None else curve.elsewhere
    mine, theirs = _places(settings, top), _places(curve.costs, own_top)
    if not len(mine):
        return None
    apart = np.abs(mine[:, None] - theirs[None, :]).max(axis=2)
    apart = np.nan_to_num(apart, nan=math.inf)  # a knob that only one names, with an unknown default
    nearest = apart.argmin(axis=1)
    near = np.flatnonzero(apart.min(axis=1) <= (NEAR if curve.elsewhere is None else NEAR_ELSEWHERE))
    rows: dict[int, int] = {}  # each of the curve's points counts once, at the row that is nearest to it
    for row in sorted(near.tolist(), key=lambda each: float(apart[each, nearest[each]])):
        rows.setdefault(int(nearest[row]), row)
    if len(rows) < 2:
        return None
    pairs = sorted((row, point) for point, row in rows.items())
    thin = np.unique(np.linspace(0, len(pairs) - 1, min(len(pairs), MOST_POINTS)).round().astype(int))
    costs = np.log(np.array(list(curve.costs.values()), dtype=float))
    chosen = [pairs[i] for i in thin]
    depths = np.nan_to_num(np.abs(mine)).max(axis=1)
    where, points = ([pair[side] for pair in chosen] for side in (0, 1))
    return PlacedCurve(np.array(where), costs[points], curve.sd, curve.source, depths)


def top_of(space: SettingSpace) -> Setting:
    """The value of a knob that is left alone."""
    return Setting(space.max_power_limit_w, space.max_sm_clock_mhz, space.max_mem_clock_mhz)


def place_in(curves: Iterable[EarlierCurve], space: SettingSpace) -> list[PlacedCurve]:
    """Curves at the settings of a space."""
    found = (place(each, space.settings, top_of(space)) for each in curves)
    return [each for each in found if each is not None]


class EarlierRuns:
    """Curves of earlier runs of a job, and their agreement with this run's measurements.

    Attributes:
        open: Undecided curves, the one to be tried first in front.
        agreed: Curves that the measurements confirm.
    """

    def __init__(self, curves: Iterable[PlacedCurve] = ()) -> None:
        self.open: list[PlacedCurve] = list(curves)
        self.agreed: list[PlacedCurve] = []
        self._tried = False

    def __bool__(self) -> bool:
        return bool(self.open or self.agreed)

    @property
    def settings(self) -> int:
        """How many settings they know."""
        return len({int(row) for each in (*self.open, *self.agreed) for row in each.rows})

    @property
    def text(self) -> str:
        """The earlier evidence as text; empty without any."""
        curves = [*self.open, *self.agreed]
        if not curves:
            return ""
        sources = " and ".join(dict.fromkeys(each.source for each in curves if each.source))
        count = self.settings
        verb = "setting of this job is" if count == 1 else "settings of this job are"
        return f"{count} {verb} known from {sources or 'an earlier run'}"

    def see(self, measured: Mapping[int, PooledLogs]) -> list[tuple[str, bool]]:
        """Compare with this run's measurements.

        Args:
            measured: By row, ln time, ln energy and the relative standard errors of both.

        Returns:
            The source of each curve of which that shows now whether it is of this job, and whether it is.
            After one that is not no other curve is tried first.
        """
        news: list[tuple[str, bool]] = []
        for curves in (self.open, self.agreed):
            for curve in [*curves]:
                odds = log_odds(curve, measured)
                if odds > CONTRADICTED and (odds < AGREED or curves is self.agreed):
                    continue
                curves[:] = [each for each in curves if each is not curve]
                agreed = odds >= AGREED
                news.append((curve.source, agreed))
                if agreed:
                    self.agreed = [*self.agreed, curve]
                else:
                    self._tried = True
        return news

    def first(self) -> PlacedCurve | None:
        """The curve whose best setting is tried first; one is, once."""
        return self.open[0] if self.open and not self.agreed and not self._tried else None

    def tried(self) -> None:
        """Record that its best setting was tried, or that no trial of it is worth its cost."""
        self._tried = True


def best_row(
    curve: PlacedCurve, reference: int, measured: tuple[float, float], objective: Objective,
    max_slowdown: float | None,
) -> int:
    """The best setting of an earlier run, within the slowdown limit; the reference if none was better.

    Args:
        curve: The earlier run.
        reference: Row of the setting that a slowdown is relative to.
        measured: Time (s) and energy (J) there, now.
        objective: The cost to minimise.
        max_slowdown: Allowed share of additional time; None for no limit.
    """
    at = {int(row): logs for row, logs in zip(curve.rows, curve.logs, strict=True)}
    top = at.get(reference, curve.logs[curve.logs[:, 0].argmin()])
    bound = math.inf if max_slowdown is None else max(math.log1p(max_slowdown) - curve.sd, 0.0)

    def cost(row: int) -> float:
        time_s, energy_j = np.exp(at[row] - top) * measured
        return float(objective.cost(time_s, energy_j))

    return min((row for row, logs in at.items() if logs[0] - top[0] <= bound), key=cost, default=reference)


def log_odds(curve: PlacedCurve, measured: Mapping[int, PooledLogs]) -> float:
    """How much likelier measurements are if a curve is of this job than if it is of another one, in ln."""
    rows = [row for row in measured if row in curve.foretold]
    if len(rows) < 2:
        return 0.0
    own, before = (np.array([each[row] for row in rows]) for each in (measured, curve.foretold))
    weights = 1 / (own[:, 2:] ** 2 + before[:, 2:] ** 2)
    shares = weights / weights.sum(axis=0)
    off = own[:, :2] - before[:, :2]
    rest = off - (shares * off).sum(axis=0)  # the unit is unknown
    depths = curve.depths[rows][:, None]
    other = (OTHER_JOB * (depths - (shares * depths).sum(axis=0))) ** 2
    variance = np.maximum(1 / weights - 1 / weights.sum(axis=0), 1e-9)
    terms = np.log1p(other / variance) - rest**2 * (1 / variance - 1 / (variance + other))
    return float(0.5 * terms.sum())


def _places(settings: Iterable[Setting], top: Setting) -> np.ndarray:
    """ln limit, SM clock and memory clock relative to the top, (settings, 3); NaN if unknown."""
    highest = (top.power_limit_w, top.sm_clock_mhz, top.mem_clock_mhz)
    rows = []
    for each in settings:
        values = (each.power_limit_w, each.sm_clock_mhz, each.mem_clock_mhz)
        rows.append([
            (0.0 if value is None else math.nan) if high is None
            else 0.0 if value is None else math.log(value / high) if value > 0 < high else math.nan
            for value, high in zip(values, highest, strict=True)
        ])
    return np.array(rows, dtype=float).reshape(-1, 3)

