"""Content of a period view of one GPU, computed once for the live view, the picture and the inspection view.

Arrays are float32 and small: the last iterations only, a shape of some tens of bins, a spectrum of some
hundreds of points.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ....logbook.quantities import format_seconds
from ....logbook.report import format_energy
from ....records import DetectedPeriod, IterationSummary, Periods
from ..._core.svg import ShadedSpan

if TYPE_CHECKING:
    import polars as pl

    from ....periods.segment import SegmentedIterations

Table = np.ndarray[Any, np.dtype[np.float32]]

MOST_FOLDED, MOST_POINTS = 20, 2000  # overlaid iterations, and their readings
FEWEST_ITERATIONS, FEWEST_READINGS = 4, 48  # of a guess that is folded
OWN = "own"  # the name of a period that a person gave
NOTHING = np.empty((0, 0), np.float32)


@dataclass(frozen=True)
class PeriodView:
    """The drawing of a GPU's period. Seconds of `spans` count from the view's start, those of `folded` and
    `shape` from an iteration's.

    Attributes:
        headline: The detected period, or a notice that it is unknown.
        details: Further sentences.
        level: The folded level; None if no period was found.
        spans: Iterations and pauses.
        folded: Time and power of the last iterations, a row of NaN between two.
        shape: Time, lower edge, median and upper edge of the power.
        spectrum: Period and amplitude.
        waits: Start and end of the GPU's longest wait in an iteration; None if no wait is observed.
    """

    headline: str = "looking for the iteration"
    details: tuple[str, ...] = ()
    sure: bool = False
    level: DetectedPeriod | None = None
    levels: tuple[DetectedPeriod, ...] = ()
    spans: tuple[ShadedSpan, ...] = ()
    folded: Table = field(default_factory=lambda: NOTHING)
    shape: Table = field(default_factory=lambda: NOTHING)
    spectrum: Table = field(default_factory=lambda: NOTHING)
    waits: tuple[float, float] | None = None

    @property
    def cycle_name(self) -> str:
        """The name of the folded level."""
        return "cycle" if self.level is None or self.level.name == OWN else self.level.name

    @property
    def marks(self) -> list[tuple[str, float, bool]]:
        """Marks of the spectrum: words, seconds, and whether the level is folded."""
        found = [(each.name, each.period_s, each == self.level) for each in self.levels]
        if self.level is not None and self.level not in self.levels:
            own = self.level.name
            found = [("detected" if name == own else name, seconds, False) for name, seconds, _ in found]
            found.append(("yours" if self.level.name == OWN else self.level.name, self.level.period_s, True))
        return [(f"{name} {format_seconds(seconds)}", seconds, chosen) for name, seconds, chosen in found]


def period_view(
    trace: pl.DataFrame, periods: Periods, *, start_s: float = 0.0, level: DetectedPeriod | None = None,
    looking: bool = False, known: SegmentedIterations | None = None,
) -> PeriodView:
    """The view of a trace with known periods.

    Args:
        trace: A power trace.
        periods: The periods detected in it, or in a trace around it.
        start_s: The zero of the view's time axis, on the trace's clock.
        level: The level to fold; None takes the iteration, or the closest level to it.
        looking: Whether the trace is still growing.
        known: The iterations of this trace, if they were detected already or `step()` has reported them.
    """
    import polars as pl

    from ....periods import fold
    from ....periods.segment import per_iteration

    marked = known is not None and known.summary.source == "marks"
    chosen = level or (_marked(known.summary, known.frame) if known is not None and marked else None)
    chosen = chosen or (periods.main if periods.main_sure else periods.iteration or periods.main)
    spectrum = _table(fold.spectrum(trace, points=280), "period_s", "amplitude")
    if chosen is None:
        return PeriodView(*_no(periods, looking), spectrum=spectrum)
    if known is not None and known.summary.count and level is None:
        frame, summary = known.frame, known.summary
    elif chosen in periods.levels:
        frame = _found(trace, periods, chosen)
        summary = per_iteration(frame, periods=periods)
    else:  # a person's own period is applied as a fixed ruler, so that a wrong one becomes visible
        frame = fold.uniform_grid(trace, chosen).with_columns(kind=pl.lit("iteration"))
        summary = IterationSummary(0)
    whole = frame.filter(frame["kind"] == "iteration")
    frame = _inner(frame)
    folded = fold.fold(trace, chosen, whole)
    late = folded.filter(folded["iteration"] >= _first(folded, whole.height))
    shape = fold.shape(late, chosen, refresh=fold.refresh_s(trace))
    own = level is not None and level not in periods.levels
    idle = None if own else fold.idle_share(trace, chosen, whole)
    waits = idle.text if idle else ""
    if not idle and whole.height > 1 and not own:
        waits = f"this sensor is too slow to show where in {format_seconds(chosen.period_s)} the GPU waits"
    details = [_counts(summary), waits, *periods.notes]
    headline = _headline(periods, chosen, summary, looking)
    known_one = periods.main_sure or marked
    if not known_one and level is None:  # a guess is not drawn like a detected period
        details, frame, idle = list(periods.notes), frame.clear(), None
        if whole.height < FEWEST_ITERATIONS or late.height < FEWEST_READINGS:
            late, shape = late.clear(), shape.clear()
    spans = (
        ShadedSpan(begin_s - start_s, end_s - start_s, kind != "iteration")
        for begin_s, end_s, kind in frame.select("start_s", "end_s", "kind").iter_rows()
    )
    edges = _table(shape, "phase", "low_w", "power_w", "high_w")
    return PeriodView(
        headline, tuple(filter(None, details)), known_one, chosen, periods.levels, tuple(spans),
        _broken(late, chosen), edges * np.array([chosen.period_s, 1, 1, 1], np.float32), spectrum,
        (idle.at_s, min(idle.at_s + idle.longest_s,
            chosen.period_s)) if idle and idle.longest_s > 0 else None,
    )


def _marked(summary: IterationSummary, frame: pl.DataFrame) -> DetectedPeriod | None:
    """The iteration from the steps that the program reports."""
    if not summary.count or summary.time_s is None:
        return None
    return DetectedPeriod(
        "iteration", summary.time_s, summary.time_uncertainty_s or 0.0, 1.0, float(frame["start_s"][0]), 0.0
    )


def _found(trace: pl.DataFrame, periods: Periods, level: DetectedPeriod) -> pl.DataFrame:
    """Iterations and pauses of a level in time: at least the columns start_s, end_s, kind."""
    from ....measurement.iterations import energies_of
    from ....periods.segment import iterations

    others = [each for each in periods.levels if each.name != "iteration" and each.period_s < level.period_s]
    periods = replace(periods, levels=(*others, replace(level, name="iteration")), sure=True)
    return iterations(trace, periods, energies=energies_of([trace]))


# words


def level_text(level: DetectedPeriod) -> str:
    return f"{level.name} {format_seconds(level.period_s)}"


def _headline(periods: Periods, level: DetectedPeriod, summary: IterationSummary, looking: bool) -> str:
    marked = summary.source == "marks"
    sure = "reported by step()" if marked else f"{100 * level.confidence:.0f} % sure"
    if not (marked or level in periods.levels):
        return f"Folded at {format_seconds(level.period_s)}, your own period"
    if marked or periods.sure:
        seconds, error_s = summary.time_s, summary.time_uncertainty_s
        if seconds is None:
            seconds, error_s = level.period_s, level.uncertainty_s
        joules = ""
        if summary.energy_j is not None:
            joules = f" and {format_energy(summary.energy_j, summary.energy_uncertainty_j)}"
        return f"One {level.name} takes {format_seconds(seconds, error_s)}{joules}, {sure}"
    if periods.main_sure and level is periods.main:
        each_j = next((each.each_j for each in summary.levels if each.name == "cycle"), None)
        joules = "" if each_j is None else f", {format_energy(each_j, None)} per cycle"
        return f"Period {format_seconds(level.period_s, level.uncertainty_s)}{joules}; {_role(periods)}"
    why = _looking(periods) if looking else _why(periods)
    guess = f"Perhaps one {level.name} takes {format_seconds(level.period_s)}"
    return f"{guess} ({sure}): {why[0].lower()}{why[1:]}"


def _role(periods: Periods) -> str:
    """The role of a period that may not be the iteration."""
    if periods.cycle_sure:
        return "the iterations inside it are too fast for this sensor"
    return "perhaps not the iteration"


def _no(periods: Periods, looking: bool) -> tuple[str, tuple[str, ...]]:
    if looking:
        reason = "" if periods.reason.startswith("looking") else periods.reason
        return _looking(periods), tuple(each for each in (reason, *periods.notes) if each)
    return f"No iteration found: {_why(periods)}", periods.notes


def _looking(periods: Periods) -> str:
    longer = f", for about {max(periods.longer_s, 1.0):.0f} s more" if periods.longer_s else ""
    return f"Looking for the iteration{longer}"


def _why(periods: Periods) -> str:
    longer = f"; about {periods.longer_s:.0f} s more would probably be enough" if periods.longer_s else ""
    return f"{periods.reason or 'no period found'}{longer}"


def _counts(summary: IterationSummary) -> str:
    """Number of iterations, and the occasional pauses between them."""
    if summary.count < 2:
        return ""
    between = [
        f"{f'{each.count} {each.name}s' if each.count > 1 else f'a {each.name}'} of "
        f"{format_seconds(each.each_s)}"
        for each in summary.levels
        if each.name not in ("iteration", "micro-step", "cycle", "other") and not each.setting
    ]
    return ", ".join([f"{summary.count} iterations", *between])


# arrays


def _inner(frame: pl.DataFrame) -> pl.DataFrame:
    """Spans without the incomplete iterations at both ends, which are no pauses."""
    place = (frame["kind"] == "iteration").arg_true()
    return frame.clear() if place.is_empty() else frame[int(place[0]) : int(place[-1]) + 1]


def _first(folded: pl.DataFrame, count: int) -> int:
    """The first of the last, drawn iterations."""
    each = max(folded.height / max(count, 1), 1.0)
    return count - int(min(MOST_FOLDED, max(3.0, MOST_POINTS / each)))


def _table(frame: pl.DataFrame, *names: str) -> Table:
    return np.ascontiguousarray(frame.select(names).to_numpy(), np.float32)


def _broken(folded: pl.DataFrame, level: DetectedPeriod) -> Table:
    """Phase (s of the mean iteration) and power (W), with a row of NaN between two iterations."""
    if not folded.height:
        return np.empty((0, 2), np.float32)
    table = _table(folded, "phase", "power_w") * np.array([level.period_s, 1], np.float32)
    edges = np.flatnonzero(np.diff(folded["iteration"].to_numpy())) + 1
    broken = np.insert(table, edges, np.float32(np.nan), axis=0)
    step = 1 + len(broken) // (2 * MOST_POINTS)
    # Each iteration has the NaN before it, so that thinning keeps the breaks.
    pieces = np.split(broken, np.flatnonzero(np.isnan(broken[:, 0])))
    return np.concatenate([piece[::step] for piece in pieces])
