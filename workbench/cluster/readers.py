"""Reads job logs of this and other systems as frames of `jobs.SCHEMA` and detects the format from their
columns. No row is removed and no value generated: missing values are null, and `check` decides.

Philly     as shipped for simulators (Jeon et al., ATC'19); the virtual cluster, `vc`, becomes `user`
Alibaba    pods that share GPUs (cluster-trace-gpu-v2023, Weng et al., ATC'23), and PAI's tasks (v2020, Weng
           et al., NSDI'22)
Slurm      `sacct --allusers --parsable2 --format=JobID,User,Submit,Start,End,ElapsedRaw,AllocTRES,State`
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import polars as pl
from polars import col

from ..errors import UsageError, listed, named_file, read_file
from ..trace import moments, read_parquet
from .jobs import NEEDED, SCHEMA

# Polars panics on some damaged files.
UNREADABLE = (pl.exceptions.PolarsError, OSError, pl.exceptions.PanicException)
PODS = ("num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")
TASKS = ("inst_num", "plan_gpu", "start_time", "end_time")


def read(source: str | Path | pl.DataFrame, *, keep_valid: bool = False) -> pl.DataFrame:
    """The jobs of a file or frame. The columns identify the format: this package's own, Philly's, Alibaba's,
    Slurm's. Missing values are null.

    Args:
        source: A file or a frame.
        keep_valid: Read text in a numeric column ("N/A") as missing, instead of raising.

    Raises:
        UsageError: No such file, unknown columns, or text in a numeric column. The message names row and
            value.
    """
    frame = source if isinstance(source, pl.DataFrame) else _table(named_file(source))
    try:
        return _jobs(frame, keep_valid)
    except pl.exceptions.PolarsError as error:
        raise UsageError(f"this job log cannot be used: {str(error).splitlines()[0]}") from error


def _jobs(frame: pl.DataFrame, keep_valid: bool) -> pl.DataFrame:
    names = set(frame.columns)
    if {"JobID", "Submit"} <= names:
        return _slurm(frame.select(pl.all().cast(str)))
    if {"name", *PODS[:4]} <= names:
        return _pods(_numbers(frame, PODS, "name", keep_valid))
    if {"job_name", *TASKS} <= names:
        return _tasks(_numbers(frame, TASKS, "job_name", keep_valid))
    if set(NEEDED) <= names:
        if "vc" in names and "user" not in names:
            frame = frame.rename({"vc": "user"})
        texts = {name: col(name).cast(str) for name, kind in SCHEMA.items() if kind == pl.String}
        jobs = frame.select([texts.get(name, col(name)) for name in SCHEMA if name in frame.columns])
        return _numbers(jobs, [name for name in SCHEMA if name not in texts], "job_id", keep_valid)
    raise UsageError(
        f"the format of this job log is unknown: its columns are {listed(frame.columns)}. "
        f"Expected are {', '.join(NEEDED)} (Philly and this package), name, num_gpu, gpu_milli, "
        "creation_time, deletion_time or job_name, inst_num, plan_gpu, start_time, end_time (Alibaba), or "
        "JobID, Submit, ElapsedRaw, AllocTRES (Slurm's sacct); rename the columns"
    )


def _numbers(frame: pl.DataFrame, names: Sequence[str], id_column: str, keep_valid: bool) -> pl.DataFrame:
    """The frame with numbers in these columns, where present; text is converted."""
    for name in names:
        if name not in frame.columns:
            continue
        given = frame[name]
        if given.dtype in (pl.Null, pl.String):
            stripped = given.cast(str).str.strip_chars()
            found = stripped.cast(float, strict=False)
            wrong = (found.is_null() & stripped.is_not_null() & (stripped != "")).arg_true()
            if len(wrong) and not keep_valid:
                at = int(wrong[0])
                raise UsageError(
                    f"row {at} (job {frame[id_column][at]}): {name} is {given[at]!r}, a number is needed; "
                    f"{len(wrong)} of {frame.height} "
                    "rows have this fault. Fix them, or keep only the valid rows with keep_valid=True"
                )
            frame = frame.with_columns(found.alias(name))
        elif not given.dtype.is_numeric():
            example = f", for instance {given[0]}" if given.len() else ""
            raise UsageError(
                f"column {name!r} holds {given.dtype}, where numbers are needed{example}; give times in "
                "seconds"
            )
    return frame


def no_file(path: Path) -> UsageError:
    return UsageError(
        f"there is no file {str(path)!r}; give the path of a job log (Parquet or CSV), or a frame"
    )


def _table(path: Path) -> pl.DataFrame:
    try:
        if not os.path.exists(path):
            raise no_file(path)
        raw = read_file(path)
        if raw.startswith(b"PAR1") or path.suffix == ".parquet":
            return read_parquet(raw, path.name)
        if b"|" in raw.partition(b"\n")[0]:
            return pl.read_csv(raw, separator="|", infer_schema_length=0, quote_char=None)
        return pl.read_csv(raw, infer_schema_length=None)
    except UNREADABLE as error:
        first_line = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UsageError(f"{path.name} cannot be read as a table: {first_line}") from error


# A pod or task that asks for a part of a GPU has that part as its utilisation. For whole GPUs, the log has no
# utilisation.


def _pods(frame: pl.DataFrame) -> pl.DataFrame:
    start = pl.coalesce([name for name in ("scheduled_time", "creation_time") if name in frame.columns])
    part = col.gpu_milli / 1000
    spec = _text(frame, "gpu_spec")
    return _whole(frame.select(
        job_id="name", submit_s="creation_time", duration_s=col.deletion_time - start,
        num_gpus="num_gpu", utilisation=_share(part, col.num_gpu == 1),
        # "V100M16|V100M32" means either, which is more than one type and less than any.
        gpu_type=pl.when((spec != "") & ~spec.str.contains("|", literal=True)).then(spec),
    ))


def _tasks(frame: pl.DataFrame) -> pl.DataFrame:
    """PAI's table has no submission time; the start time replaces it."""
    part, spec = col.plan_gpu / 100, _text(frame, "gpu_type")
    names = [name for name in ("job_name", "task_name") if name in frame.columns]
    return _whole(frame.select(
        job_id=pl.concat_str(names, separator="/"), user=_text(frame, "user"), submit_s="start_time",
        duration_s=col.end_time - col.start_time,
        num_gpus=(col.inst_num * part.ceil()).fill_null(0), utilisation=_share(part),
        gpu_type=pl.when(~spec.is_in(["", "MISC"])).then(spec),
    ))


