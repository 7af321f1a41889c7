"""The online tuner's reports, compared with the truth of random cards and jobs that its models do not know.

    python -m benchmarks.truth [--json FILE] [--quick] [--seed N] [--jobs N] [--processes N] [--only JOB]

No data is needed. `benchmarks.fixtures.true_jobs` draws a card and a training per job: tables of time and
power instead of formulas, sensors of seven architectures, thermal drift, growing and bucketed iterations,
waits, checkpoints, changes of the work. Half of the jobs report their steps. Each job lasts ten minutes and
120 iterations at least. `benchmarks.clocks_online` explains how the tuner runs on a stepped machine.

Seeds below 1000 are for development. Seeds of 1000 and above are for scoring: no developer of the tuner reads
their jobs. `--only JOB` runs job number JOB of the seed and prints everything known about it.

All figures of `summary` come from the true time and energy of whole jobs, tuning included, against the same
iterations at the default setting:

bound_kept_marked, bound_kept_unmarked
    Share of the jobs that took at most 5 % longer than at the default setting.

worst_slowdown_over_bound
    The largest slowdown, less 0.05; below zero where all jobs keep it.

saving_covered
    Share of the jobs whose report is right: the true saving (J) is within the reported interval, or the
    report has no saving. `saving_reported` is the number of jobs with an interval, `saving_covered_reported`
    the share of those that cover the truth, `saving_claimed` the number whose interval excludes zero. The
    reported joules are compared with those of the whole job, times the sensor's gain, which no software can
    know. So time that the tuner does not count must save nothing, or the interval must include it.

worse_by_1_percent
    Jobs that used over 1 % more energy than at the default setting, and were not faster.

share_of_oracle_marked, share_of_oracle_unmarked
    Energy saved over what the oracle saves, summed over jobs. The oracle knows the tables. It holds the
    setting of least energy within 5 % from the first iteration of each part on. Unmarked: the jobs whose
    iteration lasts longer than five refreshes of the sensor (`_all` has all unmarked jobs).

false_retunes_per_job
    Re-tunes without a change of the work, per job. The first one after a change is right.

`methods` compares the tuner with others on the same jobs. They are computed from the tables. They know the
times of work changes and the ends of iterations, which are unknown in practice. This flatters them. The
energies that they measure have a standard error of 1 %.

limit 75 %, 80 %, 90 %
    A fixed share of the default power limit.
Zeus
    Its power-limit optimizer: 5 s at each limit (steps of 25 W), then the limit of the least cost at eta 0.5.
Zeus, 5 %
    The same, with the least energy among the limits that are at most 5 % slower.
GPOEO
    Its search over clocks (the port of `workbench.search.clocks.gpoeo`), 5 %.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import clocks_jobs
from benchmarks.clocks_online import _at_home, _quiet, make_tuner
from benchmarks.common import finish, table
from benchmarks.fixtures import true_jobs
from benchmarks.fixtures.true_jobs import MAX_SLOWDOWN, Part, TrueJob
from workbench.records import Setting

JOBS, QUICK_JOBS, SEED = 126, 24, 1003
FIXED = (0.75, 0.80, 0.90)
REFRESHES = 5  # an unmarked iteration that lasts longer than so many can be observed
ENERGY_ERROR = 0.01  # relative standard deviation of what the other methods measure
ZEUS_STEP_W, ZEUS_S, ZEUS_ETA = 25, 5.0, 0.5
TUNER, DEFAULT = "tuner", "driver default"


def truth(seed: int, jobs: int, *, processes: int = 2) -> dict[str, Any]:
    """Run jobs 0 to `jobs` of a seed; the figures are under "summary", "methods" and "groups"."""
    rows: dict[int, dict[str, Any]] = {}
    context = multiprocessing.get_context("spawn")
    with (
        _quiet(),
        ProcessPoolExecutor(processes, mp_context=context, initializer=_at_home) as pool,
    ):
        running = {pool.submit(tuned, seed, number): number for number in range(jobs)}
        for done in as_completed(running):
            rows[running[done]] = done.result()
            print(f"\r{len(rows)} of {jobs} jobs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    ordered = [rows[number] for number in sorted(rows)]
    return {
        "seed": seed,
        "summary": summary(ordered),
        "methods": methods(ordered),
        "groups": groups(ordered),
        "jobs": ordered,
    }


# one job


def tuned(seed: int, number: int) -> dict[str, Any]:
    """Run one job with the tuner, and compute what every other method does to it."""
    from workbench.measurement.session import current
    from workbench.simulation import machine

    begun_s = time.process_time()
    job = true_jobs.draw(seed, number)
    best = [job.best(part) for part in job.parts]
    session = current()
    session.close()
    present = machine.simulate(job.card.key, stepped=True, seed=1000 * seed + number)
    for name, value in job.sensor.items():
        present.state.set_card(0, name, value)
    watcher = Watcher(session, job)
    run = clocks_jobs.Run(job, present)
    try:
        session.meter  # made before the job begins, as %%energy does  # noqa: B018
        present.step(2.0)
        time_s, energy_j = clocks_jobs.train_all(run, job.trainings(present), watcher)
        watcher.held.append(session.devices[0].setting())
    finally:
        watcher.end()
        session.close()
        present.close()
    default_s, default_j = job.cost()
    shift_s = run.shifted_s - run.begun_s if len(job.parts) > 1 else None
    return {
        "job": number,
        "card": job.card.name,
        "architecture": job.card.architecture,
        "told": job.told,
        "iteration_s": job.iteration_s(),
        "iterations": [len(part) for part in job.parts],
        "refresh_s": job.refresh_s,
        "observable": job.iteration_s() > REFRESHES * job.refresh_s,
        "gain": job.sensor["gain"],
        "traits": job.traits,
        "default_s": default_s,
        "default_j": default_j,
        "oracle_settings": [str(setting) for setting, _ in best],
        "methods": {
            TUNER: [time_s, energy_j],
            "oracle": [sum(cost[0] for _, cost in best), sum(cost[1] for _, cost in best)],
            **others(job),
        },
        "shift_s": shift_s,
        "held": [_held(job, part, setting) for part, setting in zip(job.parts, watcher.held, strict=False)],
        "false_retunes": false_retunes(watcher.retunes_s, shift_s),
        **watcher.report,
        "retunes_s": watcher.retunes_s,
        "states": watcher.states,
        "error": watcher.error,
        "cpu_s": time.process_time() - begun_s,
    }


def _held(job: TrueJob, part: Part, setting: Setting) -> dict[str, Any]:
    """The setting at the end of a part, and the part's true ratios to the default there."""
    default_s, default_j = part.cost(job.card, Setting())
    time_s, energy_j = part.cost(job.card, setting)
    return {
        "setting": str(setting), "time_ratio": time_s / default_s, "energy_ratio": energy_j / default_j
    }


