"""The online tuner's reports, compared with the truth of random cards and jobs that its models do not know.

    python -m benchmarks.truth [--json FILE] [--quick] [--rows NAME ...] [--seed N] [--jobs N] [--only JOB]

No data is needed. `benchmarks.fixtures.true_jobs` draws a card and a training per job: tables of time and
power instead of formulas, and sensors of seven architectures. Jobs have thermal drift, growing and bucketed
iterations, waits, checkpoints and changes of the work. Half of them report their steps.
`benchmarks.clocks_online` explains how the tuner runs on a stepped machine.

The seed of a published run is 2000 plus the hash of the contents of `workbench/tuning` and `workbench/search`
modulo a million, so that nobody knows its jobs before the program is finished; it is printed with the commit.
Seeds below 1000 are for development. `--only JOB` runs job number JOB and prints everything known about it.

Rows: "main" has 126 jobs of ten minutes and 120 iterations at least, at a limit of 5 %, with every other
method on the same jobs (`benchmarks.truth_peers`: the same loop with the same information, and a privileged
form). "3 min", "30 min", "120 min" and "1 %", "2 %", "10 %" have 42 jobs each, with the tuner alone.

All figures of `summary` come from the true time and energy of whole jobs, tuning included, against the same
iterations at the default setting:

bound_kept_marked, bound_kept_unmarked, bound_kept_growing
    Share of the jobs that took at most 5 % longer than at the default setting; of those whose cycles grow as
    the clock falls.

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
    setting of least energy within the limit from the first iteration of each part on: a clock or a power
    limit. `share_of_two_knobs` is against an oracle with a clock and a limit together.
    "measurable": the jobs whose iteration lasts longer than five refreshes of the sensor.

refused_lockable
    Jobs that the tuner gives up although a clock can be locked.

false_retunes_per_job
    Re-tunes without a change of the work, per job. The first one after a change is right.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import clocks_jobs, truth_peers
from benchmarks.clocks_online import _at_home, _quiet, make_tuner
from benchmarks.common import finish, table
from benchmarks.fixtures import true_jobs
from benchmarks.fixtures.true_jobs import MAX_SLOWDOWN, Part, TrueJob
from workbench.records import Setting

JOBS, QUICK_JOBS = 126, 24
REFRESHES = 5  # an unmarked iteration that lasts longer than so many can be observed
TUNER, DEFAULT, ORACLE = "tuner", "driver default", "oracle"
ROOT = Path(__file__).resolve().parent.parent
LEAST_PER_S = true_jobs.LEAST_ITERATIONS / true_jobs.JOB_S


@dataclass(frozen=True)
class Row:
    """Some jobs of a seed: their length at the default setting, slowdown limit and number."""

    job_s: float = true_jobs.JOB_S
    max_slowdown: float = MAX_SLOWDOWN
    jobs: int = 42
    others: bool = False

    def draw(self, seed: int, number: int) -> TrueJob:
        least = math.ceil(self.job_s * LEAST_PER_S)
        return true_jobs.draw(
            seed, number, job_s=self.job_s, least=least, max_slowdown=self.max_slowdown
        )


ROWS = {
    "main": Row(jobs=JOBS, others=True),
    **{f"{minutes} min": Row(job_s=60.0 * minutes) for minutes in (3, 30, 120)},
    **{f"{percent} %": Row(max_slowdown=percent / 100) for percent in (1, 2, 10)},
}


def published_seed() -> int:
    """The seed of a published run: nobody has seen its jobs while this program was written."""
    found = hashlib.sha256()
    for room in ("tuning", "search"):
        for path in sorted((ROOT / "workbench" / room).rglob("*.py")):
            found.update(path.read_bytes())
    return 2000 + int(found.hexdigest(), 16) % 10**6


def truth(
    seed: int, row: Row, jobs: int, *, processes: int = 2, others: bool | None = None
) -> dict[str, Any]:
    """Run jobs 0 to `jobs` of a seed; the figures are under "summary", "methods" and "groups"."""
    rows: dict[int, dict[str, Any]] = {}
    context = multiprocessing.get_context("spawn")
    others = row.others if others is None else others
    with (
        _quiet(),
        ProcessPoolExecutor(processes, mp_context=context, initializer=_at_home) as pool,
    ):
        running = {pool.submit(tuned, seed, number, row, others): number for number in range(jobs)}
        for done in as_completed(running):
            rows[running[done]] = done.result()
            print(f"\r{len(rows)} of {jobs} jobs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    ordered = [rows[number] for number in sorted(rows)]
    return {
        "summary": summary(ordered),
        "methods": {form: methods(ordered, form) for form in ("methods", "in_loop") if ordered[0][form]},
        "groups": groups(ordered),
        "jobs": ordered,
    }


# one job


def tuned(seed: int, number: int, row: Row, others: bool) -> dict[str, Any]:
    """Run one job with the tuner, and where `others` with every other method."""
    from workbench.measurement.session import current

    begun_s = time.process_time()
    job = row.draw(seed, number)
    best = [job.best(part) for part in job.parts]
    pair = [job.best_pair(part) for part in job.parts] if others else best
    session = current()
    session.close()
    present = job.machine(seed)
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
    tuner_cpu_s = time.process_time() - begun_s
    default_s, default_j = job.cost()
    named = truth_peers.METHODS if others else {}
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
        "max_slowdown": job.max_slowdown,
        "lockable": any(setting.sm_clock_mhz is not None for setting in job.settings()),
        "methods": {
            TUNER: [time_s, energy_j],
            ORACLE: [sum(cost[0] for _, cost in best), sum(cost[1] for _, cost in best)],
            "oracle, two knobs": [sum(cost[0] for _, cost in pair), sum(cost[1] for _, cost in pair)],
            DEFAULT: [default_s, default_j],
            **{name: list(truth_peers.privileged(job, name)) for name in named},
        },
        "in_loop": {
            name: list(truth_peers.in_loop(seed, job, name))
            for name in named if name not in truth_peers.FIXED
        },
        "shift_s": shift_s,
        "held": [_held(job, part, setting) for part, setting in zip(job.parts, watcher.held, strict=False)],
        "false_retunes": false_retunes(watcher.retunes_s, shift_s),
        **watcher.report,
        "retunes_s": watcher.retunes_s,
        "states": watcher.states,
        "error": watcher.error,
        "cpu_s": tuner_cpu_s,
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
        at_s = run.machine.clock() - self._begun_s
        self.retunes_s += [at_s] * (self.tuner.log.retuned - len(self.retunes_s))
        if not self.states or self.states[-1][2] != state:
            self.states.append((round(at_s, 2), run.done, state))
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


# figures


def slowdown(row: dict[str, Any], method: str = TUNER, form: str = "methods") -> float:
    return float(row[form][method][0] / row["default_s"] - 1.0)


def saved_j(row: dict[str, Any], method: str = TUNER, form: str = "methods") -> float:
    return float(row["default_j"] - row[form][method][1])


def share_of_oracle(
    rows: Iterable[dict[str, Any]], method: str = TUNER, form: str = "methods", oracle: str = ORACLE
) -> float | None:
    """Energy saved over what an oracle saves, summed; None where nothing can be saved."""
    rows = list(rows)
    possible_j = sum(saved_j(row, oracle) for row in rows)
    return sum(saved_j(row, method, form) for row in rows) / possible_j if possible_j > 0 else None


def bound_kept(
    rows: Iterable[dict[str, Any]], method: str = TUNER, form: str = "methods"
) -> float | None:
    """Share of the jobs within their slowdown limit; None of none."""
    return _share([slowdown(row, method, form) <= row["max_slowdown"] + 1e-9 for row in rows])


def worse_by_1_percent(
    rows: Iterable[dict[str, Any]], method: str = TUNER, form: str = "methods"
) -> int:
    return sum(
        saved_j(row, method, form) < -0.01 * row["default_j"] and slowdown(row, method, form) >= 0
        for row in rows
    )


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
        "bound_kept_growing": bound_kept(row for row in rows if row["traits"]["cycles"]),
        "worst_slowdown_over_bound": max(slowdown(row) - row["max_slowdown"] for row in rows),
        "saving_covered": _share([covered(row) for row in rows]),
        "saving_covered_reported": _share([covered(row) for row in reported]),
        "saving_reported": len(reported),
        "saving_claimed": sum(claimed(row) for row in rows),
        "saving_interval_percent": _median(
            [100 * row["said"]["uncertainty_j"] / (row["gain"] * row["default_j"]) for row in reported]
        ),
        "worse_by_1_percent": worse_by_1_percent(rows),
        "share_of_oracle_marked": share_of_oracle(marked),
        "share_of_oracle_unmarked": share_of_oracle(unmarked),
        "share_of_oracle_unmarked_measurable": share_of_oracle(row for row in unmarked if row["observable"]),
        "share_of_two_knobs": share_of_oracle(rows, oracle="oracle, two knobs"),
        "unmarked_measurable_jobs": sum(row["observable"] for row in unmarked),
        "refused": sum(bool(row.get("refused")) for row in rows),
        "refused_lockable": sum(bool(row.get("refused")) and row["lockable"] for row in rows),
        "false_retunes_per_job": sum(row["false_retunes"] for row in rows) / len(rows),
        "saving": sum(saved_j(row) for row in rows) / sum(row["default_j"] for row in rows),
        "oracle_saving": sum(saved_j(row, "oracle") for row in rows) / sum(row["default_j"] for row in rows),
        "mean_slowdown": sum(slowdown(row) for row in rows) / len(rows),
    }


def methods(rows: Sequence[dict[str, Any]], form: str) -> dict[str, dict[str, Any]]:
    """Every method on the same jobs: from the tables with privileges ("methods"), or "in_loop"."""
    told = {True: [row for row in rows if row["told"]], False: [row for row in rows if not row["told"]]}
    return {
        name: {
            "share_with_steps": share_of_oracle(told[True], name, form),
            "share_without": share_of_oracle(told[False], name, form),
            "kept_with_steps": bound_kept(told[True], name, form),
            "kept_without": bound_kept(told[False], name, form),
            "worst_slowdown": max(slowdown(row, name, form) for row in rows),
            "worst_saving": round(min(saved_j(row, name, form) / row["default_j"] for row in rows), 6),
            "worse_by_1_percent": worse_by_1_percent(rows, name, form),
        }
        for name in rows[0][form]
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
        "unmarked, measurable": lambda row: not row["told"] and row["observable"],
        "measurable": lambda row: row["observable"],
        "not measurable": lambda row: not row["observable"],
        "growing cycles": lambda row: row["traits"]["cycles"] > 0,
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


def report(name: str, result: dict[str, Any]) -> str:
    """The summary, the methods and the groups of a row as tables."""
    columns = (
        "jobs", "bound_kept_marked", "bound_kept_unmarked", "worst_slowdown_over_bound", "saving_covered",
        "saving_reported", "saving_covered_reported", "worse_by_1_percent", "share_of_oracle_marked",
        "share_of_oracle_unmarked", "false_retunes_per_job", "refused",
    )
    forms = {"methods": "from the tables, privileged", "in_loop": "in the loop"}
    tables = [
        table(["", name], [[name.replace("_", " "), value] for name, value in result["summary"].items()])
    ]
    for form, found in result["methods"].items():
        names = next(iter(found.values()))
        tables.append(table(
            [f"method, {forms[form]}", *(each.replace("_", " ") for each in names)],
            [[each, *values.values()] for each, values in found.items()],
        ))
    tables.append(table(
        ["jobs with", *(each.replace("_", " ") for each in columns)],
        [[kind, *(each[column] for column in columns)] for kind, each in result["groups"].items()],
    ))
    return "\n\n".join(tables)


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
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_JOBS} jobs of the tuner alone")
    parser.add_argument("--rows", nargs="+", choices=ROWS, help="(default: all, one after the other)")
    parser.add_argument("--seed", type=int, help="of the jobs (default: that of a published run)")
    parser.add_argument("--jobs", type=int, help=f"of each row (default: {JOBS} of the first, 42 of others)")
    parser.add_argument(
        "--processes", type=int, default=2, help="jobs at the same time (default: %(default)s)"
    )
    parser.add_argument("--only", type=int, metavar="JOB", help="run one job and print all about it")
    options = parser.parse_args(argv)
    if options.jobs is not None and options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: give 1 or more")
    seed = options.seed if options.seed is not None else published_seed()
    names = options.rows or (["main"] if options.quick or options.only is not None else list(ROWS))
    if options.only is not None:
        with _quiet():
            _at_home()
            known = tuned(seed, options.only, ROWS[names[0]], False)
        print(details(known))
        finish(known, options.json)
        return
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    print(f"seed {seed}, commit {commit or 'unknown'}")
    result: dict[str, Any] = {"seed": seed, "commit": commit, "summary": {}, "rows": {}}
    for name in names:
        row = ROWS[name]
        jobs = options.jobs or (QUICK_JOBS if options.quick else row.jobs)
        found = truth(seed, row, jobs, processes=options.processes, others=False if options.quick else None)
        print(report(name, found))
        result["rows"][name] = found
        result["summary"] |= found["summary"] if name == "main" else {name: found["summary"]}
        finish(result, options.json)


if __name__ == "__main__":
    main()
