"""Logs that people already have, as power traces and energies with an interval.

    read_log(path)      any of these: traces by GPU, and `.energies` a row for each GPU, window or job

| written by | file |
|---|---|
| the workbench | a stored trace, CSV with `time_s`, `power_w`, `energy_j` and `gpu`, or of `log_to` |
| nvidia-smi | the CSV of `nvidia-smi --query-gpu=timestamp,index,power.draw --format=csv -lms 100` |
| DCGM | `dcgmi dmon -e 155,156,203,204 -d 100`; a CSV of DCGM fields, wide or with `metric` and `value` |
| dcgm-exporter | its text, one scrape after another |
| Prometheus | the JSON of `/api/v1/query_range` (DCGM's names, or `nvidia_smi_...`) |
| nvitop | CSV of `ResourceMetricCollector` |
| W&B | `run-*.wandb` of an offline run, CSV or JSON of `run.history(stream="events")`, CSV of a panel |
| MLflow | the folder of a run in a file store, or a CSV of `key, value, timestamp` |
| TensorBoard | event files with scalars such as `gpu_0/power_w` |
| codecarbon | `emissions.csv` |
| Zeus | the CSV of `ZeusMonitor(log_file=...)` |
| Slurm | `sacct -P --format=JobID,JobName,Start,Elapsed,ConsumedEnergyRaw,NNodes` |

Every file becomes a table of text (`log_tables`); `METRICS` names the columns that have power, clocks and
utilisation. `log_sessions` puts the rows of a GPU into the order of time, and `log_energies` has joules.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from .. import _html
from ..errors import UsageError, checked, listed, printable
from ..records import GpuMeasurement, Measurement
from ..trace import SCHEMA, moments
from .log_energies import ENERGIES, MOST_W, UNITS, energies_in, energy_of, number, unix_s
from .log_sessions import sessions, streams
from .log_tables import PART, table_of
from .store import Store, from_row

# Program, column of the trace, factor of numbers without a unit, and names of metrics; of several that are
# there the first counts. `#` is the GPU's number where the name has it: such a name may have its host, node
# or run before it.
METRICS = r"""
the workbench | energy_j           | 1     | energy_j gpu_energy[/_]energy_j
the workbench | power_w            | 1     | power_w gpu_energy[/_]power_w
the workbench | power_limit_w      | 1     | power_limit_w
the workbench | sm_clock_mhz       | 1     | sm_clock_mhz
the workbench | mem_clock_mhz      | 1     | mem_clock_mhz
the workbench | utilisation        | 1     | utilisation
the workbench | memory_utilisation | 1     | memory_utilisation
the workbench | temperature_c      | 1     | temperature_c
the workbench | throttle           | 1     | throttle
nvidia-smi    | power_w            | 1     | power\.draw\.instant power\.draw power\.draw\.average
nvidia-smi    | power_limit_w      | 1     | enforced\.power\.limit power\.limit
nvidia-smi    | sm_clock_mhz       | 1     | clocks\.(current\.)?sm clocks\.(current\.graphics|gr)
nvidia-smi    | mem_clock_mhz      | 1     | clocks\.current\.memory clocks\.mem
nvidia-smi    | utilisation        | 0.01  | utilization\.gpu
nvidia-smi    | memory_utilisation | 0.01  | utilization\.memory
nvidia-smi    | temperature_c      | 1     | temperature\.gpu
DCGM          | energy_j           | 0.001 | TOTEC DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION(_total)?
DCGM          | power_w            | 1     | POWINST PINST POWER DCGM_FI_DEV_POWER_USAGE(_INSTANT)?
DCGM          | power_limit_w      | 1     | PMLMT DCGM_FI_DEV_(ENFORCED_POWER|POWER_MGMT)_LIMIT
DCGM          | sm_clock_mhz       | 1     | SMCLK DCGM_FI_DEV_SM_CLOCK
DCGM          | mem_clock_mhz      | 1     | MMCLK DCGM_FI_DEV_MEM_CLOCK
DCGM          | utilisation        | 0.01  | GPUTL DCGM_FI_DEV_GPU_UTIL
DCGM          | utilisation        | 1     | GRACT DCGM_FI_PROF_GR_ENGINE_ACTIVE
DCGM          | memory_utilisation | 0.01  | MCUTL DCGM_FI_DEV_MEM_COPY_UTIL
DCGM          | memory_utilisation | 1     | DRAMA DCGM_FI_PROF_DRAM_ACTIVE
DCGM          | temperature_c      | 1     | TMPTR DCGM_FI_DEV_GPU_TEMP
Prometheus    | power_w            | 1     | nvidia_smi_power_draw_instant_watts nvidia_smi_power_draw_watts
Prometheus    | power_w            | 0.001 | nvidia_gpu_power_usage_milliwatts
Prometheus    | utilisation        | 1     | nvidia_smi_utilization_gpu_ratio
Prometheus    | temperature_c      | 1     | nvidia_smi_temperature_gpu
W&B           | power_w            | 1     | gpu\.#\.powerWatts
W&B           | power_limit_w      | 1     | gpu\.#\.enforcedPowerLimitWatts
W&B           | utilisation        | 0.01  | gpu\.#\.gpu
W&B           | temperature_c      | 1     | gpu\.#\.temp
W&B           | sm_clock_mhz       | 1     | gpu\.#\.smClock
W&B           | mem_clock_mhz      | 1     | gpu\.#\.memoryClock
MLflow        | power_w            | 1     | gpu_#_power_usage_watts
MLflow        | utilisation        | 0.01  | gpu_#_utilization_percentage
nvitop        | power_w            | 1     | cuda:\d+\s\(gpu:#\)/power_usage\s\(W\)/mean
nvitop        | power_limit_w      | 1     | cuda:\d+\s\(gpu:#\)/power_limit\s\(W\)/mean
nvitop        | utilisation        | 0.01  | cuda:\d+\s\(gpu:#\)/gpu_utilization\s\(%\)/mean
nvitop        | temperature_c      | 1     | cuda:\d+\s\(gpu:#\)/temperature\s\(C\)/mean
"""
# What is missing in a log of a program that has no power.
NEEDED = {
    "nvidia-smi": "A trace comes from nvidia-smi --query-gpu=timestamp,index,power.draw --format=csv "
                  "-lms 1000, with header",
    "DCGM": "Add field 155 (POWER) or 156 (TOTEC): dcgmi dmon -e 155,156",
    "W&B": "Export the system metric system.gpu.0.powerWatts too",
    "MLflow": "Log gpu_0_power_usage_watts too", "nvitop": "Record power_usage (W)/mean too",
    "Prometheus": "Query the metric of power too",
    "the workbench": "Add the column power_w",
}
# Terms in the names of other columns of watts ("gpu0_power_mw", "GPU 1 Power Draw (W)"), and of others.
POWER_TERMS = {"power", "draw", "usage", "consumption", "instant", "current", "board", "mean", "avg",
               "average", *UNITS["w"]}
NO_POWER = re.compile(
    r"(?i)(?<![a-z])(?:max|min|std|peak|limit|cap|percent|total|sum|var|count|cpu|ram|p\d+)(?![a-z])")
PATTERNS = [
    (re.compile(rf"(?:(?P<source>.+?)(?: - |/))?(?:system[./])?{name.replace('#', '(?P<number>[0-9]+)')}"
                if "#" in name else name, re.IGNORECASE), program, column, float(factor))
    for line in METRICS.strip().splitlines()
    for program, column, factor, names in [re.split(r"\s*\|\s+", line)]
    for name in names.split()
]
TIMES = re.compile(r"(?i)(time_s)|(timestamp)|(time|ts|datetime|_timestamp|at_unix_s|wall time)"
                   r"|(.*/timestamp)|(relative time.*)|(_runtime|elapsed(?:_s)?)")
GPUS = ("uuid", "gpu_uuid", "gpu", "gpu_id", "index", "minor_number", "device", "pci.bus_id", "gpu_bus_id")
SOURCES = ("hostname", "host", "node", "node_name", "kubernetes_node", "exported_instance", "instance",
           "run_id", "run_uuid", "run_name", "run", "rank", "process", "pid")
NO_VALUE = 1e14  # no reading is larger; DCGM's blanks are (dcgm_structs.h: from 2^47 on)
BESIDE = 0.2  # of the pace: rows closer than this are of several sources


class EnergyLog(dict[str, pl.DataFrame]):
    """The traces (`trace.SCHEMA`) of a log by GPU, with what else it has; empty for logs of energies alone.

    Attributes:
        written_by: The program that wrote it.
        energies: Frame of `ENERGIES`: a row for each GPU and session of a trace, or for each window or job of
            a log of energies. The interval holds what the sampling leaves open, not the card's calibration
            (5 %).
        notes: Sentences on rows that could not be read.
    """

    def __init__(
        self, written_by: str, traces: Mapping[str, pl.DataFrame], energies: pl.DataFrame,
        notes: Sequence[str], sessions: Mapping[tuple[str, str], pl.DataFrame],
    ) -> None:
        super().__init__(traces)
        self.written_by, self.energies, self.notes = written_by, energies, tuple(notes)
        self._sessions = sessions  # by GPU and id

    def __repr__(self) -> str:
        what = f"{len(self)} GPUs" if self else f"{self.energies.height} energies"
        total = f"log of {self.written_by}: {what}, {self.energies['energy_j'].sum():.4g} J"
        return "; ".join([total, *self.notes])

    def _repr_html_(self) -> str:
        return _html.facts(f"Log of {self.written_by}", {"energies": self.energies, "notes": self.notes})


@checked
def read_log(path: str | Path, *, every_s: float | None = None) -> EnergyLog:
    """Power traces and energies of a log that another tool has written; the format is detected.

    Args:
        path: The file, packed by gzip or not, or the folder of an MLflow run.
        every_s: How often it was written, where its rows have no times (`dcgmi dmon`, an exporter's scrapes).

    Raises:
        UsageError: no known format, or no times or power in it. The message names the kind of the file and
            the missing columns.
    """
    given = Path(path).expanduser()
    table, unread = table_of(given)
    parts: dict[tuple[str, str], pl.DataFrame] = {}
    traces: dict[str, pl.DataFrame] = {}
    if (found := energies_in(table, given.name)) is not None:
        program, energies = found
    else:
        program, samples, civil, left_out = _samples(table, given, every_s)
        unread += left_out
        rows = []
        first_us = samples["time_us"].min()
        for (gpu,), of_gpu in sorted(samples.partition_by("gpu", as_dict=True).items()):
            for copy, (stream, clock) in enumerate(streams(of_gpu.drop("gpu"))):
                name = f"{gpu} ({copy + 1})" if copy else str(gpu)
                stream = stream.with_columns(time_s=(pl.col("time_us") - first_us) / 1e6)
                traces[name] = stream.select(SCHEMA.names()).cast(SCHEMA)
                for number, (rows_of, before) in enumerate(sessions(stream)):
                    part = parts[name, str(number)] = rows_of.select(SCHEMA.names()).cast(SCHEMA)
                    row = energy_of(part)
                    rows.append(row | {
                        "label": given.stem, "gpu": name, "id": str(number),
                        "started_unix_s": unix_s(rows_of["time_us"][0], civil),
                        "note": f"{before}{clock}{row['note']}".removesuffix("; ")})
        energies = pl.DataFrame(rows, schema=ENERGIES)
    notes = []
    if unread:
        notes.append(f"{unread} row{'s' * (unread > 1)} of {printable(given.name)} could not be read")
        energies = energies.with_columns(note=pl.concat_str(
            pl.when(pl.col("note") != "").then("note"), pl.lit(notes[0]), separator="; ", ignore_nulls=True))
    return EnergyLog(program, traces, energies, notes, parts)


@checked
def import_log(path: str | Path, label: str = "", *, every_s: float | None = None) -> list[Measurement]:
    """Put a log of another tool into the log of this user: each session of traces as one measurement of all
    its GPUs, energies as one for each window or job. A second import adds nothing. A job, run or session
    that has grown replaces its earlier entry.

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
        why = "; ".join(set(found.energies["note"])) or "no rows"
        raise UsageError(f"{Path(path).name} has no energy: {why}")
    changed_s = Path(path).expanduser().stat().st_mtime
    keys = ["id"] if found else ["id", "label", "started_unix_s", "time_s"]
    known, kept = {row["id"]: row for row in store.log().iter_rows(named=True)}, []
    for group in rows.partition_by(keys, maintain_order=True):
        measurement = _imported(found, group.to_dicts(), label, changed_s)
        names = group["gpu"].to_list()
        traces = {gpu.uuid: found._sessions[name, group["id"][0]]
                  for gpu, name in zip(measurement.gpus, names, strict=True)} if found else {}
        before = store.trace(measurement.id) if measurement.id in known else None
        if before is not None and not all(_same_start(before.filter(uuid=gpu), trace)
                                          for gpu, trace in traces.items()):
            measurement = replace(measurement, id=_digest(measurement.id, group.to_dicts()))
        earlier = from_row(known[measurement.id]) if measurement.id in known else measurement
        lengths = [(each.time_s, each.energy_j or 0.0) for each in (earlier, measurement)]
        if earlier is measurement or lengths[0] < lengths[1]:
            store.save(measurement, traces)
            earlier = measurement
        kept.append(earlier)
    return kept


def _same_start(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    """Whether one trace continues the other."""
    count = min(one.height, other.height)
    return one["power_w"][:count].equals(other["power_w"][:count])


def _digest(*content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _imported(
    found: EnergyLog, rows: Sequence[Mapping[str, Any]], label: str, changed_s: float
) -> Measurement:
    """The measurement of some rows. Its id is that of the job, window or session, and not of its energy."""
    first, names = rows[0], [row["gpu"] for row in rows]
    time_s = max(row["time_s"] or 0.0 for row in rows)
    note = f"imported: written by {found.written_by}"
    identity = [found.written_by, label, names, first["started_unix_s"]]
    if not found:
        identity += [first["id"], first["label"]]
    elif first["started_unix_s"] is None:
        identity += [first["energy_j"]]
    if first["started_unix_s"] is None:
        note += ", without a date: the date is that of the file"
    gpus = tuple(
        GpuMeasurement(
            name=row["gpu"] or row["scope"], uuid=f"{found.written_by}:{row['gpu']}",
            energy_j=row["energy_j"],
            energy_uncertainty_j=None if row["high_j"] is None else max(
                row["high_j"] - row["energy_j"], row["energy_j"] - row["low_j"]),
            source="imported", simulated=False, mean_power_w=row["energy_j"] / time_s if time_s > 0 else None,
            notes=(note, *filter(None, [row["note"]])))
        for row in rows)
    return Measurement(
        _digest(*identity), label or first["label"] or "imported",
        first["started_unix_s"] or changed_s - time_s, time_s, gpus, kind="imported")


# from a table of samples


def _samples(table: pl.DataFrame, path: Path, every_s: float | None) -> tuple[str, pl.DataFrame, bool, int]:
    """The program; rows of a trace with "gpu", "time_us", "piece" and `PART` (see `streams`); whether their
    times are civil; and the number of rows that cannot be used.
    """
    lower = {name.lower(): name for name in reversed(table.columns)}
    ranked = {name: found.lastindex for name in table.columns if (found := TIMES.fullmatch(name))}
    times = [name for name in sorted(ranked, key=lambda name: ranked[name] or 0) if table[name].count()]
    metric = next((lower[name] for name in ("metric", "key", "__name__", "name") if name in lower), None)
    if metric is None or "value" not in table.columns:
        table = table.drop("metric", "value", strict=False)
        known = [name for name in table.columns if name not in times and _meaning(name)]
        table = table.with_row_index("row").unpivot(
            known, index=["row", *(name for name in table.columns if name not in known)],
            variable_name="metric", value_name="value")
    else:
        table = table.rename({metric: "metric"}).with_row_index("row")
    meanings = [each for name in table["metric"].unique() if (each := _meaning(name or ""))]
    gpus = [lower[name] for name in GPUS if name in lower]
    meanings = [each for each in meanings if each["program"] or gpus or "gpu" in each["metric"].lower()]
    if not {"power_w", "energy_j"} & {each["column"] for each in meanings}:
        program = meanings[0]["program"] if meanings else ""
        what = f"is a log of {program}: it " * bool(program)
        columns = listed(name for name in lower if name != PART)
        raise UsageError(f"{path.name} {what}has the columns or metrics {columns} and no power of an NVIDIA "
                         f"GPU. {NEEDED.get(program, NEEDED['nvidia-smi'])}")
    long = table.drop({*meanings[0], "piece", "time_us"} - {"metric"}, strict=False).join(
        pl.DataFrame(meanings), on="metric").sort("row")
    long = _values(long, path.name)
    long = long.with_columns(gpu=_gpu(long, gpus, [lower[name] for name in SOURCES if name in lower]))
    instance = pl.col(lower["gpu_i_id"]).fill_null("") if "gpu_i_id" in lower else pl.lit("")
    long = long.with_columns(instance=instance, **{PART: PART if PART in long.columns else pl.lit("")})
    series = ["gpu", "metric", "instance"]
    if times:
        time_us, civil = moments(long[times[0]])
        if not time_us.count():
            raise UsageError(f"{path.name} has times like {long[times[0]].drop_nulls()[0]!r}; known are "
                             "2026/11/20 10:11:12.123, 2026-11-20T10:11:12.123+01:00 and seconds since 1970")
    elif every_s is not None and every_s > 0:
        counts = long.select(pl.int_range(pl.len()).over(series)).to_series()
        time_us, civil = (counts * every_s * 1e6).cast(pl.Int64), False
    else:
        raise UsageError(f"{path.name} has no times; how many seconds apart are its rows? "
                         "read_log(path, every_s=15)")
    long = long.with_columns(time_us.alias("time_us"))
    unread = long.filter(time_us.is_null())["row"].n_unique()
    labels = [name for name in table.columns if name in long.columns and name not in (
        "row", "metric", "value", PART, *times, *gpus, lower.get("gpu_i_id"))]
    long = _apart(long.filter(pl.col("time_us").is_not_null()), path.name, labels)
    if not long.filter(pl.col("column").is_in(["power_w", "energy_j"]))["value"].count():
        raise UsageError(f"{path.name} has {table['row'].n_unique()} whole rows and no power reading in them")
    piece = (pl.col("time_us").diff() < 0).fill_null(False).cum_sum().over(series)
    moment = "gpu", "column", "time_us", PART, piece.alias("piece")
    busiest = pl.col("column").first().str.ends_with("utilisation")  # of MIG instances
    values = long.group_by(moment, maintain_order=True).agg(
        pl.when(busiest).then(pl.col("value").max()).otherwise(pl.col("value").drop_nulls().last()))
    wide = values.pivot("column", index=["gpu", "piece", PART, "time_us"], values="value")
    absent = {name: pl.lit(None, kind) for name, kind in SCHEMA.items() if name not in wide.columns}
    program = next((each["program"] for each in meanings if each["program"]), "another tool")
    return program, wide.with_columns(**absent), civil, unread


def _meaning(name: str) -> dict[str, Any] | None:
    """Program, column, factor, rank, GPU and source of a metric by its name; None for one that is not known.

    W&B adds `/l:LABEL` where several processes log into one run (`x_label`): each label has GPUs of its own.
    """
    plain, _, label = name.partition("/l:")
    for rank, (pattern, program, column, factor) in enumerate(PATTERNS):
        if found := pattern.fullmatch(plain):
            groups = found.groupdict()
            source = label or (groups.get("source") or "").removeprefix("system").strip("/")
            return {"metric": name, "program": program, "column": column, "factor": factor, "rank": rank,
                    "number": groups.get("number"), "source": source}
    before, gpu, after = plain, "", ""
    if found := re.search(r"(?<![a-z])(?:gpu|cuda|device)[^a-z0-9]*(\d*)", plain, re.IGNORECASE):
        before, gpu, after = plain[: found.start()], found[1], plain[found.end():]
    first, terms = ([term.lower() for term in re.findall(r"[mk]W|[A-Z]?[a-z]+|[A-Z]+|[%\d]+", text)]
                    for text in (before, after))
    source = ""
    if found and not POWER_TERMS.issuperset(first):
        source, first = before.strip(" /._:-"), []
    terms += first
    named = POWER_TERMS.issuperset(terms) and {"power", "watt", "watts"} & {*terms}
    if not named or NO_POWER.search(source):
        return None
    factor = math.prod(UNITS["w"].get(term, 1.0) for term in terms)
    rank = len(PATTERNS) + bool({"mean", "avg", "average"} & {*terms})
    return {"metric": name, "program": "", "column": "power_w", "factor": factor, "rank": rank,
            "number": gpu or None, "source": source}


def _values(long: pl.DataFrame, name: str) -> pl.DataFrame:
    """Rows with numbers as values in the units of a trace; power that no GPU can have is null.

    Raises:
        UsageError: most readings of all columns of power are none of a GPU.
    """
    column, factor = pl.col("column"), pl.col("factor")
    value = pl.when(column.str.starts_with("power")).then(number("value", "w", factor)).when(
        column == "energy_j").then(number("value", "j", factor)).otherwise(number("value", "other", factor))
    given = pl.col("value").drop_nulls().first().over("metric").alias("given")
    long = long.with_columns(given, value=pl.when(value.abs() < NO_VALUE * factor).then(value))
    power, watts = column == "power_w", pl.col("value")
    middle_w, highest_w = watts.median().over("metric"), watts.max().over("metric")
    likely = middle_w.is_between(0, MOST_W) & ~highest_w.is_between(0, 1, closed="none")
    fits = ~power | highest_w.is_null() | likely
    fitting = long.filter(fits)
    if fitting.height < long.height and not fitting.filter(column.is_in(["power_w", "energy_j"])).height:
        wrong = long.filter(~fits)["metric", "given"].row(0)
        raise UsageError(f"{name} has {wrong[0]} of {wrong[1]}, which no GPU draws in watts (1 to "
                         f"{MOST_W:g}). Write the unit into the name of the column: {wrong[0]} [mW]")
    return fitting.with_columns(pl.when(~power | watts.is_between(0, MOST_W)).then(watts))


def _gpu(long: pl.DataFrame, gpus: Sequence[str], sources: Sequence[str]) -> pl.Expr:
    """What a row's GPU is called: by its host, run or process too where several have a GPU of that name. A
    UUID stays the same where its exporter moves to another port; that of a MIG instance is not its board's.
    """
    boards = [pl.when(pl.col(name).str.contains("^MIG-")).then(
        pl.col(name).str.extract(r"(GPU-[0-9A-Fa-f-]+)")).otherwise(name) for name in gpus]
    gpu = pl.coalesce("number", *boards, pl.lit("0"))
    if any(long.select(board.str.contains("^GPU-").any()).item() for board in boards):
        sources = [name for name in sources if name.lower() == "hostname"]
    chosen: list[str] = []
    count = long.select(gpu.n_unique()).item()
    for name in ("source", *sources):
        more = long.select(pl.struct(*chosen, pl.col(name), gpu.alias("gpu of it")).n_unique()).item()
        if more > count:
            chosen, count = [*chosen, name], more
    return pl.concat_str(*chosen, gpu, separator=" ", ignore_nulls=True).str.strip_chars()


def _apart(long: pl.DataFrame, name: str, labels: Sequence[str]) -> pl.DataFrame:
    """Rows of the best metric for each column of a GPU, and of one MIG instance of those that repeat the
    power of their board. Under MIG the driver's utilisation is always 0, and that of the board is unknown: 1
    where an instance works.

    Rows that come in bunches are of several sources: a step far shorter than others before and after it.

    Raises:
        UsageError: several sources in one GPU, and none of the columns `labels` tells them apart.
    """
    busy, mig = pl.col("column").str.ends_with("utilisation"), pl.col("instance") != ""
    long = long.filter(~(mig & busy & (pl.col("factor") == 0.01))).with_columns(
        pl.when(mig & busy & (pl.col("value") > 0.015)).then(1.0).otherwise("value").alias("value"))
    ranks = pl.col("rank").filter(pl.col("value").is_not_null())
    long = long.filter(busy | (pl.col("rank") == ranks.min().over("gpu", "column").fill_null(pl.col("rank"))))
    measured = long.filter(pl.col("column").is_in(["power_w", "energy_j"]), pl.col("value").is_not_null())
    for label in [None, *labels]:
        key = ["gpu", "metric", "instance", PART, *([label] if label else [])]
        steps = measured.unique([*key, "time_us", "value"], maintain_order=True).select(
            pl.col("time_us").diff().over(key)).to_series().drop_nulls()
        steps = steps.filter(steps >= 0)
        before_us, after_us = (some.rolling_max(8, min_samples=1) for some in (steps, steps.reverse()))
        beside = (steps < BESIDE * before_us) & (steps < BESIDE * after_us.reverse())
        if beside.sum() <= 0.3 * len(steps) and (steps == 0).sum() <= 0.1 * len(steps):
            break
    else:
        raise UsageError(f"{name} has rows of several GPUs, hosts or processes at one time and no column "
                         "that distinguishes them; add index or uuid to --query-gpu, or a column hostname")
    if label:
        long = long.with_columns(gpu=pl.concat_str(pl.col(label).fill_null(""), "gpu", separator=" "))
    count = pl.len().over("gpu", "metric", "instance")
    most = pl.col("instance").sort_by(count, descending=True).first().over("gpu", "metric")
    return long.filter(busy | (pl.col("instance") == most))
