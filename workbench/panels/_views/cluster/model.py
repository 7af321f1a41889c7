"""Content of the cluster panel, as columns and words; all arithmetic is in `cluster.views`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from ....cluster.policies import POLICIES
from ....cluster.runs import RunOutcome
from ....cluster.scenario import UNITS, Scenario, label
from ....cluster.views import compared, energy_over, rounded
from ....logbook.quantities import format_change

Row = dict[str, Any]  # of `views.compared`
HEADS: tuple[tuple[str, str], ...] = (
    ("policy", "scheduling policy"),
    ("energy", "of all nodes until the last job ends; in brackets the standard deviation over seeds"),
    ("against first", "energy over that of the first policy, minus 1, seed by seed"),
    ("active nodes", "nodes with a job, averaged over the run"),
    ("waiting: mean, p95", "mean and 95th percentile of the time that a job spends without GPUs"),
    ("waiting and running: mean, p95", "mean and 95th percentile of the time from submission to end"),
    ("runtime", "mean time on GPUs over mean duration alone, minus 1"),
    ("misses", "jobs that ended after their deadline"),
    ("undos, moves", "undone placements; jobs stopped to continue elsewhere or to make room"),
)
# Title, unit and least value of a logarithmic axis; None is a linear one.
DISTRIBUTION_AXES: dict[str, tuple[str, str, float | None]] = {
    "wait_h": ("Waiting", "hours, 0.01 and less at the left edge", 0.01),
    "jct_h": ("Waiting and running", "hours", 0.01),
    "slowdown": ("Slowdown: waiting and running over the duration alone", "times", 1.0),
    "inflation": ("Runtime on GPUs against alone", "% longer", None),
}


@dataclass(frozen=True)
class TableLine:
    """A policy at one value of the swept parameter.

    Attributes:
        policy: Its name in `POLICIES`.
        number: Number of its colour.
        value: Value of the swept parameter.
        text: Its name for a reader.
        cells: Texts of the columns in `HEADS`.
        energy_mwh: Mean energy; `energy_sd` is the standard deviation over seeds, None for one seed.
        ratio: Energy over that of the first policy, None until both are known; `ratio_sd` is over seeds.
        unowned: The part of the energy that nodes drew without a job, 0..1.
    """

    policy: str
    number: int
    value: float | None
    text: str
    cells: tuple[str, ...]
    energy_mwh: float
    energy_sd: float | None
    ratio: float | None
    ratio_sd: float | None
    unowned: float


@dataclass(frozen=True)
class PolicyCurve:
    """A policy in the plots of time and of shares: `course` and `distributions` as in `views.RunView`,
    notable jobs, and whether it can be inspected.
    """

    policy: str
    number: int
    text: str
    course: dict[str, np.ndarray]
    distributions: dict[str, np.ndarray]
    notable: dict[str, list[str]]
    open: bool


@dataclass(frozen=True)
class ClusterView:
    """All content; empty before the end of a run. `bars` are the lines at the first value of the sweep."""

    lines: tuple[TableLine, ...] = ()
    bars: tuple[TableLine, ...] = ()
    curves: tuple[PolicyCurve, ...] = ()
    sweep: str | None = None
    headline: str = ""
    details: tuple[str, ...] = ()


def cluster_view(scenario: Scenario, outcomes: Sequence[RunOutcome], runs: pl.DataFrame) -> ClusterView:
    """The results so far.

    Args:
        scenario: The simulated scenario.
        outcomes: Results of the finished runs.
        runs: The same as a frame (`PolicyComparison.results`).
    """
    rows = compared(runs, scenario.policies[0]).to_dicts()
    first = scenario.values[0] if scenario.sweep else None
    at_first = [row for row in rows if row["value"] == first]
    lines = tuple(_line(row, scenario) for row in rows)
    return ClusterView(
        lines, tuple(line for line in lines if line.value == first and line.ratio is not None),
        tuple(_curve(each) for each in outcomes if each.view), scenario.sweep,
        headline(scenario, at_first, runs), tuple(details(scenario, at_first)),
    )


def _line(row: Row, scenario: Scenario) -> TableLine:
    name, value, energy_kwh, sd_kwh = (row[key] for key in ("policy", "value", "energy_kwh", "energy_kwh_sd"))
    text = label(name, scenario.at(value))
    return TableLine(
        name, list(POLICIES).index(name), value, text, cells(row, text, scenario), energy_kwh / 1000,
        None if sd_kwh is None else sd_kwh / 1000, row["energy_ratio"], row["energy_ratio_sd"],
        row["unowned_kwh"] / energy_kwh if energy_kwh else 0.0,
    )


def _curve(outcome: RunOutcome) -> PolicyCurve:
    assert outcome.view
    task, found = outcome.task, outcome.view
    return PolicyCurve(
        task.policy, list(POLICIES).index(task.policy), label(task.policy, task.scenario),
        {**found.course, "power_kw": found.course["power_w"] / 1000},
        {**found.distributions, "inflation": 100 * found.distributions["inflation"]}, found.notable,
        outcome.result is not None,
    )


# words


def cells(row: Row, name: str, scenario: Scenario) -> tuple[str, ...]:
    """A row of `views.compared` as `HEADS` names its columns."""
    if scenario.sweep:
        name += f" · {UNITS[scenario.sweep]} {value_text(scenario.sweep, row['value'])}"
    ratio = row["energy_ratio"]
    return (
        name, energy_text(row["energy_kwh"], row["energy_kwh_sd"]),
        "" if ratio is None else format_change(ratio - 1, row["energy_ratio_sd"]),
        f"{row['active_nodes']:.1f}", f"{hours(row['wait_h'])}, {hours(row['wait_p95_h'])}",
        f"{hours(row['jct_h'])}, {hours(row['jct_p95_h'])}", format_change(row["runtime_inflation"]),
        f"{row['misses']:,.0f}" if row["deadlines"] else "no deadlines",
        f"{row['undos']:,.0f}, {row['moves']:,.0f}",
    )


def headline(scenario: Scenario, rows: Sequence[Row], runs: pl.DataFrame) -> str:
    """The policy with the least energy, compared with the next best; marked while runs are pending."""
    if not rows:
        return ""
    so_far = "" if _complete(scenario, rows) else ", so far"
    best, *others = sorted(rows, key=lambda row: row["energy_kwh"])
    names = [label(row["policy"], scenario.at(row["value"])) for row in (best, *others[:1])]
    mine = runs.filter(pl.col("value").eq_missing(best["value"])).with_columns(
        energy_over(others[0]["policy"] if others else best["policy"])
    ).filter(pl.col("policy") == best["policy"])["energy_ratio"].drop_nulls()
    if not others or mine.is_empty():
        return f"{names[0]}: {energy_text(best['energy_kwh'], best['energy_kwh_sd'])}{so_far}"
    ratio, sd = float(mine.mean()), mine.std()  # type: ignore[arg-type]
    if sd is not None and 1 - ratio <= sd:  # type: ignore[operator]
        return f"{names[0]} and {names[1]} use about the same energy, the least of all{so_far}"
    return f"{names[0]} uses {_less(ratio, sd)} less energy than the next best, {names[1]}{so_far}"


def _less(ratio: float, sd: Any) -> str:
    error = "" if sd is None else f" ± {100 * sd:.1f}"
    return f"{100 * (1 - ratio):.1f}{error} %"


def _complete(scenario: Scenario, rows: Sequence[Row]) -> bool:
    return len(rows) == len(scenario.policies) and all(row["draws"] == scenario.draws for row in rows)


def details(scenario: Scenario, rows: Sequence[Row]) -> list[str]:
    """The cost for the jobs, and the basis of the result; a sentence each."""
    if not rows:
        return []
    sentences = []
    best = min(rows, key=lambda row: row["energy_kwh"])
    base = next((row for row in rows if row["policy"] == scenario.policies[0]), best)
    if base is not best:
        sentences.append(
            f"{best['active_nodes']:.1f} active nodes against {base['active_nodes']:.1f}; "
            f"waiting and running {hours(best['jct_h'])} against {hours(base['jct_h'])}; "
            f"runtime {format_change(best['runtime_inflation'])}; "
            f"{best['misses']:,.0f} of {best['deadlines']:,.0f} deadlines missed against "
            f"{base['misses']:,.0f}"
        )
        if len(rows) > 2 and best["energy_ratio"] is not None:
            less = _less(best["energy_ratio"], best["energy_ratio_sd"])
            sentences.append(f"{less} less than {label(base['policy'], scenario.at(base['value']))}")
    if not _complete(scenario, rows):
        draws = sorted({row["draws"] for row in rows})
        have = " to ".join(map(str, draws[:: max(len(draws) - 1, 1)]))
        policies = f"{len(rows)} of {len(scenario.policies)} policies"
        sentences.append(
            f"So far: {policies}, {have} of {scenario.draws} seeds; pending runs may change this"
        )
    elif scenario.draws == 1:
        sentences.append("One random seed for values missing from the log; more seeds show the spread")
    elif all(row["energy_kwh_sd"] == 0 for row in rows):
        sentences.append(
            f"All {scenario.draws} seeds are identical: this log needs no generated values"
        )
    else:
        sentences.append(f"Means of {scenario.draws} seeds, ± standard deviation")
    if scenario.sweep:
        where = f"{UNITS[scenario.sweep]} {value_text(scenario.sweep, scenario.values[0])}"
        sentences.append(f"All plots but the last are for {where}, and curves show its first seed")
    elif scenario.draws > 1:
        sentences.append("Plots over time and over the jobs show the first seed")
    return sentences


def energy_text(energy_kwh: float, sd_kwh: float | None) -> str:
    """Kilowatt-hours; megawatt-hours from 100,000 kWh on.

    >>> energy_text(7231.4, 98.2), energy_text(3.21987, None)
    ('7,231 (98) kWh', '3.22 kWh')
    """
    scale, unit = (1000.0, "MWh") if energy_kwh >= 1e5 else (1.0, "kWh")
    mean = energy_kwh / scale
    text = f"{mean:,.0f}" if mean >= 100 else f"{rounded(mean):g}"
    if sd_kwh is not None:
        text += f" ({rounded(sd_kwh / scale, 2):g})"
    return f"{text} {unit}"


def hours(value: float) -> str:
    """Hours, minutes below one, to three digits.

    >>> hours(0.001234), hours(0.5), hours(12.345), hours(101.2)
    ('0.07 min', '30 min', '12.3 h', '101 h')
    """
    if value >= 1:
        return f"{rounded(value):g} h"
    minutes = 60 * value
    return f"{rounded(minutes) if minutes >= 1 else round(minutes, 2):g} min"


def value_text(sweep: str, value: float) -> str:
    if sweep == "load_threshold":
        return f"{100 * value:g} %"
    return "never" if sweep == "sleep_after_s" and value == float("inf") else f"{value:g}"

