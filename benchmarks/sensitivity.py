"""The effect of each constant of the tuner's method, halved and doubled, on the tables of random jobs.

    python -m benchmarks.sensitivity [--json FILE] [--quick] [--seed N] [--jobs N] [--only NAME ...]

No data is needed. A closed loop of `search.clocks.descent` and jobs of `benchmarks.fixtures.true_jobs` that
report their steps: ten minutes, a limit of 5 %. No driver and no thread runs, so a job takes half a second.
A change of the setting takes 0.3 to 1.2 s, energies have an error of 1 % per square root of a second, and a
change of the work starts the method again. `benchmarks.truth` has the scores of the whole tuner.

share: Energy saved over what the oracle saves, summed over jobs, for half, once and twice the constant.
kept: Share of the jobs that are at most 5 % slower. worst: the largest slowdown less 5 %, in percent.
The summary has the largest loss of share, and the lowest `kept`, of any constant that was halved or doubled.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import finish, table
from benchmarks.fixtures import true_jobs
from workbench.records import Configuration, Limits, Observation, Setting
from workbench.search.clocks import descent, effects, knowledge
from workbench.search.space import space_from
from workbench.tuning.blocks import Usual
from workbench.tuning.tuned_job import MEETS

JOB_S, BOUND = 600.0, 0.05
ENERGY_ERROR = 0.01  # of a block, per square root of a second
MODULES = (effects, knowledge, descent)
CODES = {"CLOCK", "LIMIT", "MEMORY"}  # kinds of knobs, no constants of the method


def constants() -> dict[str, Any]:
    """The constants of the method: names in capitals, of numbers or tuples of numbers."""
    return {
        name: value for module in MODULES for name, value in vars(module).items()
        if name.isupper() and name not in CODES and isinstance(value, int | float | tuple)
    }


def scaled(value: Any, factor: float) -> Any:
    """A constant times a factor; a count stays a whole number."""
    if isinstance(value, tuple):
        return tuple(each * factor for each in value)
    return max(round(value * factor), 1) if isinstance(value, int) else value * factor


def set_to(name: str, value: Any) -> None:
    """Give a constant another value in each module of the method that has it."""
    for module in MODULES:
        if hasattr(module, name):
            setattr(module, name, value)


class Running:
    """A job that runs, iteration by iteration, by its tables."""

    def __init__(self, job: true_jobs.TrueJob, rng: np.random.Generator) -> None:
        self.job, self.rng, self.now_s = job, rng, 0.0
        self.part = self.iteration = 0
        self.energy_j = 0.0
        self._tables: dict[tuple[int, Setting], np.ndarray] = {}

    @property
    def ended(self) -> bool:
        return self.part >= len(self.job.parts)

    def table(self, setting: Setting) -> np.ndarray:
        """Of each iteration of this part: time (s), energy (J), time under load (s), that times the clock."""
        found = self._tables.get((self.part, setting))
        if found is None:
            part = self.job.parts[self.part]
            points = [true_jobs.operate(self.job.card, work, setting) for work in part.work]
            stretch, power_w, clock = (
                np.array([getattr(each, name) for each in points])[part.of]
                for name in ("stretch", "power_w", "sm_clock_mhz")
            )
            busy = np.array([number not in part.waits for number in range(len(points))])[part.of]
            time_s = part.base_s * stretch
            columns = time_s, time_s * power_w, time_s * busy, time_s * busy * clock
            found = np.stack([np.add.reduceat(each, part.first[:-1]) for each in columns], axis=1)
            self._tables[self.part, setting] = found
        return found

    def step(self, setting: Setting) -> np.ndarray:
        """Run an iteration."""
        table = self.table(setting)
        row = table[self.iteration]
        self.now_s += row[0]
        self.energy_j += row[1]
        self.iteration += 1
        if self.iteration == len(table):
            self.part, self.iteration = self.part + 1, 0
        return row

    def until(self, end_s: float, setting: Setting) -> None:
        while not self.ended and self.now_s < end_s:
            self.step(setting)


def method_for(job: true_jobs.TrueJob, run: Running, earlier_s: tuple[float, float]) -> descent.Descent:
    """The method, as two seconds under load begin it."""
    card, part = job.card, job.parts[run.part]
    lacks = {*true_jobs.SENSORS[card.architecture].lacks, *card.lacks}
    least_w, default_w, _ = card.power_limit_w
    clocks = {card.mem_clocks_mhz[0]: card.sm_clocks_mhz} if "sm_lock" not in lacks else {}
    step_w = max(1.0, math.ceil((default_w - least_w) / 100))
    limits = Limits(least_w, default_w, default_w, clocks)
    space = space_from(limits, "both", can_lock_memory=False, step_w=step_w)
    points = [true_jobs.operate(card, work, Setting()) for work in part.work]
    share = np.bincount(part.of, part.base_s, len(points)) * [each.stretch for each in points]
    seen = run.rng.choice(len(points), 20, p=share / share.sum())
    clock = np.array([points[each].sm_clock_mhz for each in seen], float)
    used = np.array([float(each not in part.waits) for each in seen])
    used[0] = max(used[0], float(not used.any()))
    power_w = np.array([points[each].power_w for each in seen])
    meets_w = max(MEETS * np.quantile(power_w, 0.98), 1.05 * power_w.mean() / max(used.mean(), 0.3))
    rungs = effects.ladders(space, float(clock[used > 0].max()), min(float(meets_w), default_w))
    made = descent.Descent(
        rungs, knowledge.time_bounds(rungs, clock, used), None, BOUND, busy=float(used.mean()),
        clock_mhz=float(clock[used > 0].mean()), earlier_s=earlier_s, rough_sd=effects.ROUGH_SD,
    )
    made.count(True)
    made.now_s = run.now_s
    return made


def tuned(seed: int, number: int) -> tuple[float, float, float] | None:
    """Saved over used energy of a job, the oracle's, and the slowdown; None for a job without steps."""
    job = true_jobs.draw(seed, number, job_s=JOB_S, least=math.ceil(JOB_S / 5), max_slowdown=BOUND)
    if not job.told:
        return None
    run = Running(job, np.random.default_rng(seed * 1000 + number))
    default_s, default_j = job.cost()
    method, here, earlier_s = None, Setting(), (0.0, 0.0)
    usual = Usual()
    while not run.ended:
        if method is None:
            begun_s = run.now_s
            run.until(begun_s + 2.0, Setting())
            if run.ended:
                break
            method, here, usual = method_for(job, run, earlier_s), Setting(), Usual()
            method.passed(method.rungs.reference, run.now_s - begun_s)
        plan, settings = method.next(run.now_s), method.rungs.settings
        wanted = Setting() if plan.row == method.rungs.reference else settings[plan.row]
        if wanted != here:
            begun_s = run.now_s
            run.until(begun_s + run.rng.uniform(0.3, 1.2), here)
            row = method.rungs.reference if here == Setting() else settings.index(here)
            method.passed(row, run.now_s - begun_s)
            here = wanted
        block = measured(run, plan, here, usual, method)
        if block is not None and method.tell(block):
            method, earlier_s = None, method.spent_s()
    saved = default_j - run.energy_j
    possible = default_j - sum(cost[1] for _, cost in map(job.best, job.parts))
    return saved / default_j, possible / default_j, run.now_s / default_s - 1.0


