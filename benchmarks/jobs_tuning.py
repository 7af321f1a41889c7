"""Tuning all GPUs of a job as one: the slowdown limit of its iterations, and the share of an oracle's saving.

    python -m benchmarks.jobs_tuning [--json FILE] [--quick]

Random jobs on simulated nodes (`simulate("8xH100")`), half of them with a straggler, run for ten minutes
without tuning and with it, as those of `benchmarks.truth`. Figures are of the whole job, tuning included, and
of its last quarter, where the setting is held. The oracle knows the simulator's equations without their
randomness. It takes the best clock of each GPU for every possible time of an iteration within the limit. On a
stepped clock the recorder polls too coarsely for the waits, so they are calculated from the same sensor model
at its refreshes, 0 to 3 ms late.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish, table
from benchmarks.fixtures.nodes import exact_traces

LIMIT = 0.05
CARDS = ("A100", "H100", "V100", "A40", "RTX6000")
WORKLOADS = ("imagenet", "squad", "librispeech", "sentiment140")


def job_settings(count: int, seed: int) -> list[dict[str, Any]]:
    """Random jobs; every second one has a straggler."""
    rng, jobs = random.Random(seed), []
    for number in range(count):
        gpus = rng.choice((2, 4, 8))
        straggler = (rng.randrange(gpus), rng.uniform(1.05, 1.2)) if number % 2 else None
        jobs.append({
            "card": rng.choice(CARDS), "workload": rng.choice(WORKLOADS), "gpus": gpus,
            "straggler": straggler, "cause": rng.choice(("clock", "data")),
            "wait": rng.choice(("spin", "spin", "block")), "seed": rng.randrange(10**6),
        })
    return jobs


def run_job(
    job: dict[str, Any], *, tuned: bool, balanced: bool = True, seconds: float = 600.0
) -> dict[str, Any]:
    """Mean time and energy of an iteration, of the whole job and of its last quarter."""
    import workbench
    from notebooks.data_parallel import DataParallelJob
    from workbench.jobs.waiting import waiting
    from workbench.measurement import session as sessions
    from workbench.simulation import machine as machines
    from workbench.tuning import Tuner, balance

    sessions.current().close()
    machine = machines.simulate(f"{job['gpus']}x{job['card']}", stepped=True, seed=job["seed"])
    session = sessions.current()
    training = DataParallelJob(
        job["workload"], gpu=range(job["gpus"]), straggler=job["straggler"], cause=job["cause"],
        wait=job["wait"], iterations=10**9, evaluate=False, seed=job["seed"], machine=machine,
    )
    rng = random.Random(job["seed"])

    def seen(traces: Any, ends_s: Any, **known: Any) -> Any:
        return waiting(exact_traces(machine, float(ends_s[0]), float(ends_s[-1]), rng), ends_s, **known)

    tuner = Tuner(session.meter, model=False, max_slowdown=LIMIT) if tuned else None
    ends: list[float] = []
    original, balance.waiting = balance.waiting, seen
    change = balance.Balance.change
    if not balanced:
        balance.Balance.change = lambda *_: None  # type: ignore[method-assign]
    try:
        begin_s = machine.clock()
        with workbench.measure("job"):
            for _ in training:
                workbench.step()
                ends.append(machine.clock())
                if tuner is not None:
                    tuner.advance()
                if machine.clock() - begin_s > seconds:
                    break
        result = tuner.end() if tuner is not None else None
    finally:
        balance.waiting, balance.Balance.change = original, change  # type: ignore[method-assign]

    def mean(first: int) -> tuple[float, float]:
        energy_j = sum(machine.true_energy_j(gpu, ends[first], ends[-1]) for gpu in range(job["gpus"]))
        count = len(ends) - 1 - first
        return (ends[-1] - ends[first]) / count, energy_j / count

    quarter = int(0.75 * len(ends))
    found = {"whole": mean(0), "held": mean(quarter), "oracle": oracle(training) if not tuned else None}
    if result is not None:
        found["balanced"] = sum("lower clocks" in text for _, text in result.events)
        found["setting"] = str(result.setting)
    sessions.current().close()
    machine.close()
    return found


def oracle(training: Any) -> float:
    """The largest saving within the limit, by the simulator's equations without their randomness."""
    from workbench.simulation.physics import operate

    lanes, points = training._lanes, []
    for lane, spins, late_s in zip(lanes, training._spins, training._late_s, strict=True):
        limit_w = lane.card.power_limit_w[1]
        clocks = [each for each in lane.card.sm_clocks_mhz
                  if not lane.throttle_mhz or each <= lane.throttle_mhz]
        spin_w = operate(lane.card, spins[1 % len(spins)].load, power_limit_w=limit_w).power_w
        gap_w = operate(lane.card, None, power_limit_w=limit_w).power_w
        rows = []
        for clock in clocks:
            time_s, energy_j = late_s, late_s * gap_w
            for phase in lane.iteration:
                point = operate(lane.card, phase.load, power_limit_w=limit_w, max_sm_clock_mhz=clock)
                time_s += phase.time_s * point.stretch
                energy_j += phase.time_s * point.stretch * point.power_w
            rows.append((time_s, energy_j, spin_w))
        points.append(np.array(rows))
    default_s = max(each[0, 0] for each in points)

    def energy_j(time_s: float) -> float:
        total = 0.0
        for rows in points:
            fits = rows[rows[:, 0] <= time_s + 1e-9]
            total += float((fits[:, 1] + fits[:, 2] * (time_s - fits[:, 0])).min())
        return total

    before_j = sum(float(each[0, 1] + each[0, 2] * (default_s - each[0, 0])) for each in points)
    times = np.linspace(default_s, (1.0 + LIMIT) * default_s, 60)
    return 1.0 - min(energy_j(float(each)) for each in times) / before_j


