"""A job log trimmed to what can be simulated, and cut into weeks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

SHORTEST_S = 60.0
LONGEST_S = 3 * 86400.0
DAY_S = 86400.0
WEEK_S = 7 * DAY_S
WHOLE, BUSIEST_DAY, BUSIEST, MEDIAN = "whole log", "busiest day", "busiest week", "median week"
# Between the first and the last submission; a log of more counts in another unit than seconds.
MOST_DAYS = 36_525
LATEST_S = 1e12  # no submission is later, since whatever moment a log counts from


@dataclass(frozen=True)
class Trimmed:
    """Jobs, how many were left out, and what was done in words (empty: nothing)."""

    jobs: pl.DataFrame
    left_out: int
    text: str


def trim(
    jobs: pl.DataFrame, *, widest: int = 8, shortest_s: float = SHORTEST_S, longest_s: float = LONGEST_S
) -> Trimmed:
    """Jobs of 1 to `widest` GPUs that ran for at least `shortest_s`, durations cut at `longest_s`, in order
    of submission.

    The rule by which the tables in docs/validation/cluster.md are made. Rows without a number of GPUs or a
    duration are left out, too.

    Args:
        jobs: A log, `jobs.SCHEMA`.
        widest: Most GPUs of a job.
        shortest_s: Shorter jobs are left out.
        longest_s: Longer durations are cut to this.
    """
    kept = jobs.filter(pl.col("num_gpus").is_between(1, widest) & (pl.col("duration_s") >= shortest_s))
    long = int((kept["duration_s"] > longest_s).sum())
    times = pl.col("submit_s", "duration_s").cast(pl.Float64)
    whole = kept.with_columns(times).with_columns(pl.col("duration_s").clip(upper_bound=longest_s))
    whole = whole.sort("submit_s", maintain_order=True)
    notes = []
    if left := jobs.height - kept.height:
        notes.append(
            f"{left:,} of {jobs.height:,} jobs are left out (no GPU, more than {widest} GPUs, or less than "
            f"{shortest_s:g} s)"
        )
    if long:
        notes.append(f"{long:,} durations are cut at {longest_s / DAY_S:g} days")
    return Trimmed(whole, left, " and ".join(notes))


def parts(jobs: pl.DataFrame) -> dict[str, Callable[[], pl.DataFrame]]:
    """Pieces of a log by name, each cut out when it is asked for.

    `BUSIEST` are the seven days with most submissions, `MEDIAN` those of the remaining weeks with the median
    GPU time, as in docs/validation/cluster.md; a log of less than two weeks has neither, one of less than two
    days no busiest day. Days count as in `submit_s`; jobs of which it is not known are in the whole log only.
    """
    found: dict[str, Callable[[], pl.DataFrame]] = {WHOLE: lambda: whole}
    whole, jobs = jobs, jobs.filter(pl.col("submit_s").cast(pl.Float64).abs() < LATEST_S)
    if jobs.height == 0:
        return found
    day = (jobs["submit_s"] / DAY_S).floor().cast(pl.Int64)
    first, last = int(day.min()), int(day.max())  # type: ignore[arg-type]
    span_s = float(jobs["submit_s"].max() - jobs["submit_s"].min())  # type: ignore[operator,arg-type]
    if last - first > MOST_DAYS:
        return found
    if last - first >= 2:
        counts = day.value_counts().sort(["count", day.name], descending=[True, False])
        busy_day = int(counts[day.name][0])
        found[BUSIEST_DAY] = lambda: jobs.filter(day == busy_day)
    if span_s < 2 * WEEK_S:
        return found
    per_day = dict(day.value_counts().iter_rows())
    busy = max(
        range(first, last - 5), key=lambda start: (sum(per_day.get(start + n, 0) for n in range(7)), -start)
    )
    found[BUSIEST] = lambda: jobs.filter(day.is_between(busy, busy + 6))
    gpu_s = (jobs["duration_s"].cast(pl.Float64) * jobs["num_gpus"]).fill_nan(None).alias("gpu_s")
    work = dict(pl.DataFrame({"day": day, "gpu_s": gpu_s}).group_by("day").agg(pl.sum("gpu_s")).iter_rows())
    starts = [start for start in range(first, last - 5, 7) if start + 7 <= busy or start >= busy + 7]
    ranked = sorted(starts, key=lambda start: sum(work.get(start + n, 0.0) for n in range(7)))
    if ranked:
        median = ranked[len(ranked) // 2]
        found[MEDIAN] = lambda: jobs.filter(day.is_between(median, median + 6))
    return found
