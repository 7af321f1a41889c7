"""What the cluster panel shows, as columns and words; all arithmetic is in `cluster.views`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....cluster.scenario import LABELS, UNITS, Scenario, label
from ....cluster.views import DISTRIBUTIONS, PolicyRow, RunOutcome, Spread, rounded, rows
from ....logbook.quantities import format_change

HEADS: tuple[tuple[str, str], ...] = (
    ("policy", "who decides"),
    ("energy", "of all nodes until the last job ends; in brackets the standard deviation from draw to draw"),
    ("against first", "energy over that of the first policy, minus 1, draw by draw"),
    ("active nodes", "nodes with a job, averaged over the run"),
    ("waiting: mean, p95", "mean and 95th percentile of the time in which a job is not on GPUs"),
    ("waiting and running: mean, p95", "mean and 95th percentile of the time from submission to end"),
    ("runtime", "mean time on GPUs over mean duration alone, minus 1"),
    ("misses", "jobs that ended after their deadline"),
    ("undos, moves", "placements that were put back; jobs stopped to go on elsewhere or to make room"),
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
    """A policy in the table: its name, number (of its colour), value of what is swept, and cells."""

    policy: str
    number: int
    value: float | None
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Bar:
    """Energy over that of the first policy, with jobs on the node and without; the error is one sd."""

    number: int
    text: str
    owned: float
    unowned: float
    error: float | None


@dataclass(frozen=True)
class PolicyCurve:
    """A policy in the plots of time and of shares: columns of `views.course` and of `DISTRIBUTIONS`;
    jobs that are worth a look, and whether it can be looked into.
    """

    policy: str
    number: int
    text: str
    course: dict[str, np.ndarray[Any, Any]]
    distributions: dict[str, np.ndarray[Any, Any]]
    notable: dict[str, list[str]]
    open: bool


@dataclass(frozen=True)
class SweepCurve:
    """Energy over what is swept, of one policy."""

    number: int
    text: str
    values: tuple[float, ...]
    energy_mwh: tuple[float, ...]
    error: tuple[float | None, ...]


@dataclass(frozen=True)
class ClusterView:
    """All of it; empty while no run has ended."""

    lines: tuple[TableLine, ...] = ()
    bars: tuple[Bar, ...] = ()
    curves: tuple[PolicyCurve, ...] = ()
    swept: tuple[SweepCurve, ...] = ()
    swept_text: str = ""
    headline: str = ""
    details: tuple[str, ...] = ()


def cluster_view(
    scenario: Scenario, outcomes: Sequence[RunOutcome], known: dict[str, PolicyCurve] | None = None
) -> ClusterView:
    """What is known so far.

    Args:
        scenario: What was run.
        outcomes: What has come of it.
        known: Curves of these outcomes that were worked out before; new ones are added.
    """
    table = rows(scenario, outcomes)
    numbers = {name: number for number, name in enumerate(scenario.policies)}
    first = scenario.values[0] if scenario.sweep else None
    curves = {} if known is None else known
    for each in outcomes:
        if each.view is not None and each.task.policy not in curves:
            curves[each.task.policy] = curve(each, numbers[each.task.policy])
    at_first = [row for row in table if row.value == first]
    lines = (TableLine(row.policy, numbers[row.policy], row.value, cells(row, scenario)) for row in table)
    bars = (_bar(row, numbers[row.policy], scenario) for row in at_first if row.energy_ratio is not None)
    return ClusterView(
        lines=tuple(lines), bars=tuple(bars),
        curves=tuple(curves[name] for name in scenario.policies if name in curves),
        swept=_swept(scenario, table, numbers), swept_text=UNITS[scenario.sweep] if scenario.sweep else "",
        headline=headline(scenario, at_first), details=tuple(details(scenario, at_first)),
    )


def curve(outcome: RunOutcome, number: int) -> PolicyCurve:
    assert outcome.view is not None
    found, columns = dict(outcome.view.course), dict(outcome.view.distributions)
    found["power_kw"] = found.pop("power_w") / 1000
    columns["inflation"] = 100 * columns["inflation"]
    task = outcome.task
    return PolicyCurve(
        task.policy, number, label(task.policy, task.scenario), found, columns, outcome.view.notable,
        outcome.record is not None,
    )


def _bar(row: PolicyRow, number: int, scenario: Scenario) -> Bar:
    assert row.energy_ratio is not None
    ratio, energy = row.energy_ratio, row.figures["energy_kwh"].mean
    idle = ratio.mean * row.figures["unowned_kwh"].mean / energy if energy else 0.0
    return Bar(number, label(row.policy, scenario.at(row.value)), ratio.mean - idle, idle, ratio.sd)


def _swept(scenario: Scenario, table: Sequence[PolicyRow], numbers: dict[str, int]) -> tuple[SweepCurve, ...]:
    if scenario.sweep is None:
        return ()
    found = []
    for name in scenario.policies:
        mine = sorted(
            (float(row.value), row.figures["energy_kwh"])
            for row in table if row.policy == name and row.value is not None
        )
        if mine:
            text = label(name, scenario.at(None)) if scenario.sweep == "nodes" else LABELS.get(name, name)
            found.append(SweepCurve(
                numbers[name], text, tuple(value for value, _ in mine),
                tuple(each.mean / 1000 for _, each in mine),
                tuple(None if each.sd is None else each.sd / 1000 for _, each in mine),
            ))
    return tuple(found)


# words


def cells(row: PolicyRow, scenario: Scenario) -> tuple[str, ...]:
    """A row as `HEADS` names its columns."""
    f, name = row.figures, label(row.policy, scenario.at(row.value))
    if scenario.sweep is not None and row.value is not None:
        name += f" · {UNITS[scenario.sweep]} {value_text(scenario.sweep, row.value)}"
    ratio = row.energy_ratio
    return (
        name, energy_text(f["energy_kwh"]), "" if ratio is None else format_change(ratio.mean - 1, ratio.sd),
        f"{f['active_nodes'].mean:.1f}",
        f"{hours(f['wait_h'].mean)}, {hours(f['wait_p95_h'].mean)}",
        f"{hours(f['jct_h'].mean)}, {hours(f['jct_p95_h'].mean)}", format_change(f["runtime_inflation"].mean),
        f"{f['misses'].mean:,.0f}" if row.deadlines else "no deadlines",
        f"{f['undos'].mean:,.0f}, {f['moves'].mean:,.0f}",
    )


def headline(scenario: Scenario, table: Sequence[PolicyRow]) -> str:
    """The policy of least energy, against the best of the others; so far, while runs are still to come."""
    if not table:
        return ""
    so_far = "" if _complete(scenario, table) else ", so far"
    best, *others = sorted(table, key=lambda row: row.figures["energy_kwh"].mean)
    name = label(best.policy, scenario.at(best.value))
    ratio = best.energy_over(others[0]) if others else None
    if ratio is None:
        return f"{name}: {energy_text(best.figures['energy_kwh'])}{so_far}"
    other = label(others[0].policy, scenario.at(others[0].value))
    if ratio.sd is not None and 1 - ratio.mean <= ratio.sd:
        return f"{name} and {other} use about the same energy, the least of all{so_far}"
    return f"{name} uses {_less(ratio)} less energy than the next best, {other}{so_far}"


def _less(ratio: Spread) -> str:
    error = "" if ratio.sd is None else f" ± {100 * ratio.sd:.1f}"
    return f"{100 * (1 - ratio.mean):.1f}{error} %"


def _complete(scenario: Scenario, table: Sequence[PolicyRow]) -> bool:
    return len(table) == len(scenario.policies) and all(row.draws == scenario.draws for row in table)


def details(scenario: Scenario, table: Sequence[PolicyRow]) -> list[str]:
    """What that costs the jobs, and on what it stands; a sentence each."""
    if not table:
        return []
    sentences = []
    best = min(table, key=lambda row: row.figures["energy_kwh"].mean)
    base = next((row for row in table if row.policy == scenario.policies[0]), None)
    if base is not None and base is not best:
        b, a = best.figures, base.figures
        sentences.append(
            f"{b['active_nodes'].mean:.1f} active nodes against {a['active_nodes'].mean:.1f}; "
            f"waiting and running {hours(b['jct_h'].mean)} against {hours(a['jct_h'].mean)}; "
            f"runtime {format_change(b['runtime_inflation'].mean)}; "
            f"{b['misses'].mean:,.0f} of {best.deadlines:,} deadlines missed against {a['misses'].mean:,.0f}"
        )
    if base is not None and len(table) > 2 and best.energy_ratio is not None and base is not best:
        sentences.append(
            f"{_less(best.energy_ratio)} less than {label(base.policy, scenario.at(base.value))}"
        )
    draws = min(row.draws for row in table)
    if not _complete(scenario, table):
        most = max(row.draws for row in table)
        have = str(draws) if most == draws else f"{draws} to {most}"
        policies = f"{len(table)} of {len(scenario.policies)} policies"
        sentences.append(
            f"So far: {policies}, {have} of {scenario.draws} draws; what is still to come may change this"
        )
    elif draws == 1:
        sentences.append("One random draw of what the log lacks; more seeds show the spread")
    elif all(row.figures[name].sd == 0 for row in table for name in ("energy_kwh", "jct_h")):
        sentences.append(
            f"All {draws} draws are alike: this log tells everything itself, and nothing is drawn"
        )
    else:
        sentences.append(f"Means of {draws} draws, ± standard deviation")
    if scenario.sweep is not None:
        where = f"{UNITS[scenario.sweep]} {value_text(scenario.sweep, scenario.values[0])}"
        sentences.append(f"All but the last plot is for {where}, curves of its first draw")
    elif draws > 1:
        sentences.append("Plots over time and of the jobs are of the first draw")
    return sentences


def energy_text(energy_kwh: Spread) -> str:
    """Kilowatt-hours, megawatt-hours from a hundred thousand of them on.

    >>> energy_text(Spread(7231.4, 98.2)), energy_text(Spread(3.21987, None))
    ('7,231 (98) kWh', '3.22 kWh')
    """
    scale, unit = (1000.0, "MWh") if energy_kwh.mean >= 1e5 else (1.0, "kWh")
    mean = energy_kwh.mean / scale
    text = f"{mean:,.0f}" if mean >= 100 else f"{rounded(mean):g}"
    if energy_kwh.sd is not None:
        error = energy_kwh.sd / scale
        text += f" ({error:,.0f})" if mean >= 100 else f" ({rounded(error, 2):g})"
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


assert set(DISTRIBUTION_AXES) == set(DISTRIBUTIONS)
