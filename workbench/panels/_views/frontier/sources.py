"""Sources of a frontier's points."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ....cluster.readers import UNREADABLE
from ....errors import UsageError, is_list, read_file, type_name
from ....experiments.history.attempts import Attempt
from ....experiments.history.replay import Recorded
from ....experiments.history.study import JobStudy
from ....experiments.job import RecurringJob
from ....experiments.sweep import Sweep
from ....experiments.trial import WORK_UNITS
from ....logbook.run_table import limit_w
from ....logbook.store import SCHEMA, Store, as_frame
from ....records import Measurement, Observation
from ....search.frontier import KNOBS
from ....search.tradeoff import Z95, Collected, collect
from ....trace import read_parquet
from ..._core.log_files import log_version, readable_log
from ..recurring.sources import Studied

NO_UNITS: Mapping[str | None, str] = {}  # by job, unless all jobs have the same
LOGGED = {"gpus", "energy_uncertainty_j", "id"}  # columns by which a log is known
NO_POINTS = Collected(pl.DataFrame(schema=dict.fromkeys(("time_s", "energy_j"), pl.Float64)))


class GivenPoints:
    """A frame that stays the same until another is given.

    Args:
        unit: Unit of work of a point's time and energy, as `tradeoff.Work` takes it; None takes the unit that
            all rows counted, else `otherwise`.
    """

    live = False

    def __init__(
        self, frame: pl.DataFrame, name: str = "", unit: str | None = None, *, otherwise: str = "run",
    ) -> None:
        points, self.units, notes = _plain(frame), NO_UNITS, tuple[str, ...]()
        if set(frame.columns) >= LOGGED:
            points, self.units, notes = _log_points(frame, unit)
        self.name, self.unit = name, unit or unit_of(points) or otherwise
        marks = frame["simulated"] if "simulated" in frame.columns else pl.Series([False])
        self.simulated = marks.dtype == pl.Boolean and bool(marks.any())
        collected = collect(points)
        self._collected = collected._replace(notes=collected.notes + notes, separate=_separate(self.units))

    def read(self) -> Hashable:
        return 0

    def points(self) -> Collected:
        return self._collected


class SweepPoints:
    """A sweep, finished or running: its measurements, and its predictions for the rest."""

    live, units = True, NO_UNITS

    def __init__(self, sweep: Sweep, name: str = "") -> None:
        self._sweep, self.name = sweep, name or sweep.label or ""

    @property
    def unit(self) -> str:
        return unit_of(self._sweep.points) or "run"

    @property
    def simulated(self) -> bool:
        return bool(self._sweep.points["simulated"].any())

    def read(self) -> Hashable:
        return len(self._sweep._rows), self._sweep.reason

    def points(self) -> Collected:
        measured = self._sweep.points
        note = self._sweep.summary() if self._sweep.failure else self._sweep.note
        text = (note,) if note else ()
        if measured.is_empty():
            return NO_POINTS._replace(notes=text)
        believed = self._sweep.belief.filter(~pl.col("measured"))
        if measured["gpu"].n_unique() == 1:
            believed = believed.with_columns(gpu=pl.lit(measured["gpu"][0]))
        collected = collect(pl.concat([_plain(measured), believed], how="diagonal_relaxed"))
        separate = _separate({None: self.unit}) if measured["batch_size"].n_unique() > 1 else frozenset()
        return Collected(collected.points, collected.notes + text, separate)


class Recurred:
    """The runs of a recurring job that reached its target, and the predictions of its profiles."""

    live, units = True, NO_UNITS
    unit = "job"

    def __init__(self, job: RecurringJob | JobStudy) -> None:
        self._job = Studied(job)
        self.name, self.simulated = self._job.name, self._job.simulated

    def read(self) -> Hashable:
        self._job.read()
        return len(self._job.ledger.ended)

    def points(self) -> Collected:
        return collect(of_attempts(self._job.ledger.attempts))


class Logged:
    """The measurements of the log as points, new ones as they come."""

    name, live, simulated, unit, units = "log", True, False, "run", NO_UNITS

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self) -> Hashable:
        return log_version(self._store)

    def points(self) -> Collected:
        log = readable_log(self._store)
        if _complete(log).is_empty():
            return NO_POINTS
        given = GivenPoints(log)
        self.simulated, self.unit, self.units = given.simulated, given.unit, given.units
        return given.points()


PointSource = GivenPoints | SweepPoints | Recurred | Logged


def collected_points(source: PointSource, *, first: bool) -> Collected:
    """The points of a source; none and the reason while its `first` points are pending.

    Raises:
        UsageError: As the source's points do, if none are pending.
    """
    try:
        return source.points()
    except UsageError as error:
        if not first or not source.live:
            raise
        return NO_POINTS._replace(notes=(str(error),))  # a job whose first run has not ended


def source(what: Any, *, name: str = "", unit: str | None = None) -> PointSource:
    """The source for a sweep, a frame, the log, a file or a recurring job.

    `unit` is the unit of work; None takes the source's own.

    Raises:
        UsageError: Another object, or one without points.
    """
    if isinstance(what, Logged):
        return what
    if isinstance(what, Sweep):
        return SweepPoints(what, name)
    if isinstance(what, (RecurringJob, JobStudy)):
        return Recurred(what)
    if isinstance(what, pl.DataFrame) and {"recurrence", "state"} <= set(what.columns):
        what = Recorded(what)
    if isinstance(what, pl.DataFrame):
        return GivenPoints(what, name, unit)
    if isinstance(what, (str, Path)):
        return _file(Path(what), name, unit)
    if isinstance(what, Recorded):
        return GivenPoints(of_attempts(what.ledger.attempts), name, unit, otherwise="job")
    if is_list(what):
        each = list(what)
        if not each:
            raise UsageError("no points yet; measure at least one configuration")
        kinds: tuple[tuple[type, Callable[[Any], pl.DataFrame], str], ...] = (
            (Measurement, as_frame, "run"),
            (Observation, _of_observations, "run"),
            (Attempt, of_attempts, "job"),
        )
        for kind, frame_of, each_unit in kinds:
            if all(isinstance(one, kind) for one in each):
                return GivenPoints(frame_of(each), name, unit, otherwise=each_unit)
    raise UsageError(
        "expected a Polars DataFrame with time_s and energy_j, measurements, observations, a sweep, a "
        f"recurring job or a file of one; got {type_name(what)}"
    )


def _file(path: Path, name: str, unit: str | None) -> PointSource:
    raw = read_file(path)
    try:
        if path.suffix == ".parquet":
            frame = read_parquet(raw, path.name)
        elif path.suffix == ".json":
            frame = pl.read_json(raw, infer_schema_length=None)
        else:
            frame = pl.read_csv(raw, infer_schema_length=None)
        if set(frame.columns) >= LOGGED:
            frame = _exported_log(frame)
    except UNREADABLE as error:
        text = f"{path} cannot be read as Parquet, CSV or JSON: {str(error).splitlines()[0]}"
        raise UsageError(text) from error
    recorded = {"recurrence", "state"} <= set(frame.columns)
    return source(Recorded(path) if recorded else frame, name=name or path.stem, unit=unit)


def _exported_log(frame: pl.DataFrame) -> pl.DataFrame:
    """A log as it was before `%energy_log --export`: CSV has nested columns as JSON text, and no types."""
    kinds = {name: kind for name, kind in SCHEMA.items() if name in frame.columns}
    texts = [name for name in kinds if kinds[name].is_nested() and frame.schema[name] == pl.String]
    frame = frame.with_columns(pl.col(name).str.json_decode(kinds[name]) for name in texts)
    plain = {name: kind for name, kind in kinds.items() if not kind.is_nested()}
    return frame.with_columns(pl.col(name).cast(kind, strict=False) for name, kind in plain.items())


def _plain(frame: pl.DataFrame) -> pl.DataFrame:
    """A sweep's rows as points; other frames as they are."""
    if "outcome" in frame.columns and frame.schema["outcome"] == pl.String:
        frame = frame.filter(pl.col("outcome").is_null() | (pl.col("outcome") == "ok"))
    return frame


