"""From the simulated GPU to seconds per iteration: trainings on stepped machines, recorded, against the
job's true marks.
"""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any

import numpy as np

from benchmarks.period_scores import Detector, within

CARDS = ("P100", "V100", "A100", "RTX4090")
SIZES = 3  # batch sizes of each workload and card: smallest to largest that fits
ITERATIONS, SHORTEST_S, LONGEST_S = 20, 30.0, 120.0
REFRESHES = 2.2  # a period must span so many refreshes to be seen


def trainings(
    detect: Detector, cards: tuple[str, ...] = CARDS, sizes: int = SIZES, seed: int = 5
) -> list[dict[str, Any]]:
    """One row per card, workload and batch size: truth and detection."""
    from workbench.simulation.catalogue import WORKLOADS

    rng = random.Random(seed)
    return [
        row for card in cards for workload in WORKLOADS.values()
        for row in _of_one(detect, card, workload, sizes, rng)
    ]


def batch_sizes(card: Any, workload: Any, count: int) -> list[int]:
    """Some of a workload's batch sizes that fit a card, spread from the largest to the smallest."""
    from workbench.simulation.catalogue import fits

    sizes = [size for size in workload.batch_sizes if fits(card, workload, size)]
    places = np.unique(np.linspace(len(sizes) - 1, 0, min(count, len(sizes))).round().astype(int))
    return [sizes[place] for place in places]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares and the median error, of what the sensor can show and of what it cannot."""
    seen = [row for row in rows if row["observable"]]
    hidden = [row for row in rows if not row["observable"]]
    sure = [row for row in seen if row["sure"]]
    errors = [row["relative_error"] for row in seen if row["right"]]
    return {
        "runs": len(rows), "observable": len(seen),
        "right": sum(row["right"] for row in seen) / len(seen) if seen else None,
        "level_right": sum(row["level_right"] for row in seen) / len(seen) if seen else None,
        "sure": len(sure) / len(seen) if seen else None,
        "wrong_but_sure": sum(not row["right"] for row in sure) / len(sure) if sure else None,
        "median_error": float(np.median(errors)) if errors else None, "unobservable": len(hidden),
        "unobservable_claims": sum(row["sure"] and not row["right"] for row in hidden),
    }


def _of_one(
    detect: Detector, card: str, workload: Any, sizes: int, rng: random.Random
) -> list[dict[str, Any]]:
    from workbench.simulation.machine import simulate

    rows = []
    machine = simulate(card, stepped=True, seed=rng.getrandbits(32))
    try:
        for number, size in enumerate(batch_sizes(machine.card(0), workload, sizes)):
            # Every other one writes checkpoints, so that not all of them are an even row of iterations.
            rows.append(
                run(
                    detect, machine, workload, size, checkpoint_every=50 if number % 2 else None,
                    seed=rng.getrandbits(32),
                )
            )
    finally:
        machine.close()
    return rows


def run(
    detect: Detector, machine: Any, workload: Any, size: int, *, checkpoint_every: int | None, seed: int
) -> dict[str, Any]:
    """Train for at least 20 iterations and 30 s, at most 120 s; find the period in what the recorder saw
    meanwhile.
    """
    from workbench.device.discovery import open_device
    from workbench.measurement.recorder import Recorder
    from workbench.simulation.machine import SENSORS
    from workbench.simulation.training import TrainingJob

    device = open_device(0)
    recorder = Recorder([device])
    try:
        machine.step(3.0)
        start_s = machine.clock()
        job = TrainingJob(
            workload, size, machine=machine, seed=seed, iterations=10**9, checkpoint_every=checkpoint_every
        )
        with contextlib.closing(iter(job)) as steps:  # type: ignore[type-var]  # a generator, though declared an iterator
            while (past_s := machine.clock() - start_s) < LONGEST_S and (
                past_s < SHORTEST_S or len(job.marks) < ITERATIONS
            ):
                next(steps)
        end_s = machine.clock()
        machine.step(0.5)
        trace = recorder.trace(device.uuid, start_s, end_s)
    finally:
        recorder.stop()
    lengths = true_lengths(np.array(job.marks), [(event.start_s, event.end_s) for event in job.events])
    mean_s, median_s = float(lengths.mean()), float(np.median(lengths))
    refresh_s = SENSORS[machine.card(0).architecture].power_update_s
    periods = detect(trace)
    found = periods.iteration
    iteration = [(mean_s, mean_s), (median_s, median_s)]
    cycles = np.diff([event.start_s for event in job.events])
    cycle = [(float(cycles.mean()), float(cycles.mean()))] if len(cycles) else []
    top = max(periods.levels, key=lambda level: level.confidence, default=None)
    error = abs(found.period_s - mean_s) / mean_s if found else math.nan
    return {
        "card": machine.cards[0], "workload": workload.key, "batch_size": size,
        "checkpoints": checkpoint_every is not None, "seconds": end_s - start_s, "true_s": mean_s,
        "observable": mean_s >= REFRESHES * refresh_s, "found_s": found.period_s if found else None,
        "uncertainty_s": found.uncertainty_s if found else None, "relative_error": error,
        "right": found is not None and within(found.period_s, iteration),
        "level_right": top is not None and within(top.period_s, [*iteration, *cycle]), "sure": periods.sure,
        "confidence": found.confidence if found else 0.0, "reason": periods.reason,
    }


def true_lengths(marks_s: np.ndarray, between: list[tuple[float, float]]) -> np.ndarray:
    """Lengths of iterations, without the evaluations and checkpoints that follow some of them.

    >>> true_lengths(np.array([0.0, 1.0, 2.0, 5.0]), [(3.0, 5.0)])
    array([1., 1., 1.])
    """
    lengths = np.diff(marks_s)
    for start_s, end_s in between:
        place = int(np.searchsorted(marks_s, start_s, side="right")) - 1
        if 0 <= place < len(lengths):
            lengths[place] -= end_s - start_s
    return np.asarray(lengths)