class Watcher:
    """Calls the tuner as its thread would, and keeps its reports."""

    def __init__(self, session: Any, job: TrueJob) -> None:
        self._session = session
        self._job: Any = job  # it has what a `clocks_jobs.Job` says of tuning
        self.tuner: Any = None
        self.states: list[tuple[float, int, str]] = []
        self.retunes_s: list[float] = []
        self.held: list[Setting] = []  # active when each part ended
        self.report: dict[str, Any] = {"said": None}
        self.error = ""
        self._begun_s = 0.0

    def __call__(self, run: clocks_jobs.Run) -> float:
        if run.part > len(self.held):
            self.held.append(self._session.devices[0].setting())
        if self.error:
            return math.inf
        try:
            if self.tuner is None:
                self._begun_s = run.machine.clock()
                self.tuner = make_tuner(self._session, self._job, "model-guided", False)
            self.tuner.advance()
            state = self.tuner.state
        except Exception:
            self.error = traceback.format_exc()
            self.end()
            return math.inf
        if not self.states or self.states[-1][2] != state:
            at_s = run.machine.clock() - self._begun_s
            self.states.append((round(at_s, 2), run.done, state))
            if state == "re-tune":
                self.retunes_s.append(at_s)
        return float(self.tuner.pace_s)

    def end(self) -> None:
        """End the tuner and keep its report."""
        if self.tuner is None:
            return
        tuner, self.tuner = self.tuner, None
        try:
            result = tuner.end()
            view = tuner.view()
            saved, choice = view.saved, view.choice
            self.report = {
                "said": None if saved is None else {
                    name: getattr(saved, name)
                    for name in ("energy_j", "uncertainty_j", "share", "share_uncertainty", "slowdown",
                                 "slowdown_uncertainty")
                },
                "believed": None if choice is None else {
                    name: getattr(choice, name)
                    for name in ("time_ratio", "time_sd", "energy_ratio", "energy_sd")
                },
                "words": str(result),
                "refused": view.refused,
                "source": view.period_source,
                "period_s": view.period_s,
                "trials": view.trials.height,
                "settled_s": view.settled_s,
                "events": [(round(at_s, 1), text) for at_s, text in view.events],
            }
        except Exception:
            self.error = self.error or traceback.format_exc()


