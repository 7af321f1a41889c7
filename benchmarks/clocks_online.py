"""The online tuner from end to end: trainings tuned while they run, on simulated and on table-driven cards,
against an oracle.

    python -m benchmarks.clocks_online [--data DIR] [--json FILE] [--quick] [--seeds N] [--minutes N]

Each job lasts ten minutes and 300 iterations at least, on a stepped machine behind the driver interface. The
tuner has its usual inputs: the energy counter and power readings with their update steps, noise and gain. In
about half of the jobs, the training reports its steps. All costs count: the saving is the true energy of the
job with the tuner, against the same iterations at the default setting. The oracle has the best of all
settings of the driver, within the same slowdown limit, from the first iteration on.

Every beginning of the order of jobs is balanced over GPUs, workloads and reported steps, so that a partial
run is balanced, too. `--quick` takes the first 36 of one seed, the first 18 of those with late settings and
the first 6 with each other search, and begins no further job after some minutes of each. `ran` in the JSON
has the number of finished jobs and of all jobs of each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks import clocks_jobs
from benchmarks.clocks_jobs import Job, Run
from benchmarks.common import data_directory, finish, table
from workbench.records import Setting

SEEDS = 20
# jobs of one seed, and the minutes after which no more begin, of a quick look at ours, at late settings, at
# each other search
QUICK = {"all": (36, 5.0), "late": (18, 2.5), "peers": (6, 0.75)}
PEERS = ("gpoeo",)  # searches in the same loop
QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
SETTLED = ("hold", "watch", "done")
GPOEO = {
    "saving": 0.162,
    "slowdown": 0.051,
    "differences": "Published: mean of 71 workloads of two suites on a real RTX 3080 Ti, models trained on "
    "that GPU, SM and memory clocks. "
    "Its repository does not state how it was evaluated, and whether tuning is included. Its energies "
    "omit 30 W of idle power. Ours: "
    "simulated GPUs and tables, whole-board energy, jobs of ten minutes with tuning included, no model, a "
    "slowdown limit of 5 % on the whole job",
}


def online(
    data: Path, quick: bool, *, seeds: int | None = None, minutes: float | None = None, processes: int = 2,
    kept: Path | None = None,
) -> dict[str, Any]:
    """Every figure of the online tuner; the figures for the summary are under "summary".

    Args:
        data: Directory of measured grids; without any, simulated cards alone.
        quick: `QUICK` jobs of one seed.
        seeds: Number of random seeds instead of 20 (quick: 1).
        minutes: Time after which no further job begins; finished jobs are reported.
        processes: Number of processes that run jobs in parallel.
        kept: See `run_all`; of the main run and the other searches'.
    """
    count = seeds if seeds is not None else 1 if quick else SEEDS
    possible = spread([
        job
        for seed in range(count)
        for job in (*clocks_jobs.simulated_jobs([seed]), *clocks_jobs.table_jobs(data, [seed]))
    ])
    most = {"all": len(possible), "late": 48, "peers": 96}
    ends = {name: minutes if name == "all" or minutes is None else minutes / 6 for name in most}
    if quick:
        most |= {name: each for name, (each, _) in QUICK.items()}
        ends = {name: bound if minutes is None else min(bound, minutes) for name, (_, bound) in QUICK.items()}
    jobs = possible[: most["all"]]
    rows = run_all(jobs, data, processes=processes, minutes=ends["all"], kept=kept)
    ran = {_name(row) for row in rows}
    jobs = [job for job in jobs if _key(job) in ran]
    late = run_all(
        jobs[: most["late"]], data, processes=processes, minutes=ends["late"], options={"late": True},
        kept=None if kept is None else kept.with_name(f"{kept.stem}.late{kept.suffix}"),
    )
    result: dict[str, Any] = {
        "jobs_planned": len(possible),
        "ran": {"all": [len(rows), len(possible)], "late": [len(late), len(possible)]},
        "all": summary(rows),
        "simulated": summary([row for row in rows if row["family"] == "simulated"]),
        "tables": summary([row for row in rows if row["family"] != "simulated"]),
        "by_card": {
            card: summary([row for row in rows if row["card"] == card])
            for card in dict.fromkeys(row["card"] for row in rows)
        },
        "told": summary([row for row in rows if row["told"]]),
        "not_told": summary([row for row in rows if not row["told"]]),
        "shifted": summary([row for row in rows if row["shift"]]),
        "by_iteration_s": {
            name: summary([row for row in rows if low <= row["iteration_s"] < high])
            for name, low, high in LENGTHS
        },
        "by_workload": {
            name: summary(
                [row for row in rows if row["family"] == "simulated" and row["workload"].startswith(name)]
            )
            for name in sorted({row["workload"].split()[0] for row in rows if row["family"] == "simulated"})
        },
        "peers": _peers(jobs[: most["peers"]], rows, data, processes, ends["peers"], kept),
        "late": summary(late),
        "late_jobs": late,
        "late_same_jobs": summary([row for row in rows if _name(row) in {_name(each) for each in late}]),
        "gpoeo_published": GPOEO,
        "jobs": rows,
    }
    with contextlib.suppress(ImportError):
        from benchmarks import clocks_overhead

        result["overhead"] = clocks_overhead.overhead(quick=quick)
    whole = result["all"]
    keys = (
        "share_of_oracle_saving", "settle_s", "bound_kept", "settle_iterations", "worse_than_1pct",
        "resettled", "jobs",
    )
    result["summary"] = {key: whole[key] for key in keys} | {"jobs_possible": len(possible)}
    afterwards = result["late"] or {}
    result["summary"] |= {
        f"late_{key}": afterwards.get(key) for key in ("share_of_oracle_saving", "bound_kept", "jobs")
    }
    print(f"\n{len(rows)} of {len(possible)} jobs were run, {len(late)} of them again with late settings")
    return result


def spread(jobs: Sequence[Job]) -> list[Job]:
    """The jobs in a balanced order. Every beginning has the same number of each card, then of each workload
    (type of grid). The shares of jobs with a change and of jobs with reported steps are those of all jobs.
    """
    rest, ordered = list(jobs), []
    every = Counter(mark for job in jobs for mark in _marks(job))
    seen: Counter[tuple[str, object]] = Counter()

    def turn(job: Job) -> tuple[float, ...]:
        card, workload, *shares = _marks(job)
        return seen[card], seen[workload], *((seen[mark] + 0.5) / every[mark] for mark in shares)

    while rest:
        pick = min(rest, key=turn)
        rest.remove(pick)
        ordered.append(pick)
        seen.update(_marks(pick))
    return ordered


def _marks(job: Job) -> tuple[tuple[str, object], ...]:
    workload = job.parts[0].workload if job.family == "simulated" else job.family
    return ("card", job.card), ("workload", workload), ("shift", len(job.parts)), ("told", job.told)


LENGTHS = (
    ("below 0.1 s", 0.0, 0.1), ("0.1 to 0.5 s", 0.1, 0.5), ("0.5 to 1.5 s", 0.5, 1.5),
    ("1.5 s and more", 1.5, math.inf),
)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Sums and shares over jobs; None of none."""
    if not rows:
        return None
    done = [row for row in rows if not row["error"]]
    default_j, saved_j = sum(row["default_j"] for row in rows), sum(row["saved_j"] for row in rows)
    oracle_j = sum(row["oracle_saved_j"] for row in rows)
    shifted = [row for row in rows if row["shift"]]
    said = [row for row in done if row["said_saved_j"] is not None and row["said_uncertainty_j"]]
    settled = [row for row in rows if row["settle_s"] is not None]
    return {
        "jobs": len(rows),
        "failed": len(rows) - len(done),
        "share_of_oracle_saving": saved_j / oracle_j if oracle_j > 0 else None,
        "saving": saved_j / default_j,
        "oracle_saving": oracle_j / default_j,
        "mean_slowdown": statistics.mean(row["slowdown"] for row in rows),
        "bound_kept": sum(row["slowdown"] <= row["max_slowdown"] for row in rows) / len(rows),
        "worst_slowdown": max(row["slowdown"] for row in rows),
        "worse_than_1pct": sum(row["saved_j"] < -0.01 * row["default_j"] for row in rows),
        "worst_saving": min(row["saved_j"] / row["default_j"] for row in rows),
        "settled": len(settled) / len(rows),
        "settle_s": _median([row["settle_s"] for row in settled]),
        "settle_iterations": _median([row["settle_iterations"] for row in settled]),
        "settle_s_95": _quantile([row["settle_s"] for row in settled], 0.95),
        "settle_iterations_95": _quantile([row["settle_iterations"] for row in settled], 0.95),
        "probes": _median([row["probes"] for row in done]),
        "refused": sum(bool(row["refused"]) for row in rows),
        "resettled": sum(row["resettled"] for row in shifted) / len(shifted) if shifted else None,
        "noticed": sum(row["noticed"] for row in shifted) / len(shifted) if shifted else None,
        "false_alarms": sum(row["retuned"] > 0 for row in rows if not row["shift"])
        / max(1, len(rows) - len(shifted)),
        "said_within_error_bar": sum(_said_right(row) for row in said) / len(said) if said else None,
        "cpu_share": sum(row["cpu_s"] for row in done) / sum(row["time_s"] for row in done) if done else None,
        "cpu_share_95": _quantile([row["cpu_s"] / row["time_s"] for row in done], 0.95),
        "longest_call_s": _median([row["longest_call_s"] for row in done]),
    }


