"""Score a period detector on cases with known truth.

    cases = load_cases(Path("../shared/data"))
    score_cases(find_periods, cases)["summary"]["iteration_exact"]

"Exact" is within 5 % of the true mean or median length of an iteration; where it drifts, anywhere from 5 %
below the shorter to 5 % above the longer of its first and last quarter. By this rule the same of GPOEO's
published answers are exact as in their labels.

Keys of the summary (shares 0..1; "observable" cases are those whose period the sensor can show):

* `iteration_exact`: observable cases whose level named "iteration" is exact, whether or not it is sure.
* `level_exact`: observable cases whose most certain period is exact or within 5 % of another true
    level.
* `step_exact`: observable cases whose most confident level is the iteration or its micro-step, and not a
    cycle of many iterations.
* `false_levels`: levels next to the most confident one that are no true level, mean per observable case.
* `factor_errors`: observable cases whose iteration is off by a factor of 2 to 6, either way, and is no other
    true level either;
  `factor_errors_strict` counts those that are a true level too.
* `sure_share`: observable cases on which it is sure. `wrong_but_sure`: of those, iteration not exact.
    `no_level_but_sure`: of those,
  most confident level no true level.
* `false_alarms`: aperiodic cases on which it is sure. `named_on_negatives`: those on which it offers any
    level.
* `unobservable_claims`: periodic cases that cannot be observed, with a sure and wrong iteration
    (`unobservable_wrong` counts them).
* `rhythm_sure`: observable cases on which it is sure of a period with any role. `rhythm_wrong`: of those, the
    period is no true level.
* `role_sure`: observable cases on which it is sure of the period's role (the iteration, or a cycle of hidden
    iterations). `role_wrong`: of those, the role is wrong.
* `unobservable_sure_wrong`: periodic cases that cannot be observed, with any sure and wrong claim:
    of a period that is no true level, or of a wrong role.
* `crashes`: cases on which it raised an error. `cpu_ms`: mean CPU time per trace.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import polars as pl

from benchmarks.period_cases import Case, Range, Truth, from_generated, load_cases, stratified
from workbench.records import DetectedPeriod, Periods

__all__ = [
    "Answer", "Detector", "Row", "answers", "from_generated", "load_cases", "score_cases", "stratified",
    "summarise",
]

TOLERANCE = 0.05
CRASHED = "crashed: "
FACTORS = range(2, 7)
Detector = Callable[[pl.DataFrame], Periods]


class Answer(NamedTuple):
    """A detector's answer on a case, and its CPU time."""

    periods: Periods
    cpu_s: float


class Row(NamedTuple):
    """One case, scored."""

    case: str
    family: str
    sensor: str
    periodic: bool
    observable: bool
    truth_s: float | None
    iteration_s: float | None
    iteration_confidence: float
    uncertainty_s: float | None
    top_s: float | None
    top_name: str
    sure: bool
    iteration_exact: bool
    level_exact: bool
    step_exact: bool
    label: str  # of the iteration: exact, the name of another true level, x3, /2, other, none
    strict_factor: bool
    levels: int
    false_levels: int
    sure_false_levels: int
    claims: tuple[
        tuple[str, float, bool], ...
    ]  # of every level: its name, its confidence, whether it is what it is called
    cpu_s: float
    reason: str
    rhythm_sure: bool = False
    rhythm_right: bool = False  # whether the period is a true level
    role_sure: bool = False
    role_right: bool = False


def score_cases(detect: Detector, cases: Sequence[Case]) -> dict[str, Any]:
    """Run a detector over cases and score it: `summary`, `families`, `sensors` (with counts), `rows`."""
    return tell([score(case, answer) for case, answer in zip(cases, answers(detect, cases), strict=True)])


def tell(rows: Sequence[Row]) -> dict[str, Any]:
    """What `score_cases` returns, from rows that are scored already."""
    return {
        "summary": summarise(rows),
        "families": {name: summarise(part) for name, part in _grouped(rows, "family").items()},
        "sensors": {name: summarise(part) for name, part in _grouped(rows, "sensor").items()},
        "rows": [row._asdict() for row in rows],
    }


def answers(detect: Detector, cases: Iterable[Case]) -> list[Answer]:
    """A detector's answers; it sees the trace only. One that raises an error has no answer, and is counted
    under `crashes`.
    """
    found, detect = [], guarded(detect)
    for case in cases:
        before_s = time.process_time()
        periods = detect(case.trace)
        found.append(Answer(periods, time.process_time() - before_s))
    return found


def guarded(detect: Detector) -> Detector:
    """The same detector, but an error is an answer without a period that names it: one bad trace must not
    end a benchmark.
    """

    def careful(trace: pl.DataFrame) -> Periods:
        try:
            return detect(trace)
        except Exception as error:
            return Periods(reason=f"{CRASHED}{type(error).__name__}: {error}")

    return careful


def single(period_s: float | None, periodic: bool) -> Periods:
    """The answer of a detector that knows one period and yes or no."""
    if period_s is None or not math.isfinite(period_s) or period_s <= 0:
        return Periods(reason="no period")
    level = DetectedPeriod("iteration", float(period_s), math.nan, 1.0 if periodic else 0.0, 0.0, math.nan)
    return Periods((level,), sure=periodic, reason="" if periodic else "not periodic")


def within(seconds: float, ranges: Iterable[Range], tolerance: float = TOLERANCE) -> bool:
    """Whether a value is in one of the ranges, or no more than `tolerance` (relative) outside it.

    >>> within(1.04, [(1.0, 1.0)]), within(1.06, [(1.0, 1.0)]), within(1.1, [(1.0, 1.2)])
    (True, False, True)
    """
    return any((1 - tolerance) * low <= seconds <= (1 + tolerance) * high for low, high in ranges)