def false_retunes(retunes_s: Sequence[float], shift_s: float | None) -> int:
    """Re-tunes that no change of the work explains: all but the first one after the change."""
    right = shift_s is not None and any(at_s >= shift_s for at_s in retunes_s)
    return len(retunes_s) - right


# other methods, from the tables


def others(job: TrueJob) -> dict[str, list[float]]:
    """Seconds and joules of the whole job with each other method."""
    low_w, default_w, _ = job.card.power_limit_w
    found = {DEFAULT: job.cost()}
    for share in FIXED:
        found[f"limit {share:.0%}".replace("%", " %")] = job.cost(
            Setting(power_limit_w=max(low_w, float(round(share * default_w))))
        )
    for name, method in (("Zeus", zeus), ("Zeus, 5 %", zeus_within), ("GPOEO", gpoeo)):
        bills = [Bill(job, part, f"{name} {number}") for number, part in enumerate(job.parts)]
        for bill in bills:
            method(bill)
        found[name] = (sum(bill.time_s for bill in bills), sum(bill.energy_j for bill in bills))
    return {name: list(cost) for name, cost in found.items()}


class Bill:
    """A part of a tuned job: iterations are consumed in order, at their true cost."""

    def __init__(self, job: TrueJob, part: Part, salt: str) -> None:
        self.job, self.part = job, part
        self.time_s = self.energy_j = 0.0
        self.done = 0
        self._rng = random.Random(f"{job.seed} {job.number} {salt}")

    @property
    def ended(self) -> bool:
        return self.done >= len(self.part)

    def measure(self, setting: Setting, iterations: int, seconds: float) -> tuple[int, float, float] | None:
        """Run at least so many iterations and seconds; returns iterations, s and J as measured. None where
        the part ended before.
        """
        begin, count = self.done, max(1, iterations)
        while True:
            end = min(begin + count, len(self.part))
            time_s, energy_j = self.part.cost(self.job.card, setting, begin, end)
            if time_s >= seconds or end == len(self.part):
                break
            count = max(count + 1, math.ceil(count * min(8.0, 1.02 * seconds / time_s)))
        self.done = end
        self.time_s += time_s
        self.energy_j += energy_j
        if end - begin < iterations or time_s < seconds:
            return None
        return end - begin, time_s, energy_j * (1 + self._rng.gauss(0.0, ENERGY_ERROR))

    def hold(self, setting: Setting) -> None:
        """Run the rest at a setting."""
        if not self.ended:
            self.measure(setting, len(self.part) - self.done, 0.0)


def zeus(bill: Bill) -> None:
    """Zeus' power-limit optimizer with its cost (NSDI'23, equation 2; eta 0.5)."""
    limits = _profiled_limits(bill)
    most_w = bill.job.card.power_limit_w[2]

    def cost(one: tuple[float, float]) -> float:
        return ZEUS_ETA * one[1] + (1 - ZEUS_ETA) * most_w * one[0]

    if limits:
        bill.hold(min(limits, key=lambda setting: cost(limits[setting])))


def zeus_within(bill: Bill) -> None:
    """Zeus' power-limit optimizer with its largest allowed slowdown (`MaxSlowdownConstraint`)."""
    limits = _profiled_limits(bill)
    if limits:
        fastest_s = next(iter(limits.values()))[0]
        allowed = [each for each in limits if limits[each][0] <= (1 + bill.job.max_slowdown) * fastest_s]
        bill.hold(min(allowed, key=lambda setting: limits[setting][1]))


def _profiled_limits(bill: Bill) -> dict[Setting, tuple[float, float]]:
    """Seconds and joules per iteration at each limit, highest first, as far as the part lasts."""
    low_w, default_w, _ = bill.job.card.power_limit_w
    found = {}
    for watts in np.arange(default_w, low_w - 1e-9, -ZEUS_STEP_W):
        setting = Setting(power_limit_w=float(watts))
        measured = bill.measure(setting, 1, ZEUS_S)
        if measured is None:
            break
        found[setting] = (measured[1] / measured[0], measured[2] / measured[0])
    return found


