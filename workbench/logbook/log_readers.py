"""Logs that people already have, as power traces and energies with an interval.

    read_log(path)      any of these: traces by GPU, and `.energies` a row for each GPU, window or job

| written by | file |
|---|---|
| nvidia-smi, `dcgmi dmon`, CSV of DCGM fields | `log_tables` |
| dcgm-exporter | its text, one scrape after another |
| Prometheus | the JSON of `/api/v1/query_range` (DCGM's names, or `nvidia_smi_...`) |
| nvitop | CSV of `ResourceMetricCollector` |
| W&B | `run-*.wandb` of an offline run; CSV or JSON of `run.history(stream="events")` |
| MLflow | the folder of a run in a file store, its `metrics/system`, or a CSV of `key, value, timestamp` |
| TensorBoard | event files with scalars such as `gpu_0/power_w` |
| codecarbon | `emissions.csv` |
| Zeus | the CSV of `ZeusMonitor(log_file=...)` |
| Slurm | `sacct -P --format=JobID,JobName,Elapsed,ConsumedEnergyRaw` |

Layouts: docs.wandb.ai (system metrics), wandb_internal.proto; mlflow.org (system metrics); TensorFlow's
event.proto; prometheus.io (HTTP API, exposition formats); the programs' own sources. Nothing is imported of
them.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ..errors import UsageError, checked
from ..records import GpuMeasurement, Measurement
from ..tariff import J_PER_KWH
from ..trace import SCHEMA
from .log_records import WANDB, is_event_file, tensorboard_scalars, wandb_metrics
from .log_tables import (
    ENTITY,
    EXPORTER,
    MOST_W,
    NO_VALUE,
    by_gpu,
    bytes_of,
    gpu_names,
    identity,
    lines_of,
    read_dcgm,
    rows_of,
    text_of,
)
from .log_tables import read_nvidia_smi as read_nvidia_smi
from .store import Store

Gpu = tuple[str, str]  # host, or label of a process, and number
Sample = tuple[float, Gpu, str, float]  # seconds since 1970, column of the trace, value
ENERGIES = pl.Schema({
    "label": pl.String, "gpu": pl.String, "started_unix_s": pl.Float64, "time_s": pl.Float64,
    "energy_j": pl.Float64, "low_j": pl.Float64, "high_j": pl.Float64,  # a 95 % interval
    "scope": pl.String,  # "GPU", or "node" where all of a machine is in it
    "note": pl.String,
})
EARLIEST_UNIX_S = 1e9  # 2001: no log is older, and no machine runs for thirty years
COUNTER_S = 0.1  # how old the answer of a driver's energy counter may be
# What names of metrics mean: the GPU's number, the column, the factor. The first that fits counts.
NAMES = tuple((re.compile(pattern), column, factor) for pattern, column, factor in (
    (r"gpu\.(\d+)\.powerWatts$", "power_w", 1.0),
    (r"gpu\.(\d+)\.enforcedPowerLimitWatts$", "power_limit_w", 1.0),
    (r"gpu\.(\d+)\.gpu$", "utilisation", 0.01),
    (r"gpu\.(\d+)\.temp$", "temperature_c", 1.0),
    (r"gpu\.(\d+)\.smClock$", "sm_clock_mhz", 1.0),
    (r"gpu\.(\d+)\.memoryClock$", "mem_clock_mhz", 1.0),
    (r"gpu_(\d+)_power_usage_watts$", "power_w", 1.0),
    (r"gpu_(\d+)_utilization_percentage$", "utilisation", 0.01),
    (r"\(gpu:(\d+)\)/power_usage \(W\)/mean$", "power_w", 1.0),
    (r"\(gpu:(\d+)\)/power_limit \(W\)/mean$", "power_limit_w", 1.0),
    (r"\(gpu:(\d+)\)/gpu_utilization \(%\)/mean$", "utilisation", 0.01),
    (r"\(gpu:(\d+)\)/temperature \(C\)/mean$", "temperature_c", 1.0),
    (r"(?i)gpu[._/ :-]?(\d+).*power(?!.*(?:percent|limit|cap|%|/m\w\w$|/last$)).*$", "power_w", 1.0),
))
SERIES = {name: (column, factor) for column, names in EXPORTER.items() for name, factor in names} | {
    "nvidia_smi_power_draw_watts": ("power_w", 1.0),
    "nvidia_smi_power_draw_instant_watts": ("power_w", 1.0),
    "nvidia_smi_utilization_gpu_ratio": ("utilisation", 1.0),
    "nvidia_smi_temperature_gpu": ("temperature_c", 1.0),
    "nvidia_gpu_power_usage_milliwatts": ("power_w", 0.001),
}
EXPOSED = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)\{(?P<labels>[^}]*)\}\s+(?P<value>\S+)(?:\s+(?P<at>\d+))?$")
CIVIL = re.compile(r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class EnergyLog(dict[str, pl.DataFrame]):
    """The traces (`trace.SCHEMA`) of a log by GPU, with what else it tells; empty for logs of energies alone.

    Attributes:
        written_by: The program that wrote it.
        energies: Frame of `ENERGIES`: a row for each GPU of a trace, or for each window or job of a log of
            energies. The interval holds what the sampling leaves open, not the card's calibration (5 %).
        notes: What was left out.
    """

    def __init__(
        self, written_by: str, traces: Mapping[str, pl.DataFrame], energies: pl.DataFrame | None = None, *,
        started_unix_s: float | None = None, label: str = "", notes: Sequence[str] = (),
    ) -> None:
        super().__init__(traces)
        self.written_by, self.notes = written_by, tuple(notes)
        self.energies = pl.DataFrame(
            [energy_of(trace) | {"label": label, "gpu": gpu, "started_unix_s": started_unix_s}
             for gpu, trace in traces.items()], schema=ENERGIES) if energies is None else energies

    def __repr__(self) -> str:
        total = self.energies["energy_j"].sum()
        what = f"{len(self)} GPUs" if self else f"{self.energies.height} energies"
        return f"log of {self.written_by}: {what}, {total:.4g} J"

    def _repr_html_(self) -> str:
        from .. import _html

        return _html.facts(f"Log of {self.written_by}", {"energies": self.energies, "notes": self.notes})


@checked
def read_log(path: str | Path, *, every_s: float | None = None) -> EnergyLog:
    """Power traces and energies of a log that another tool has written; which one is found out.

    Args:
        path: The file, or the folder of an MLflow run.
        every_s: How often it was written, where its rows have no times (`dcgmi dmon`, an exporter's scrapes).

    Raises:
        UsageError: nothing that is known, or no times or power in it; says what was found and is needed.
    """
    given = Path(path).expanduser()
    if given.is_dir():
        return _mlflow_folder(given)
    raw = bytes_of(given)
    if raw.startswith(WANDB):
        return _of_samples("W&B", _keyed(wandb_metrics(raw)), given)
    if is_event_file(raw):
        return _of_samples("TensorBoard", _keyed(tensorboard_scalars(raw)), given)
    lines = lines_of(given)
    head = lines[0] if lines else ""
    if head.startswith(("{", "[")):
        return _json(given)
    if any(EXPOSED.match(line) for line in lines[:400]):
        return _exporter(lines, given, every_s)
    header = [name.strip().strip('"') for name in re.split(r"[|;]" if "|" in head else r"[,;]", head)]
    known = set(header)
    if "ConsumedEnergyRaw" in known or "ConsumedEnergy" in known:
        return _slurm(lines, given)
    if {"emissions", "gpu_energy", "duration"} <= known:
        return _codecarbon(_dicts(lines, given))
    if header[:3] == ["start_time", "window_name", "elapsed_time"]:
        return _zeus(_dicts(lines, given), header[3:])
    if any(_named(name) for name in header) and (times := _time_column(header)):
        program = "nvitop" if "(gpu:" in head else "W&B"
        return _of_samples(program, _wide(_dicts(lines, given), times), given)
    if {"key", "value", "timestamp"} <= known:
        triples = ((row["timestamp"], row["key"], row["value"]) for row in _dicts(lines, given))
        return _of_samples("MLflow", _keyed(triples), given)
    if any(ENTITY.search(line) or "dcgm_fi_" in line.lower() for line in lines[:200]):
        program, traces = "DCGM", read_dcgm(path, every_s=every_s)
    else:
        program, traces = "nvidia-smi", read_nvidia_smi(path)
    dates = map(_date_s, CIVIL.findall("\n".join(lines[:20])))
    return EnergyLog(program, traces, label=given.stem, started_unix_s=next(filter(None, dates), None))


@checked
def import_log(path: str | Path, label: str = "", *, every_s: float | None = None) -> list[Measurement]:
    """Put what a log of another tool tells into the log of this user: traces as one measurement of all their
    GPUs, energies as one for each window or job. A file that is imported again replaces nothing and adds
    nothing: its measurements have ids of their own content.

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
        raise UsageError(f"{Path(path).name} tells no energy: {'; '.join(set(found.energies['note']))}")
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
    first, content = rows[0], json.dumps([found.written_by, label, number, rows], sort_keys=True, default=str)
    time_s = max(row["time_s"] or 0.0 for row in rows)
    started_s = first["started_unix_s"] or changed_s - time_s
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
    named = label or first["label"] or "imported"
    return Measurement(hashlib.sha256(content.encode()).hexdigest()[:12], named, started_s, time_s, gpus,
                       kind="imported")


def energy_of(trace: pl.DataFrame) -> dict[str, Any]:
    """Joules from the first row of a trace to the last, with a 95 % interval, as a row of `ENERGIES`.

    From the energy counter where there is one. Else from power, by trapezoids: rows may be averages or
    moments, so that the interval holds the scatter of moments and, at the ends, half a pace of the spread in
    power. A hole of more than three paces is as uncertain as the power's whole spread.
    """
    counted = trace.select("time_s", "energy_j").drop_nulls()
    row: dict[str, Any] = {"scope": "GPU", "note": ""}
    if counted.height > 1:
        times, joules = (counted[name].to_numpy() for name in ("time_s", "energy_j"))
        steps = np.diff(joules)
        row["note"] = "the counter went back and was counted on from there" if (steps < 0).any() else ""
        total, time_s = float(steps[steps > 0].sum()), float(times[-1] - times[0])
        half = COUNTER_S * total / time_s if time_s > 0 else 0.0
    else:
        known = trace.select("time_s", "power_w").drop_nulls().sort("time_s")
        times, watts = (known[name].to_numpy() for name in ("time_s", "power_w"))
        if len(times) < 2:
            return row | {"time_s": 0.0, "energy_j": None, "note": "one reading: no energy"}
        paces, time_s = np.diff(times), float(times[-1] - times[0])
        pace_s = float(np.median(paces))
        low_w, high_w = np.quantile(watts, (0.05, 0.95))
        scatter_w = float(np.sqrt(np.mean(np.diff(watts) ** 2) / 2))
        holes_s = paces[paces > 3 * pace_s]
        total = float(np.trapezoid(watts, times))
        moments_j = 1.96 * scatter_w * float(np.sqrt(np.sum(paces[paces <= 3 * pace_s] ** 2)))
        ends_j, holes_j = 0.5 * pace_s * (high_w - low_w), 0.5 * float(holes_s.sum()) * (high_w - low_w)
        half = math.hypot(moments_j, ends_j) + holes_j
        if len(holes_s):
            row["note"] = f"{len(holes_s)} holes of {holes_s.sum():.3g} s in all"
    return row | {"time_s": time_s, **_around(total, half)}


def _around(energy_j: float, half_j: float) -> dict[str, float]:
    return {"energy_j": energy_j, "low_j": max(energy_j - half_j, 0.0), "high_j": energy_j + half_j}


# from samples of named metrics


def _of_samples(program: str, samples: Iterable[Sample], path: Path, notes: Sequence[str] = ()) -> EnergyLog:
    rows = [row for row in samples if math.isfinite(row[0]) and abs(row[3]) < NO_VALUE]
    rows = [row for row in rows if row[2] != "power_w" or 0 <= row[3] <= MOST_W]
    if not any(row[2] in ("power_w", "energy_j") for row in rows):
        raise UsageError(f"{path.name} is of {program} and has no power of an NVIDIA GPU in it; was system "
                         "monitoring on, and a GPU there?")
    columns = zip(*rows, strict=True)
    long = pl.DataFrame(dict(zip(("time_s", "gpu", "column", "value"), columns, strict=True)) | {
        "gpu": list(gpu_names(row[1] for row in rows))})
    wide = long.pivot("column", index=["time_s", "gpu"], values="value", aggregate_function="last")
    absent = {name: pl.lit(None, kind) for name, kind in SCHEMA.items() if name not in wide.columns}
    return EnergyLog(program, by_gpu(wide.with_columns(**absent), path), label=path.stem, notes=notes,
                     started_unix_s=_date_s(long["time_s"].min()))


def _named(name: str) -> tuple[Gpu, str, float] | None:
    """GPU, column and factor of a metric by its name; None for one that is not known.

    W&B adds `/l:LABEL` where several processes log into one run (`x_label`): each label has GPUs of its own.
    """
    plain, _, label = name.partition("/l:")
    for pattern, column, factor in NAMES:
        if found := pattern.search(plain):
            return (label, found[1]), column, factor
    return None


def _keyed(triples: Iterable[tuple[Any, str, Any]]) -> Iterator[Sample]:
    """Samples of (seconds or milliseconds since 1970, name, value)."""
    for at, name, value in triples:
        found, number, at_s = _named(name), _number(value), _number(at)  # W&B's value is a number in JSON
        if found is not None and number is not None and at_s is not None:
            yield at_s / 1000 if at_s > 1e11 else at_s, found[0], found[1], number * found[2]


def _number(text: Any) -> float | None:
    """A number as programs write it, also with a decimal comma; None for anything else."""
    try:
        found = float(text.replace(",", ".") if isinstance(text, str) else text)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def _date_s(written: Any, before_s: float = 0.0) -> float | None:
    """Seconds since 1970 of a moment, less `before_s`: a number, or a text such as 2026-11-22T10:00:00 (local
    where it names no zone). None where it is neither, or of a clock that starts with the machine.
    """
    at_s = _number(written)
    if at_s is None:
        try:
            at_s = datetime.datetime.fromisoformat(str(written).strip().replace("/", "-")).timestamp()
        except ValueError:
            return None
    return at_s - before_s if at_s > EARLIEST_UNIX_S else None


def _time_column(header: Sequence[str]) -> str | None:
    whole = ("_timestamp", "timestamp")
    return next((name for name in header if name in whole or name.endswith("/timestamp")), None)


def _wide(rows: Iterable[Mapping[str, Any]], times: str) -> Iterator[Sample]:
    for row in rows:
        yield from _keyed((row[times], name, value) for name, value in row.items() if value not in ("", None))


def _dicts(lines: Sequence[str], path: Path) -> list[dict[str, str]]:
    """Rows of a table by column, of commas or, with decimal commas, of semicolons; without damaged ones."""
    separator = ";" if lines[0].count(";") > lines[0].count(",") else ","
    head, *rows = rows_of(lines, path, separator)
    return [dict(zip(head, row, strict=True)) for row in rows if len(row) == len(head)]


# Prometheus


def _series(name: str, labels: Mapping[str, str]) -> tuple[Gpu, str, float] | None:
    """GPU, column and factor of a series; None for one that is not known."""
    found = SERIES.get(name.lower())
    return None if found is None else (identity(labels), *found)


def _exporter(lines: Sequence[str], path: Path, every_s: float | None) -> EnergyLog:
    """Scrapes of an exporter, one after another; without times of their own they need `every_s`."""
    samples: list[Sample] = []
    count: dict[tuple[Gpu, str], int] = {}
    timed = True
    for line in lines:
        found = EXPOSED.match(line)
        series = found and _series(found["name"], dict(LABEL.findall(found["labels"])))
        value = _number(found["value"]) if found else None
        if not found or not series or value is None:
            continue
        gpu, column, factor = series
        number = count[gpu, column] = count.get((gpu, column), -1) + 1
        timed &= found["at"] is not None
        at_s = int(found["at"]) / 1000 if found["at"] else float(number)
        samples.append((at_s, gpu, column, value * factor))
    if not timed and max(count.values(), default=0) > 0:
        if every_s is None or not every_s > 0:
            raise UsageError(f"{path.name} has scrapes without times; say how many seconds apart they are: "
                             "read_log(path, every_s=15)")
        samples = [(at * every_s, *rest) for at, *rest in samples]  # type: ignore[misc]
    return _of_samples("dcgm-exporter", samples, path)


def _json(path: Path) -> EnergyLog:
    """Prometheus' range queries, and exported events of W&B (a list, or a row a line)."""
    text = text_of(path)
    try:
        whole = json.loads(text)
    except ValueError:
        whole = []
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                whole.append(json.loads(line))
    if isinstance(whole, dict) and isinstance(whole.get("data"), dict):
        results = whole["data"].get("result")
        if isinstance(results, list):
            return _of_samples("Prometheus", _prometheus(results), path)
    rows = [row for row in whole if isinstance(row, dict)] if isinstance(whole, list) else []
    if times := _time_column(list({name: 0 for row in rows for name in row})):
        return _of_samples("W&B", _wide((row for row in rows if times in row), times), path)
    raise UsageError(f"{path.name} is JSON of no known kind; known are Prometheus' query_range and rows of "
                     "W&B's system metrics with _timestamp and system.gpu.0.powerWatts")


def _prometheus(results: Iterable[Any]) -> Iterator[Sample]:
    for each in results:
        labels = each.get("metric", {}) if isinstance(each, dict) else {}
        series = _series(str(labels.get("__name__", "")), labels)
        if series is None:
            continue
        gpu, column, factor = series
        for at, value in each.get("values", []):
            number = _number(value)
            if number is not None:
                yield float(at), gpu, column, number * factor


# MLflow


def _mlflow_folder(folder: Path) -> EnergyLog:
    """A run of a file store: `metrics/system/gpu_0_power_usage_watts` has lines of time, value, step."""
    places = (folder, folder / "system", folder / "metrics", folder / "metrics" / "system")
    try:
        files = sorted(each for place in places for each in place.glob("*gpu_*_*") if each.is_file())
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror or error}") from error
    triples = [
        (parts[0], file.name, parts[1]) for file in files if _named(file.name)
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
        if len(parts := line.split()) >= 2
    ]
    if not triples:
        raise UsageError(f"{folder} is no regular file, and no run of MLflow with GPU metrics; give the "
                         "folder of a run, which has metrics/system/gpu_0_power_usage_watts")
    return _of_samples("MLflow", _keyed(triples), folder)