def _share(part: pl.Expr, whole: pl.Expr | bool = True) -> pl.Expr:
    return pl.when((part > 0) & (part < 1) & whole).then(part)


def _slurm(frame: pl.DataFrame) -> pl.DataFrame:
    """GPUs and their type come from `gres/gpu` in AllocTRES, the duration from ElapsedRaw. Job steps
    (`123.batch`) are parts of jobs and are passed over. A running or pending job has no duration.
    """
    if absent := [name for name in ("AllocTRES", "ElapsedRaw") if name not in frame.columns]:
        raise UsageError(
            f"sacct's output has no {' and no '.join(absent)}; it has {listed(frame.columns)}. Add "
            f"{','.join(absent)} to --format"
        )
    frame = frame.filter(~col.JobID.str.contains(".", literal=True))
    tres = col.AllocTRES
    # "gres/gpu=4,gres/gpu:a100=4" counts the same GPUs twice; the plain entry is the sum of the typed ones.
    plain = tres.str.extract(r"(?:^|,)gres/gpu=(\d+)", 1).cast(int, strict=False)
    typed = (
        tres.str.extract_all(r"gres/gpu:[^=,]+=\d+")
        .list.eval(pl.element().str.extract(r"=(\d+)$", 1).cast(int, strict=False)).list.sum()
    )
    kinds = tres.str.extract_all(r"gres/gpu:[^=,]+=")
    kind = pl.when(kinds.list.n_unique() == 1).then(kinds.list.first().str.extract(r"gres/gpu:([^=,]+)=", 1))
    running = _text(frame, "State").str.contains(r"^(RUNNING|PENDING|SUSPENDED|REQUEUED)").fill_null(False)
    submit_s = moments(frame["Submit"])[0] / 1e6  # "Unknown" and "None" are null
    return _whole(frame.select(
        job_id="JobID", user=_text(frame, "User"), submit_s=submit_s,
        duration_s=pl.when(~running).then("ElapsedRaw"),
        num_gpus=pl.coalesce(plain, typed).fill_null(0), gpu_type=kind,
    ))


def _text(frame: pl.DataFrame, name: str) -> pl.Expr:
    """A column as text; nulls where there is none of that name."""
    return col(name).cast(str) if name in frame.columns else pl.lit(None, dtype=pl.String)


def _whole(frame: pl.DataFrame) -> pl.DataFrame:
    """All columns of the schema by submission time, absent ones null: the order of a dumped table is
    arbitrary.
    """
    columns = [
        (col(name) if name in frame.columns else pl.lit(None).alias(name)).cast(kind, strict=False)
        for name, kind in SCHEMA.items()
    ]
    return frame.select(columns).sort("submit_s", maintain_order=True, nulls_last=True)

