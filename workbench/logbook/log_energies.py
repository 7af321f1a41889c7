"""Joules with a 95 % interval: of a power trace or energy counter, and of logs that have energies.

`ENERGIES` has rows of both kinds. Time that was not recorded is in no energy; the note names it.
"""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import polars as pl

from ..errors import UsageError, listed
from ..tariff import J_PER_KWH
from ..trace import moments
from .log_tables import PART
from .quantities import format_duration

ENERGIES = pl.Schema({
    "label": pl.String, "gpu": pl.String, "started_unix_s": pl.Float64, "time_s": pl.Float64,
    "energy_j": pl.Float64, "low_j": pl.Float64, "high_j": pl.Float64,  # a 95 % interval
    "scope": pl.String,  # "GPU", or "node" where all of a machine is in it
    "note": pl.String,
    "id": pl.String,  # of a job or window in its log
})
UNITS = {
    quantity: {unit: float(factor) for unit, factor in map(str.split, units.split(","))}
    for quantity, units in {
        "w": "W 1,w 1,watt 1,watts 1,Watts 1,mW 1e-3,mw 1e-3,milliwatts 1e-3,kW 1e3,kw 1e3,kilowatts 1e3",
        "j": "J 1,j 1,uJ 1e-6,mJ 1e-3,mj 1e-3,kJ 1e3,MJ 1e6,mWh 3.6,Wh 3600,kWh 3.6e6",
        "Slurm": "K 1e3,M 1e6,G 1e9,T 1e12", "other": "% 0.01,GHz 1e3",
    }.items()
}
MOST_W = 3e3  # no GPU draws more
COUNTER_S = 0.1  # how old the answer of a driver's energy counter may be
EARLIEST_UNIX_S = 1e9  # 2001: no log is older, and no machine runs for thirty years


def number(name: str, quantity: str = "other", factor: pl.Expr | float = 1.0) -> pl.Expr:
    """The number in a column of text, in base units; null where the text is no number or of another unit.

    Args:
        name: Column with texts such as "250", "1050.5 W", "33000 mW".
        quantity: Key of `UNITS`. Of "other", an unknown unit does not count.
        factor: For numbers without a unit.
    """
    parts = pl.col(name).str.extract_groups(
        r"^([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ%]*)$").struct
    unit = parts.field("2")
    scale = unit.replace_strict(UNITS[quantity], default=None)
    plain = pl.lit(True) if quantity == "other" else unit == ""
    return parts.field("1").cast(pl.Float64, strict=False) * pl.when(plain).then(
        scale.fill_null(factor)).otherwise(scale)


def unix_s(time_us: int | None, civil: bool) -> float | None:
    """Seconds since 1970 of a moment, local if it is civil; None for a clock that starts with the machine."""
    if time_us is None:
        return None
    seconds = time_us / 1e6
    if civil:
        try:
            seconds = (datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)).timestamp()
        except (ValueError, OverflowError):  # years that have no local time
            return None
    return seconds if seconds > EARLIEST_UNIX_S else None


# of a trace