def _said_right(row: dict[str, Any]) -> bool:
    """Whether what the tuner says it saved is right within its error bar; the card's calibration is on top
    of that, as ever.
    """
    return bool(abs(row["said_saved_j"] - row["gain"] * row["saved_j"]) <= row["said_uncertainty_j"])


# running


def run_all(
    jobs: Sequence[Job], data: Path, *, processes: int, minutes: float | None = None,
    options: dict[str, Any] | None = None, kept: Path | None = None,
) -> list[dict[str, Any]]:
    """A row a job, in the jobs' order; none for those that time did not suffice for.

    Args:
        options: Of `tuned`.
        kept: A file that rows are added to as they come; jobs that it has already are not run again.
    """
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    before = _read(kept)
    rows = {number: before[_key(job)] for number, job in enumerate(jobs) if _key(job) in before}
    waiting = iter([(number, job) for number, job in enumerate(jobs) if number not in rows])
    context = multiprocessing.get_context("spawn")
    with _quiet(), ProcessPoolExecutor(processes, mp_context=context, initializer=_at_home) as pool:
        running: dict[Any, int] = {}

        def feed() -> None:
            while (
                len(running) < 2 * processes
                and time.monotonic() < end
                and (entry := next(waiting, None)) is not None
            ):
                running[pool.submit(tuned, entry[1], data, **(options or {}))] = entry[0]

        feed()
        while running:
            done = next(as_completed(running))
            number = running.pop(done)
            rows[number] = done.result()
            if kept is not None:
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[number], default=float) + "\n")
            feed()
    return [rows[number] for number in sorted(rows)]


