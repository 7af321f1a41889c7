"""Results of many runs, as small columns for charts: policies side by side with their spread, time courses,
distributions.

Sizes do not grow with the log: a time course has about `POINTS` rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl
from polars import col

from .result import TIMELINE, Result
from .summary import per_job

Floats = np.ndarray
POINTS = 400  # of a time course, approximately; a distribution has half as many
DISTRIBUTIONS = ("wait_h", "jct_h", "slowdown", "inflation")


def energy_over(policy: str) -> pl.Expr:
    """Energy of each run relative to that of another policy with the same seed and swept value."""
    other = col.energy_kwh.filter(col.policy == policy).first()
    return (col.energy_kwh / other.over("value", "seed")).alias("energy_ratio")


def compared(runs: pl.DataFrame, first: str) -> pl.DataFrame:
    """A row for each swept value and each policy, over ended runs. It has the means of their figures,
    `draws`, and of `energy_kwh` and `energy_ratio`, which is against the first policy, the standard deviation
    from draw to draw.
    """
    spread = col("energy_kwh", "energy_ratio").std().name.suffix("_sd")
    figures = col(pl.Float64, pl.Int64).exclude("value", "seed").mean()
    groups = runs.with_columns(energy_over(first)).group_by("value", "policy", maintain_order=True)
    return groups.agg(figures, spread, draws=pl.len())


def course(result: Result) -> dict[str, Floats]:
    """The cluster between the moments of its timeline: `hours` (the ends), mean `power_w`, numbers of nodes
    and jobs.

    Power is the energy of the interval over its length, so that the area below it is the energy of the run.
    """
    rows = result.timeline.filter(col.time_s < result.end_s)
    times_s = np.append(rows["time_s"], result.end_s)
    power_w = np.diff(np.append(rows["energy_j"], result.energy_j)) / np.diff(times_s)
    counts = {name: rows[name].to_numpy() for name in TIMELINE[3:]}
    return {"hours": (times_s[1:] - result.start_s) / 3600, "power_w": power_w, **counts}


def distribution(values: pl.Series) -> Floats:
    """The quantiles at equal shares: a cumulative distribution, with its extremes."""
    return np.quantile(values.to_numpy(), np.linspace(0, 1, POINTS // 2 + 1)) if len(values) else np.zeros(0)


# Reasons for which a job is notable: the column, and its threshold.
NOTABLE = {
    "longest wait": ("wait_h", 1 / 60), "most slowed by others": ("inflation", 0.005),
    "most energy": ("energy_j", 0.0), "latest for its deadline": ("late_s", 1e-3),
    "most undone and moved": ("stops", 0.5),
}


def notable(jobs: pl.DataFrame, count: int = 6) -> dict[str, list[str]]:
    """Notable jobs by reason of `NOTABLE`; a reason without any job is left out."""
    known = per_job(jobs).with_columns(
        late_s=col.end_s - col.deadline_s, stops=col.undos + col.moves
    )
    found = {}
    for reason, (column, least) in NOTABLE.items():
        top = known.filter(col(column) > least).top_k(count, by=column).sort(column, descending=True)
        if top.height:
            found[reason] = top["job_id"].to_list()
    return found


@dataclass(frozen=True)
class RunView:
    """Data of a run's charts, of limited size for every log: `course`, `distributions` and `notable` of it.
    """

    course: dict[str, Floats]
    distributions: dict[str, Floats]
    notable: dict[str, list[str]]


def view(result: Result) -> RunView:
    """All chart data of a run with a timeline."""
    jobs = per_job(result.jobs)
    shares = {name: distribution(jobs[name]) for name in DISTRIBUTIONS}
    return RunView(course(result), shares, notable(result.jobs))


def rounded(value: float, digits: int = 3) -> float:
    """To significant digits.

    >>> rounded(12345.678), rounded(0.0)
    (12300.0, 0.0)
    """
    return float(f"{value:.{digits}g}") if math.isfinite(value) else 0.0
