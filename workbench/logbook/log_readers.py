"""Logs that people already have, as power traces and energies with an interval.

    read_log(path)      any of these: traces by GPU, and `.energies` a row for each GPU, window or job

| written by | file |
|---|---|
| the workbench | a stored trace, or CSV with its columns (`time_s`, `power_w`, `energy_j`; `gpu`) |
| nvidia-smi | the CSV of `nvidia-smi --query-gpu=timestamp,index,power.draw --format=csv -lms 100` |
| DCGM | `dcgmi dmon -e 155,156,203,204 -d 100`; a CSV of DCGM fields, wide or with `metric` and `value` |
| dcgm-exporter | its text, one scrape after another |
| Prometheus | the JSON of `/api/v1/query_range` (DCGM's names, or `nvidia_smi_...`) |
| nvitop | CSV of `ResourceMetricCollector` |
| W&B | `run-*.wandb` of an offline run; CSV or JSON of `run.history(stream="events")` |
| MLflow | the folder of a run in a file store, or a CSV of `key, value, timestamp` |
| TensorBoard | event files with scalars such as `gpu_0/power_w` |
| codecarbon | `emissions.csv` |
| Zeus | the CSV of `ZeusMonitor(log_file=...)` |
| Slurm | `sacct -P --format=JobID,JobName,Start,Elapsed,ConsumedEnergyRaw` |

Every file becomes a table of text (`log_tables`); `METRICS` names the columns that have power, clocks and
utilisation, and `ENERGY_LOGS` the tables that have energies.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from .. import _html
from ..errors import UsageError, checked, listed
from ..records import GpuMeasurement, Measurement
from ..tariff import J_PER_KWH
from ..trace import SCHEMA
from .log_tables import table_of
from .store import Store

ENERGIES = pl.Schema({
    "label": pl.String, "gpu": pl.String, "started_unix_s": pl.Float64, "time_s": pl.Float64,
    "energy_j": pl.Float64, "low_j": pl.Float64, "high_j": pl.Float64,  # a 95 % interval
    "scope": pl.String,  # "GPU", or "node" where all of a machine is in it
    "note": pl.String,
})
# Program, column of the trace, factor, and the metrics' names; of several that are there the first counts.
# `(\d+)` is the GPU's number where the name has it.
METRICS = (
    *(("the workbench", name, 1.0, name) for name in (
        "energy_j", "power_w", "power_limit_w", "sm_clock_mhz", "mem_clock_mhz", "utilisation",
        "memory_utilisation", "temperature_c", "throttle",
    )),
    ("nvidia-smi", "power_w", 1.0, r"power\.draw\.instant power\.draw power\.draw\.average"),
    ("nvidia-smi", "power_limit_w", 1.0, r"enforced\.power\.limit power\.limit"),
    ("nvidia-smi", "sm_clock_mhz", 1.0, r"clocks\.(?:current\.)?sm clocks\.(?:current\.graphics|gr)"),
    ("nvidia-smi", "mem_clock_mhz", 1.0, r"clocks\.current\.memory clocks\.mem"),
    ("nvidia-smi", "utilisation", 0.01, r"utilization\.gpu"),
    ("nvidia-smi", "memory_utilisation", 0.01, r"utilization\.memory"),
    ("nvidia-smi", "temperature_c", 1.0, r"temperature\.gpu"),
    ("DCGM", "energy_j", 0.001, "TOTEC DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
    ("DCGM", "power_w", 1.0, "POWINST PINST POWER DCGM_FI_DEV_POWER_USAGE_INSTANT DCGM_FI_DEV_POWER_USAGE"),
    ("DCGM", "power_limit_w", 1.0,
     "PMLMT DCGM_FI_DEV_ENFORCED_POWER_LIMIT DCGM_FI_DEV_POWER_MGMT_LIMIT"),
    ("DCGM", "sm_clock_mhz", 1.0, "SMCLK DCGM_FI_DEV_SM_CLOCK"),
    ("DCGM", "mem_clock_mhz", 1.0, "MMCLK DCGM_FI_DEV_MEM_CLOCK"),
    ("DCGM", "utilisation", 0.01, "GPUTL DCGM_FI_DEV_GPU_UTIL"),
    ("DCGM", "utilisation", 1.0, "GRACT DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
    ("DCGM", "memory_utilisation", 0.01, "MCUTL DCGM_FI_DEV_MEM_COPY_UTIL"),
    ("DCGM", "memory_utilisation", 1.0, "DRAMA DCGM_FI_PROF_DRAM_ACTIVE"),
    ("DCGM", "temperature_c", 1.0, "TMPTR DCGM_FI_DEV_GPU_TEMP"),
    ("Prometheus", "power_w", 1.0, "nvidia_smi_power_draw_instant_watts nvidia_smi_power_draw_watts"),
    ("Prometheus", "utilisation", 1.0, "nvidia_smi_utilization_gpu_ratio"),
    ("Prometheus", "temperature_c", 1.0, "nvidia_smi_temperature_gpu"),
    ("Prometheus", "power_w", 0.001, "nvidia_gpu_power_usage_milliwatts"),
    ("W&B", "power_w", 1.0, r"(?:system\.)?gpu\.(\d+)\.powerWatts"),
    ("W&B", "power_limit_w", 1.0, r"(?:system\.)?gpu\.(\d+)\.enforcedPowerLimitWatts"),
    ("W&B", "utilisation", 0.01, r"(?:system\.)?gpu\.(\d+)\.gpu"),
    ("W&B", "temperature_c", 1.0, r"(?:system\.)?gpu\.(\d+)\.temp"),
    ("W&B", "sm_clock_mhz", 1.0, r"(?:system\.)?gpu\.(\d+)\.smClock"),
    ("W&B", "mem_clock_mhz", 1.0, r"(?:system\.)?gpu\.(\d+)\.memoryClock"),
    ("MLflow", "power_w", 1.0, r"(?:.*/)?gpu_(\d+)_power_usage_watts"),
    ("MLflow", "utilisation", 0.01, r"(?:.*/)?gpu_(\d+)_utilization_percentage"),
    ("nvitop", "power_w", 1.0, r".*\(gpu:(\d+)\)/power_usage\s\(W\)/mean"),
    ("nvitop", "power_limit_w", 1.0, r".*\(gpu:(\d+)\)/power_limit\s\(W\)/mean"),
    ("nvitop", "utilisation", 0.01, r".*\(gpu:(\d+)\)/gpu_utilization\s\(%\)/mean"),
    ("nvitop", "temperature_c", 1.0, r".*\(gpu:(\d+)\)/temperature\s\(C\)/mean"),
    ("TensorBoard", "power_w", 1.0,
     r".*gpu[._/\s:-]?(\d+).*power(?!.*(?:percent|limit|cap|%|/m\w\w$|/last$)).*"),
)
PATTERNS = [(re.compile(name, re.IGNORECASE), program, column, factor)
            for program, column, factor, names in METRICS for name in names.split()]
TIMES = ("time_s", "timestamp", "time", "ts", "datetime", "_timestamp")
GPUS = ("uuid", "gpu_uuid", "gpu", "gpu_id", "index", "minor_number", "device", "pci.bus_id", "gpu_bus_id")
HOSTS = ("hostname", "node", "instance")
NUMBER = r"^(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
MOST_W = 1e5  # no GPU and no node draws more
NO_VALUE = 1e14  # no reading or time is larger; DCGM's blanks are (dcgm_structs.h: from 2^47 on)
EARLIEST_UNIX_S = 1e9  # 2001: no log is older, and no machine runs for thirty years
COUNTER_S = 0.1  # how old the answer of a driver's energy counter may be
BESIDE = 0.2  # of the pace: rows closer than this are of several GPUs


class EnergyLog(dict[str, pl.DataFrame]):
    """The traces (`trace.SCHEMA`) of a log by GPU, with what else it has; empty for logs of energies alone.

    Attributes:
        written_by: The program that wrote it.
        energies: Frame of `ENERGIES`: a row for each GPU of a trace, or for each window or job of a log of
            energies. The interval holds what the sampling leaves open, not the card's calibration (5 %).
    """

    def __init__(self, written_by: str, traces: Mapping[str, pl.DataFrame], energies: pl.DataFrame) -> None:
        super().__init__(traces)
        self.written_by, self.energies = written_by, energies

    def __repr__(self) -> str:
        what = f"{len(self)} GPUs" if self else f"{self.energies.height} energies"
        return f"log of {self.written_by}: {what}, {self.energies['energy_j'].sum():.4g} J"

    def _repr_html_(self) -> str:
        return _html.facts(f"Log of {self.written_by}", {"energies": self.energies})


@checked
def read_log(path: str | Path, *, every_s: float | None = None) -> EnergyLog:
    """Power traces and energies of a log that another tool has written; the format is detected.

    Args:
        path: The file, or the folder of an MLflow run.
        every_s: How often it was written, where its rows have no times (`dcgmi dmon`, an exporter's scrapes).

    Raises:
        UsageError: no known format, or no times or power in it; lists the columns found and needed.
    """
    given = Path(path).expanduser()
    table = table_of(given)
    for program, (needed, optional, energies_of) in ENERGY_LOGS.items():
        if set(needed.split()) <= set(table.columns):
            absent = [pl.lit(None, pl.String).alias(name) for name in optional.split()
                      if name not in table.columns]
            return EnergyLog(program, {}, _with_interval(energies_of(table.with_columns(absent))))
    program, samples, started_s = _samples(table, given, every_s)
    traces = _by_gpu(samples)
    rows = [energy_of(trace) | {"label": given.stem, "gpu": gpu, "started_unix_s": started_s}
            for gpu, trace in traces.items()]
    return EnergyLog(program, traces, pl.DataFrame(rows, schema=ENERGIES))


@checked
def import_log(path: str | Path, label: str = "", *, every_s: float | None = None) -> list[Measurement]:
    """Put a log of another tool into the log of this user: traces as one measurement of all their GPUs,
    energies as one for each window or job. A file that is imported again replaces nothing and adds nothing:
    its measurements have ids of their own content.

    Args:
        path: The file, or the folder of an MLflow run.
        label: Under which name; the file's own names where there is none.
        every_s: As for `read_log`.

    Raises:
        UsageError: see `read_log`, or there is no energy in it. StoreError: it cannot be written.
    """
    found = read_log(path, every_s=every_s)
    store, rows = Store(), found.energies.filter(pl.col("energy_j").is_not_null())
    if not rows.height:
        notes = "; ".join(set(found.energies["note"])) or "no rows"
        raise UsageError(f"{Path(path).name} has no energy: {notes}")
    changed_s = Path(path).expanduser().stat().st_mtime
    if found.written_by == "Zeus":  # a row for each GPU of a window
        groups = rows.partition_by("label", "started_unix_s", "time_s", maintain_order=True)
    else:
        groups = [rows] if found else [rows[number : number + 1] for number in range(rows.height)]
    known, kept = set(store.log()["id"]), []
    for number, group in enumerate(groups):
        measurement = _imported(found, group.to_dicts(), label, changed_s, number)
        if measurement.id not in known:
            names = group["gpu"].to_list() if found else []
            store.save(measurement, {gpu.uuid: found[name] for gpu, name in
                                     zip(measurement.gpus, names, strict=False)})
        kept.append(measurement)
    return kept


def _imported(
    found: EnergyLog, rows: Sequence[Mapping[str, Any]], label: str, changed_s: float, number: int
) -> Measurement:
    first, content = rows[0], json.dumps([found.written_by, label, number, rows], sort_keys=True)
    time_s = max(row["time_s"] or 0.0 for row in rows)
    note = f"imported: written by {found.written_by}"
    if first["started_unix_s"] is None:
        note += ", without a date: the date is that of the file"
    gpus = tuple(
        GpuMeasurement(
            name=row["gpu"] or row["scope"], uuid=f"{found.written_by}:{row['gpu']}",
            energy_j=row["energy_j"],
            energy_uncertainty_j=None if row["high_j"] is None else (row["high_j"] - row["low_j"]) / 2,
            source="imported", simulated=False, mean_power_w=row["energy_j"] / time_s if time_s > 0 else None,
            notes=(note, *filter(None, [row["note"]])))
        for row in rows)
    return Measurement(
        hashlib.sha256(content.encode()).hexdigest()[:12], label or first["label"] or "imported",
        first["started_unix_s"] or changed_s - time_s, time_s, gpus, kind="imported")


def energy_of(trace: pl.DataFrame) -> dict[str, Any]:
    """Joules from the first row of a trace to the last, with a 95 % interval, as a row of `ENERGIES`.

    From the energy counter where there is one. Else from power, by trapezoids: rows may be averages or
    moments, so that the interval holds the scatter of moments and, at the ends, half a pace of the spread in
    power. A hole of more than three paces is as uncertain as the power's whole spread.
    """
    column = "energy_j" if trace["energy_j"].count() > 1 else "power_w"
    known = trace.select("time_s", column).drop_nulls().sort("time_s")
    times, values = (known[name].to_numpy() for name in known.columns)
    row: dict[str, Any] = {"scope": "GPU", "note": ""}
    if len(times) < 2:
        return row | {"time_s": 0.0, "energy_j": None, "note": "one reading: no energy"}
    paces, time_s = np.diff(times), float(times[-1] - times[0])
    if column == "energy_j":
        steps = np.diff(values)
        row["note"] = "the counter went back and was counted on from there" if (steps < 0).any() else ""
        total = float(steps[steps > 0].sum())
        half = COUNTER_S * total / time_s
    else:
        pace_s = float(np.median(paces))
        low_w, high_w = np.quantile(values, (0.05, 0.95))
        scatter_w = float(np.sqrt(np.mean(np.diff(values) ** 2) / 2))
        holes_s = paces[paces > 3 * pace_s]
        total = float(np.trapezoid(values, times))
        moments_j = 1.96 * scatter_w * float(np.sqrt(np.sum(paces[paces <= 3 * pace_s] ** 2)))
        ends_j, holes_j = 0.5 * pace_s * (high_w - low_w), 0.5 * float(holes_s.sum()) * (high_w - low_w)
        half = math.hypot(moments_j, ends_j) + holes_j
        if len(holes_s):
            row["note"] = f"{len(holes_s)} holes of {holes_s.sum():.3g} s in all"
    low_j, high_j = max(total - half, 0.0), total + half
    return row | {"time_s": time_s, "energy_j": total, "low_j": low_j, "high_j": high_j}


# from a table of samples


def _samples(
    table: pl.DataFrame, path: Path, every_s: float | None
) -> tuple[str, pl.DataFrame, float | None]:
    """The program, rows of (time_us, gpu, column, value), and when the log began (seconds since 1970)."""
    lower = {name.lower(): name for name in reversed(table.columns)}
    times = [*(lower[name] for name in TIMES if name in lower),
             *(name for name in table.columns if name.endswith("/timestamp"))]
    labels = [lower[name] for name in (*GPUS, *HOSTS, "gpu_i_id") if name in lower]
    metric = next((lower[name] for name in ("metric", "key", "__name__", "name") if name in lower), None)
    if metric is None or "value" not in table.columns:
        known = [name for name in table.columns if _meaning(name)]
        table = table.drop("metric", "value", strict=False).unpivot(
            known, index=[*times[:1], *labels], variable_name="metric", value_name="value")
        metric = "metric"
    meanings = [each for name in table[metric].unique() if (each := _meaning(name or ""))]
    if not any(each["column"] in ("power_w", "energy_j") for each in meanings):
        raise UsageError(
            f"{path.name} has the columns or metrics {listed(lower)} and no power of an NVIDIA GPU. A trace "
            "comes from nvidia-smi --query-gpu=timestamp,index,power.draw --format=csv -lms 100, with header")
    long = table.join(pl.DataFrame(meanings), left_on=metric, right_on="metric", maintain_order="left")
    value = _number("value")
    value = pl.when(value.abs() < NO_VALUE).then(value * pl.col("factor"))
    watts = pl.col("column").is_in(["power_w", "power_limit_w"])
    long = long.with_columns(pl.when(~watts | value.is_between(0, MOST_W)).then(value).alias("value"),
                             gpu=_gpu(labels))
    best = pl.col("rank").filter(pl.col("value").is_not_null()).min().over("gpu", "column")
    long = long.filter(pl.col("rank") == best.fill_null(pl.col("rank")))
    if times and long[times[0]].count():
        time_us, civil = _moments(long[times[0]])
        if not time_us.count():
            raise UsageError(f"{path.name} has times like {long[times[0]].drop_nulls()[0]!r}; known are "
                             "2026/11/20 10:11:12.123, 2026-11-20T10:11:12.123 and seconds since 1970")
        started_s = _unix_s(time_us.min(), civil)
    elif every_s is not None and every_s > 0:
        rows = long.select(pl.int_range(pl.len()).over("gpu", "column")).to_series()
        time_us, started_s = (rows * every_s * 1e6).cast(pl.Int64), None
    else:
        raise UsageError(f"{path.name} has no times; how many seconds apart are its rows? "
                         "read_log(path, every_s=15)")
    long = long.with_columns(time_us.alias("time_us")).filter(pl.col("time_us").is_not_null())
    if not labels and all(each["number"] is None for each in meanings) and _interleaved(long):
        raise UsageError(f"{path.name} has rows of several GPUs and no column that distinguishes them; add "
                         "index or uuid to --query-gpu")
    if not long.filter(pl.col("column").is_in(["power_w", "energy_j"]))["value"].count():
        raise UsageError(f"{path.name} has {table.height} whole rows and no power reading in them")
    return meanings[0]["program"], long, started_s


def _meaning(name: str) -> dict[str, Any] | None:
    """Program, column, factor, rank and GPU of a metric by its name; None for one that is not known.

    W&B adds `/l:LABEL` where several processes log into one run (`x_label`): each label has GPUs of its own.
    """
    plain, _, label = name.partition("/l:")
    for rank, (pattern, program, column, factor) in enumerate(PATTERNS):
        if found := pattern.fullmatch(plain):
            return {"metric": name, "program": program, "column": column, "factor": factor, "rank": rank,
                    "number": found[1] if pattern.groups else None, "label": label or None}
    return None


def _gpu(labels: Sequence[str]) -> pl.Expr:
    """What a row's GPU is called: by its host too where several hosts have a GPU of that name. A UUID stays
    the same where its exporter moves to another port.
    """
    by_name = {name.lower(): name for name in labels}
    hosts = HOSTS[:1] if "uuid" in by_name else HOSTS
    gpu = pl.coalesce("number", *(by_name[name] for name in GPUS if name in by_name), pl.lit("0"))
    if "gpu_i_id" in by_name:
        gpu = pl.coalesce(pl.format("{} instance {}", gpu, by_name["gpu_i_id"]), gpu)
    host = pl.coalesce("label", *(by_name[name] for name in hosts if name in by_name), pl.lit(""))
    several = pl.struct(host.alias("host"), gpu.alias("gpu")).n_unique() > gpu.n_unique()
    return pl.when(several).then(pl.concat_str(host, pl.lit(" "), gpu).str.strip_chars()).otherwise(gpu)


def _moments(texts: pl.Series) -> tuple[pl.Series, bool]:
    """Microseconds of civil times (then the second is true), or since 1970 of seconds or milliseconds."""
    plain = texts.str.strip_suffix("Z").str.replace(",", ".", literal=True)
    dates = plain.str.replace_all("/", "-").str.replace("T", " ")
    civil = dates.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", strict=False, time_unit="us")
    if civil.count():
        return civil.dt.epoch("us"), True
    numbers = plain.cast(pl.Float64, strict=False)
    numbers = numbers.set((~(numbers.abs() < NO_VALUE)).fill_null(True), None)
    milliseconds = (numbers.max() or 0.0) > 100 * EARLIEST_UNIX_S  # type: ignore[operator]
    return (numbers * (1e3 if milliseconds else 1e6)).round().cast(pl.Int64), False


def _unix_s(time_us: Any, civil: bool) -> float | None:
    """Seconds since 1970 of a moment, local where it is civil; None for a clock that starts with the machine.
    """
    if time_us is None:
        return None
    seconds = time_us / 1e6
    if civil:
        try:
            seconds = (datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)).timestamp()
        except (ValueError, OverflowError):  # years that have no local time
            return None
    return seconds if seconds > EARLIEST_UNIX_S else None


def _interleaved(long: pl.DataFrame) -> bool:
    """Whether rows come in bunches: several GPUs within a few milliseconds, then a pause."""
    steps = long.filter(pl.col("metric") == pl.col("metric").first())["time_us"].sort().diff().drop_nulls()
    return len(steps) > 0 and (steps < BESIDE * steps.quantile(0.95, "lower")).mean() > 0.3  # type: ignore


def _by_gpu(long: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """A trace for each GPU, from 0 s on; of several rows at one moment the last counts."""
    wide = long.pivot("column", index=["time_us", "gpu"], values="value", aggregate_function="last")
    absent = {name: pl.lit(None, kind) for name, kind in SCHEMA.items() if name not in wide.columns}
    since = pl.col("time_us") - pl.col("time_us").min()
    wide = wide.with_columns(**absent | {"time_s": since / 1e6}).sort("time_s")
    parts = wide.partition_by("gpu", as_dict=True, maintain_order=True)
    return {str(key[0]): part.select(SCHEMA.names()).cast(SCHEMA) for key, part in sorted(parts.items())}


# from a table of energies


def _codecarbon(table: pl.DataFrame) -> pl.DataFrame:
    # A run that was flushed has several rows, each with all that it had counted by then: the last one counts.
    last = table.group_by("run_id", maintain_order=True).last()
    kwh, gpus = _number("gpu_energy"), _number("gpu_count")
    counted = pl.when(~((kwh == 0) & (gpus > 0))).then(kwh * J_PER_KWH)
    note = pl.when(counted.is_null()).then(pl.lit("codecarbon counted no energy of the GPU"))
    return last.select(
        label="project_name", gpu="gpu_model", moment="timestamp", time_s=_number("duration"),
        scope=pl.lit("GPU"), energy_j=counted, note=note.otherwise(pl.lit("")), before_s=_number("duration"))


def _zeus(table: pl.DataFrame) -> pl.DataFrame:
    gpus = [name for name in table.columns if name.endswith("_energy")]
    rows = table.unpivot(gpus, index=["start_time", "window_name", "elapsed_time"])
    rows = rows.cast(pl.String).drop_nulls("value")
    return rows.select(
        label="window_name", gpu=pl.col("variable").str.extract(r"(\d+)"), moment="start_time",
        time_s=_number("elapsed_time"), scope=pl.lit("GPU"), energy_j=_number("value"), note=pl.lit(""),
        before_s=0.0)


def _slurm(table: pl.DataFrame) -> pl.DataFrame:
    """Energy of whole nodes. Steps are parts of their job and are left out."""
    joules = _number("ConsumedEnergyRaw")
    jobs = table.filter(~pl.col("JobID").str.contains(".", literal=True), joules.is_not_null())
    parts = pl.col("Elapsed").str.extract_groups(r"^(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)").struct
    seconds = pl.sum_horizontal(parts.field(str(place)).cast(pl.Float64) * unit_s
                                for place, unit_s in ((1, 86400), (2, 3600), (3, 60), (4, 1)))
    absurd = (joules == 0) | (joules > MOST_W * seconds)
    note = pl.when(absurd).then(pl.lit("Slurm counted nothing that can be true")).otherwise(
        pl.lit("the whole node, not the GPU alone"))
    return jobs.select(
        label=pl.coalesce("JobName", "JobID"), gpu=pl.lit(""), moment="Start", time_s=seconds,
        scope=pl.lit("node"), energy_j=pl.when(~absurd).then(joules), note=note, before_s=0.0)


# By program: the columns it is known by, columns that may be absent, and its rows.
ENERGY_LOGS = {
    "codecarbon": (
        "run_id duration emissions gpu_energy timestamp", "project_name gpu_model gpu_count", _codecarbon),
    "Zeus": ("start_time window_name elapsed_time", "", _zeus),
    "Slurm": ("JobID Elapsed ConsumedEnergyRaw", "JobName Start", _slurm),
}


def _number(name: str) -> pl.Expr:
    """The number at the beginning of a text, also with a decimal comma; null where there is none."""
    return pl.col(name).str.replace(",", ".", literal=True).str.extract(NUMBER).cast(pl.Float64, strict=False)


def _with_interval(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of `ENERGIES`. Each edge of a GPU counter's difference may be as old as `COUNTER_S`."""
    moments_us, civil = _moments(rows["moment"])
    started = zip((_unix_s(time_us, civil) for time_us in moments_us), rows["before_s"], strict=True)
    dated = [None if at_s is None else at_s - (before_s or 0.0) for at_s, before_s in started]
    half = COUNTER_S * pl.col("energy_j").abs() / pl.when(scope="GPU").then("time_s")
    low = (pl.col("energy_j") - half).clip(lower_bound=0.0)
    whole = rows.with_columns(pl.Series("started_unix_s", dated, dtype=pl.Float64), low_j=low,
                              high_j=pl.col("energy_j") + half)
    return whole.select(ENERGIES.names()).cast(ENERGIES).with_columns(pl.col("label", "gpu").fill_null(""))
