"""Measurements pooled for their frontier: the default, limits, choices, savings.

    view = analyse_frontier(collect(frame).points)
    chosen = best_configuration(frame, max_slowdown=0.05)          a `Configuration`

Pure functions over frames with `time_s` and `energy_j` for the same work, as `search.frontier` reads them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from ..errors import UsageError, checked, shown, type_name
from ..records import Configuration, Setting
from . import frontier as pareto
from .frontier import KNOBS
from .objective import Objective, ZeusCost, check_slowdown, resolve_objective, with_eta

_COLUMNS: dict[str, Any] = {
    "time_s": pl.Float64,
    "energy_j": pl.Float64,
    "time_se_s": pl.Float64,  # standard errors
    "energy_se_j": pl.Float64,
    "repeats": pl.Int64,
    "power_limit_w": pl.Float64,  # null leaves it to the driver
    "sm_clock_mhz": pl.Int64,
    "mem_clock_mhz": pl.Int64,
    "batch_size": pl.Int64,
    "gpu": pl.String,
    "job": pl.String,
    "measured": pl.Boolean,  # false: predicted
    "measurements": pl.List(pl.String),  # ids in the log, oldest first
}
POINTS = pl.Schema(_COLUMNS)
Z95 = 1.96


class Collected(NamedTuple):
    """Points (`POINTS`, one row per configuration), messages about unusable rows, and jobs whose batch sizes
    cannot be compared, because the work of each run is unknown.
    """

    points: pl.DataFrame
    notes: tuple[str, ...] = ()
    separate: frozenset[str | None] = frozenset()


def collect(frame: pl.DataFrame) -> Collected:
    """Any frame with `time_s` and `energy_j` as pooled points; repeats become one row with their spread.

    Rows without a usable time and energy are skipped, with a note. A measurement replaces a prediction.

    Raises:
        UsageError: A missing or non-numeric column, or no usable row. The message names the error.
    """
    if not isinstance(frame, pl.DataFrame):
        raise UsageError(f"expected a Polars DataFrame with time_s and energy_j, got {type_name(frame)}")
    if any(frame.schema.get(name, pl.List).is_nested() for name in ("time_s", "energy_j")):
        pareto.check(frame)
    usable, notes = _usable(frame)
    if usable.is_empty():
        pareto.check(frame)
    nameless = not any(name in usable.columns for name in KNOBS)
    try:
        typed = _typed(usable)
    except pl.exceptions.PolarsError as error:
        raise UsageError(f"these points cannot be read: {str(error).splitlines()[0]}") from error
    points = typed.with_columns(
        pl.col("measured").fill_null(True),
        repeats=pl.when(pl.col("repeats") > 0).then(pl.col("repeats")).otherwise(1),
    )
    keys = [*KNOBS, "gpu", "job"]
    if nameless:  # without a name, each is a separate configuration
        return Collected(points.with_columns(pl.col("time_se_s", "energy_se_j").fill_null(0.0)), notes)
    measured = _pooled(points.filter(pl.col("measured")), keys)
    predicted = points.filter(~pl.col("measured"))
    if not predicted.is_empty():
        known = measured.select(keys)
        predicted = _pooled(predicted, keys).join(known, on=keys, how="anti", nulls_equal=True)
        measured = pl.concat([measured, predicted])
    return Collected(measured.select(POINTS.names()).cast(dict(POINTS)), notes)  # type: ignore[arg-type]


def _usable(frame: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Rows with a finite time and energy above 0, and a sentence about the others."""
    numbers = frame.with_columns(pl.col("time_s", "energy_j").cast(pl.Float64, strict=False))
    sound = [pl.col(name).is_finite() & (pl.col(name) > 0) for name in ("time_s", "energy_j")]
    table = numbers.select(each.fill_null(False) for each in sound)
    good = table["time_s"] & table["energy_j"]
    if good.all() or not good.any():
        return numbers.filter(good), ()
    row = int(np.flatnonzero(~good.to_numpy())[0])
    wrong = "energy_j" if table["time_s"][row] else "time_s"
    left = int((~good).sum())
    value = numbers[wrong][row]
    text = "no" if value is None else f"{value:g} as its"
    return numbers.filter(good), (
        f"{left} of {len(frame)} observations {'is' if left == 1 else 'are'} left out for lack of a finite "
        f"time and energy above 0 (row {row} has {text} {wrong})",
    )