def tuned(job: Job, data: Path, *, method: str = "model-guided", late: bool = False) -> dict[str, Any]:
    """Run one job with a tuner, and what became of it; `late`: clocks and limits take 2.5 s to arrive."""
    from workbench.measurement.session import current
    from workbench.simulation import catalogue, machine

    key, workloads = clocks_jobs.built(job, data)
    card = catalogue.card(key)
    true = clocks_jobs.truth(job, card, workloads)
    session = current()
    session.close()
    # A seed for each job: its GPU's UUID comes of it, and one process at a time may change a GPU.
    cards = f"{key},late" if late else key
    present = machine.simulate(cards, stepped=True, seed=zlib.crc32(repr(job).encode()))
    watcher = _Watcher(session, job, method)
    run, gain = Run(job, present), present.gain(0)
    try:
        session.meter  # made before the job begins, as %%energy does  # noqa: B018
        present.step(2.0)
        time_s, energy_j = clocks_jobs.train(run, workloads, true.counts, watcher)
        while len(watcher.held) < len(workloads):  # a tuner that failed was not asked any more
            watcher.held.append(session.devices[0].setting())
    finally:
        watcher.end()
        session.close()
        present.close()
    phases = [
        catalogue.iteration(card, workload, part.batch_size)
        for workload, part in zip(workloads, job.parts, strict=True)
    ]
    held = [
        _held(card, each, setting, best)
        for each, setting, best in zip(phases, watcher.held, true.settings, strict=True)
    ]
    right = (
        held[-1]["energy_ratio"] <= 1.01 * held[-1]["best_ratio"]
        and held[-1]["time_ratio"] <= 1 + job.max_slowdown
    )
    shift = len(job.parts) > 1
    again_s = watcher.settled_after(run.shifted_s) if shift else None
    return {
        "family": job.family, "card": job.card, "workload": job.name, "seed": job.seed, "told": job.told,
        "checkpoints": job.checkpoints, "shift": shift, "iterations": sum(true.counts),
        "iteration_s": true.iteration_s[0], "max_slowdown": job.max_slowdown, "time_s": time_s,
        "energy_j": energy_j, "default_s": true.default_s, "default_j": true.default_j,
        "saved_j": true.default_j - energy_j, "oracle_saved_j": true.default_j - true.oracle_j,
        "slowdown": time_s / true.default_s - 1.0, "oracle_slowdown": true.oracle_s / true.default_s - 1.0,
        "oracle_settings": [str(each) for each in true.settings], "held": held,
        "settle_s": watcher.settled[0] if watcher.settled else None,
        "settle_iterations": watcher.settled[1] if watcher.settled else None,
        "shifted_s": run.shifted_s - run.begun_s if shift else None, "resettle_s": again_s,
        "noticed": again_s is not None, "resettled": again_s is not None or right, "held_is_right": right,
        "retuned": watcher.retuned, "probes": watcher.probes, "refused": watcher.refused, "gain": gain,
        "said_saved_j": watcher.said[0], "said_uncertainty_j": watcher.said[1], "cpu_s": watcher.cpu_s,
        "cpu_by_state_s": watcher.cpu_by_state, "longest_call_s": watcher.longest_s, "error": watcher.error,
        "states": watcher.states, "believed": watcher.believed, "events": watcher.events,
    }


