"""Traces of NVIDIA's own tools: CSV of `nvidia-smi --query-gpu`, `dcgmi dmon`, tables of DCGM metrics.

    read_nvidia_smi(path)  nvidia-smi --query-gpu=timestamp,index,power.draw --format=csv -lms 100 > path
    read_dcgm(path)        dcgmi dmon -e 155,156,203,204 -d 100 > path, or a CSV of DCGM field names

Each gives a trace (`trace.SCHEMA`) per GPU, by what the file calls it; `time_s` counts from its first row.
What the file does not tell is null. Of several rows at one moment the last counts; a last line that was cut
off is left out. Formats: nvidia-smi --help-query-gpu; docs.nvidia.com/datacenter/dcgm (dcgmi dmon, field
identifiers).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from ..errors import UsageError, checked, named_file
from ..trace import SCHEMA

Table = dict[str, list[str | None]]
Sources = dict[str, tuple[tuple[str, float], ...]]

# Column of the trace: names in the file, the better ones first, and what to multiply by.
NVIDIA_SMI: Sources = {
    "power_w": (("power.draw.instant", 1.0), ("power.draw", 1.0), ("power.draw.average", 1.0)),
    "power_limit_w": (("enforced.power.limit", 1.0), ("power.limit", 1.0)),
    "sm_clock_mhz": tuple((f"clocks.{name}", 1.0) for name in ("current.sm", "sm", "current.graphics", "gr")),
    "mem_clock_mhz": (("clocks.current.memory", 1.0), ("clocks.mem", 1.0)),
    "utilisation": (("utilization.gpu", 0.01),),
    "memory_utilisation": (("utilization.memory", 0.01),),
    "temperature_c": (("temperature.gpu", 1.0),),
}
DMON: Sources = {
    "energy_j": (("TOTEC", 0.001),),
    "power_w": (("POWINST", 1.0), ("PINST", 1.0), ("POWER", 1.0)),
    "power_limit_w": (("PMLMT", 1.0),),
    "sm_clock_mhz": (("SMCLK", 1.0),),
    "mem_clock_mhz": (("MMCLK", 1.0),),
    "utilisation": (("GPUTL", 0.01), ("GRACT", 1.0)),
    "memory_utilisation": (("MCUTL", 0.01), ("DRAMA", 1.0)),
    "temperature_c": (("TMPTR", 1.0),),
}
EXPORTER: Sources = {
    "energy_j": (("dcgm_fi_dev_total_energy_consumption", 0.001),),
    "power_w": (("dcgm_fi_dev_power_usage_instant", 1.0), ("dcgm_fi_dev_power_usage", 1.0)),
    "power_limit_w": (("dcgm_fi_dev_enforced_power_limit", 1.0), ("dcgm_fi_dev_power_mgmt_limit", 1.0)),
    "sm_clock_mhz": (("dcgm_fi_dev_sm_clock", 1.0),),
    "mem_clock_mhz": (("dcgm_fi_dev_mem_clock", 1.0),),
    "utilisation": (("dcgm_fi_dev_gpu_util", 0.01), ("dcgm_fi_prof_gr_engine_active", 1.0)),
    "memory_utilisation": (("dcgm_fi_dev_mem_copy_util", 0.01), ("dcgm_fi_prof_dram_active", 1.0)),
    "temperature_c": (("dcgm_fi_dev_gpu_temp", 1.0),),
}
NUMBER = r"^\s*(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
MOST_W = 1e5  # no GPU draws more
NO_VALUE = 1e15  # DCGM's blanks begin above (dcgm_structs.h: 2^47 for doubles, 2^63 less a few for integers)
LATEST = 1e14  # no time is later, in seconds or milliseconds since 1970
TIMES = ("%Y/%m/%d %H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f")
ENTITY = re.compile(r"#\s*Entity\s+(?P<names>.+)$")
_WHEN = ("timestamp", "time", "ts", "datetime")
_WHICH = ("uuid", "gpu", "gpu_id", "minor_number", "device")
_HOSTS = ("hostname", "node", "instance")
BESIDE = 0.2  # of the pace: rows closer than this are of several GPUs


@checked
def read_nvidia_smi(path: str | Path) -> dict[str, pl.DataFrame]:
    """The traces in a CSV of `nvidia-smi --query-gpu=...`, by UUID, index or PCI address, or "0".

    Raises:
        UsageError: there is no header, timestamp or power in it, or nothing tells its GPUs apart.
    """
    lines = lines_of(path)
    wanted = "nvidia-smi --query-gpu=timestamp,index,power.draw,utilization.gpu --format=csv -lms 100"
    if not lines:
        raise UsageError(f"{Path(path).name} is empty; a trace comes from {wanted}")
    header = [re.sub(r"\s*\[.*?\]\s*$", "", name.strip()).lower() for name in rows_of(lines[:1], path)[0]]
    if "timestamp" not in header or not any(name in header for name, _ in NVIDIA_SMI["power_w"]):
        if re.match(r"\d{4}[/-]\d\d[/-]\d\d[ T]", lines[0]):
            raise UsageError(f"{Path(path).name} has no header: leave out `noheader`; as in {wanted}")
        missing = "timestamp" if "timestamp" not in header else "power.draw"
        raise UsageError(f"{Path(path).name} begins with {lines[0][:60]!r} and has no column {missing}; a "
                         f"trace comes from {wanted}")
    # Files that were appended to have the header again.
    table = _table(header, rows_of([line for line in lines[1:] if line != lines[0]], path))
    gpus = _column(table, "uuid", "gpu_uuid", "index", "pci.bus_id", "gpu_bus_id")
    frame = _frame(table, NVIDIA_SMI, civil(table["timestamp"], path), gpus)
    if gpus is None and _interleaved(frame["time_s"]):
        raise UsageError(f"{Path(path).name} has rows of several GPUs and no column that tells them apart; "
                         "add index or uuid to --query-gpu")
    return by_gpu(frame, path)


@checked
def read_dcgm(path: str | Path, *, every_s: float | None = None) -> dict[str, pl.DataFrame]:
    """The traces in output of `dcgmi dmon` or a CSV of DCGM metrics (wide, or `metric` and `value`), by GPU.

    Args:
        path: The file.
        every_s: How often `dcgmi dmon` wrote, which its output does not tell (`-d`, in milliseconds there).
            Not needed where each line begins with a time, as after `dcgmi dmon ... | ts %.s` or `ts '%F %T'`.

    Raises:
        UsageError: it is something else, has no power in it, or no time and no `every_s`.
    """
    lines = lines_of(path)
    if any(ENTITY.search(line) for line in lines[:200]):
        return _dmon(lines, path, every_s)
    header = [name.strip().strip('"').lower() for name in next(iter(rows_of(lines[:1], path)), [])]
    table = _table(header, rows_of(lines[1:], path))
    metric = next((name for name in ("metric", "__name__", "name") if name in table), None)
    if metric is not None and "value" in table:
        table = _wide(table, metric)
    times = _column(table, *_WHEN)
    if times is None or not any(name in table for name, _ in (*EXPORTER["power_w"], *EXPORTER["energy_j"])):
        raise UsageError(f"{Path(path).name} begins with {(lines or [''])[0][:60]!r}, which is neither the "
                         "output of `dcgmi dmon -e 155,203 -d 100` (a line '#Entity POWER ...' first) nor a "
                         "CSV with the columns timestamp, gpu and DCGM_FI_DEV_POWER_USAGE")
    hosts, gpus = _column(table, *_HOSTS), _column(table, *_WHICH)
    if hosts is not None:
        gpus = list(gpu_names(zip(hosts, gpus or ["0"] * len(hosts), strict=True)))
    return by_gpu(_frame(table, EXPORTER, civil(times, path), gpus), path)


def _dmon(lines: Sequence[str], path: str | Path, every_s: float | None) -> dict[str, pl.DataFrame]:
    names: list[str] = []
    rows: list[list[str | None]] = []
    for line in lines:
        if found := ENTITY.search(line):
            again = found["names"].split()
            if names and again != names:
                raise UsageError(f"{Path(path).name} has two kinds of rows ({' '.join(names)}; "
                                 f"{' '.join(again)}); split it")
            names = again
            continue
        fields = line.split()
        entity = len(fields) - len(names) - 2
        # units, other entities, a line that was cut off
        if entity < 0 or not re.fullmatch(r"v?GPU(-I|-CI)?", fields[entity]):
            continue
        when, gpu = " ".join(fields[:entity]), " ".join(fields[entity : entity + 2])
        rows.append([when or None, gpu, *fields[entity + 2 :]])
    table = _table(["", "#gpu", *names], rows)
    if not any(name in names for name, _ in (*DMON["power_w"], *DMON["energy_j"])):
        raise UsageError(
            f"{Path(path).name} has the fields {' '.join(names)} and no power; add 155 to `dcgmi dmon -e`"
        )
    if rows and rows[0][0] is not None:
        times = civil(table[""], path)
    elif every_s is None or not every_s > 0:
        raise UsageError(f"`dcgmi dmon` writes no times, and nothing says how often {Path(path).name} was "
                         "written; give what -d was, in seconds: read_dcgm(path, every_s=0.1)")
    else:
        numbers = pl.DataFrame({"gpu": table["#gpu"]}).select(pl.int_range(pl.len()).over("gpu"))
        times = numbers.to_series().cast(pl.Float64) * every_s
    return by_gpu(_frame(table, DMON, times, table["#gpu"]), path)


# what they share


def identity(labels: Mapping[str, str]) -> tuple[str, str]:
    """Host and GPU of a Prometheus series. A UUID stays the same where its exporter moves to another port."""
    lower = {name.lower(): value for name, value in labels.items()}
    gpu = next((lower[name] for name in _WHICH if name in lower), "0")
    hosts = _HOSTS[:1] if "uuid" in lower else _HOSTS
    host = next((lower[name] for name in hosts if name in lower), "")
    return host, f"{gpu} instance {lower['gpu_i_id']}" if lower.get("gpu_i_id") else gpu


def gpu_names(identities: Iterable[tuple[str | None, str | None]]) -> Iterator[str]:
    """What GPUs are called: by their host too where several hosts have a GPU of that name."""
    whole = list(identities)
    several = len(set(whole)) > len({gpu for _, gpu in whole})
    return (f"{host or ''} {gpu or ''}".strip() if several else gpu or "" for host, gpu in whole)


def bytes_of(path: str | Path) -> bytes:
    """What a file holds. Raises UsageError where it cannot be read."""
    try:
        return named_file(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error


def text_of(path: str | Path) -> str:
    """The text of a file, in UTF-8 or as PowerShell writes it."""
    raw = bytes_of(path)
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):  # a redirect of PowerShell
        return raw.decode("utf-16", errors="replace")
    return raw.decode("utf-8-sig", errors="replace")


def lines_of(path: str | Path) -> list[str]:
    """Lines that were written to their end."""
    text = text_of(path).replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    lines = text.split("\n")
    # no end of line: it may have been cut off in the middle of a number
    if lines and lines[-1] and len(lines) > 2:
        lines.pop()
    return [line.strip() for line in lines if line.strip()]


def rows_of(lines: Sequence[str], path: str | Path, separator: str = ",") -> list[list[str]]:
    """The rows of a table, as texts. Raises UsageError where it is none."""
    try:
        return list(csv.reader(lines, delimiter=separator))
    except csv.Error as error:
        raise UsageError(f"{Path(path).name} is no table that can be read: {error}") from error


def _column(table: Table, *names: str) -> list[str | None] | None:
    """The first of these columns that there is."""
    return next((table[name] for name in names if name in table), None)


def _table(header: Sequence[str], rows: Iterable[Sequence[str | None]]) -> Table:
    whole = [row for row in rows if len(row) == len(header)]
    return {name: [row[place] for row in whole] for place, name in enumerate(header)}


def _wide(table: Table, metric: str) -> Table:
    """A row per moment and GPU from a row per metric."""
    keys = [name for name in table if name in (*_WHEN, *_WHICH, *_HOSTS)]
    frame = pl.DataFrame(table, schema=dict.fromkeys(table, pl.String))
    lower = frame.with_columns(pl.col(metric).str.to_lowercase())
    wide = lower.pivot(metric, index=keys, values="value", aggregate_function="last")
    return {name: wide[name].to_list() for name in wide.columns}


def civil(written: list[str | None], path: str | Path) -> pl.Series:
    """Seconds since some moment, of civil times or of seconds or milliseconds since 1970."""
    texts = pl.Series("time_s", written, dtype=pl.String).str.strip_chars()
    plain = texts.str.strip_suffix("Z").str
    parsed = [plain.to_datetime(form, strict=False, time_unit="us") for form in TIMES]
    best = max(parsed, key=lambda each: each.len() - each.null_count())
    if best.len() and best.null_count() < best.len():
        since = best.dt.epoch("us")
        return (since - since.min()) / 1e6  # whole microseconds: seconds since 1970 are none of a double
    seconds = texts.cast(pl.Float64, strict=False)
    seconds = seconds.set((~(seconds.abs() < LATEST)).fill_null(True), None)
    if texts.len() and seconds.null_count() == seconds.len():
        raise UsageError(f"{Path(path).name} has times like {texts[0]!r}; known are 2026/11/20 10:11:12.123, "
                         "2026-11-20T10:11:12.123 and seconds since 1970")
    return seconds / 1000.0 if (seconds.max() or 0) > 1e11 else seconds  # type: ignore[operator]


def _frame(table: Table, sources: Sources, times: pl.Series, gpus: list[str | None] | None) -> pl.DataFrame:
    """All rows as a trace with the column `gpu`; a reading that the file does not have is null."""
    columns: dict[str, pl.Series] = {}
    for column, names in sources.items():
        for name, factor in names:
            if name not in table:
                continue
            values = (
                pl.Series(column, table[name], dtype=pl.String).str.extract(NUMBER)
                .cast(pl.Float64, strict=False)
            )
            values = values.set((~(values.abs() < NO_VALUE)).fill_null(True), None) * factor
            if column in ("power_w", "power_limit_w"):
                values = values.set(~values.is_between(0.0, MOST_W), None)
            if values.null_count() < values.len():
                columns[column] = values
                break
    which = gpus if gpus is not None else ["0"] * times.len()
    frame = pl.DataFrame({"time_s": times, **columns, "gpu": which})
    absent = {name: pl.lit(None, kind) for name, kind in SCHEMA.items() if name not in frame.columns}
    named = frame.with_columns(pl.col("gpu").cast(pl.String).str.strip_chars(), **absent)
    return named.filter(pl.col("time_s").is_not_null() & pl.col("gpu").is_not_null())


def by_gpu(frame: pl.DataFrame, path: str | Path) -> dict[str, pl.DataFrame]:
    """A trace for each GPU of a frame with `trace.SCHEMA` and `gpu`, from 0 s on. Raises UsageError without
    power.
    """
    if min(frame["power_w"].null_count(), frame["energy_j"].null_count()) == frame.height:
        raise UsageError(f"{Path(path).name} has {frame.height} whole rows and no power reading in them")
    shifted = frame.with_columns(pl.col("time_s") - pl.col("time_s").min())
    ordered = shifted.sort("time_s", maintain_order=True)
    single = ordered.unique(["gpu", "time_s"], keep="last", maintain_order=True)
    parts = single.partition_by("gpu", as_dict=True, maintain_order=True)
    return {str(key[0]): part.select(SCHEMA.names()).cast(SCHEMA) for key, part in sorted(parts.items())}


def _interleaved(times: pl.Series) -> bool:
    """Whether rows come in bunches: several GPUs are written within a few milliseconds, then comes a pause.
    """
    apart = times.sort().diff().drop_nulls().to_list()
    if not apart:
        return False
    pace_s = sorted(apart)[int(0.95 * (len(apart) - 1))]
    return bool(sum(each < BESIDE * pace_s for each in apart) > 0.3 * len(apart))