def unit_of(points: pl.DataFrame) -> str | None:
    """The common unit of work of all points, if they have one."""
    if len(points) and "unit" in points.columns and points["unit"].dtype == pl.String:
        units = points["unit"].unique().to_list()
        if len(units) == 1 and units[0] in (*WORK_UNITS, "iteration"):
            return str(units[0])
    samples = "samples" in points.columns and len(points) and points["samples"].is_not_null().all()
    return "sample" if samples else None


def _complete(log: pl.DataFrame) -> pl.DataFrame:
    """The runs of a log that ended well, with an energy, under one setting."""
    steady = pl.lit(True)
    if "segments" in log["gpus"].explode().struct.fields:
        changed = pl.col("gpus").list.eval(pl.element().struct.field("segments").list.len() > 0).list.any()
        steady = ~changed.fill_null(False)
    return log.filter(pl.col("outcome") == "ok", pl.col("energy_j").is_not_null(), steady)


def _log_points(
    log: pl.DataFrame, asked: str | None = None
) -> tuple[pl.DataFrame, dict[str | None, str], tuple[str, ...]]:
    """Points of a log (`store.as_frame`), the unit of work of each job (label), and notes on missing data.

    A point has the first GPU's setting, or its limit as read. The unit is one that all runs of the job
    counted: `asked`, or any if that is None.
    """
    whole = _complete(log)
    if whole.is_empty():
        text = f"none of the {len(log)} measurements succeeded with a known energy and a constant setting"
        raise UsageError(f"{text}; measure at least one configuration")
    first = pl.col("gpus").list.first()
    setting = first.struct.field("setting")
    runs = pl.col("repeats").clip(1)
    known = {name: pl.col(name) if name in whole.columns else pl.lit(None) for name in (
        "batch_size", "work", "iteration_count", "iteration_s", "iteration_j", "iteration_j_uncertainty")}
    points = whole.select(
        "time_s", "energy_j", time_se_s=pl.col("time_sd_s") / runs.sqrt(),
        energy_se_j=pl.max_horizontal(
            pl.col("energy_uncertainty_j") / Z95, pl.col("energy_sd_j") / runs.sqrt()
        ),
        repeats=runs,
        power_limit_w=first.map_elements(limit_w, return_dtype=pl.Float64),
        sm_clock_mhz=setting.struct.field("sm_clock_mhz"),
        mem_clock_mhz=setting.struct.field("mem_clock_mhz"),
        gpu=pl.col("gpus")
        .list.eval(pl.element().struct.field("name"))
        .list.unique(maintain_order=True)
        .list.join(" + "),
        job=pl.when(pl.col("label") == "").then(None).otherwise(pl.col("label")), measurement="id",
        simulated="simulated", **known,
    )
    parts = [_per_unit(part, asked) for part in points.partition_by("job", maintain_order=True)]
    units = {part["job"][0]: unit for part, unit in parts}
    left = int((log["outcome"] == "ok").sum()) - len(whole)
    why = "no energy, or the setting changed during the run"
    notes = (f"Left out ({why}): {left} of {len(log)} runs",) * bool(left)
    several = {part["job"][0] for part, _ in parts if part["batch_size"].n_unique() > 1}
    for job in _separate(units) & several:
        name = job or "runs without a label"
        notes += (f"the number of samples of {name} is unknown: its batch sizes are shown separately",)
    return pl.concat([part for part, _ in parts]), units, notes


