"""What following a period costs, and how many periods it takes to be right and sure.

    python -m benchmarks.tracking [--json FILE] [--quick]

Simulated trainings (workloads at several batch sizes and cards, with their evaluations) are recorded once,
then fed to a tracker as a live view does. The cost is CPU time of everything that the tracker does, its
detector's included, over ten minutes at 10 Hz.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import arguments, finish, table

if TYPE_CHECKING:
    import polars as pl

    from workbench.records import Periods

JOBS = (
    ("V100", "imagenet", 256), ("V100", "imagenet", 64), ("V100", "squad", 32), ("V100", "librispeech", 96),
    ("V100", "cifar100", 1024), ("V100", "sentiment140", 64), ("V100", "movielens", 16384),
    ("A100", "imagenet", 360), ("A100", "librispeech", 96), ("A100", "librispeech", 192),
    ("A100", "squad", 56), ("H100", "librispeech", 192), ("RTX6000", "squad", 32),
    ("RTX6000", "librispeech", 48), ("P100", "imagenet", 64),
)


def recorded(card: str, workload: str, batch_size: int, seconds: float, *, seed: int = 1) -> tuple[Any, Any]:
    """Rows of a recorder and the true iteration starts of a simulated training."""
    from workbench.device.discovery import open_device
    from workbench.measurement.recorder import Recorder
    from workbench.simulation.machine import simulate
    from workbench.simulation.training import TrainingJob

    machine = simulate(card, stepped=True, seed=seed)
    try:
        device = open_device()
        recorder = Recorder([device])
        job = TrainingJob(workload, batch_size, iterations=10**9, machine=machine, seed=seed)
        begin_s = machine.clock()
        for _ in job:
            if machine.clock() - begin_s > seconds:
                break
        rows = recorder.rows(device.uuid, begin_s, machine.clock())
        recorder.stop()
    finally:
        machine.close()
    return rows, np.array(job.marks)


def measure_online_cost(
    seconds: float = 600.0, *, detect: Callable[[pl.DataFrame], Periods] | None = None
) -> dict[str, float]:
    """CPU microseconds a sample over ten minutes at 10 Hz, fed four times per second: of a training, and of a
    search without success.

    Returns:
        `us_per_sample` of the training (an A100's recorder looks ten times per second),
            `us_per_sample_in_vain` of power without a
        period, `detections` and `detection_ms` of the training, `limit_us`.
    """
    from workbench.measurement.recorder import as_rows
    from workbench.periods.detect import find_periods
    from workbench.periods.tracker import PeriodTracker

    rows, _ = recorded("A100", "librispeech", 96, seconds)
    spent: list[float] = []

    def timed(trace: pl.DataFrame) -> Periods:
        begin_s = time.process_time()
        try:
            return (detect or find_periods)(trace)
        finally:
            spent.append(time.process_time() - begin_s)

    def cost_us(rows: Any) -> float:
        timed(_frame_of(rows[:100]))  # what is imported at first use is no cost of following
        spent.clear()
        tracker, begin_s = PeriodTracker(timed), time.process_time()
        for part in _as_live(rows):
            tracker.feed(part)
        return 1e6 * (time.process_time() - begin_s) / len(rows)

    import polars as pl

    rng = np.random.default_rng(1)
    in_vain = pl.DataFrame(
        {"time_s": rows["time_s"], "power_w": 200 + np.cumsum(rng.normal(0, 1, len(rows))) % 40}
    )
    in_vain_us = cost_us(as_rows(in_vain))
    training_us = cost_us(rows)
    return {
        "us_per_sample": training_us, "us_per_sample_in_vain": in_vain_us, "samples": len(rows),
        "detections": len(spent), "detection_ms": 1000 * sum(spent) / max(1, len(spent)), "limit_us": 50.0,
    }


def time_to_sure(
    traces: Iterable[tuple[pl.DataFrame, float]], *, within: float = 0.05,
    detect: Callable[[pl.DataFrame], Periods] | None = None,
) -> list[dict[str, Any]]:
    """Periods of data until a tracker is sure and right for the first time.

    Args:
        traces: Each with the true period in seconds. Recorded ones, so nobody can be asked to look at another
            pace.
        within: What counts as right.
        detect: The detector; the workbench's own where None.

    Returns:
        A row a trace: `periods` until right and sure (None if never), `sure` and `right` at the trace's end,
            `wrong_first` if it
        was sure of something else before.
    """
    from workbench.measurement.recorder import as_rows
    from workbench.periods.detect import find_periods
    from workbench.periods.tracker import PeriodTracker

    results = []
    for trace, true_s in traces:
        tracker, rows = PeriodTracker(detect or find_periods, guard=False), as_rows(trace)
        begin_s, since_s, wrong = float(rows["time_s"][0]), None, False
        right = False
        for part in _as_live(rows):
            tracker.feed(part)
            level = tracker.periods.iteration
            sure = tracker.periods.sure and level is not None
            right = level is not None and sure and bool(abs(level.period_s / true_s - 1) <= within)
            wrong = wrong or (sure and not right and since_s is None)
            since_s = float(part["time_s"][-1]) if right and since_s is None else since_s
        results.append(
            {
                "true_s": true_s, "periods": None if since_s is None else (since_s - begin_s) / true_s,
                "seconds": None if since_s is None else since_s - begin_s, "sure": tracker.periods.sure,
                "right": right, "wrong_first": wrong,
                "said_s": tracker.periods.iteration.period_s if tracker.periods.iteration else None,
                "state": tracker.state,
            }
        )
    return results


def simulated(seconds: float) -> Iterator[tuple[pl.DataFrame, float]]:
    """Trainings of `JOBS` as traces, each with its mean period."""
    from workbench.measurement.recorder import as_trace

    for card, workload, batch_size in JOBS:
        rows, marks = recorded(card, workload, batch_size, seconds)
        lengths = np.diff(marks)
        yield (
            as_trace(rows), float(np.mean(lengths[lengths < 1.5 * np.median(lengths)])),
        )  # without evaluations


def _as_live(rows: Any) -> Iterator[Any]:
    """Rows as a view gets them that asks four times per second."""
    times = rows["time_s"]
    edges = np.unique(
        np.append(np.searchsorted(times, np.arange(times[0] + 0.25, times[-1], 0.25)), len(times))
    )
    low = 0
    for high in edges:
        if high > low:
            yield rows[low:high]
        low = high


def _frame_of(rows: Any) -> pl.DataFrame:
    from workbench.periods.online.buffer import frame

    return frame(rows)


def main() -> None:
    args = arguments(__doc__ or "")
    cost = measure_online_cost(60.0 if args.quick else 600.0)
    print(
        f"{cost['us_per_sample']:.0f} us per sample while following, {cost['us_per_sample_in_vain']:.0f} in "
        "failed searches; at most 50 are wanted"
    )
    rows = time_to_sure(simulated(30.0 if args.quick else 90.0))
    for job, row in zip(JOBS, rows, strict=True):
        row["job"] = f"{job[1]} {job[2]} on {job[0]}"
    heads = ("job", "true_s", "said_s", "periods", "seconds", "sure", "right", "wrong_first", "state")
    print(table(heads, [[row[head] for head in heads] for row in rows]))
    known = [row["periods"] for row in rows if row["periods"] is not None and row["right"]]
    median = float(np.median(known)) if known else None
    print(
        f"right and sure in {len(known)} of {len(rows)}, after a median of {median or float('nan'):.1f} "
        "periods"
    )
    finish({"summary": {**cost, "median_periods_to_sure": median}, "jobs": rows}, args.json)


if __name__ == "__main__":
    main()