def energy_of(trace: pl.DataFrame) -> dict[str, Any]:
    """Joules of a trace while readings were recorded, with a 95 % interval, as values of `ENERGIES`.

    From the energy counter if it moves, else from power by trapezoids. Rows may be averages or moments: the
    interval holds the scatter of moments and, at the ends, half a pace of the spread in power. A gap is
    not in the energy, give or take a pace. Whole half hours and a pace are one step of a clock that was set
    forward.
    """
    row: dict[str, Any] = {"scope": "GPU", "note": "", "time_s": 0.0, "energy_j": None}
    counted, powered = (trace.select("time_s", name).drop_nulls().sort("time_s").to_numpy().T
                        for name in ("energy_j", "power_w"))
    watts = powered[1]
    most_w = float(max(watts, default=0.0))
    by_counter = len(counted[0]) > 1 and (np.ptp(counted[1]) > 0 or len(watts) < 2)
    if by_counter:
        times, joules, half_j, note = _counter_steps(counted, min(4 * most_w or MOST_W, MOST_W))
    elif len(watts) > 1:
        times, half_j, note = powered[0], 0.0, ""
        joules = (watts[1:] + watts[:-1]) / 2 * np.diff(times)
    else:
        return row | {"note": "one reading: no energy"}
    steps = np.diff(times)
    gap = _gaps(steps, 10.0 if by_counter else 3.0)
    pace_s, rates_w = float(np.median(steps[~gap])), joules / steps
    around_w = np.maximum(np.append(rates_w[1:], 0.0), np.append(0.0, rates_w[:-1]))
    joints_j = np.minimum(joules, pace_s * around_w)[gap]
    set_forward = np.array([whole_zones(step - pace_s, pace_s) for step in steps[gap]], bool)
    total_j = float(joules[~gap].sum() + joints_j[set_forward].sum())
    row["time_s"] = time_s = float(steps[~gap].sum() + pace_s * set_forward.sum())
    if total_j == 0 and not (by_counter and time_s < 1):
        return row | {"note": "the counter did not move" if by_counter else "the power is 0 W in all rows"}
    if by_counter:
        half_j += COUNTER_S * max(total_j / time_s, most_w if time_s < 1 else 0.0) or COUNTER_S * 1e3
    else:
        low_w, high_w = np.quantile(watts, (0.05, 0.95))
        scatter_w = math.sqrt(np.mean(np.diff(watts)[~gap] ** 2) / 2)
        half_j = math.hypot(1.96 * scatter_w * math.sqrt(np.sum(steps[~gap] ** 2)),
                            0.5 * pace_s * (high_w - low_w))
    if gap.any():
        after_s = format_duration(float(times[:-1][gap][0] - times[0]))
        note += (f"not recorded and not in the energy: {format_duration(float(steps[gap].sum()))} in "
                 f"{_several(gap.sum(), 'gap')}, after {after_s} (a pause, or a clock that was set forward)")
    half_j += 1.1 * float(joints_j.sum())
    low_j = max(total_j - half_j, 0.0)
    return row | {"energy_j": total_j, "low_j": low_j, "high_j": total_j + half_j, "note": note}


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def whole_zones(step_s: float, pace_s: float) -> bool:
    """Whether a step of the clock is a multiple of half an hour, by which time zones differ."""
    return (step_s + 0.5 * pace_s) % 1800 <= pace_s


def _gaps(steps: Any, factor: float) -> Any:
    """Which steps between readings are longer than `factor` paces, of the trace and of the steps around."""
    around = pl.Series(steps).rolling_median(5, center=True, min_samples=1).to_numpy()
    return steps > factor * np.maximum(np.quantile(steps, 0.75, method="lower"), around)