def measured(
    run: Running, plan: descent.Plan, here: Setting, usual: Usual, method: descent.Descent
) -> Observation | None:
    """Run a block; None where it has no usual iteration."""
    start_s, rows = run.now_s, []
    while not run.ended:
        rows.append(run.step(here))
        passed_s = run.now_s - start_s
        slow = len(rows) > 1 and passed_s / len(rows) > plan.too_slow_s
        if slow or (len(rows) >= plan.count and passed_s >= plan.seconds):
            break
    method.passed(plan.row, run.now_s - start_s)
    if not rows:
        return None
    found = np.array(rows)
    kept = usual.mask(found[:, 0])
    if not kept.any():
        return None
    time_s, energy_j = found[kept, :2].sum(0).tolist()
    error = ENERGY_ERROR / math.sqrt(max(time_s, 1.0))
    scatter = float(found[kept, 0].std()) * kept.sum() / time_s if kept.sum() > 2 else 0.0
    under_s, cycles = found[:, 2:].sum(0)
    return Observation(
        Configuration(method.rungs.settings[plan.row]), int(kept.sum()), time_s,
        energy_j * (1.0 + error * run.rng.normal()), error * energy_j, scatter, 0.0,
        0.5 * (start_s + run.now_s), cycles / under_s if under_s else math.nan, "marks",
    )


def score(job: tuple[str, float, int, int]) -> dict[str, Any]:
    """Share, kept and worst of some jobs with one constant changed."""
    name, factor, seed, jobs = job
    before = constants().get(name)
    set_to(name, scaled(before, factor))
    try:
        found = np.array([each for number in range(jobs) if (each := tuned(seed, number)) is not None])
    finally:
        set_to(name, before)
    return {
        "constant": name, "factor": factor, "jobs": len(found),
        "share": float(found[:, 0].sum() / found[:, 1].sum()),
        "kept": float((found[:, 2] <= BOUND + 1e-9).mean()), "worst": float(found[:, 2].max() - BOUND),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    parser.add_argument("--quick", action="store_true", help="8 jobs instead of 60")
    parser.add_argument("--seed", type=int, default=50, help="of the jobs (default: %(default)s)")
    parser.add_argument("--jobs", type=int, help="that are drawn; half of them report steps")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[*constants()], help="constants")
    given = parser.parse_args(argv)
    names = given.only or [*constants()]
    jobs = given.jobs or (8 if given.quick else 60)
    runs = [(names[0], 1.0, given.seed, jobs)]
    runs += [(name, factor, given.seed, jobs) for name in names for factor in (0.5, 2.0)]
    with ProcessPoolExecutor(2) as pool:
        found = []
        for each in pool.map(score, runs):
            found.append(each)
            print(f"\r{len(found)} of {len(runs)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    once, rest = found[0], found[1:]
    print(f"{once['jobs']} jobs, all constants as they are: share {once['share']:.3f}, "
          f"kept {once['kept']:.3f}, worst {100 * once['worst']:.2f} %\n")
    heads = [f"{what}, {factor}" for what in ("share", "kept", "worst %") for factor in ("half", "twice")]
    print(table(["constant", *heads], [
        [low["constant"], *(f"{scale * each[key]:.3f}" for key, scale in (
            ("share", 1), ("kept", 1), ("worst", 100)) for each in (low, high))]
        for low, high in zip(rest[::2], rest[1::2], strict=True)
    ]))
    summary = {
        "share": once["share"], "kept": once["kept"],
        "largest_loss_of_share": once["share"] - min(each["share"] for each in rest),
        "lowest_kept": min(each["kept"] for each in rest),
    }
    print(table(["figure", "value"], [*summary.items()]))
    finish({"summary": summary, "runs": found}, given.json)


if __name__ == "__main__":
    main()
