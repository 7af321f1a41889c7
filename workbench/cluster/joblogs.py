"""A job log from any source: read by its columns, trimmed to what can be simulated, cut into weeks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ..errors import UsageError
from . import readers
from .jobs import NEEDED, SCHEMA

SHORTEST_S = 60.0
LONGEST_S = 3 * 86400.0
DAY_S = 86400.0
WEEK_S = 7 * DAY_S
WHOLE, BUSIEST_DAY, BUSIEST, MEDIAN = "whole log", "busiest day", "busiest week", "median week"
# Between the first and the last submission; a log of more counts in another unit than seconds.
MOST_DAYS = 36_525
_ALIBABA_NUMBERS = (
    "num_gpu", "gpu_milli", "creation_time", "scheduled_time", "deletion_time", "inst_num", "plan_gpu",
    "start_time", "end_time",
)
_ALIBABA = ({"name", "num_gpu", "gpu_milli"}, {"job_name", "inst_num", "plan_gpu"})


def read(source: str | Path | pl.DataFrame, *, keep_valid: bool = False) -> pl.DataFrame:
    """The jobs of a file or frame, told apart by its columns: this package's own, Philly's, Alibaba's,
    Slurm's. What is not told is null.

    Args:
        source: Where they are.
        keep_valid: Take words where a number is needed ("N/A") for what is not told, instead of raising.

    Raises:
        UsageError: No such file, columns of none of these, or words where a number is needed; row and value
            are told.
    """
    frame = source if isinstance(source, pl.DataFrame) else _table(Path(source).expanduser())
    names = set(frame.columns)
    if {"JobID", "Submit"} <= names:
        return readers.sacct(frame.select(pl.all().cast(pl.String)))
    if any(known <= names for known in _ALIBABA):
        name = "name" if "name" in names else "job_name"
        return readers.alibaba(_numbers(frame, _ALIBABA_NUMBERS, name, keep_valid))
    if set(NEEDED) <= names:
        if "vc" in names and "user" not in names:
            frame = frame.rename({"vc": "user"})
        texts = {name: pl.col(name).cast(pl.String) for name, kind in SCHEMA.items() if kind == pl.String}
        jobs = frame.select([texts.get(name, pl.col(name)) for name in SCHEMA if name in frame.columns])
        return _numbers(jobs, [name for name in SCHEMA if name not in texts], "job_id", keep_valid)
    raise UsageError(
        f"this is no job log that is known here: its columns are {', '.join(frame.columns) or 'none'}. "
        f"Expected are {', '.join(NEEDED)} (Philly and this package), name, num_gpu, gpu_milli, "
        "creation_time, deletion_time or job_name, inst_num, plan_gpu, start_time, end_time (Alibaba), or "
        "JobID, Submit, ElapsedRaw, AllocTRES (Slurm's sacct); rename the columns"
    )


def _numbers(frame: pl.DataFrame, names: Sequence[str], id_column: str, keep_valid: bool) -> pl.DataFrame:
    """The frame with numbers in these columns, as far as it has them: those that came as text are read."""
    for name in names:
        if name not in frame.columns:
            continue
        given = frame[name]
        if given.dtype == pl.Null:
            frame = frame.with_columns(pl.col(name).cast(pl.Float64))
        elif given.dtype == pl.String:
            told = given.str.strip_chars()
            found = told.cast(pl.Float64, strict=False)
            wrong = (found.is_null() & told.is_not_null() & (told != "")).arg_true()
            if len(wrong) and not keep_valid:
                at = int(wrong[0])
                raise UsageError(
                    f"row {at} (job {frame[id_column][at]}): {name} is {given[at]!r}, a number is needed; "
                    f"{len(wrong)} of {frame.height} "
                    "rows are like that. Mend them, or keep only the valid rows with keep_valid=True"
                )
            frame = frame.with_columns(found.alias(name))
        elif not given.dtype.is_numeric():
            example = f", for instance {given[0]}" if given.len() else ""
            raise UsageError(
                f"column {name!r} holds {given.dtype}, where numbers are needed{example}; give times in "
                "seconds"
            )
    return frame


def _table(path: Path) -> pl.DataFrame:
    if not path.exists():
        raise UsageError(
            f"there is no file {str(path)!r}; give the path of a job log (Parquet or CSV), or a frame"
        )
    try:
        if path.suffix == ".parquet":
            return pl.read_parquet(path)
        with path.open(encoding="utf-8", errors="replace") as text:
            piped = "|" in text.readline()
        if piped:
            return pl.read_csv(path, separator="|", infer_schema_length=0, quote_char=None)
        return pl.read_csv(path, infer_schema_length=None)
    except readers.UNREADABLE as error:
        raise UsageError(f"{path.name} cannot be read as a table: {readers.first_line(error)}") from error


@dataclass(frozen=True)
class Trimmed:
    """Jobs, how many were left out, and what was done in words (empty: nothing)."""

    jobs: pl.DataFrame
    left_out: int
    words: str


def trim(
    jobs: pl.DataFrame, *, widest: int = 8, shortest_s: float = SHORTEST_S, longest_s: float = LONGEST_S
) -> Trimmed:
    """Jobs of 1 to `widest` GPUs that ran for at least `shortest_s`, durations cut at `longest_s`, in order
    of submission.

    The rule by which the tables in docs/cluster.md are made. Rows without a number of GPUs or a duration are
    left out, too.
    """
    kept = jobs.filter(pl.col("num_gpus").is_between(1, widest) & (pl.col("duration_s") >= shortest_s))
    long = int((kept["duration_s"] > longest_s).sum())
    times = pl.col("submit_s", "duration_s").cast(pl.Float64)
    whole = kept.with_columns(times).with_columns(pl.col("duration_s").clip(upper_bound=longest_s))
    whole = whole.sort("submit_s", maintain_order=True)
    said = []
    if left := jobs.height - kept.height:
        said.append(
            f"{left:,} of {jobs.height:,} jobs are left out (no GPU, more than {widest} GPUs, or less than "
            f"{shortest_s:g} s)"
        )
    if long:
        said.append(f"{long:,} durations are cut at {longest_s / DAY_S:g} days")
    return Trimmed(whole, left, " and ".join(said))


def parts(jobs: pl.DataFrame) -> dict[str, Callable[[], pl.DataFrame]]:
    """Pieces of a log by name, each cut out when it is asked for.

    `BUSIEST` are the seven days with most submissions, `MEDIAN` those of the remaining weeks with the median
    GPU time, as in docs/cluster.md; a log of less than two weeks has neither, one of less than two days no
    busiest day. Days count as in `submit_s`; jobs of which it is not known are in the whole log only.
    """
    found: dict[str, Callable[[], pl.DataFrame]] = {WHOLE: lambda: whole}
    whole, jobs = jobs, jobs.filter(pl.col("submit_s").cast(pl.Float64).is_finite())
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