def _counter_steps(readings: Any, most_w: float) -> tuple[Any, Any, float, str]:
    """Times and steps of an energy counter, what is not known of the steps, and a note.

    A reading below the one before, or more than `most_w` above it, is left out if the counter goes on
    without it. Else the counter started again or jumped: the energy of that step is that of the steps around
    it, or none, or twice as much.
    """
    times, joules = readings
    steps_j = np.diff(joules)
    rates_w = steps_j / np.diff(times)
    if joules[0] == 0 and len(rates_w) > 2 and rates_w[0] > 1.2 * rates_w[1:].max():
        joules[0] = -math.inf  # a reading before the first one of the counter
        steps_j = np.diff(joules)
    if ((steps_j >= 0) & (steps_j <= most_w * np.diff(times))).all():
        return times, steps_j, 0.0, ""
    kept, broken, index = [0], [], 1
    while index < len(times):
        follows = [0 <= joules[at] - joules[start] <= most_w * (times[at] - times[start])
                   for start in (kept[-1], index) for at in range(index, min(index + 4, len(times)))]
        ahead = follows[: len(follows) // 2]
        restarted = len(ahead) > 1 and follows[len(ahead) + 1] and joules[index + 1] > joules[index]
        skipped = 0 if (restarted and not any(ahead[:2])) or True not in ahead else ahead.index(True)
        if not ahead[skipped]:
            broken.append(len(kept) - 1)
        kept.append(index + skipped)
        index += skipped + 1
    left_out, note = len(times) - len(kept), ""
    times, steps_j = times[kept], np.diff(joules[kept])
    sound = np.ones(len(steps_j), bool)
    sound[broken] = False
    rates_w = steps_j / np.diff(times)
    for at in broken:
        near = [rates_w[other] for other in (at - 1, at + 1) if 0 <= other < len(sound) and sound[other]]
        steps_j[at] = float(np.mean(near or [0.0])) * (times[at + 1] - times[at])
    if left_out:
        note = f"left out: {_several(left_out, 'impossible reading')} of the energy counter; "
    if broken:
        note += f"the energy is an estimate where the counter went back or jumped, {len(broken)} times; "
    return times, steps_j, float(steps_j[broken].sum()), note


# from a table of energies


def _codecarbon(table: pl.DataFrame) -> pl.DataFrame:
    """A run that was flushed has several rows, each with all that it had counted by then: the last one
    counts. Tasks of a run are rows of their own.
    """
    task = pl.col("task_name")
    parts = "run_id", "task_name", pl.when(task.is_not_null()).then("timestamp").alias("moment")
    last = table.group_by(parts, maintain_order=True).last()
    kwh, gpus = number("gpu_energy"), number("gpu_count")
    return last.select(
        label=pl.concat_str("project_name", task, separator=": ", ignore_nulls=True), gpu="gpu_model",
        id=pl.concat_str("run_id", task, "moment", separator=" ", ignore_nulls=True), moment="timestamp",
        time_s=number("duration"), before_s=number("duration"), scope=pl.lit("GPU"),
        energy_j=pl.when(kwh > 0).then(kwh * J_PER_KWH), most_w=MOST_W * pl.max_horizontal(gpus, 1),
        note=pl.when(kwh > 0).then(pl.lit("")).when(gpus > 0).then(
            pl.lit("codecarbon counted no energy of the GPU")).otherwise(pl.lit("codecarbon found no GPU")))


def _zeus(table: pl.DataFrame) -> pl.DataFrame:
    windows = ["start_time", "window_name", "elapsed_time"]
    gpus = [name for name in table.columns if name.endswith("_energy")]
    rows = table.unpivot(gpus, index=windows).cast(pl.String).drop_nulls("value").unique(maintain_order=True)
    return rows.select(
        label="window_name", gpu=pl.col("variable").str.extract(r"(\d+)"), id="start_time",
        moment="start_time", time_s=number("elapsed_time"), before_s=0.0, scope=pl.lit("GPU"),
        energy_j=number("value", "j"), most_w=MOST_W, note=pl.lit(""))


def _slurm(table: pl.DataFrame) -> pl.DataFrame:
    """Energy of whole nodes. Steps are parts of their job and are left out."""
    joules = number("ConsumedEnergyRaw", "Slurm")
    jobs = table.filter(~pl.col("JobID").str.contains(".", literal=True), joules.is_not_null())
    parts = pl.col("ElapsedRaw").str.extract_groups(
        r"^(?:([0-9]+)-)?(?:([0-9]+):)?(?:([0-9]+):)?([0-9]+)(?:\.\d+)?$").struct
    seconds = pl.sum_horizontal(parts.field(str(place)).cast(pl.Float64) * unit_s
                                for place, unit_s in ((1, 86400), (2, 3600), (3, 60), (4, 1)))
    nodes, gpus = (pl.col("AllocTRES").str.extract(rf"(?:^|,){name}=([0-9]+)").cast(pl.Float64)
                   for name in ("node", "gres/gpu"))
    nodes = pl.coalesce(number("NNodes"), nodes)
    most_w = pl.coalesce(5e3 * nodes + MOST_W * gpus, 2e4 * nodes, 1e8)
    note = pl.when(nodes > 1).then(pl.format("{} whole nodes, not the GPUs alone", nodes.cast(pl.Int64)))
    return jobs.select(
        label=pl.coalesce("JobName", "JobID"), gpu=pl.lit(""), moment="Start", time_s=seconds, before_s=0.0,
        id=pl.concat_str("Cluster", "JobID", separator=" ", ignore_nulls=True), scope=pl.lit("node"),
        energy_j=joules, most_w=most_w, note=note.otherwise(pl.lit("the whole node, not the GPU alone")))


# By program: a column that it alone has, the columns it needs (or another one), columns that may be absent,
# its rows, and how the log is written.
ENERGY_LOGS = {
    "codecarbon": (
        "emissions", "run_id duration gpu_energy timestamp", "project_name gpu_model gpu_count task_name",
        _codecarbon, "codecarbon 2 and later write gpu_energy"),
    "Zeus": ("window_name", "start_time window_name elapsed_time", "", _zeus, "ZeusMonitor(log_file=...)"),
    "Slurm": (
        "JobID", "JobID ElapsedRaw|Elapsed ConsumedEnergyRaw|ConsumedEnergy",
        "JobName Start Cluster AllocTRES NNodes|AllocNodes", _slurm,
        "sacct -P --format=JobID,JobName,Start,Elapsed,ConsumedEnergyRaw,NNodes"),
}


def energies_in(table: pl.DataFrame, name: str) -> tuple[str, pl.DataFrame] | None:
    """The program and rows of `ENERGIES` of a table that one of `ENERGY_LOGS` has written; else None.

    Raises:
        UsageError: it has a column of one of them, and not all that are needed.
    """
    for program, (sign, needed, optional, rows_of, how) in ENERGY_LOGS.items():
        if sign not in table.columns:
            continue
        absent = [names.replace("|", " or ") for names in needed.split()
                  if not set(names.split("|")) & set(table.columns)]
        if absent:
            known = table.drop(PART, strict=False).columns
            raise UsageError(f"{name} is a table of {program} without {listed(absent)}; it has "
                             f"{listed(known)}. Written by: {how}")
        for names in [*needed.split(), *optional.split()]:
            first, *_ = known = names.split("|")
            have = [each for each in known if each in table.columns]
            table = table.with_columns(pl.coalesce(have or pl.lit(None, pl.String)).alias(first))
        return program, _with_interval(rows_of(table))
    return None


def _with_interval(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of `ENERGIES`. Each edge of a GPU counter's difference may be as old as `COUNTER_S`, so that the
    power of a short window is not known: it is up to the highest one of that GPU.
    """
    joules, time_s = pl.col("energy_j"), pl.col("time_s")
    rows = rows.with_columns(pl.when(time_s.is_finite() & (time_s >= 0)).then(time_s))
    none = (joules == 0) & ((pl.col("scope") == "node") | (time_s >= 1))
    most_j = pl.col("most_w") * pl.max_horizontal(time_s, COUNTER_S)
    wrong = none | ~joules.is_between(0, most_j)
    rows = rows.with_columns(
        energy_j=pl.when(~wrong).then(joules),
        note=pl.when(wrong).then(
            pl.format("{} J in {} s cannot be true", joules, time_s.fill_null(0))).otherwise("note"))
    power_w = joules / time_s
    highest_w = power_w.filter(joules > 0).max().over("gpu").fill_null(1e3)
    half = COUNTER_S * pl.when(scope="GPU").then(pl.when(time_s < 1).then(highest_w).otherwise(power_w))
    times_us, civil = moments(rows["moment"])
    started = zip((unix_s(time_us, civil) for time_us in times_us), rows["before_s"], strict=True)
    dated = [None if at_s is None else at_s - (before_s or 0.0) for at_s, before_s in started]
    whole = rows.with_columns(
        pl.Series("started_unix_s", dated, dtype=pl.Float64), low_j=(joules - half).clip(lower_bound=0.0),
        high_j=joules + half)
    return whole.select(ENERGIES.names()).cast(ENERGIES).with_columns(pl.col("label", "gpu").fill_null(""))
