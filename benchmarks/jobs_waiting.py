"""Who waits for whom, against generated jobs whose truth is known.

    python -m benchmarks.jobs_waiting [--json FILE] [--quick]

Two generators make the jobs: `generate` here, and simulated nodes (`simulate_node`), whose equations the
estimate does not know. A job has a straggler if one GPU costs more than 2 % of an iteration, and none if no
GPU costs more than 0.5 %.

straggler_right
    Share of the jobs with a straggler in which it is named. Jobs with an unknown result count as not named.
straggler_false
    Share of the jobs without one in which a GPU is named.
straggler_wrong
    Share of the jobs with a straggler in which another GPU is named.
wait_covered
    Share of the GPUs' mean waits within their 95 % interval.
unknown_share
    Share of the jobs of which it is reported that the data do not show who waits.
error
    Mean error of a wait, as a part of the iteration.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from benchmarks.common import arguments, finish, table
from benchmarks.fixtures.nodes import exact_traces
from notebooks.data_parallel import DataParallelJob
from workbench.jobs.waiting import waiting
from workbench.simulation.machine import simulate
from workbench.trace import SCHEMA

Array = np.ndarray[Any, Any]
SEED = 100_000  # of the first scored job; other seeds are for development

# Refresh and averaging window of a power reading (s), power of idling and of work (W), clocks (MHz).
CARDS = {
    "A100": (0.101, 0.025, 60.0, 380.0, 1410.0), "H100": (0.100, 0.025, 75.0, 640.0, 1980.0),
    "V100": (0.020, 0.010, 40.0, 240.0, 1380.0), "A40": (0.100, 0.100, 70.0, 280.0, 1740.0),
    "RTX6000": (0.100, 0.100, 55.0, 250.0, 1800.0), "RTX4090": (0.100, 0.100, 60.0, 400.0, 2600.0),
}


@dataclass(frozen=True)
class Job:
    """A generated training and its truth.

    Attributes:
        traces: By UUID.
        ends_s: As the host marks them.
        windows_s: Averaging window of each GPU's power readings.
        wait_s: Mean wait of each GPU, by UUID.
        wait_energy_j: Of each GPU per iteration.
        straggler: UUID of the slow GPU; None where there is none.
        cost_s: Time per iteration that it costs.
    """

    traces: dict[str, pl.DataFrame]
    ends_s: Array
    windows_s: dict[str, float]
    wait_s: dict[str, float]
    wait_energy_j: dict[str, float]
    straggler: str | None
    cost_s: float
    iteration_s: float
    about: dict[str, Any] = field(default_factory=dict)


def generate(
    rng: np.random.Generator, card: str = "A100", gpus: int = 8, *, slower: float = 0.0,
    cause: str = "silicon", wait: str = "spin", spin: float | None = None,
    period_s: float | None = None, duration_s: float = 60.0,
    jitter: float = 0.003, common: float = 0.01, gap: float | None = None, transfer: float | None = None,
    lag_s: float = 0.0, ahead: float | None = None,
) -> Job:
    """A data-parallel training on GPUs that wait for each other.

    Args:
        rng: Of everything that is random.
        card: Of `CARDS`.
        gpus: Their number.
        slower: Time that the straggler costs, of the iteration.
        cause: "silicon" stretches its work, "data" delays its beginning.
        wait: "spin" or "block".
        spin: Power of waiting between idling and work, 0..1; None: a random one.
        period_s: Iteration without waiting; None: a random one.
        duration_s: Of the traces.
        jitter: Random part of each GPU's work in each iteration.
        common: Random part that all GPUs share.
        gap: Part of the iteration without work at its beginning; None: a random one.
        transfer: Part of the iteration in which gradients are exchanged; None: a random one.
        lag_s: Readings of each GPU are late by up to this.
        ahead: The host's marks are early by this part of the iteration; None: a random one.
    """
    refresh_s, window_s, idle_w, busy_w, clock_mhz = CARDS[card]
    period_s = period_s or float(np.exp(rng.uniform(np.log(0.15), np.log(1.5))))
    gap = rng.choice([0.0, rng.uniform(0.02, 0.15)]) if gap is None else gap
    transfer = rng.uniform(0.02, 0.15) if transfer is None else transfer
    optimizer = rng.uniform(0.02, 0.08)
    spin = rng.uniform(0.15, 0.6) if spin is None else spin
    ahead = rng.uniform(0.0, 0.15) if ahead is None else ahead
    work = 1.0 - gap - transfer - optimizer
    count = int(duration_s / period_s) + 20
    slow = int(rng.integers(gpus)) if slower else -1
    factors = np.exp(rng.normal(0, 0.0015, gpus))  # clocks are the same, work differs by little
    stretch = factors.copy()
    late = np.zeros(gpus)
    if slow >= 0:
        rest = np.delete(factors, slow).max()
        factors[slow] = stretch[slow] = rest
        if cause == "silicon":
            stretch[slow] = rest + slower / work
        else:
            late[slow] = slower
    shared = np.exp(rng.normal(0, common, count))
    own = shared * np.exp(rng.normal(0, jitter, (gpus, count)))
    forward = rng.uniform(0.25, 0.4)
    ratio = rng.uniform(0.85, 1.0)
    begin = np.zeros(count + 1)
    compute = period_s * work * stretch[:, None] * own  # (gpus, iterations)
    head = period_s * (gap + late)[:, None] * np.exp(rng.normal(0, 0.02, (gpus, count)))
    took = head + compute
    latest = took.max(axis=0)
    tail = period_s * (transfer + optimizer)
    begin[1:] = np.cumsum(latest + tail)
    begin += rng.uniform(0, 1)
    waits = latest - took
    traces, wait_s, energy_j, windows = {}, {}, {}, {}
    slow_compute = latest.copy()
    if slow >= 0:
        mean_rest = np.delete(took, slow, axis=0)
        as_next = took[slow] - slower * period_s * (shared if cause == "silicon" else 1.0)
        slow_compute = np.maximum(mean_rest.max(axis=0), as_next)
    cost_s = float((latest - slow_compute).mean())
    for g in range(gpus):
        gain, static = rng.normal(1, 0.03), rng.normal(1, 0.05)
        low_w, high_w = idle_w * static, busy_w * gain
        wait_w = low_w + (high_w - low_w) * spin * rng.normal(1, 0.05) if wait == "spin" else low_w
        move_w = low_w + (high_w - low_w) * spin * rng.uniform(1.0, 1.3)
        if cause == "silicon" and g == slow:
            high_w *= 0.97
        step_w = low_w + (high_w - low_w) * rng.uniform(0.7, 0.8)
        pieces = [
            (head[g], low_w), (compute[g] * forward, low_w + (high_w - low_w) * ratio),
            (compute[g] * (1 - forward), high_w), (waits[g], wait_w),
            (np.full(count, period_s * transfer), move_w), (np.full(count, period_s * optimizer), step_w),
        ]
        lengths = np.array([length for length, _ in pieces]).T.ravel()
        levels = np.tile([level for _, level in pieces], count)
        at = begin[0] + np.concatenate([[0.0], np.cumsum(lengths)])
        # Power does not jump: it follows its level within some milliseconds.
        fine = np.arange(at[0], at[-1], 0.0005)
        level = levels[np.clip(np.searchsorted(at, fine, side="right") - 1, 0, len(levels) - 1)]
        width = int(rng.integers(2, 8))
        power = np.convolve(level, np.full(width, 1 / width), mode="same")
        drift = 1 + 0.004 * np.sin(fine / rng.uniform(8, 30) + rng.uniform(0, 6))
        joules = np.concatenate([[0.0], np.cumsum(power * drift) * 0.0005])
        edges = np.append(fine, fine[-1] + 0.0005)
        first, last = begin[0] + 2.0, begin[0] + 2.0 + duration_s
        ticks = np.arange(first + rng.uniform(0, refresh_s), last, refresh_s * rng.normal(1, 2e-4))
        ticks = ticks[ticks < edges[-1]]
        late_s = rng.uniform(0, lag_s)
        read_j = np.interp(ticks - late_s, edges, joules)
        read_j -= np.interp(ticks - late_s - window_s, edges, joules)
        reading = read_j / window_s * (1 + rng.normal(0, 0.003, len(ticks)))
        look = np.arange(first, last, 0.02 if refresh_s > 0.05 else refresh_s)
        number = np.searchsorted(ticks, look, side="right") - 1
        look, number = look[number >= 0], number[number >= 0]
        idle = np.repeat([True, False, False, wait == "block", False, False], 1)
        busy_s = np.concatenate([[0.0], np.cumsum(lengths * ~np.tile(idle, count))])
        used = np.interp(look, at, busy_s) - np.interp(look - 1 / 6, at, busy_s)
        uuid = f"GPU-{g}"
        mhz = clock_mhz / (stretch[g] / factors[g])
        frame = pl.DataFrame({
            "time_s": look, "power_w": np.round(reading[number], 3),
            "power_tick_s": (ticks + rng.normal(0, 0.0004, len(ticks)))[number],
            "tick_s": ticks[number], "energy_j": np.interp(ticks, edges, joules)[number],
            "utilisation": np.round(used * 6, 2),
            "sm_clock_mhz": np.full(len(look), float(15 * round(mhz / 15))),
            "throttle": np.full(len(look), 0x20 if mhz < 0.99 * clock_mhz else 0, np.uint64),
        })
        missing = [pl.lit(None, SCHEMA[name]).alias(name) for name in SCHEMA if name not in frame.columns]
        traces[uuid] = frame.with_columns(missing).select(list(SCHEMA)).cast(SCHEMA)  # type: ignore[arg-type]
        windows[uuid], wait_s[uuid] = window_s, float(waits[g].mean())
        energy_j[uuid] = float((waits[g] * wait_w).mean())
    ends = begin[1:] - ahead * period_s + rng.normal(0, 0.0003, count)
    ends = np.sort(ends[(ends > begin[0] + 2.0) & (ends < begin[0] + 2.0 + duration_s)])
    about = {"card": card, "gpus": gpus, "slower": slower, "cause": cause, "wait": wait}
    straggler = f"GPU-{slow}" if slow >= 0 else None
    return Job(traces, ends, windows, wait_s, energy_j, straggler, cost_s, float(np.diff(ends).mean()), about)


def simulate_node(
    rng: np.random.Generator, card: str, gpus: int, *, slower: float = 0.0, **options: Any
) -> Job:
    """A job on a simulated node, with readings as its sensors refresh.

    Args:
        rng: Of everything that is random.
        card: Of `CARDS`.
        gpus: Their number.
        slower: By which the straggler's work is longer.
        options: Of `DataParallelJob`.
    """
    seed = int(rng.integers(1 << 30))
    machine = simulate(f"{gpus}x{card}", stepped=True, seed=seed)
    try:
        workload, batch_size = [
            ("imagenet", 64), ("imagenet", 128), ("imagenet", 256), ("squad", 8), ("squad", 32),
            ("sentiment140", 64), ("cifar100", 2048),
        ][int(rng.integers(7))]
        slow = int(rng.integers(gpus))
        straggler = (slow, 1 + slower) if slower else None
        job = DataParallelJob(
            workload, batch_size, gpu=range(gpus), machine=machine, seed=seed, iterations=100_000,
            evaluate=False, straggler=straggler, **options,
        )
        for _ in job:
            if machine.clock() > 66.0:
                break
        ends = np.array(job.marks)
        first_s, last_s = ends[2], 65.0
        ends = ends[(ends >= first_s) & (ends <= last_s)]
        exchanges = [each for each in job.exchanges if first_s < each.end_s < last_s]
        waits_s = np.array([each.wait_s for each in exchanges])
        latest, after = np.argsort(waits_s.mean(axis=0))[:2]
        cost_s = float(waits_s[:, after].mean() - waits_s[:, latest].mean())
        period_s = float(np.diff(ends).mean())
        traces = exact_traces(machine, first_s + 0.2, last_s, random.Random(seed))
        windows = {uuid: machine.state.card(gpu, "power_window_s") for gpu, uuid in enumerate(traces)}
        names = list(traces)
        energy = [each.wait_energy_j for each in exchanges if each.wait_energy_j]
        return Job(
            traces, ends, windows, dict(zip(names, waits_s.mean(axis=0).tolist(), strict=True)),
            dict(zip(names, np.mean(energy, axis=0).tolist(), strict=True)),
            names[latest] if cost_s > 0.005 * period_s else None, cost_s, period_s,
            {"card": card, "gpus": gpus, "slower": slower, "workload": workload, **options},
        )
    finally:
        machine.close()


def score(job: Job) -> dict[str, Any]:
    """The result of `waiting` for a job, next to its truth."""
    started = time.process_time()
    found = waiting(job.traces, job.ends_s, windows_s=job.windows_s)
    took_s = time.process_time() - started
    errors = [gpu.wait_s - job.wait_s[gpu.uuid] for gpu in found.gpus if gpu.wait_s is not None]
    widths = [gpu.wait_uncertainty_s for gpu in found.gpus if gpu.wait_uncertainty_s is not None]
    return {
        **job.about, "iteration_s": job.iteration_s, "cost": job.cost_s / job.iteration_s,
        "known": found.known, "true": job.straggler, "named": found.straggler, "reason": found.reason,
        "errors": [error / job.iteration_s for error in errors], "took_s": took_s,
        "widths": [width / job.iteration_s for width in widths],
    }


def random_job(seed: int, source: str) -> Job:
    """A job of the benchmark: card, GPUs, straggler, cause and waiting are random."""
    rng = np.random.default_rng(seed)
    gpus, slower = int(rng.choice([2, 4, 8])), float(rng.choice([0, 0, 0.01, 0.02, 0.03, 0.05, 0.1]))
    wait, random = str(rng.choice(["spin", "spin", "block"])), float(rng.choice([0.003, 0.01]))
    card, late = str(rng.choice(list(CARDS))), bool(rng.integers(2))
    if source == "node":
        card = "A40" if card == "RTX4090" else card
        cause = "data" if late else "clock"
        return simulate_node(rng, card, gpus, slower=slower, cause=cause, wait=wait, imbalance=random)
    cause, lag_s = "data" if late else "silicon", float(rng.choice([0.0, 0.005]))
    return generate(rng, card, gpus, slower=slower, cause=cause, wait=wait, jitter=random, lag_s=lag_s)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of scored jobs."""
    costly = [row for row in rows if row["cost"] > 0.02]
    none = [row for row in rows if row["cost"] < 0.005]
    held = [
        abs(error) <= width for row in rows for error, width in zip(row["errors"], row["widths"], strict=True)
    ]

    def share(values: Sequence[float]) -> float | None:
        return float(np.mean(values)) if values else None

    return {
        "jobs": len(rows), "with_straggler": len(costly), "without": len(none),
        "straggler_right": share([row["named"] == row["true"] for row in costly]),
        "straggler_false": share([row["named"] is not None for row in none]),
        "straggler_wrong": share([row["named"] not in (None, row["true"]) for row in costly]),
        "wait_covered": share(held), "unknown_share": share([not row["known"] for row in rows]),
        "error": share([abs(error) for row in rows for error in row["errors"]]),
        "seconds_8_gpus": share([row["took_s"] for row in rows if row["gpus"] == 8]),
    }


def run(quick: bool) -> dict[str, Any]:
    """The figures over jobs of both generators, and of each."""
    count = 10 if quick else 100
    rows = {
        source: [score(random_job(seed, source)) for seed in range(SEED, SEED + count)]
        for source in ("generated", "node")
    }
    both = [row for each in rows.values() for row in each]
    parts = {source: summary(each) for source, each in rows.items()}
    cards = {card: summary(each) for card in CARDS if (each := [row for row in both if row["card"] == card])}
    return {**summary(both), "by_source": parts, "by_card": cards}


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments("Who waits for whom, against jobs whose truth is known.", argv)
    result = run(options.quick)
    parts = {"all": result, **result["by_source"], **result["by_card"]}
    heads = ("jobs", "with_straggler", "straggler_right", "straggler_wrong", "without", "straggler_false",
             "wait_covered", "unknown_share", "error", "seconds_8_gpus")
    print(table(("", *heads), [(name, *(part[head] for head in heads)) for name, part in parts.items()]))
    finish(result, options.json)


if __name__ == "__main__":
    main()