def gpoeo(bill: Bill) -> None:
    """GPOEO's search over what the driver takes; at each trial's length."""
    from workbench.search.clocks.base import Done
    from workbench.search.clocks.make import make_search
    from workbench.search.space import space_of

    job = bill.job
    settings = job.settings()
    clocks = [setting for setting in settings if setting.sm_clock_mhz is not None]
    space = space_of(
        [Setting(), *(clocks or settings[1:])], Setting(), max_power_limit_w=job.card.power_limit_w[1]
    )
    search = make_search(
        "gpoeo", space, None, job.max_slowdown, counter_update_s=job.refresh_s,
    )
    while not bill.ended:
        trial = search.next()
        if isinstance(trial, Done):
            bill.hold(search.choice().setting)
            return
        measured = bill.measure(trial.setting, trial.iterations, trial.seconds)
        if measured is not None:
            search.tell(trial.setting, *measured, energy_uncertainty_j=1.96 * ENERGY_ERROR * measured[2])


# figures


def slowdown(row: dict[str, Any], method: str = TUNER) -> float:
    return float(row["methods"][method][0] / row["default_s"] - 1.0)


def saved_j(row: dict[str, Any], method: str = TUNER) -> float:
    return float(row["default_j"] - row["methods"][method][1])


def share_of_oracle(rows: Iterable[dict[str, Any]], method: str = TUNER) -> float | None:
    """Energy saved over what the oracle saves, summed; None where nothing can be saved."""
    rows = list(rows)
    possible_j = sum(saved_j(row, "oracle") for row in rows)
    return sum(saved_j(row, method) for row in rows) / possible_j if possible_j > 0 else None


def bound_kept(rows: Iterable[dict[str, Any]], method: str = TUNER) -> float | None:
    """Share of the jobs within the slowdown limit; None of none."""
    return _share([slowdown(row, method) <= MAX_SLOWDOWN + 1e-9 for row in rows])


def worse_by_1_percent(rows: Iterable[dict[str, Any]], method: str = TUNER) -> int:
    return sum(saved_j(row, method) < -0.01 * row["default_j"] and slowdown(row, method) >= 0 for row in rows)


def covered(row: dict[str, Any]) -> bool:
    """Whether the true saving is within what the tuner reports; a report without a saving is right."""
    said = row["said"]
    if said is None:
        return not row["error"]
    rounding_j = 1e-6 * row["default_j"]
    return bool(abs(said["energy_j"] - row["gain"] * saved_j(row)) <= said["uncertainty_j"] + rounding_j)


def claimed(row: dict[str, Any]) -> bool:
    """Whether the tuner reports a saving or a loss whose interval excludes zero."""
    said = row["said"]
    return said is not None and abs(said["energy_j"]) > said["uncertainty_j"]


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures that the module's docstring defines."""
    marked, unmarked = [row for row in rows if row["told"]], [row for row in rows if not row["told"]]
    reported = [row for row in rows if row["said"] is not None]
    return {
        "jobs": len(rows),
        "failed": sum(bool(row["error"]) for row in rows),
        "bound_kept_marked": bound_kept(marked),
        "bound_kept_unmarked": bound_kept(unmarked),
        "worst_slowdown_over_bound": max(slowdown(row) for row in rows) - MAX_SLOWDOWN,
        "saving_covered": _share([covered(row) for row in rows]),
        "saving_covered_reported": _share([covered(row) for row in reported]),
        "saving_reported": len(reported),
        "saving_claimed": sum(claimed(row) for row in rows),
        "saving_interval_percent": _median(
            [100 * row["said"]["uncertainty_j"] / (row["gain"] * row["default_j"]) for row in reported]
        ),
        "worse_by_1_percent": worse_by_1_percent(rows),
        "share_of_oracle_marked": share_of_oracle(marked),
        "share_of_oracle_unmarked": share_of_oracle(row for row in unmarked if row["observable"]),
        "share_of_oracle_unmarked_all": share_of_oracle(unmarked),
        "unmarked_observable_jobs": sum(row["observable"] for row in unmarked),
        "refused": sum(bool(row.get("refused")) for row in rows),
        "false_retunes_per_job": sum(row["false_retunes"] for row in rows) / len(rows),
        "saving": sum(saved_j(row) for row in rows) / sum(row["default_j"] for row in rows),
        "oracle_saving": sum(saved_j(row, "oracle") for row in rows) / sum(row["default_j"] for row in rows),
        "mean_slowdown": sum(slowdown(row) for row in rows) / len(rows),
    }


