"""How good just-in-time profiles of power limits are, and what they cost.

    python -m benchmarks.power_profile [--data DIR] [--json FILE] [--quick]

Every workload and batch size on every simulated card that holds it: slices with the scatter of iterations and
the counter's error that the simulated machine has, against the exact optimum over the same limits. The same
on the measured epochs of Zeus' artifact, where the truth is the measured table itself, and on the
40-iteration windows of four jobs on a V100. `within one step` and `regret` are the project's targets: 95 %
and 1 %. `overhead` is what profiling cost beyond the same iterations at the optimum, as a share of a run of
one hour; `share_of_hour` counts the slices themselves, though their iterations train as any others do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks import common
from tools import physics_fits
from workbench.experiments.power_profiling import LEAST_ITERATIONS, SETTLE_S
from workbench.search.clocks.descent import Plan
from workbench.search.clocks.power_profile import PowerProfile
from workbench.search.objective import Energy, EnergyDelay, EnergyWithin, Objective, Time, ZeusCost
from workbench.simulation import catalogue
from workbench.simulation.machine import SENSORS
from workbench.simulation.physics import operate
from workbench.simulation.training import GAP_JITTER, ITERATION_JITTER

HOUR_S = 3600.0
TIE = 1e-4  # limits above what a job draws are all the same
SENSOR_GAIN = 0.95  # absolute error is alike at all limits


@dataclass(frozen=True)
class Truth:
    """A job's iteration at every limit, highest first."""

    name: str
    limits_w: np.ndarray
    time_s: np.ndarray
    power_w: np.ndarray
    scatter: float
    counter_update_s: float
    most_w: float


def simulated(step_w: float, *, quick: bool) -> list[Truth]:
    """Every workload and batch size on every card that it fits, as `simulation.training` would run it."""
    found = []
    for card in catalogue.CARDS.values():
        low_w, _, high_w = card.power_limit_w
        limits_w = np.arange(high_w, low_w - 1e-9, -step_w)
        for workload in catalogue.WORKLOADS.values():
            sizes = [b for b in workload.batch_sizes if catalogue.fits(card, workload, b)]
            for batch_size in sizes[::4] if quick else sizes:
                phases = catalogue.iteration(card, workload, batch_size)
                times, energies, gap_s = np.zeros(len(limits_w)), np.zeros(len(limits_w)), 0.0
                for i, limit_w in enumerate(limits_w):
                    for phase in phases:
                        point = operate(card, phase.load, power_limit_w=float(limit_w))
                        times[i] += phase.time_s * point.stretch
                        energies[i] += phase.time_s * point.stretch * point.power_w
                        gap_s += phase.time_s * (phase.load is None) / len(limits_w)
                scatter = float(np.hypot(ITERATION_JITTER, GAP_JITTER * gap_s / times[0]))
                update_s = (
                    SENSORS[card.architecture].counter_update_s or SENSORS[card.architecture].power_update_s
                )
                name = f"{card.key} {workload.key} {batch_size}"
                found.append(Truth(name, limits_w, times, energies / times, scatter, update_s, high_w))
    return found


def traced(path: Path) -> list[Truth]:
    """The measured epochs of a card, cut into iterations; their own scatter is in the table."""
    found = []
    for sweep in physics_fits.read_sweeps(path):
        if len(sweep.limits_w) < 4:
            continue
        order = np.argsort(-sweep.limits_w)
        name = (
            f"{path.stem.removeprefix('summary_power_')} {sweep.workload} {sweep.optimizer} "
            f"{sweep.batch_size}"
        )
        limits_w = sweep.limits_w[order].astype(float)
        iterations = catalogue.WORKLOADS[sweep.workload].iterations(sweep.batch_size)
        found.append(
            Truth(
                name, limits_w, sweep.time_s[order] / iterations, sweep.power_w[order], 0.01, 0.02,
                float(limits_w.max()),
            )
        )
    return found


def windows(path: Path) -> Truth:
    """The 40-iteration windows of one job at every limit."""
    rows = pl.read_csv(path).with_columns(
        pl.col("window_name").map_elements(lambda n: float(re.findall(r"\d+", n)[-1]), pl.Float64).alias("w")
    )
    rows = rows.sort("w", descending=True)
    time_s, energy_j, limits_w = (
        rows["elapsed_time"].to_numpy() / 40, rows["gpu0_energy"].to_numpy() / 40, rows["w"].to_numpy(),
    )
    return Truth(
        path.stem.removeprefix("power_limit_windows_"), limits_w, time_s, energy_j / time_s, 0.01, 0.02,
        float(limits_w.max()),
    )