def true_level(seconds: float, truth: Truth) -> str | None:
    """The true level that a period is: "iteration" first; None where it is none."""
    if within(seconds, truth.iteration):
        return "iteration"
    return next((name for name, ranges in truth.levels.items() if within(seconds, ranges)), None)


def rightly_named(level: DetectedPeriod, truth: Truth) -> bool:
    """Whether a level is within 5 % of a true one of its own kind; every true level above the iteration is
    a "cycle".
    """
    if level.name == "iteration":
        return within(level.period_s, truth.iteration)
    if level.name == "micro-step":
        return within(level.period_s, truth.levels.get("micro-step", ()))
    return any(
        within(level.period_s, ranges) for name, ranges in truth.levels.items() if name.endswith("cycle")
    )


def factor(seconds: float, truth: Truth) -> str | None:
    """By which whole factor of 2 to 6 a period misses the iteration: "x2" to "x6", "/2" to "/6", or None."""
    for k in FACTORS:
        if within(seconds / k, truth.iteration):
            return f"x{k}"
        if within(seconds * k, truth.iteration):
            return f"/{k}"
    return None


def score(case: Case, answer: Answer) -> Row:
    """Compare an answer with the truth."""
    truth, periods = case.truth, answer.periods
    iteration = periods.iteration
    top = rhythm = periods.main  # the level that is there most certainly, whatever its role
    ordered = sorted(periods.levels, key=lambda level: (level is not top, -level.period_confidence))
    others = [level for level in ordered[1:] if true_level(level.period_s, truth) is None]
    label, strict = "none", False
    if iteration is not None:
        found = true_level(iteration.period_s, truth)
        missed = None if found == "iteration" else factor(iteration.period_s, truth)
        label = "exact" if found == "iteration" else found or missed or "other"
        strict = missed is not None
    return Row(
        case=case.name, family=case.family, sensor=case.sensor, periodic=truth.periodic,
        observable=truth.periodic and truth.observable, truth_s=truth.mean_s,
        iteration_s=iteration.period_s if iteration else None,
        iteration_confidence=iteration.confidence if iteration else 0.0,
        uncertainty_s=iteration.uncertainty_s if iteration else None, top_s=top.period_s if top else None,
        top_name=top.name if top else "", sure=periods.sure, iteration_exact=label == "exact",
        level_exact=top is not None and true_level(top.period_s, truth) is not None,
        step_exact=top is not None and true_level(top.period_s, truth) in ("iteration", "micro-step"),
        label=label, strict_factor=strict, levels=len(ordered), false_levels=len(others),
        sure_false_levels=len(others) if periods.sure else 0,
        claims=tuple((level.name, level.confidence, rightly_named(level, truth)) for level in ordered),
        cpu_s=answer.cpu_s, reason=periods.reason, rhythm_sure=periods.main_sure,
        rhythm_right=rhythm is not None and true_level(rhythm.period_s, truth) is not None,
        role_sure=periods.role_sure, role_right=rhythm is not None and rightly_named(rhythm, truth),
    )


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """The overall figures from scored cases; None if there are no cases for a figure."""
    seen = [row for row in rows if row.observable]
    sure = [row for row in seen if row.sure]
    hidden = [row for row in rows if row.periodic and not row.observable]
    negatives = [row for row in rows if not row.periodic]
    wrong = [row for row in hidden if row.sure and not row.iteration_exact]
    factors = [row for row in seen if row.label[0] in "x/"]
    return {
        "cases": len(rows),
        "observable": len(seen),
        "unobservable": len(hidden),
        "negatives": len(negatives),
        "iteration_exact": _share(row.iteration_exact for row in seen),
        "level_exact": _share(row.level_exact for row in seen),
        "step_exact": _share(row.step_exact for row in seen),
        "false_levels": _share(row.false_levels for row in seen),
        "false_levels_cases": _share(row.false_levels > 0 for row in seen),
        "false_levels_sure": _share(row.false_levels > 0 for row in sure),
        "factor_errors": _share(row.label[0] in "x/" for row in seen),
        "factor_errors_strict": _share(row.strict_factor for row in seen),
        "factors": {
            name: sum(row.label == name for row in factors) for name in sorted({row.label for row in factors})
        },
        "sure_share": _share(row.sure for row in seen),
        "sure": len(sure),
        "wrong_but_sure": _share(not row.iteration_exact for row in sure),
        "no_level_but_sure": _share(not row.level_exact for row in sure),
        "false_alarms": _share(row.sure for row in negatives),
        "named_on_negatives": _share(row.levels > 0 for row in negatives),
        "unobservable_claims": len(wrong) / len(hidden) if hidden else None,
        "unobservable_wrong": len(wrong),
        "unobservable_sure": sum(row.sure for row in hidden),
        "rhythm_sure": _share(row.rhythm_sure for row in seen),
        "rhythm_wrong": _share(not row.rhythm_right for row in seen if row.rhythm_sure),
        "role_sure": _share(row.role_sure for row in seen),
        "role_wrong": _share(not row.role_right for row in seen if row.role_sure),
        "unobservable_sure_wrong": _share(
            (row.rhythm_sure and not row.rhythm_right) or (row.role_sure and not row.role_right)
            for row in hidden
        ),
        "rhythm_false_alarms": _share(row.rhythm_sure for row in negatives),
        "crashes": sum(row.reason.startswith(CRASHED) for row in rows),
        "cpu_ms": 1000 * sum(row.cpu_s for row in rows) / len(rows) if rows else None,
    }


def _share(values: Iterable[bool | int]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def _grouped(rows: Sequence[Row], key: str) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(getattr(row, key), []).append(row)
    return groups