def _held(card: Any, phases: Any, setting: Setting, best: Setting) -> dict[str, Any]:
    """What was active at the end of a part, and its true ratios to the default; `best_ratio` is the best
    setting's energy.
    """
    default, here, there = (clocks_jobs.cost(card, phases, each) for each in (Setting(), setting, best))
    return {
        "setting": str(setting), "energy_ratio": here.energy_j / default.energy_j,
        "time_ratio": here.time_s / default.time_s, "best_ratio": there.energy_j / default.energy_j,
    }


class _Watcher:
    """Calls the tuner as its thread would, and notes what it does."""

    def __init__(self, session: Any, job: Job, method: str) -> None:
        self._session, self._job, self._method = session, job, method
        self.tuner: Any = None
        self.states: list[tuple[float, int, str]] = []
        self.settled: tuple[float, int] | None = None
        self.retuned = 0
        self.error = self.refused = ""
        self.held: list[Setting] = []  # active when each part ended
        self.said: tuple[float | None, float | None] = (None, None)
        self.probes = 0
        self.believed: dict[str, Any] = {}  # of what was held in the end
        self.events: list[tuple[float, str]] = []
        self.cpu_s = self.longest_s = 0.0
        self.cpu_by_state: dict[str, float] = {}
        self._begun_s = 0.0

    def __call__(self, run: Run) -> float:
        if run.part > len(self.held):
            self.held.append(self._session.devices[0].setting())
        if self.error:
            return math.inf
        start_s = time.thread_time()
        try:
            if self.tuner is None:
                self._begun_s = run.machine.clock()
                self.tuner = make_tuner(self._session, self._job, self._method)
            self.tuner.advance()
            state = self.tuner.state
        except Exception:
            self.error = traceback.format_exc()
            self.end()
            return math.inf
        spent_s = time.thread_time() - start_s
        self.cpu_s += spent_s
        self.longest_s = max(self.longest_s, spent_s)
        self.cpu_by_state[state] = self.cpu_by_state.get(state, 0.0) + spent_s
        if not self.states or self.states[-1][2] != state:
            at_s = run.machine.clock() - self._begun_s
            self.states.append((round(at_s, 3), run.done, state))
            if self.settled is None and state in SETTLED:
                self.settled = (at_s, run.done)
            self.retuned += state == "re-tune"
        return float(self.tuner.pace_s)

    def settled_after(self, shifted_s: float) -> float | None:
        """Seconds from a shift until the tuner, having searched again, held again; None where it did not."""
        after_s = shifted_s - self._begun_s
        looked = False
        for at_s, _, state in self.states:
            if at_s < after_s:
                continue
            if state in SETTLED and looked:
                return at_s - after_s
            looked = looked or state not in SETTLED
        return None

    def end(self) -> None:
        """The tuner's final report, and the GPU restored."""
        if self.tuner is None:
            return
        tuner, self.tuner = self.tuner, None
        try:
            tuner.end()
            view = tuner.view()
            if view.saved is not None:
                self.said = (view.saved.energy_j, view.saved.uncertainty_j)
            self.probes, self.refused = view.trials.height, view.refused
            self.events = [(round(at_s, 1), words) for at_s, words in view.events[-60:]]
            if view.choice is not None:
                keys = ("time_ratio", "time_sd", "energy_ratio", "energy_sd")
                self.believed = {key: getattr(view.choice, key) for key in keys} | {
                    "source": view.period_source
                }
                self.believed |= {"said_slowdown": view.saved.slowdown if view.saved is not None else None}
        except Exception:
            self.error = self.error or traceback.format_exc()