def _typed(frame: pl.DataFrame) -> pl.DataFrame:
    """A frame with all columns of `POINTS`, null where it has none."""
    columns = []
    for name, kind in POINTS.items():
        if name == "measurements" and name not in frame.columns and "measurement" in frame.columns:
            ids = pl.concat_list(pl.col("measurement").cast(pl.String))
            columns.append(ids.list.drop_nulls().alias(name))
        elif name == "measurements" and frame.schema.get(name) == pl.String:  # as a CSV file has them
            columns.append(pl.col(name).fill_null("").str.split(" ").list.filter(pl.element() != ""))
        elif name in frame.columns:
            columns.append(pl.col(name).cast(kind, strict=name in ("time_s", "energy_j")))
        else:
            columns.append(pl.lit([] if name == "measurements" else None, dtype=kind).alias(name))
    return frame.select(columns)


def _pooled(points: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Repeats of a configuration as one row each: means, standard errors, and number of repeats.

    The standard error is the larger of the repeats' spread (two or more) and their own errors.
    """
    return points.group_by(keys, maintain_order=True).agg(
        pl.col("time_s", "energy_j").mean(), _error("time_s", "time_se_s"), _error("energy_j", "energy_se_j"),
        pl.col("repeats").sum(), pl.col("measured").first(),
        pl.col("measurements").list.explode().drop_nulls(),
    ).select(POINTS.names())


def _error(column: str, error: str) -> pl.Expr:
    spread = pl.col(column).std() / pl.len().sqrt()
    own = (pl.col(error).fill_null(0.0) ** 2).sum().sqrt() / pl.len()
    return pl.max_horizontal(spread.fill_null(0.0), own).alias(error)


# one piece of work


@dataclass(frozen=True)
class FrontierAnalysis:
    """Points of one piece of work, their frontier, and the default to compare with.

    Attributes:
        points: Rows of `POINTS`.
        front: Rows of the frontier, fastest first.
        chance: Probability of each point to be on the frontier.
        reference: Row of the GPU's default; None if it is not among the points.
        why: How the reference was found, or why there is none.
        max_power_w: Power at which eta prices time.
    """

    points: pl.DataFrame
    front: np.ndarray
    chance: np.ndarray
    reference: int | None
    why: str
    max_power_w: float

    @functools.cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The points by column."""
        return self.points.to_dicts()

    @functools.cached_property
    def gpus(self) -> list[str]:
        """Names of the GPUs, sorted."""
        return sorted(name for name in self.points["gpu"].unique() if name is not None)

    @property
    def frontier(self) -> pl.DataFrame:
        return self.points[self.front]

    @property
    def knee(self) -> int:
        """Row of the frontier where the frontier bends most."""
        return pareto.knee(self.frontier)

    def allowed(self, max_slowdown: float | None) -> int:
        """Number of the frontier's rows, fastest first, within a slowdown to the reference; at least one."""
        if max_slowdown is None:
            return len(self.front)
        return int(np.searchsorted(self.slowdowns, max_slowdown, side="right"))

    @property
    def slowdowns(self) -> np.ndarray:
        """For each row of the frontier, the smallest slowdown limit that allows it; 0 for the fastest."""
        shares = self.frontier["time_s"].to_numpy() / (self.reference_time_s * (1 + 1e-9)) - 1
        return np.maximum(shares, 0.0) * (np.arange(len(shares)) > 0)

    @property
    def reference_time_s(self) -> float:
        """The default's time; without a default, the fastest point's."""
        row = int(self.front[0]) if self.reference is None else self.reference
        return float(self.points["time_s"][row])

    def optimum(self, eta: float, max_slowdown: float | None = None) -> int:
        """Of the frontier's rows within a slowdown, the one of least `ZeusCost` at eta."""
        return int(self.optima([eta])[0, self.allowed(max_slowdown) - 1])

    def optima(self, etas: Sequence[float]) -> np.ndarray:
        """`optimum` of each eta where only the first, the first two, ... of the frontier's rows are allowed;
        of equals the fastest. Shape (etas, rows).
        """
        time_s, energy_j = (self.frontier[name].to_numpy() for name in ("time_s", "energy_j"))
        costs = np.stack([ZeusCost(eta, self.max_power_w).cost(time_s, energy_j) for eta in etas])
        lower = np.ones(costs.shape, bool)
        lower[:, 1:] = costs[:, 1:] < np.minimum.accumulate(costs, axis=1)[:, :-1]
        return np.maximum.accumulate(np.where(lower, np.arange(costs.shape[1]), 0), axis=1)

    def place(self, row: int) -> int | None:
        """Row on the frontier of a row of points; None for a dominated point."""
        found = np.flatnonzero(self.front == row)
        return int(found[0]) if len(found) else None


def analyse_frontier(
    points: pl.DataFrame, *, default: Configuration | None = None, max_power_w: float | None = None
) -> FrontierAnalysis:
    """The frontier of pooled points for the same work.

    Args:
        default: The configuration that others are compared with. Without it that is the one that leaves all
            to the driver, else the highest limit and clocks, at the batch size that is fastest there.
        max_power_w: Prices time for eta; the highest power limit, or the highest mean power, where None.

    Raises:
        UsageError: no points, a default that is none of them, a power that makes no sense.
    """
    points = pareto.check(points)
    front = pareto.on_frontier(points["time_s"].to_numpy(), points["energy_j"].to_numpy())
    chance = pareto.membership(points)
    reference, why = _reference(points, default)
    if max_power_w is None:
        limits = points["power_limit_w"].drop_nulls()
        drawn = float((points["energy_j"] / points["time_s"]).max())  # type: ignore[arg-type]
        max_power_w = drawn if limits.is_empty() else float(limits.max())  # type: ignore[arg-type]
    ZeusCost(0.5, max_power_w)  # which names the error with it
    return FrontierAnalysis(points, front, chance, reference, why, max_power_w)


def _reference(points: pl.DataFrame, default: Configuration | None) -> tuple[int | None, str]:
    rows = points.with_row_index("row")
    if default is not None:
        if not isinstance(default, Configuration):
            raise UsageError(f"default={shown(default)} is no Configuration")
        row = find(points, default)
        if row is None:
            raise UsageError(
                f"the default, {describe(default)}, is none of the {len(points)} points; measure it, or name "
                "one of them"
            )
        return row, "as given"
    knobs = [name for name in KNOBS if name != "batch_size"]
    if not any(points[name].is_not_null().any() for name in KNOBS):
        return None, "no point names its setting, so none is known to be the default"
    if not points["measured"].any():
        return None, "nothing is measured yet"
    # The highest of each knob that was turned; null is the driver's own and the highest.
    top = rows.sort(knobs, descending=True, nulls_last=False).row(0, named=True)
    free = rows.filter(pl.all_horizontal(pl.col(name).eq_missing(top[name]) for name in knobs))
    # Savings are relative to the GPU's default; if it was not measured, to its prediction.
    why = "predicted, not measured"
    if free["measured"].any():
        turned = any(top[name] is not None for name in knobs)
        why = "the highest setting measured" if turned else "the driver's own setting"
    best = free.sort("measured", "time_s", descending=[True, False])
    several = best.filter(pl.col("measured") == best["measured"][0])["batch_size"].n_unique() > 1
    return int(best["row"][0]), why + (", at the batch size that is fastest there" if several else "")


# configurations


def configuration(points: pl.DataFrame, row: int) -> Configuration:
    """Configuration that a point was measured at."""
    return configured(points.row(row, named=True))


def configured(at: Mapping[str, Any]) -> Configuration:
    """Configuration of a point that is given by column."""
    *setting, batch_size = (at[name] for name in KNOBS)
    return Configuration(Setting(*setting), batch_size)


def find(points: pl.DataFrame, wanted: Configuration) -> int | None:
    """The row of a configuration, or None. For a batch size of None the fastest one."""
    knobs: Mapping[str, Any] = {name: getattr(wanted.setting, name) for name in KNOBS if name != "batch_size"}
    rows = points.with_row_index("row").filter(
        pl.all_horizontal(pl.col(name).eq_missing(value) for name, value in knobs.items())
    )
    exact = rows.filter(pl.col("batch_size").eq_missing(wanted.batch_size))
    rows = exact if not exact.is_empty() or wanted.batch_size is not None else rows
    return None if rows.is_empty() else int(rows.sort("time_s")["row"][0])


def describe(chosen: Configuration) -> str:
    """A configuration in words: power limit (W), clocks (MHz), batch size.

    >>> describe(Configuration(Setting(power_limit_w=150.0, sm_clock_mhz=1200), 64))
    '150 W, SM 1200 MHz, batch size 64'
    >>> describe(Configuration())
    "the driver's own setting"
    """
    setting = "the driver's own setting" if chosen.setting == Setting() else str(chosen.setting)
    return setting if chosen.batch_size is None else f"{setting}, batch size {chosen.batch_size}"



@checked
def best_configuration(
    frame: pl.DataFrame, *, objective: str | float | Objective = "energy", eta: float | None = None,
    max_slowdown: float | None = 0.05, default: Configuration | None = None,
    max_power_w: float | None = None,
) -> Configuration:
    """The configuration of a frame that costs least within a slowdown limit, by default 5 %.

    Args:
        frame: Observations, as `collect` takes them.
        objective: What to minimise, as `tune` takes it.
        eta: Zeus' weight of energy, 0 to 1, in place of an objective.
        max_slowdown: Allowed share of additional time to the default (0.05 is 5 %); None for no limit.
        default: Reference of slowdowns; None: the frame's own.
        max_power_w: Power limit of the GPU, which prices time for eta.

    Raises:
        UsageError: as `collect` and `analyse_frontier`; or several jobs or GPUs in one frame, or an invalid
            eta or slowdown.
    """
    points = collect(frame).points
    for name in ("gpu", "job"):
        if points[name].n_unique() > 1:
            raise UsageError(
                f"the frame holds several {name}s ({', '.join(map(str, points[name].unique()[:4]))}); filter "
                "it to one"
            )
    wanted = with_eta(objective, eta, "energy")
    check_slowdown(max_slowdown)
    analysis = analyse_frontier(points, default=default, max_power_w=max_power_w)
    time_s, energy_j = (analysis.frontier[name].to_numpy() for name in ("time_s", "energy_j"))
    cost = resolve_objective(wanted, analysis.max_power_w, 1).cost(time_s, energy_j)
    return configuration(points, int(analysis.front[np.argmin(cost[: analysis.allowed(max_slowdown)])]))




def python(chosen: Configuration, rule: str = "") -> str:
    """A line of Python that makes a configuration, with the rule that led to it.

    >>> python(Configuration(Setting(power_limit_w=150.0), 64), "least energy")[-50:]
    'power_limit_w=150), batch_size=64)  # least energy'
    """
    setting = chosen.setting
    named = [(name, getattr(setting, name)) for name in ("power_limit_w", "sm_clock_mhz", "mem_clock_mhz")]
    inside = ", ".join(f"{name}={value:.12g}" for name, value in named if value is not None)
    batch = "" if chosen.batch_size is None else f", batch_size={chosen.batch_size}"
    line = f"chosen = workbench.Configuration(workbench.Setting({inside}){batch})"
    return f"{line}  # {rule}" if rule else line


# a choice when points change


def follow(before: FrontierAnalysis, row: int, after: FrontierAnalysis) -> tuple[int, str]:
    """Row of a choice among new points, and a sentence where it had to move: the point itself if it is still
    there and no worse off, else the nearest of the frontier.
    """
    was = before.points.row(row, named=True)
    keys = [*KNOBS, "gpu", "job"]
    if all(was[name] is None for name in KNOBS):  # only its time and energy identify it
        keys += ["time_s", "energy_j"]
    same = after.points.with_row_index("row").filter(
        pl.all_horizontal(pl.col(key).eq_missing(was[key]) for key in keys)
    )
    now = None if same.is_empty() else int(same["row"][0])
    stood = before.place(row) is not None
    if now is not None and (after.place(now) is not None or not stood):
        return now, ""
    at = was if now is None else after.points.row(now, named=True)
    to = int(after.front[pareto.nearest(after.frontier, at["time_s"], at["energy_j"])])
    why = "is no longer among the points" if now is None else "is no longer on the frontier"
    name, other = describe(configuration(before.points, row)), describe(configuration(after.points, to))
    return to, f"{name} {why}; the choice has moved to the nearest, {other}"


# savings of a choice


UNITS = ("sample", "million tokens", "iteration", "epoch", "job", "run")


@dataclass(frozen=True)
class Work:
    """The unit of work of a point's `time_s` and `energy_j`, and the number of units of epochs and jobs.

    Attributes:
        unit: One of `UNITS`; a run is a job as well.
        per_epoch: Units per epoch; None if unknown. 1 for the unit "epoch".
        epochs: Epochs per job.
    """

    unit: str = "run"
    per_epoch: float | None = None
    epochs: float | None = None

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            *first, last = map(repr, UNITS)
            raise UsageError(f"the points are for one {self.unit!r}; that is a {', '.join(first)} or {last}")
        for name in ("per_epoch", "epochs"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name} is {value:g}; it is a number above 0, or None where unknown")

    def factors(self, reference_time_s: float) -> dict[str, float]:
        """Factors on a point for the default's work of an hour, for an epoch, and for a job."""
        job: float | None
        if self.unit in ("job", "run"):
            job = 1.0
            epoch = None if self.epochs is None else 1.0 / self.epochs
        else:
            epoch = 1.0 if self.unit == "epoch" else self.per_epoch
            job = None if epoch is None or self.epochs is None else epoch * self.epochs
        found = {"hour": 3600.0 / reference_time_s, "epoch": epoch, "job": job}
        return {name: factor for name, factor in found.items() if factor is not None}


@dataclass(frozen=True)
class Saving:
    """Joules and seconds that a choice saves against the default; below 0 it costs more.

    Attributes:
        per: "hour" (the work that the default does in an hour), "epoch" or "job".
        energy_j, uncertainty_j: Joules, with the half width of their 95 % interval.
        time_s: Seconds that it takes less; below 0 more.
    """

    per: str
    energy_j: float
    uncertainty_j: float
    time_s: float


def savings(analysis: FrontierAnalysis, row: int, work: Work) -> list[Saving]:
    """Savings of a point against the default, per hour, epoch and job; none of the default itself.

    Args:
        analysis: The frontier.
        row: Of the point.
        work: Unit of work and how much of it there is.
    """
    if analysis.reference in (None, row):
        return []
    one, other = (analysis.rows[number] for number in (row, analysis.reference))
    saved_j, saved_s = other["energy_j"] - one["energy_j"], other["time_s"] - one["time_s"]
    error_j = Z95 * math.hypot(one["energy_se_j"] or 0.0, other["energy_se_j"] or 0.0)
    return [Saving(per, factor * saved_j, factor * error_j, factor * saved_s)
            for per, factor in work.factors(other["time_s"]).items()]