def _per_unit(points: pl.DataFrame, asked: str | None) -> tuple[pl.DataFrame, str]:
    """The points of one job and their unit: a million tokens, a sample or an iteration that each run counted.

    The unit is "run" if they did not, or if all runs took equally many iterations.
    """
    columns = ("time_s", "energy_j", "time_se_s", "energy_se_j")
    plain = points.drop("work", "iteration_count", "iteration_s", "iteration_j", "iteration_j_uncertainty")
    for unit, (name, size) in WORK_UNITS.items():
        if asked not in (None, unit):
            continue
        amounts = pl.Series([
            sum(each["amount"] for each in row or () if each["name"] == name) / size
            for row in points["work"].to_list()], dtype=pl.Float64)
        if (amounts > 0).all():
            return plain.with_columns(*(pl.col(name) / amounts for name in columns), unit=pl.lit(unit)), unit
    counts = points["iteration_count"].cast(pl.Float64) / points["repeats"]
    if asked in (None, "iteration") and (counts > 0).all() and not counts.has_nulls() and (
            asked or counts.n_unique() > 1) and not points["iteration_j"].has_nulls():
        return plain.with_columns(
            points["iteration_s"].alias("time_s"), points["iteration_j"].alias("energy_j"),
            (points["iteration_j_uncertainty"] / Z95).alias("energy_se_j"), unit=pl.lit("iteration"),
        ), "iteration"
    return plain.with_columns(unit=pl.lit(None, pl.String)), "run"


def _separate(units: Mapping[str | None, str]) -> frozenset[str | None]:
    """Jobs whose batch sizes cannot be compared, because their numbers of samples are unknown."""
    return frozenset(job for job, unit in units.items() if unit in ("run", "iteration"))


def _of_observations(observations: Sequence[Observation]) -> pl.DataFrame:
    """Points of observations: the time and energy of a unit of work, with its configuration."""
    if not all(each.count for each in observations):
        raise UsageError("an observation has counted no work: its energy per unit is unknown; leave it out")
    kinds = {name: pl.Float64 if name == "power_limit_w" else pl.Int64 for name in KNOBS}
    kinds |= dict.fromkeys(("time_s", "energy_j", "energy_se_j"), pl.Float64)
    return pl.DataFrame([
        (*astuple(each.configuration.setting), each.configuration.batch_size,
         *(value / each.count for value in (each.time_s, each.energy_j, each.energy_sd_j)))
        for each in observations
    ], schema=kinds, orient="row")


def of_attempts(attempts: Iterable[Attempt]) -> pl.DataFrame:
    """Runs that reached the target as points, and a profile's other limits as predictions.

    A prediction is the mean number of epochs times the time and energy of an epoch at that limit.
    """
    schema = {
        "time_s": pl.Float64, "energy_j": pl.Float64, "batch_size": pl.Int64, "power_limit_w": pl.Float64,
        "gpu": pl.String, "measured": pl.Boolean,
    }
    ended = list(attempts)
    done = [each for each in ended if each.state == "reached" and each.purpose == "run"]
    rows = [
        (each.time_s, each.energy_j, each.batch_size, each.power_limit_w, each.gpu, True) for each in done
    ]
    for batch_size in {each.batch_size for each in done}:
        same = [each for each in done if each.batch_size == batch_size]
        epochs = float(np.mean([each.epochs for each in same]))
        profile = {limit: (epoch_s, power_w, each.gpu) for each in ended if each.batch_size == batch_size
                   for limit, epoch_s, power_w in each.profile}
        rows += [(epochs * epoch_s, epochs * epoch_s * power_w, batch_size, limit, gpu, False)
                 for limit, (epoch_s, power_w, gpu) in profile.items()]
    return pl.DataFrame(rows, schema=schema, orient="row")
