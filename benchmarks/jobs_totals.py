"""Energy of jobs on several GPUs and nodes: coverage of the 95 % interval, and jobs in trouble.

    python -m benchmarks.jobs_totals [--json FILE] [--quick]

No data is needed. Each node is a stepped simulated machine. The nodes of a job run one after another in
one process. They write node logs, as `workbench run --job-dir` does, and `workbench.read_job` merges them.
Clocks of the nodes differ by up to a minute. Iterations last 0.2 to 0.8 s. Cards and powers vary at random.

`covered` has a row for each size of a job. It shows the share of trials whose reported interval contains the
true energy, for the job and for its GPUs. The interval of the clocks' difference is checked in the same way.
Truth is the exact integral of power times the card's gain.

`cases` has jobs in trouble, such as a dead rank, a restart or a killed node (`job_nodes.cases`). `counted` is
whether each GPU counts once, `reported` whether the trouble is reported, `iterations` whether their number
is right.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import arguments, finish, table
from benchmarks.fixtures import job_nodes
from benchmarks.fixtures.job_nodes import NodePlan
from workbench.jobs.reading import read_job

SIZES = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 2), (3, 2), (4, 2))  # nodes, GPUs on each
CARDS = ("V100", "A100", "A40", "H100", "RTX6000")
TRIALS, SEED = 250, 7
LEAST, MOST = 0.92, 0.99  # of the coverage of a 95 % interval


def trial(nodes: int, gpus: int, seed: int) -> dict[str, Any]:
    """One job: whether its intervals cover the truth."""
    rng = random.Random(1000 * seed + 10 * nodes + gpus)
    ends = job_nodes.schedule(rng.randint(15, 30), rng.uniform(0.2, 0.8), rng)
    card = rng.choice(CARDS)
    true_j: dict[str, float] = {}
    skews = [0.0, *(rng.uniform(-60.0, 60.0) for _ in range(nodes - 1))]
    with tempfile.TemporaryDirectory() as directory:
        for number, skew_s in enumerate(skews):
            plan = NodePlan(
                f"node{number}", ",".join([card] * gpus),
                job_nodes.synchronous(gpus, gpus * number, gpus * nodes), skew_s=skew_s, nodes=nodes,
                seed=100 * seed + number,
            )
            true_j |= job_nodes.run(plan, ends, Path(directory)).true_j
        job = read_job(directory)
    m = job.measurement
    assert m.energy_j is not None
    assert m.energy_uncertainty_j is not None
    shift_s = next(skews[number] for number in range(nodes) if job.nodes[0].name == f"node{number}")
    clocks = [abs(each.skew_s - (skews[int(each.name[4:])] - shift_s)) <= (each.skew_uncertainty_s or 0.0)
              for each in job.nodes[1:] if each.skew_s is not None]
    return {
        "covered": abs(m.energy_j - sum(true_j.values())) <= m.energy_uncertainty_j,
        "bar_percent": 100 * m.energy_uncertainty_j / m.energy_j,
        "gpus": [abs((gpu.energy_j or 0.0) - true_j[gpu.uuid]) <= (gpu.energy_uncertainty_j or 0.0)
                 for gpu in m.gpus],
        "ranks": len(job.ranks), "clocks": clocks,
        "iterations": m.iterations is not None and m.iterations.count == len(ends) - 1,
    }


def cases(seed: int) -> dict[str, dict[str, bool]]:
    """The jobs in trouble, by name."""
    with tempfile.TemporaryDirectory() as directory:
        return {
            name: {"counted": case.counted, "reported": case.reported,
                   "iterations": case.job.measurement.iterations is not None
                   and case.job.measurement.iterations.count == case.iterations}
            for name, case in job_nodes.cases(Path(directory), seed)
        }


def run(quick: bool) -> dict[str, Any]:
    """Both parts."""
    trials, many = (TRIALS // 10, 1) if quick else (TRIALS, 10)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 2), mp_context=context) as pool:
        asked = {size: [pool.submit(trial, *size, SEED + seed) for seed in range(trials)] for size in SIZES}
        troubled = [pool.submit(cases, SEED + seed) for seed in range(many)]
        covered = {f"{nodes} x {gpus}": _summary([each.result() for each in found])
                   for (nodes, gpus), found in asked.items()}
        seen = [each.result() for each in troubled]
    found = {name: {key: sum(each[name][key] for each in seen) / len(seen) for key in seen[0][name]}
             for name in seen[0]}
    return {"covered": covered, "cases": found}


def _summary(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    def share(values: list[bool]) -> float | None:
        return sum(values) / len(values) if values else None

    bars = sorted(row["bar_percent"] for row in rows)
    return {"trials": len(rows), "job": share([row["covered"] for row in rows]),
            "gpu": share([each for row in rows for each in row["gpus"]]),
            "clock": share([each for row in rows for each in row["clocks"]]),
            "iterations": share([row["iterations"] for row in rows]),
            "bar_percent": bars[len(bars) // 2]}


def show(found: dict[str, Any], say: Callable[[str], object] = print) -> None:
    """Print both tables."""
    heads = ["nodes x GPUs", "trials", "job covered", "GPU covered", "clock covered", "iterations right",
             "interval %"]
    say(table(heads, [[name, *row.values()] for name, row in found["covered"].items()]))
    say(f"\n(wanted: {LEAST} to {MOST} covered)\n")
    say(table(["case", "energy counted once", "reported", "iterations right"],
              [[name, *row.values()] for name, row in found["cases"].items()]))


def main() -> None:
    chosen = arguments("Energy of jobs on several GPUs and nodes against the truth")
    found = run(chosen.quick)
    show(found)
    finish(found, chosen.json)


if __name__ == "__main__":
    main()