def run(quick: bool) -> dict[str, Any]:
    """The jobs, and their summary."""
    rows = []
    for job in job_settings(3 if quick else 16, seed=41):
        before = run_job(job, tuned=False)
        after, plain = run_job(job, tuned=True), run_job(job, tuned=True, balanced=False)
        row = {**job, "oracle": before["oracle"], "changes": after["balanced"], "setting": after["setting"]}
        for name, found in (("job", after), ("same_clock", plain)):
            for part in ("whole", "held"):
                base = before["whole"]
                row[f"{name}_{part}_slower"] = found[part][0] / base[0] - 1.0
                row[f"{name}_{part}_saved"] = 1.0 - found[part][1] / base[1]
        rows.append(row)
        print(_line(row), flush=True)
    shares = {part: float(np.mean([max(row[f"job_{part}_saved"], 0.0) for row in rows])
                          / np.mean([row["oracle"] for row in rows])) for part in ("whole", "held")}
    plain = float(np.mean([max(row["same_clock_held_saved"], 0.0) for row in rows])
                  / np.mean([row["oracle"] for row in rows]))
    return {
        "jobs": rows, "bound_kept": float(np.mean([row["job_whole_slower"] <= LIMIT for row in rows])),
        "share_of_oracle": shares["whole"], "share_of_oracle_held": shares["held"],
        "share_of_oracle_same_clock": plain, "worst_saved": min(row["job_whole_saved"] for row in rows),
        "worst_slower": max(row["job_whole_slower"] for row in rows),
    }


def _line(row: dict[str, Any]) -> str:
    straggler = f"{row['straggler'][1]:.2f} {row['cause']}" if row["straggler"] else "none"
    return (f"{row['gpus']}x{row['card']} {row['workload']} straggler {straggler}: saved "
            f"{100 * row['job_held_saved']:.1f} % of {100 * row['oracle']:.1f} % "
            f"({100 * row['same_clock_held_saved']:.1f} % with one clock), slower "
            f"{100 * row['job_whole_slower']:.1f} %, {row['changes']} changes, {row['setting']}")


def report(found: dict[str, Any]) -> str:
    """A table of the summary."""
    return table(("figure", "value", "required"), [
        ("limit of the job's iteration time kept", found["bound_kept"], "0.98"),
        ("share of the oracle's saving, whole job", found["share_of_oracle"], "0.75"),
        ("the same while the setting is held", found["share_of_oracle_held"], "-"),
        ("the same with one clock for all GPUs", found["share_of_oracle_same_clock"], "-"),
        ("smallest saving of a job", found["worst_saved"], "-0.01"),
        ("largest slowdown of a job", found["worst_slower"], "0.05"),
    ])


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments(str(__doc__).split("\n", maxsplit=1)[0], argv)
    found = run(options.quick)
    print(report(found))
    finish({"summary": {key: value for key, value in found.items() if key != "jobs"}, **found}, options.json)


if __name__ == "__main__":
    main()
