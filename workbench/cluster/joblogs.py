"""Trims a job log to the jobs that can be simulated, and cuts it into weeks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from polars import col

from .jobs import SHORTEST_S

WIDEST = 8
DAY_S = 86400.0
LONGEST_S = 3 * DAY_S
WEEK_S = 7 * DAY_S
WHOLE, BUSIEST_DAY, BUSIEST, MEDIAN = "whole log", "busiest day", "busiest week", "median week"
MOST_DAYS = 36_525  # between the first and the last submission; a log of more counts in another unit


@dataclass(frozen=True)
class Trimmed:
    """Jobs, the number of removed ones, and a description of the changes (empty: none)."""

    jobs: pl.DataFrame
    left_out: int
    text: str


def trim(jobs: pl.DataFrame) -> Trimmed:
    """Jobs of 1 to `WIDEST` GPUs that ran for at least `SHORTEST_S`, durations cut at `LONGEST_S`, in order
    of submission.

    The tables in docs/validation/cluster.md use this rule. Rows without a number of GPUs or a duration are
    removed, too.
    """
    kept = jobs.filter(col.num_gpus.is_between(1, WIDEST) & (col.duration_s >= SHORTEST_S))
    long = kept.filter(col.duration_s > LONGEST_S).height
    times = col("submit_s", "duration_s").cast(float)
    whole = kept.with_columns(times).with_columns(col.duration_s.clip(upper_bound=LONGEST_S))
    whole = whole.sort("submit_s", maintain_order=True)
    notes = []
    if left := jobs.height - kept.height:
        notes.append(
            f"{left:,} of {jobs.height:,} jobs are left out (no GPU, more than {WIDEST} GPUs, or less than "
            f"{SHORTEST_S:g} s)"
        )
    if long:
        notes.append(f"{long:,} durations are cut at {LONGEST_S / DAY_S:g} days")
    return Trimmed(whole, left, " and ".join(notes))


def parts(jobs: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Pieces of a log by name.

    `BUSIEST` are the seven days with most submissions. `MEDIAN` is the remaining week with the median GPU
    time (docs/validation/cluster.md). A log of less than two weeks has neither, and one of less than two days
    has no busiest day. Days count as in `submit_s`. Jobs with an unknown day are in the whole log only.
    """
    found = {WHOLE: jobs}
    days = (jobs["submit_s"] / DAY_S).floor().cast(int, strict=False).alias("day")
    jobs, day = jobs.filter(days.is_not_null()), days.drop_nulls()
    first, last = min(day, default=0), max(day, default=0)
    if jobs.height == 0 or last - first > MOST_DAYS:
        return found
    gpu_s = (col.duration_s.cast(float) * col.num_gpus).fill_nan(None).sum()
    busy = jobs.group_by(day).agg(jobs=pl.len(), gpu_s=gpu_s)
    every = pl.DataFrame({"day": range(first, last + 1)})
    daily = every.join(busy, on="day", how="left", maintain_order="left").fill_null(0)
    if daily.height > 2:
        busiest_day = first + (daily["jobs"].arg_max() or 0)
        found[BUSIEST_DAY] = jobs.filter(day == busiest_day)
    if np.ptp(jobs["submit_s"].to_numpy()) < 2 * WEEK_S:
        return found
    weekly = daily.with_columns(col("jobs", "gpu_s").rolling_sum(7).shift(-6)).drop_nulls()
    start = first + (weekly["jobs"].arg_max() or 0)
    found[BUSIEST] = jobs.filter(day.is_between(start, start + 6))
    apart = ~col.day.is_between(start - 6, start + 6)
    others = weekly.gather_every(7).filter(apart).sort("gpu_s", maintain_order=True)["day"].to_list()
    if others:
        median = others[len(others) // 2]
        found[MEDIAN] = jobs.filter(day.is_between(median, median + 6))
    return found