def run(truth: Truth, objective: Objective, rng: np.random.Generator) -> dict[str, Any]:
    """One profile, and how far it is from the truth."""
    profile = PowerProfile(truth.limits_w, objective)
    spent_s = spent_j = worked = 0.0
    last_w = truth.limits_w[0]
    slices: list[float] = []
    while isinstance(step := profile.next(), Plan):
        limit_w = profile.limits_w[step.row]
        i = int(np.flatnonzero(truth.limits_w == limit_w)[0])
        each_s, each_w = truth.time_s[i], truth.power_w[i]
        n = max(step.count, int(np.ceil(step.seconds / each_s)))
        time_s = n * each_s * np.exp(rng.normal(0, truth.scatter / np.sqrt(n)))
        # 95 % half width of a window's energy: a quarter of a counter's step at either edge, as `meter` gives
        # it.
        error_j = 0.25 * truth.counter_update_s * each_w
        profile.tell(
            step.row, n, time_s, SENSOR_GAIN * (time_s * each_w + rng.normal(0, error_j / 1.96)), error_j,
            truth.scatter * each_s,
        )
        settle_s = SETTLE_S if limit_w != last_w else 0.0
        settle = max(1 if slices else LEAST_ITERATIONS + 1, np.ceil(settle_s / each_s))
        last_w = limit_w
        slices.append(limit_w)
        spent_s += (n + settle) * each_s
        spent_j += (n + settle) * each_s * each_w
        worked += n + settle
    j = int(np.flatnonzero(truth.limits_w == profile.best_w)[0])
    if isinstance(objective, EnergyWithin):
        objective = EnergyWithin(
            objective.slowdown + 0.01, float(truth.time_s.min())
        )  # within what a measurement can report
    costs = np.asarray(objective.cost(truth.time_s, truth.time_s * truth.power_w), dtype=float)
    best = int(np.argmin(costs))
    at_best_j = worked * truth.time_s[best] * truth.power_w[best]
    energy_j = truth.time_s * truth.power_w
    return {
        "name": truth.name, "chosen_w": profile.best_w, "best_w": float(truth.limits_w[best]),
        "steps_off": int(np.min(np.abs(j - np.flatnonzero(costs <= costs[best] * (1 + TIE))))),
        "regret": float(costs[j] / costs[best] - 1), "energy_regret": float(energy_j[j] / energy_j[best] - 1),
        "slices": len(slices), "limits": len(set(slices)), "time_s": spent_s,
        "overhead": (spent_j - at_best_j) / (HOUR_S * truth.power_w[best]), "share_of_hour": spent_s / HOUR_S,
        "reason": step,
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    column: Callable[[str], np.ndarray] = lambda name: np.array([row[name] for row in rows], dtype=float)  # noqa: E731
    regret = column("regret")
    return {
        "pairs": len(rows), "within_one_step": float(np.mean(column("steps_off") <= 1)),
        "within_one_step_or_0.2%": float(np.mean((column("steps_off") <= 1) | (regret < 0.002))),
        "bound_broken": float(np.mean(np.isinf(regret))),
        "regret_mean": float(np.mean(regret[np.isfinite(regret)])),
        "regret_p95": float(np.quantile(regret[np.isfinite(regret)], 0.95)),
        "regret_max": float(regret[np.isfinite(regret)].max()), "limits_mean": float(column("limits").mean()),
        "time_mean_s": float(column("time_s").mean()), "overhead_mean": float(column("overhead").mean()),
        "overhead_max": float(column("overhead").max()),
    }


def objectives(most_w: float) -> dict[str, Objective]:
    return {
        "energy": Energy(), "zeus 0.5": ZeusCost(0.5, most_w), "EDP": EnergyDelay(1),
        "energy within 5 %": EnergyWithin(1.05, 1.0), "time": Time(),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables; with --json, write every pair."""
    options = common.arguments(__doc__.splitlines()[0], argv)
    sets: dict[str, list[Truth]] = {
        "simulated, 25 W steps": simulated(25.0, quick=options.quick),
        "simulated, 10 W steps": simulated(10.0, quick=True)[:: 3 if options.quick else 1],
    }
    for path in sorted((options.data / "zeus").glob("summary_power_*.csv")):
        sets[f"measured epochs, {path.stem.removeprefix('summary_power_')}"] = traced(path)
    if found := sorted((options.data / "zeus").glob("power_limit_windows_*.csv")):
        sets["measured windows, V100"] = [windows(path) for path in found]
    result: dict[str, Any] = {"summary": {}, "pairs": {}}
    table = []
    for title, truths in sets.items():
        for name in objectives(1.0):
            rng = np.random.default_rng(7)
            rows = [run(truth, objectives(truth.most_w)[name], rng) for truth in truths]
            figures = summary(rows)
            result["summary"].setdefault(title, {})[name] = figures
            result["pairs"].setdefault(title, {})[name] = rows
            table.append([title, name, *(figures[key] for key in figures)])
    print(common.table(["set", "objective", *figures], table))
    common.finish(result, options.json)


if __name__ == "__main__":
    main()
