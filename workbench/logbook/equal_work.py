"""Which measurements may be compared, and per what: the one rule behind every difference that is shown.

All runs must be complete, have an energy, and have run on the same GPU models. Runs that did equal work are
compared as they are; others per token, per sample or per iteration. Where neither is known for all of them
there is no comparison, and `Basis.problem` gives the reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import printable
from ..records import IterationSummary, Measurement
from .quantities import LEAST_HALF, format_change, format_energy, student_half_width
from .work_rates import PADDING

WORK_FIRST = ("tokens", "samples")  # the kinds of work that are compared by, before any other
LEAST_CHANGE = LEAST_HALF / 2  # share of a change that is shown: a smaller one would be printed as 0.0 %
COUNT = "count samples with workbench.work(samples=...)"
UNKNOWN_WORK = f"the work of each run is not known; call workbench.step() after each iteration, or {COUNT}"
ENDINGS = {"error": "ended with an error", "interrupted": "was interrupted"}


class Cost(NamedTuple):
    """Of a run or of one unit of work, with half widths of 95 % intervals (0 where they are not known)."""

    energy_j: float
    energy_half_j: float
    time_s: float
    time_half_s: float


class Basis(NamedTuple):
    """How some measurements compare.

    Attributes:
        unit: What each of `costs` is for: "run" where all did equal work, else "sample", "iteration", ...
        costs: One for each measurement; none where they cannot be compared.
        problem: Why they cannot be compared; else empty.
    """

    unit: str = "run"
    costs: tuple[Cost, ...] = ()
    problem: str = ""

    @property
    def per_unit(self) -> str:
        """" per sample"; empty for whole runs."""
        return "" if self.unit == "run" else f" per {self.unit}"


def comparison_basis(runs: Sequence[Measurement]) -> Basis:
    """What runs are compared by, and the cost of each."""
    if problem := next(filter(None, map(_problem, runs)), ""):
        return Basis(problem=problem)
    models = sorted({" + ".join(sorted(gpu.name for gpu in run.gpus)) for run in runs})
    if len(models) > 1:
        return Basis(problem=f"they ran on different GPU models ({', '.join(models)})")
    amounts = [{each.name: each.amount for each in run.work
                if each.amount > 0 and not each.name.endswith(PADDING)} for run in runs]
    counted = sorted(set.intersection(*map(set, amounts)), key=lambda name: (name not in WORK_FIRST, name))
    if counted:
        if all(_equal([each[name] for each in amounts]) for name in counted):
            return Basis(costs=tuple(map(_of_run, runs)))
        units = [each[counted[0]] for each in amounts]
        costs = tuple(Cost(*(value / unit for value in _of_run(run)))
                      for run, unit in zip(runs, units, strict=True))
        return Basis(counted[0].removesuffix("s"), costs)
    if all(run.kind == "comparison" for run in runs):  # of calls that their user has compared as equal work
        return Basis(costs=tuple(map(_of_run, runs)))
    iterations = [run.iterations for run in runs]
    found = [_of_iteration(each) for each in iterations if each is not None]
    costs = tuple(cost for cost in found if cost is not None)
    if len(costs) < len(runs) or len({each.source for each in iterations if each is not None}) > 1:
        return Basis(problem=UNKNOWN_WORK)
    sizes = sorted({run.batch_size for run in runs if run.batch_size is not None})
    if len(sizes) > 1:
        listed = ", ".join(map(str, sizes))
        return Basis(problem=f"batch sizes {listed} differ, so iterations are not equal work; {COUNT}")
    if _equal([run.iterations.count / run.repeats for run in runs if run.iterations is not None]):
        return Basis(costs=tuple(map(_of_run, runs)))
    return Basis("iteration", costs)


def _problem(run: Measurement) -> str:
    name = run.label or run.id
    if run.outcome != "ok":
        return f"{name} {ENDINGS.get(run.outcome, f'ended so: {run.outcome}')}"
    if run.energy_j is None or not run.energy_j > 0:
        return f"{name} has no energy"
    return "" if run.time_s > 0 else f"{name} took no time"


def _equal(amounts: Sequence[float]) -> bool:
    return all(math.isclose(each, amounts[0], rel_tol=1e-9) for each in amounts)


def _of_run(run: Measurement) -> Cost:
    time_sd_s = run.time_sd_s or 0.0
    half_s = student_half_width(time_sd_s, run.repeats) if time_sd_s and run.repeats > 1 else 0.0
    return Cost(run.energy_j or 0.0, run.energy_uncertainty_j or 0.0, run.time_s, half_s)


def _of_iteration(found: IterationSummary) -> Cost | None:
    if not (found.sure and found.count and found.energy_j and found.time_s):
        return None
    halves = found.energy_uncertainty_j or 0.0, found.time_uncertainty_s or 0.0
    return Cost(found.energy_j, halves[0], found.time_s, halves[1])


def relative_change(a: Cost, b: Cost) -> tuple[float, float]:
    """How much more energy `b` took than `a`, as a share of `a`, and the half width of its 95 % interval."""
    return _change(a.energy_j, a.energy_half_j, b.energy_j, b.energy_half_j)


def _change(first: float, first_half: float, second: float, second_half: float) -> tuple[float, float]:
    ratio = second / first
    return ratio - 1.0, math.hypot(ratio * first_half, second_half) / first


def describe_change(a: Measurement, b: Measurement) -> str:
    """What changed from `a` to `b` ("−12.3 ± 0.4 % energy, +3.1 % time per sample"), or why no one knows."""
    basis = comparison_basis((a, b))
    if basis.problem:
        return f"not compared: {basis.problem}"
    one, two = basis.costs
    changes = {"energy": relative_change(one, two),
               "time": _change(one.time_s, one.time_half_s, two.time_s, two.time_half_s)}
    found = {name: f"{format_change(change, half)} {name}" for name, (change, half) in changes.items()
             if abs(change) > max(half, LEAST_CHANGE)}
    if equal := " or ".join(name for name in changes if name not in found):
        found[equal] = f"no measurable difference in {equal}"
    return ", ".join(found.values()) + basis.per_unit


def describe_comparison(a: Measurement, b: Measurement) -> str:
    """Two measurements compared: how much more energy and time the second took, with 95 % intervals."""
    text = f"{b.label or b.id} against {a.label or a.id}: {describe_change(a, b)}"
    basis = comparison_basis((a, b))
    if not basis.costs:
        return printable(text)
    one, two = basis.costs
    difference_j, error_j = two.energy_j - one.energy_j, math.hypot(one.energy_half_j, two.energy_half_j)
    if abs(difference_j) > error_j:
        more = "less" if difference_j < 0 else "more"
        text += f"; {format_energy(abs(difference_j), error_j)} {more}{basis.per_unit}"
    return printable("; ".join([text, *caveats(a, b)]))


def caveats(*runs: Measurement) -> list[str]:
    """What also the work may explain a difference between runs, a sentence each."""
    found = []
    if len({frozenset(gpu.uuid for gpu in run.gpus) for run in runs}) > 1:
        found.append("on different GPUs, whose calibrations may differ by 10 %")
    for run in runs:
        if run.kind.startswith("tuned"):
            found.append(f"{run.label or run.id} was tuned while it ran")
        elif any(gpu.segments for gpu in run.gpus):
            found.append(f"the setting changed while {run.label or run.id} ran")
    return list(dict.fromkeys(found))