def make_tuner(session: Any, job: Job, method: str, model: Any = False) -> Any:
    """A tuner for a job, as `%%energy --tune` makes it."""
    from workbench.tuning import Tuner

    return Tuner(
        session.meter, objective=job.objective, max_slowdown=job.max_slowdown, over=job.over, search=method,
        model=model, warm_start=False,
    )


def _peers(
    jobs: Sequence[Job], ours: Sequence[dict[str, Any]], data: Path, processes: int, minutes: float | None,
    kept: Path | None = None,
) -> dict[str, Any]:
    """The same loop with other searches, on some of the same jobs.

    Args:
        minutes: For each, where that is bounded.
        kept: Of ours; theirs stand next to it, each with the name of the search.
    """
    found: dict[str, Any] = {}
    mine = {_name(row): row for row in ours}
    for method in PEERS:
        theirs = None if kept is None else kept.with_name(f"{kept.stem}.{method}{kept.suffix}")
        rows = run_all(
            jobs, data, processes=processes, minutes=minutes, options={"method": method}, kept=theirs
        )
        found[method] = {
            "theirs": summary(rows), "ours_on_the_same": summary([mine[_name(row)] for row in rows]),
        }
    return found


def _name(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in ("family", "card", "workload", "seed", "told"))


def _key(job: Job) -> tuple[Any, ...]:
    return (job.family, job.card, job.name, job.seed, job.told)


def _read(kept: Path | None) -> dict[tuple[Any, ...], dict[str, Any]]:
    if kept is None or not kept.exists():
        return {}
    return {_name(row): row for row in map(json.loads, kept.read_text(encoding="utf-8").splitlines())}


def _at_home() -> None:
    """A worker's journals and models are not the user's."""
    names = ["HOME", *(f"XDG_{each}" for each in ("DATA_HOME", "STATE_HOME", "CONFIG_HOME", "CACHE_HOME",
                                                  "RUNTIME_DIR"))]
    os.environ.update(dict.fromkeys(names, tempfile.mkdtemp(prefix="workbench-online-")))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """One thread of arithmetic for each worker."""
    before = {name: os.environ.get(name) for name in QUIET}
    os.environ.update(QUIET)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _quantile(values: Sequence[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def report(result: dict[str, Any]) -> str:
    """The figures as tables."""
    columns = (
        "jobs", "share_of_oracle_saving", "saving", "oracle_saving", "mean_slowdown", "bound_kept",
        "worst_slowdown", "worse_than_1pct", "worst_saving", "settle_s", "settle_iterations", "probes",
        "resettled", "false_alarms", "said_within_error_bar", "failed",
    )
    groups: dict[str, Any] = {
        name: result[name] for name in ("all", "simulated", "tables", "told", "not_told", "shifted")
    }
    for group in ("by_card", "by_workload", "by_iteration_s"):
        groups |= result[group]
    for name, both in result["peers"].items():
        groups |= {name: both["theirs"], f"ours, jobs of {name}": both["ours_on_the_same"]}
    groups["settings 2.5 s late"] = result["late"]
    rows = [[name, *(each[column] for column in columns)] for name, each in groups.items() if each]
    return table(["", *(column.replace("_", " ") for column in columns)], rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data", type=Path, default=data_directory(), metavar="DIR",
        help="measured data (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--seeds", type=int, help=f"how many (default: {SEEDS})")
    parser.add_argument("--minutes", type=float, help="begin no further job after so many minutes")
    parser.add_argument(
        "--kept", type=Path, metavar="FILE",
        help="jobs that were run, one per line: an interrupted run goes on with it",
    )
    parser.add_argument("--processes", type=int, default=2, help="jobs side by side (default: %(default)s)")
    options = parser.parse_args(argv)
    result = online(
        options.data, options.quick, seeds=options.seeds, minutes=options.minutes,
        processes=options.processes, kept=options.kept,
    )
    print(report(result))
    finish(result, options.json)


if __name__ == "__main__":
    main()
