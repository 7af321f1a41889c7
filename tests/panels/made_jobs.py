"""Jobs for the tests of panels, made up: GPUs that wait for one of them in every iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workbench.jobs.records import GpuWait, JobMeasurement, JobNode, JobWaiting, Rank
from workbench.records import GpuMeasurement, IterationSummary, Measurement, WorkDone

ITERATION_S, COUNT, PARTS = 0.310, 42, 40
WAITING_W = 210.0  # while a GPU waits; it needs about 600 W while it works


def waiting_gpu(uuid: str, index: int, wait_s: float, seed: int) -> GpuWait:
    """A GPU that reaches the synchronisation `wait_s` before the last one."""
    work_s = 0.285 - wait_s
    middles = (np.arange(PARTS) + 0.5) * ITERATION_S / PARTS
    rng = np.random.default_rng(seed)
    power = 560 + 90 * np.sin(2 * np.pi * middles / 0.15) + rng.normal(0, 18, PARTS)
    power[(middles > work_s) & (middles < 0.285)] = WAITING_W + 8 * (seed % 3)
    return GpuWait(uuid, index, work_s, wait_s, 0.0011, WAITING_W * wait_s, tuple(power.tolist()),
                   1695.0 if wait_s else 1515.0)


def made_job(gpus: int = 8, nodes: int = 1, *, straggler: int | None = 5, uuids: Sequence[str] = ()) -> JobMeasurement:
    """A job whose GPU `straggler` is 15 to 28 ms slower than the others; None makes a job of equal GPUs."""
    uuids = uuids or [f"GPU-{number}" for number in range(gpus)]
    rng = np.random.default_rng(7)
    late_s = rng.uniform(0.015, 0.028, gpus) * (straggler is not None)
    if straggler is not None:
        late_s[straggler] = 0.0
    each = gpus // nodes
    waits = tuple(waiting_gpu(uuid, n % each, float(late_s[n]), n) for n, uuid in enumerate(uuids))
    measured = tuple(GpuMeasurement(
        "H100 (simulated)", uuid, 6900.0 + 13 * n, 21.0, "counter", True, 530.0, 698.0, sm_clock_mhz=1680.0,
    ) for n, uuid in enumerate(uuids))
    summary = IterationSummary(COUNT, ITERATION_S, 0.0021, 1310.0, 9.0, "marks")
    whole = Measurement("1", "train", 1.7e9, COUNT * ITERATION_S, measured, iterations=summary,
                        work=(WorkDone("tokens", 42 * 8192.0 * gpus),))
    parts = [replace(whole, gpus=measured[n * each:(n + 1) * each]) for n in range(nodes)]
    names = [f"node-{letter}" for letter in "abcdefgh"[:nodes]]
    ranks = tuple(Rank(
        n, names[n // each], 4000 + n, (uuid,), COUNT, 6900.0 + 13 * n, 21.0, 0.0, COUNT * ITERATION_S,
        work=(WorkDone("tokens", 42 * 8192.0),),
    ) for n, uuid in enumerate(uuids))
    lost = None if straggler is None else uuids[straggler]
    cause = "" if straggler is None else "Its SM clock is 180 MHz lower: it reached its thermal limit"
    waiting = JobWaiting(ITERATION_S, 0.0021, COUNT, waits, lost, 0.015 if lost else None, True, cause)
    made = tuple(JobNode(name, part, 0.0031 * (-1) ** n if n else None, 0.0004 if n else None)
                 for n, (name, part) in enumerate(zip(names, parts, strict=True)))
    return JobMeasurement(whole, ranks, made, waiting)


def unknown_job() -> JobMeasurement:
    """A job whose GPUs wait busily, so that power and utilisation do not show it; one rank died."""
    made = made_job()
    assert made.waiting is not None
    plain = tuple(replace(gpu, work_s=None, wait_s=None, wait_uncertainty_s=None, wait_energy_j=None)
                  for gpu in made.waiting.gpus)
    reason = "the GPUs are busy while they wait, so their power and utilisation do not show it"
    waiting = JobWaiting(ITERATION_S, 0.0021, COUNT, plain, reason=reason)
    died = replace(made.ranks[3], outcome="died", iterations=20, ended_s=6.3)
    late = replace(made.ranks[6], outcome="late", iterations=38, started_s=1.2)
    ranks = (*made.ranks[:3], died, *made.ranks[4:6], late, made.ranks[7])
    return replace(made, ranks=ranks, waiting=waiting, notes=("rank 3 ended without an exit of its own",))
