"""What came of many runs, as small columns to be shown: policies side by side with their spread, time
courses, distributions.

Everything here is bounded, however long the log is: a time course is at most `POINTS` rows, a distribution
`LEVELS`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from .recording import RunRecord
from .result import Result
from .scenario import Scenario, Task
from .summary import per_job

Floats = np.ndarray[Any, np.dtype[np.float64]]
POINTS = 400
LEVELS = 201
FIGURES = (
    "energy_kwh", "unowned_kwh", "active_nodes", "awake_nodes", "wait_h", "wait_p95_h", "jct_h", "jct_p95_h",
    "runtime_inflation", "mean_job_inflation", "p95_job_inflation", "misses", "undos", "moves", "wakes",
    "makespan_h",
)
DISTRIBUTIONS = ("wait_h", "jct_h", "slowdown", "inflation")


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over draws, and the standard deviation from draw to draw; None where there is one draw."""

    mean: float
    sd: float | None


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A policy at one value of what is swept.

    Attributes:
        figures: By name of `FIGURES`.
        energy_ratio: Energy over that of the first policy at this value, draw by draw; None until both are
            there.
        draws: How many runs have ended.
        energy_kwh: By the seed of the draw.
    """

    policy: str
    value: float | None
    draws: int
    jobs: int
    deadlines: int
    figures: dict[str, Spread]
    energy_ratio: Spread | None
    energy_kwh: dict[int, float]

    def energy_over(self, other: PolicyRow) -> Spread | None:
        """Energy over that of another policy, draw by draw; None while no draw has both."""
        draws = self.energy_kwh.keys() & other.energy_kwh.keys()
        ratios = [self.energy_kwh[seed] / other.energy_kwh[seed] for seed in draws if other.energy_kwh[seed]]
        return spread(ratios) if ratios else None


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What came of a task: its row, and where they were kept the drawn view and the run to look into."""

    task: Task
    row: dict[str, Any]
    cpu_s: float
    view: RunView | None
    record: RunRecord | None


def rows(scenario: Scenario, outcomes: Iterable[RunOutcome]) -> list[PolicyRow]:
    """A row for each policy and value of which a run has ended, in the order of the scenario."""
    found: dict[tuple[str, float | None], dict[int, dict[str, Any]]] = {}
    for each in outcomes:
        found.setdefault((each.task.policy, each.task.value), {})[each.task.seed] = each.row
    made = []
    for value in scenario.values if scenario.sweep else (None,):
        base: PolicyRow | None = None
        for name in scenario.policies:
            seeds = found.get((name, value))
            if not seeds:
                continue
            any_row = next(iter(seeds.values()))
            figures = {figure: spread([float(row[figure]) for row in seeds.values()]) for figure in FIGURES}
            row = PolicyRow(
                name, value, len(seeds), any_row["jobs"], any_row["deadlines"], figures, None,
                {seed: float(each["energy_kwh"]) for seed, each in seeds.items()},
            )
            base = row if name == scenario.policies[0] else base
            made.append(row if base is None else replace(row, energy_ratio=row.energy_over(base)))
    return made


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation.

    >>> spread([1.0, 3.0])
    Spread(mean=2.0, sd=1.4142135623730951)
    """
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def frame(outcomes: Iterable[RunOutcome]) -> pl.DataFrame:
    """A row per run: policy, seed, swept value, everything of `summary.summarise`, CPU seconds."""
    return pl.DataFrame(
        [
            {
                **each.row, "title": each.row["policy"], "policy": each.task.policy, "seed": each.task.seed,
                "value": each.task.value, "cpu_s": each.cpu_s,
            }
            for each in outcomes
        ],
        infer_schema_length=None,
    )


def course(
    result: Result, end_s: float | None = None, points: int = POINTS
) -> dict[str, np.ndarray[Any, Any]]:
    """The cluster over time in at most so many equal stretches: `hours` (their ends), mean `power_w`, mean
    numbers of nodes and jobs.

    Power is the energy of the stretch over its length, so that the area below it is the energy of the run;
    the others are means of what was seen at the timeline's rows. A stretch without a row has the last one's.

    Args:
        result: A run with a timeline.
        end_s: Where the stretches end; the run's end where None.
    """
    timeline = result.timeline
    start_s, stop_s = result.start_s, result.end_s if end_s is None else end_s
    names = ("hosting", "awake", "running", "queued")
    if timeline.height == 0 or not stop_s > start_s:
        return {"hours": np.zeros(0), "power_w": np.zeros(0), **{name: np.zeros(0) for name in names}}
    time_s = timeline["time_s"].to_numpy()
    count = max(1, min(points, timeline.height))
    edges = np.linspace(start_s, stop_s, count + 1)
    known_s = np.append(time_s, result.end_s)
    energy_j = np.interp(edges, known_s, np.append(timeline["energy_j"].to_numpy(), result.energy_j))
    place = np.clip(np.searchsorted(edges, time_s, side="right") - 1, 0, count - 1)
    view = np.bincount(place, minlength=count)
    columns: dict[str, np.ndarray[Any, Any]] = {
        "hours": (edges[1:] - start_s) / 3600,
        "power_w": np.diff(energy_j) / np.diff(edges),
    }
    last = np.maximum.accumulate(np.where(view > 0, np.arange(count), 0))
    for name in names:
        sums = np.bincount(place, weights=timeline[name].to_numpy().astype(float), minlength=count)
        columns[name] = (sums / np.maximum(view, 1))[last]
    return columns


def distribution(values: np.ndarray[Any, Any], levels: int = LEVELS) -> np.ndarray[Any, Any]:
    """The values below which 0, 1/200, ... of all lie: the points of a cumulative distribution, with its
    extremes.

    >>> distribution(np.array([3.0, 1.0, 2.0]), 3)
    array([1., 2., 3.])
    """
    return np.zeros(0) if len(values) == 0 else np.quantile(values, np.linspace(0, 1, levels))


# Reasons for which a job is worth a look: the column that tells, and above which value.
NOTABLE = {
    "longest wait": ("wait_h", 1 / 60), "most slowed by others": ("inflation", 0.005),
    "most energy": ("energy_j", 0.0), "latest for its deadline": ("late_s", 1e-3),
    "most undone and moved": ("stops", 0.5),
}


def notable(jobs: pl.DataFrame, count: int = 6) -> dict[str, list[str]]:
    """Jobs worth a look by reason of `NOTABLE`; a reason for which there is none is left out."""
    known = per_job(jobs).with_columns(
        (pl.col("end_s") - pl.col("deadline_s")).alias("late_s"),
        (pl.col("undos") + pl.col("moves")).alias("stops"),
    )
    found = {}
    for reason, (column, least) in NOTABLE.items():
        top = known.filter(pl.col(column) > least).top_k(count, by=column).sort(column, descending=True)
        if top.height:
            found[reason] = top["job_id"].to_list()
    return found


@dataclass(frozen=True, slots=True)
class RunView:
    """What is drawn of a run, however long its log: `course`, `distributions` and `notable` of it."""

    course: dict[str, Floats]
    distributions: dict[str, Floats]
    notable: dict[str, list[str]]


def view(result: Result) -> RunView:
    """All that is drawn of a run with a timeline."""
    jobs = per_job(result.jobs)
    shares = {name: distribution(jobs[name].to_numpy()) for name in DISTRIBUTIONS}
    return RunView(course(result), shares, notable(result.jobs))


def rounded(value: float, digits: int = 3) -> float:
    """To significant digits.

    >>> rounded(12345.678), rounded(0.0)
    (12300.0, 0.0)
    """
    if value == 0 or not math.isfinite(value):
        return 0.0
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))