def methods(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every method on the same jobs."""
    return {
        name: {
            "share_of_possible_saving": share_of_oracle(rows, name),
            "bound_kept": bound_kept(rows, name),
            "mean_slowdown": sum(slowdown(row, name) for row in rows) / len(rows),
            "worst_slowdown": max(slowdown(row, name) for row in rows),
            "worst_saving": round(min(saved_j(row, name) / row["default_j"] for row in rows), 6),
            "worse_by_1_percent": worse_by_1_percent(rows, name),
        }
        for name in rows[0]["methods"]
    }


def groups(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The summary of some of the jobs."""
    kinds = {
        kind: [row for row in rows if row["architecture"] == kind]
        for kind in dict.fromkeys(row["architecture"] for row in rows)
    }
    traits: dict[str, Callable[[dict[str, Any]], bool]] = {
        "marked": lambda row: row["told"],
        "unmarked": lambda row: not row["told"],
        "unmarked, observable": lambda row: not row["told"] and row["observable"],
        "shift": lambda row: row["shift_s"] is not None,
        "no shift": lambda row: row["shift_s"] is None,
        "drift": lambda row: row["traits"]["drift"] > 0,
        "growth": lambda row: row["traits"]["growth"] > 0,
        "buckets": lambda row: len(row["traits"]["buckets"]) > 1,
        "heavy-tailed waits": lambda row: row["traits"]["wait"] == "heavy-tailed",
        "checkpoints": lambda row: row["traits"]["checkpoint_s"] > 0,
        "several pulses": lambda row: row["traits"]["pulses"] > 1,
        "none of these": lambda row: row["shift_s"] is None and not (
            row["traits"]["drift"] or row["traits"]["growth"] or len(row["traits"]["buckets"]) > 1
        ),
    }
    found = {name: [row for row in rows if chosen(row)] for name, chosen in traits.items()} | kinds
    return {name: summary(some) for name, some in found.items() if some}


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


# command


def report(result: dict[str, Any]) -> str:
    """The summary, the methods and the groups as tables."""
    columns = (
        "jobs", "bound_kept_marked", "bound_kept_unmarked", "worst_slowdown_over_bound", "saving_covered",
        "saving_reported", "saving_covered_reported", "worse_by_1_percent", "share_of_oracle_marked",
        "share_of_oracle_unmarked", "false_retunes_per_job", "refused",
    )
    of_methods = next(iter(result["methods"].values()))
    return "\n\n".join([
        table(["", ""], [[name.replace("_", " "), value] for name, value in result["summary"].items()]),
        table(
            ["method", *(name.replace("_", " ") for name in of_methods)],
            [[name, *each.values()] for name, each in result["methods"].items()],
        ),
        table(
            ["jobs with", *(name.replace("_", " ") for name in columns)],
            [[name, *(each[column] for column in columns)] for name, each in result["groups"].items()],
        ),
    ])


def details(row: dict[str, Any]) -> str:
    """All about one job, a line per field, and its log a line per event."""
    lines = [
        f"{name:16s} {json.dumps(value, default=float)}" for name, value in row.items()
        if name not in ("events", "states", "error")
    ]
    lines += [f"{saved_j(row):.0f} J saved of {saved_j(row, 'oracle'):.0f} J, slowdown {slowdown(row):.2%}"]
    lines += [f"{at_s:8.1f} s, iteration {number:6d}: {state}" for at_s, number, state in row["states"]]
    lines += [f"{at_s:8.1f} s: {text}" for at_s, text in row.get("events", ())]
    return "\n".join([*lines, row["error"]])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure and job to this file")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_JOBS} jobs")
    parser.add_argument(
        "--seed", type=int, default=SEED,
        help="of the jobs; below 1000 for development (default: %(default)s)",
    )
    parser.add_argument("--jobs", type=int, help=f"how many (default: {JOBS})")
    parser.add_argument(
        "--processes", type=int, default=2, help="jobs at the same time (default: %(default)s)"
    )
    parser.add_argument("--only", type=int, metavar="JOB", help="run one job and print all about it")
    options = parser.parse_args(argv)
    if options.only is not None:
        with _quiet():
            _at_home()
            row = tuned(options.seed, options.only)
        print(details(row))
        finish(row, options.json)
        return
    count = options.jobs if options.jobs is not None else QUICK_JOBS if options.quick else JOBS
    if count < 1:
        parser.error(f"--jobs {count}: give 1 or more")
    result = truth(options.seed, count, processes=options.processes)
    print(report(result))
    finish(result, options.json)


if __name__ == "__main__":
    main()
