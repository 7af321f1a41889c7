"""`workbench.show`: the panel for an object; `workbench.frontier`: the frontier of its points."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from .. import panels
from ..cluster.jobs import NEEDED
from ..cluster.readers import UNREADABLE
from ..cluster.readers import read as read_jobs
from ..cluster.result import Result
from ..device.gpu import OpenGpu
from ..errors import UsageError, checked, listed, named_file, read_file, shown, type_name
from ..experiments.history.attempts import Attempt
from ..experiments.history.study import JobStudy
from ..experiments.job import RecurringJob
from ..experiments.recurrence import JobRun
from ..experiments.sweep import Sweep
from ..jobs.records import JobMeasurement
from ..logbook.log_readers import read_log
from ..logbook.report import Report
from ..logbook.store import Store
from ..measurement.blocks import BlockResult
from ..periods.segment import SegmentedIterations
from ..records import Configuration, Measurement, Periods, Setting
from ..search import frontier as pareto
from ..sharing.result import SharingResult
from ..trace import read_parquet
from ..tuning import Tuner, Tuning, TuningResult, TuningView
from ._views.frontier.sources import source

TAKES = """show() takes:
* no argument: shows the whole workbench.
* a measurement, its label or id, or a list of measurements or observations.
* a job on several GPUs.
* a power trace, or a log of nvidia-smi or DCGM.
* a Polars DataFrame with time_s and energy_j.
* a sweep, a tuning, a recurring job, one of its runs or its history.
* a setting, a configuration or a GPU.
* a result of share(), a job log or a run of a cluster.
* the path of a file with one of these."""
THEMSELVES = (SegmentedIterations, Periods, SharingResult, TuningResult,
    TuningView)  # tables with all there is


@checked
def show(what: Any = None) -> Any:
    """The panel for an object; without an argument the whole workbench.

    workbench.show()                      every panel on tabs
    workbench.show("train")               the power and the iterations of the newest measurement of this label
    workbench.show([a, b, c])             energy against time of several measurements, and a choice among them
    workbench.show(job)                   a recurring job; a sweep, a tuning, a setting, a job log likewise

    Args:
        what: Anything that the workbench returns, or the path of a log.

    Returns:
        The panel, which the last line of a cell displays; a result without a panel is returned unchanged.

    Raises:
        UsageError: No panel for this object; the message lists the objects with a panel.
    """
    if what is None:
        return panels.open()
    if isinstance(what, (Setting, Configuration)):
        return panels.apply(what)
    if isinstance(what, OpenGpu):
        return panels.apply(gpus=what)
    if isinstance(what, JobRun) and isinstance(what.job, RecurringJob):
        return panels.recurring(what.job)
    if isinstance(what, (RecurringJob, JobStudy)):
        return panels.recurring(what)
    if isinstance(what, Sweep):
        return panels.frontier(what)
    if isinstance(what, JobMeasurement):
        return panels.job(what)
    if isinstance(what, (Tuning, Tuner)):
        return panels.clocks(what)
    if isinstance(what, Result):
        return panels.cluster(what.jobs, nodes=what.cluster.size, kind=what.cluster.kind)
    if isinstance(what, pl.DataFrame):
        return _of_table(what, what.columns)
    if isinstance(what, (str, Path)):
        return _of_text(what)
    if isinstance(what, Mapping) and what and all(isinstance(each, pl.DataFrame) for each in what.values()):
        jobs = set(NEEDED) <= set(next(iter(what.values())).columns)
        return panels.cluster(what) if jobs else panels.period(what)
    if isinstance(what, BlockResult) and (traces := what.traces):
        return panels.period(traces)
    if isinstance(what, Measurement):
        return _of_measurement(what)
    if isinstance(what, Sequence) and what:
        attempts = all(isinstance(each, Attempt) for each in what)
        return panels.recurring(what) if attempts else panels.frontier(what)
    if isinstance(what, THEMSELVES) or hasattr(what, "_repr_mimebundle_"):
        return what
    if isinstance(inner := getattr(what, "measurement", None), Measurement):
        return show(inner)
    raise UsageError(f"there is no panel for {shown(what)} ({type_name(what)}). {TAKES}")


@checked
def frontier(points: Any) -> pl.DataFrame:
    """The Pareto-optimal rows in time and energy, fastest first; the first of equal rows.

    Args:
        points: A frame with `time_s` (s) and `energy_j` (J). Or measurements, observations, a sweep, a
            recurring job or a file of these, as `panels.frontier` takes them.

    Raises:
        UsageError: No points, or invalid points; the message names row and value.
    """
    frame = points if isinstance(points, pl.DataFrame) else source(points).points().points
    return pareto.frontier(frame)


def _of_measurement(measurement: Measurement) -> Any:
    """The power and iterations of a measurement; its numbers if it was too short for a trace."""
    return Report(measurement) if Store().trace(measurement.id) is None else panels.period(measurement)


def _of_text(text: str | Path) -> Any:
    if text == "":
        raise UsageError(f"show('') names nothing. {TAKES}")
    path = Path(text)
    if not os.path.exists(path):  # a label may be no path at all
        if isinstance(text, Path) or path.suffix in (".csv", ".parquet", ".txt", ".log"):
            raise UsageError(f"file {path} not found")
        return _of_measurement(Store().find(text))
    if path.is_dir():
        return panels.cluster(path)
    path = named_file(path)
    try:
        parquet = path.suffix == ".parquet"
        columns = list(pl.read_parquet_schema(path)) if parquet else pl.read_csv(path, n_rows=0).columns
    except UNREADABLE:
        columns = []  # no table; perhaps a log
    try:
        return _of_table(path, columns)
    except UsageError as error:
        try:
            return panels.period(read_log(path))
        except UsageError:
            raise error from None


def _of_table(what: pl.DataFrame | Path, columns: Collection[str]) -> Any:
    """The panel of a frame, or of a file with these columns."""
    known = set(columns)
    if {"time_s", "power_w"} <= known:
        return panels.period(what if isinstance(what, pl.DataFrame) else _read(what))
    if {"recurrence", "state"} <= known:
        return panels.recurring(what)
    if {"time_s", "energy_j"} <= known and "start_s" not in known:
        return panels.frontier(what)
    if set(NEEDED) <= known or _is_job_log(what):
        return panels.cluster(what)
    raise UsageError(f"there is no panel for a table with the columns {listed(columns)}. {TAKES}")


def _read(path: Path) -> pl.DataFrame:
    try:
        raw = read_file(path)
        return read_parquet(raw, path.name) if path.suffix == ".parquet" else pl.read_csv(raw)
    except UNREADABLE as error:
        raise UsageError(f"{path} cannot be read as a table: {str(error).splitlines()[0]}") from error


def _is_job_log(what: pl.DataFrame | Path) -> bool:
    try:
        read_jobs(what)
    except (UsageError, *UNREADABLE, ValueError):
        return False
    return True
