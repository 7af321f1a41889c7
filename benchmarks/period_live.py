"""Beats in a running measurement: time until the tracker separates them from true periods.

A hidden iteration makes a beat with a slow sensor that has an energy counter, or with a slow poll of a fast
sensor without one, whose polling interval can be changed. Each beat has a twin: an iteration with the
apparent length of the beat, sampled by the same sensor. Seeds start with `SEED`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from benchmarks.period_scores import within
from workbench.periods.online.search import main as followed
from workbench.periods.tracker import PeriodTracker
from workbench.samples import ROWS

Array = np.ndarray[Any, Any]
SEED = 20_261_122
GRID_S, FEED_S = 0.001, 0.25
SECONDS, WITHIN_S = 40.0, 10.0
OBEYED_S = 0.3  # how long a sampler takes to poll at another pace


class Live(NamedTuple):
    """A running job behind a sensor; seconds, and power as energy on a grid of `GRID_S`."""

    iteration_s: float
    seen_s: float  # what it looks like
    refresh_s: float
    window_s: float
    poll_s: float
    counter: bool
    energy_j: Array


def live(rng: np.random.Generator, *, beat: bool) -> Live:
    """A job whose period seems to take 0.6 to 6 s, and truly does or is a beat."""
    counter = bool(rng.random() < 0.5)
    refresh_s, window_s, poll_s = (0.1, 0.025, 0.05) if counter else (0.02, 0.02, 0.1)
    step_s = max(refresh_s, poll_s)
    seen_s = float(np.exp(rng.uniform(math.log(0.6), math.log(6.0))))
    iteration_s = seen_s
    if beat:
        turns = int(rng.choice([1, 1, 1, 2])) / step_s
        iteration_s = 1.0 / (turns + float(rng.choice([-1.0, 1.0])) / seen_s)
    count = int((SECONDS + 1.0) / iteration_s) + 2
    lengths = iteration_s * (1 + rng.normal(0, 0.001, count))
    duty, low, high = rng.uniform(0.3, 0.7), rng.uniform(60, 150), rng.uniform(200, 400)
    starts = np.concatenate([[0.0], np.cumsum(lengths)])
    at = np.arange(0.0, SECONDS + 1.0, GRID_S)
    number = np.searchsorted(starts, at, side="right") - 1
    number = np.minimum(number, count - 1)
    busy = (at - starts[number]) < duty * lengths[number]
    power_w = np.where(busy, high, low) + rng.normal(0, 2.0, len(at))
    return Live(iteration_s, seen_s, refresh_s, window_s, poll_s, counter, np.cumsum(power_w) * GRID_S)


def rows_of(job: Live, rng: np.random.Generator, from_s: float, to_s: float, poll_s: float) -> Array:
    """Samples of a job, polled every `poll_s`, first at `from_s`."""
    times = np.arange(from_s, to_s + 1e-9, poll_s) + np.abs(rng.normal(0, 0.0003, 1))
    rows = np.zeros(len(times), ROWS)
    for name in ROWS.names or ():
        if ROWS[name].kind == "f":
            rows[name] = math.nan
    grid = np.arange(len(job.energy_j)) * GRID_S
    ticks = np.floor(times / job.refresh_s) * job.refresh_s

    def energy_j(at_s: Array) -> Array:
        return np.interp(at_s, grid, job.energy_j)

    rows["time_s"] = times
    rows["power_w"] = (energy_j(ticks) - energy_j(ticks - job.window_s)) / job.window_s
    if job.counter:
        rows["tick_s"], rows["power_tick_s"], rows["energy_j"] = ticks, ticks, energy_j(ticks)
    return rows


def follow(job: Live, rng: np.random.Generator) -> dict[str, Any]:
    """A tracker's answers on a job: when it first named its apparent period, doubted it, and followed it."""
    tracker, poll_s, asked_s, since_s = PeriodTracker(), job.poll_s, None, 0.0
    row: dict[str, Any] = {"seen_s": job.seen_s, "named_s": None, "doubted_s": None, "followed_s": None}
    at_s = next_s = 0.2
    ranges = [(job.seen_s / k, job.seen_s / k) for k in (1, 2, 3)] + [(2 * job.seen_s, 2 * job.seen_s)]
    while at_s < SECONDS:
        until_s = at_s + FEED_S
        rows = rows_of(job, rng, next_s, until_s, poll_s)
        tracker.feed(rows)
        # The polling goes on at its own pace, whenever its rows are looked at.
        at_s, next_s = until_s, next_s + poll_s * len(rows)
        if tracker.wanted_interval_s != asked_s:
            asked_s, since_s = tracker.wanted_interval_s, at_s
        if at_s - since_s >= OBEYED_S:
            poll_s = max(asked_s, 0.01) if asked_s is not None else job.poll_s
        level = followed(tracker.periods)
        if level is not None and within(level.period_s, ranges, 0.06) and row["named_s"] is None:
            row["named_s"] = at_s
        if "aliasing" in tracker.periods.reason and row["doubted_s"] is None:
            row["doubted_s"] = at_s
        if tracker.state == "locked" and tracker.periods.main_sure and level is not None:
            row["followed_s"] = row["followed_s"] or at_s
    return row


def beats(count: int, seed: int = SEED) -> dict[str, Any]:
    """Shares of beats that are recognised in time and that are followed, of periods that are followed, and
    what asking costs: how often a period that is there was looked at again.
    """
    made = {}
    for beat in (True, False):
        made[beat] = [
            follow(live(rng, beat=beat), rng)
            for rng in (np.random.default_rng([seed, int(beat), k]) for k in range(count))
        ]
    named = [row for row in made[True] if row["named_s"] is not None]
    in_time = [
        row["followed_s"] is None and row["doubted_s"] is not None
        and row["doubted_s"] - row["named_s"] <= WITHIN_S for row in named
    ]
    soon = [row["followed_s"] / row["seen_s"] for row in made[False] if row["followed_s"] is not None]
    return {
        "beats": count, "beats_named": len(named),
        "beats_recognised": float(np.mean(in_time)) if named else None,
        "beats_followed": float(np.mean([row["followed_s"] is not None for row in made[True]])),
        "rhythms_followed": float(np.mean([row["followed_s"] is not None for row in made[False]])),
        "rhythms_doubted": float(np.mean([row["doubted_s"] is not None for row in made[False]])),
        "rhythms_median_periods": float(np.median(soon)) if soon else None,
    }
