"""Job logs of other systems as frames of `jobs.SCHEMA`. Nothing is left out and nothing invented: what a log
does not tell is null, and `check` decides.

What is wrong with a row (no end yet, no GPU, cancelled before it ran) is said by `check`, which also can
leave such rows out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from ..errors import UsageError
from .jobs import SCHEMA

Source = str | Path | pl.DataFrame
# Polars panics on some damaged files.
UNREADABLE = (pl.exceptions.PolarsError, OSError, pl.exceptions.PanicException)


def philly(source: Source) -> pl.DataFrame:
    """Microsoft Philly as it is shipped for simulators: `job_id, vc, submit_s, duration_s, num_gpus` (Jeon et
    al., ATC'19).

    The virtual cluster becomes `user`.
    """
    frame = _frame(source, "philly", ("job_id", "submit_s", "duration_s", "num_gpus"))
    columns = [pl.col("job_id"), pl.col("submit_s"), pl.col("duration_s"), pl.col("num_gpus")]
    if "vc" in frame.columns:
        columns.append(pl.col("vc").alias("user"))
    return _whole(frame.select(columns))


def alibaba(source: Source) -> pl.DataFrame:
    """Alibaba's GPU-sharing pods (cluster-trace-gpu-v2023, Weng et al., ATC'23) or PAI tasks (v2020, Weng et
    al., NSDI'22), told apart by their columns.

    A pod or task that asks for a part of a GPU has that part as its utilisation; of one that asks for whole
    GPUs the log does not tell it. PAI's table has no submission; there the start stands for it.
    """
    frame = _frame(source, "alibaba", ())
    if {"name", "num_gpu", "gpu_milli", "creation_time", "deletion_time"} <= set(frame.columns):
        start = (
            pl.coalesce("scheduled_time", "creation_time") if "scheduled_time" in frame.columns
            else pl.col("creation_time")
        )
        part = pl.col("gpu_milli").cast(pl.Float64) / 1000
        spec = _text(frame, "gpu_spec")
        return _whole(frame.select(
            pl.col("name").alias("job_id"),
            pl.col("creation_time").cast(pl.Float64).alias("submit_s"),
            (pl.col("deletion_time") - start).cast(pl.Float64).alias("duration_s"),
            pl.col("num_gpu").cast(pl.Int64).alias("num_gpus"),
            pl.when((pl.col("num_gpu") == 1) & (part > 0) & (part < 1)).then(part).alias("utilisation"),
            # "V100M16|V100M32" means either, which is more than one type and less than any.
            pl.when((spec != "") & ~spec.str.contains("|", literal=True)).then(spec).alias("gpu_type"),
        ))
    if {"job_name", "inst_num", "start_time", "end_time", "plan_gpu"} <= set(frame.columns):
        part = pl.col("plan_gpu").cast(pl.Float64) / 100
        name = (
            pl.concat_str([pl.col("job_name"), pl.col("task_name")], separator="/")
            if "task_name" in frame.columns else pl.col("job_name")
        )
        spec = _text(frame, "gpu_type")
        gpus = pl.col("inst_num").cast(pl.Float64) * part.ceil()
        return _whole(frame.select(
            name.alias("job_id"), _text(frame, "user").alias("user"),
            pl.col("start_time").cast(pl.Float64).alias("submit_s"),
            (pl.col("end_time") - pl.col("start_time")).cast(pl.Float64).alias("duration_s"),
            gpus.fill_null(0).cast(pl.Int64).alias("num_gpus"),
            pl.when((part > 0) & (part < 1)).then(part).alias("utilisation"),
            pl.when((spec != "") & (spec != "MISC")).then(spec).alias("gpu_type"),
        ))
    raise UsageError(
        f"this is no Alibaba GPU log: its columns are {', '.join(frame.columns)}; expected name, num_gpu, "
        "gpu_milli, creation_time, deletion_time (v2023) or job_name, inst_num, start_time, end_time, "
        "plan_gpu (v2020; its files have no header: pass a frame with names)"
    )


def sacct(source: Source) -> pl.DataFrame:
    """Slurm's accounting: `sacct --allusers --parsable2
    --format=JobID,User,Submit,Start,End,ElapsedRaw,AllocTRES,State`.

    GPUs and their type come from `gres/gpu` in AllocTRES (else ReqTRES), the duration from ElapsedRaw,
    Elapsed, or Start and End. Job steps (`123.batch`) are parts of jobs and are passed over. A running or
    pending job has no duration.
    """
    frame = _frame(source, "sacct", ("JobID", "Submit"), separator="|", text=True)
    resources = [name for name in ("AllocTRES", "ReqTRES") if name in frame.columns]
    if not resources:
        raise UsageError(
            "sacct's output has neither AllocTRES nor ReqTRES, so nothing tells of GPUs; it has "
            f"{', '.join(frame.columns)}. Add AllocTRES to --format"
        )
    frame = frame.filter(~pl.col("JobID").str.contains(".", literal=True))
    tres = pl.coalesce([pl.when(pl.col(name) != "").then(pl.col(name)) for name in resources])
    # "gres/gpu=4,gres/gpu:a100=4" counts the same GPUs twice; the plain entry is the sum of the typed ones.
    plain = tres.str.extract(r"(?:^|,)gres/gpu=(\d+)", 1).cast(pl.Int64)
    typed = (
        tres.str.extract_all(r"gres/gpu:[^=,]+=\d+")
        .list.eval(pl.element().str.extract(r"=(\d+)$", 1).cast(pl.Int64)).list.sum()
    )
    kinds = tres.str.extract_all(r"gres/gpu:[^=,]+=")
    kind = pl.when(kinds.list.n_unique() == 1).then(kinds.list.first().str.extract(r"gres/gpu:([^=,]+)=", 1))
    seconds = _elapsed(frame.columns)
    if seconds is None:
        raise UsageError(
            "sacct's output has no ElapsedRaw, Elapsed, or Start and End, so no duration; add ElapsedRaw to "
            "--format"
        )
    running = (
        pl.col("State").str.contains(r"^(RUNNING|PENDING|SUSPENDED|REQUEUED)") if "State" in frame.columns
        else pl.lit(False)
    )
    return _whole(frame.select(
        pl.col("JobID").alias("job_id"), _text(frame, "User").alias("user"),
        _moment("Submit").alias("submit_s"), pl.when(~running).then(seconds).alias("duration_s"),
        pl.coalesce(plain, typed).fill_null(0).alias("num_gpus"), kind.alias("gpu_type"),
    ))


def _elapsed(columns: Sequence[str]) -> pl.Expr | None:
    if "ElapsedRaw" in columns:
        return pl.col("ElapsedRaw").cast(pl.Float64, strict=False)
    if "Elapsed" in columns:  # [days-]hours:minutes:seconds
        parts = pl.col("Elapsed").str.extract_groups(r"^(?:(\d+)-)?(\d+):(\d+):(\d+)")
        fields = [parts.struct.field(str(number)).cast(pl.Float64) for number in range(1, 5)]
        return fields[0].fill_null(0) * 86400 + fields[1] * 3600 + fields[2] * 60 + fields[3]
    if "Start" in columns and "End" in columns:
        return _moment("End") - _moment("Start")
    return None


def _text(frame: pl.DataFrame, name: str) -> pl.Expr:
    """A column as text; nulls where there is none of that name."""
    return pl.col(name).cast(pl.String) if name in frame.columns else pl.lit(None, dtype=pl.String)


def _moment(column: str) -> pl.Expr:
    """Seconds of an ISO time without a zone; "Unknown" and "None" are null."""
    moment = pl.col(column).str.to_datetime("%Y-%m-%dT%H:%M:%S", strict=False)
    return moment.dt.timestamp("ms").cast(pl.Float64) / 1000


def _frame(
    source: Source, reader: str, needed: Sequence[str], *, separator: str = ",", text: bool = False
) -> pl.DataFrame:
    if isinstance(source, pl.DataFrame):
        frame = source
    else:
        path = Path(source)
        if not path.exists():
            raise UsageError(f"there is no file {str(path)!r} for the {reader} reader")
        kind = "a Parquet table" if path.suffix == ".parquet" else f"a table separated by {separator!r}"
        try:
            if path.suffix == ".parquet":
                frame = pl.read_parquet(path)
            else:
                frame = pl.read_csv(
                    path, separator=separator, infer_schema_length=0 if text else None,
                    quote_char=None if text else '"',
                )
        except UNREADABLE as error:
            raise UsageError(f"{path.name} cannot be read as {kind}: {first_line(error)}") from error
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise UsageError(
            f"the {reader} reader misses {', '.join(missing)}; the file has "
            f"{', '.join(frame.columns) or 'no columns'}"
        )
    return frame


def first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _whole(frame: pl.DataFrame) -> pl.DataFrame:
    """All columns of the schema, absent ones null, by submission: a dumped table's order means nothing."""
    absent = {name: kind for name, kind in SCHEMA.items() if name not in frame.columns}
    missing = [pl.lit(None, dtype=kind).alias(name) for name, kind in absent.items()]
    columns = [pl.col(name).cast(kind, strict=False) for name, kind in SCHEMA.items()]
    return frame.with_columns(missing).select(columns).sort("submit_s", maintain_order=True, nulls_last=True)