# logs of energies


def _energies(program: str, rows: Sequence[dict[str, Any]], nothing: str) -> EnergyLog:
    if not rows:
        raise UsageError(nothing)
    return EnergyLog(program, {}, pl.DataFrame(rows, schema=ENERGIES))


def _counted(energy_j: float | None, time_s: float | None) -> dict[str, Any]:
    """A counter's difference: each edge may be as old as `COUNTER_S`."""
    if energy_j is None or time_s is None or not time_s > 0:
        return {"energy_j": energy_j, "low_j": None, "high_j": None, "time_s": time_s}
    return {"time_s": time_s, **_around(energy_j, COUNTER_S * abs(energy_j) / time_s)}


def _codecarbon(rows: Sequence[Mapping[str, str]]) -> EnergyLog:
    # A run that was flushed has several rows, each with all that it had counted by then: the last one counts.
    last = {row.get("run_id") or str(number): row for number, row in enumerate(rows)}
    found = []
    for row in last.values():
        energy, gpus = _number(row["gpu_energy"]), _number(row.get("gpu_count"))
        counted = None if energy is None or (energy == 0 and gpus) else energy * J_PER_KWH
        note = "" if counted is not None else "codecarbon counted no energy of the GPU"
        found.append(_counted(counted, _number(row["duration"])) | {
            "label": row.get("project_name", ""), "gpu": row.get("gpu_model", ""), "scope": "GPU",
            "note": note, "started_unix_s": _date_s(row.get("timestamp"), _number(row["duration"]) or 0.0)})
    return _energies("codecarbon", found, "the file of codecarbon has no rows; it writes one when a run ends")


