"""What was measured of a job before, as a search takes it: curves that must earn their weight.

A curve is time and energy of one job at some settings of a card, in units of its own. Until this run's probes
have borne a curve out at two settings it only says what to try first; from then on each of its points is a
soft probe; the first probe that contradicts it leaves all of it out. A choice is measured in any case.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..records import Setting
from .space import SettingSpace

SAME_SD = 0.01  # relative, by which the same setting differs from run to run
ELSEWHERE_SD = 0.05  # the same of another card, at settings that are alike relative to the highest
CONTRADICTED = 3.0  # standard deviations
NEAR, NEAR_ELSEWHERE = 0.012, 0.04  # in ln clock or limit, within which two settings are one
MOST_POINTS = 24  # of one curve


@dataclass(frozen=True)
class EarlierCurve:
    """Time (s) and energy (J) of a unit of work of one job at settings of one card.

    Attributes:
        costs: At each setting; the unit is the curve's own.
        source: In words, such as "a sweep of 2026-11-22".
        batch_size: None where it is not known.
        elsewhere: The default limit and highest clocks of the other card that it was measured on: only what
            is relative to those counts. None for the same card.
    """

    costs: Mapping[Setting, tuple[float, float]]
    source: str = ""
    batch_size: int | None = None
    elsewhere: Setting | None = None

    @property
    def sd(self) -> float:
        """Relative standard deviation by which a run of today may differ."""
        return SAME_SD if self.elsewhere is None else ELSEWHERE_SD


@dataclass(frozen=True)
class PlacedCurve:
    """A curve at rows of a space: rows, (ln time, ln energy) there, and the sd of either."""

    rows: np.ndarray
    logs: np.ndarray
    sd: float
    source: str


def place(curve: EarlierCurve, settings: Sequence[Setting], top: Setting) -> PlacedCurve | None:
    """A curve at those of `settings` that it knows, each once; None where it knows fewer than two.

    Args:
        curve: What was measured.
        settings: Of the space, by row.
        top: What a knob stands at that is left alone, where that is known.
    """
    own_top = top if curve.elsewhere is None else curve.elsewhere
    mine, theirs = _places(settings, top), _places(curve.costs, own_top)
    if not len(mine):
        return None
    apart = np.abs(mine[:, None] - theirs[None, :]).max(axis=2)
    apart = np.nan_to_num(apart, nan=math.inf)  # a knob that one names, and of which nothing is known
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
    return PlacedCurve(np.array([row for row, _ in chosen]), costs[[point for _, point in chosen]], curve.sd,
                       curve.source)


def top_of(space: SettingSpace) -> Setting:
    """What a knob of a card stands at that is left alone."""
    return Setting(space.max_power_limit_w, space.max_sm_clock_mhz, space.max_mem_clock_mhz)


def place_in(curves: Iterable[EarlierCurve], space: SettingSpace) -> list[PlacedCurve]:
    """Curves at the settings of a space."""
    found = (place(each, space.settings, top_of(space)) for each in curves)
    return [each for each in found if each is not None]


class EarlierRuns:
    """Curves of earlier runs of a job, and what this run's measurements make of them.

    Attributes:
        open: Those of which nothing is known yet, the one to be tried first in front.
        agreed: Those that the measurements bear out.
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
    def words(self) -> str:
        """What is known, in words; empty where nothing is."""
        curves = [*self.open, *self.agreed]
        if not curves:
            return ""
        sources = " and ".join(dict.fromkeys(each.source for each in curves if each.source))
        count = self.settings
        verb = "setting of this job is" if count == 1 else "settings of this job are"
        return f"{count} {verb} known from {sources or 'an earlier run'}"

    def see(self, measured: Mapping[int, tuple[float, float, float, float]]) -> str:
        """Compare with this run's measurements.

        Args:
            measured: By row, ln time, ln energy and the relative standard errors of both.

        Returns:
            "agreed" or "contradicted" where a curve has become that now, else nothing. After a contradiction
            no other curve is tried first.
        """
        news = ""
        for curve in (*self.open, *self.agreed):
            verdict = agrees(curve, measured)
            if verdict is None or (verdict and curve in self.agreed):
                continue
            (self.agreed if curve in self.agreed else self.open).remove(curve)
            if verdict:
                self.agreed.append(curve)
            else:
                self._tried = True
            news = "contradicted" if not verdict or news == "contradicted" else "agreed"
        return news

    def first(self) -> PlacedCurve | None:
        """The curve whose best setting is tried first; one is, once."""
        return self.open[0] if self.open and not self.agreed and not self._tried else None

    def tried(self) -> None:
        """Its best setting is tried, or nothing of it is worth that."""
        self._tried = True


def agrees(curve: PlacedCurve, measured: Mapping[int, tuple[float, float, float, float]]) -> bool | None:
    """Whether measurements differ from a curve by no more than a unit and errors; None below two of them."""
    common = [(number, int(row)) for number, row in enumerate(curve.rows) if int(row) in measured]
    if len(common) < 2:
        return None
    own = np.array([measured[row] for _, row in common])
    off = own[:, :2] - curve.logs[[number for number, _ in common]]
    weights = 1 / (own[:, 2:] ** 2 + curve.sd**2)
    rest = off - (weights * off).sum(axis=0) / weights.sum(axis=0)
    sd = np.sqrt(1 / weights - 1 / weights.sum(axis=0))
    return bool((np.abs(rest) <= CONTRADICTED * sd).all())


def _places(settings: Iterable[Setting], top: Setting) -> np.ndarray:
    """ln limit, SM clock and memory clock relative to the top, (settings, 3); NaN where nobody knows."""
    highest = (top.power_limit_w, top.sm_clock_mhz, top.mem_clock_mhz)
    rows = []
    for each in settings:
        values = (each.power_limit_w, each.sm_clock_mhz, each.mem_clock_mhz)
        rows.append([
            (0.0 if value is None else math.nan) if high is None
            else math.log((high if value is None else value) / high)
            for value, high in zip(values, highest, strict=True)
        ])
    return np.array(rows, dtype=float).reshape(-1, 3)