def _zeus(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> EnergyLog:
    found = [
        _counted(_number(row[column]), _number(row["elapsed_time"])) | {
            "label": row["window_name"], "gpu": column.removesuffix("_energy").removeprefix("gpu"),
            "started_unix_s": _date_s(row["start_time"]), "scope": "GPU", "note": ""}
        for row in rows for column in columns if _number(row[column]) is not None
    ]
    return _energies("Zeus", found, "the log of ZeusMonitor has no windows; one is written when it ends")


SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _slurm(lines: Sequence[str], path: Path) -> EnergyLog:
    """Jobs of `sacct`: energy of whole nodes. Steps are parts of their job and are left out."""
    header = [name.strip() for name in lines[0].split("|")]
    rows = [dict(zip(header, line.split("|"), strict=False)) for line in lines[1:]]
    raw = "ConsumedEnergyRaw" if "ConsumedEnergyRaw" in header else "ConsumedEnergy"
    found = []
    for row in rows:
        job, energy = row.get("JobID", ""), re.fullmatch(r"([\d.]+)([KMGT]?)", row.get(raw, "").strip())
        if "." in job or energy is None:
            continue
        joules = float(energy[1]) * SUFFIXES[energy[2]]
        time_s = _elapsed_s(row.get("Elapsed", "")) or _number(row.get("ElapsedRaw"))
        absurd = joules == 0 or (time_s and joules / time_s > MOST_W)
        note = "Slurm counted nothing that can be true" if absurd else "the whole node, not the GPU alone"
        found.append({
            "label": row.get("JobName", job), "gpu": "", "time_s": time_s,
            "started_unix_s": _date_s(row.get("Start")),
            "energy_j": None if absurd else joules, "low_j": None, "high_j": None, "scope": "node",
            "note": note})
    return _energies("Slurm", found, f"{path.name} has no job with an energy; the cluster needs an "
                     "AcctGatherEnergyType, and sacct -P --format=JobID,JobName,Elapsed,ConsumedEnergyRaw")


def _elapsed_s(text: str) -> float | None:
    """Seconds of [days-]hours:minutes:seconds."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?", text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)

