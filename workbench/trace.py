"""Power traces: a plain Polars frame with `SCHEMA`.

A row is one look at one GPU, at `time_s`. `tick_s` is the moment of the last refresh of what energy comes
from, to which `energy_j` belongs, `power_tick_s` that of the power reading (null while they are not known).
Values that a GPU does not report are null.
"""

from __future__ import annotations

import io

import polars as pl

from .errors import UsageError

_FLOATS = (
    "time_s", "tick_s", "energy_j", "power_w", "power_tick_s", "power_limit_w", "sm_clock_mhz",
    "mem_clock_mhz", "utilisation", "memory_utilisation", "temperature_c",
)
SCHEMA = pl.Schema({**dict.fromkeys(_FLOATS, pl.Float64), "throttle": pl.UInt64})


def duration_s(trace: pl.DataFrame) -> float:
    """Time from the first row to the last; 0 for fewer than two."""
    times = trace["time_s"]
    return float(times[-1] - times[0]) if len(times) > 1 else 0.0


def read_parquet(raw: bytes, name: str) -> pl.DataFrame:
    """The table in the content of a Parquet file.

    Raises:
        UsageError: more than 100 million values: a small file may have any number of equal ones.
        PolarsError, PanicException: damaged.
    """
    scan = pl.scan_parquet(io.BytesIO(raw))
    rows, columns = scan.select(pl.len()).collect().item(), len(scan.collect_schema())
    if rows * columns > 1e8:
        raise UsageError(f"{name} has {rows:,} rows of {columns} columns; up to 100 million values are read. Keep "
                         "fewer rows or columns")
    return scan.collect()


def moments(texts: pl.Series) -> tuple[pl.Series, bool]:
    """Microseconds since 1970 of times as text, null where it is no time; and whether they are civil times
    without a zone, of which the place is not known (then as in UTC).

    Takes dates (2026/11/20 10:11:12.123, 2026-11-20T10:11:12+02:00, 20.11.2026 10:11:12, 11/20/2026 10:11:12,
    2026/11/20-10:11:12) and numbers: seconds, or from 1e11 on milli-, micro- or nanoseconds.
    """
    zones = texts.str.extract_groups(r"(?i):\d\d(?:[.,]\d+)?\s*(?:(Z|UTC|GMT)|([+-])(\d\d):?(\d\d)?)$").struct
    minutes = 60 * zones.field("3").cast(pl.Int64) + zones.field("4").cast(pl.Int64).fill_null(0)
    ahead_us = (minutes * 60_000_000).zip_with(zones.field("2") != "-", -minutes * 60_000_000).fill_null(0)
    plain = texts.str.replace(r"(?i)(:\d\d(?:[.,]\d+)?)\s*(?:Z|UTC|GMT|[+-]\d\d:?(?:\d\d)?)$", "$1")
    plain = plain.str.replace(",", ".", literal=True)
    dates = plain.str.replace(r"^(\d{4})[/.-](\d+)[/.-](\d+)[T _-]*(\d)", "$1-$2-$3 $4")
    known = pl.Series(dtype=pl.Datetime("us")).extend_constant(None, len(texts))
    for form in ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%a %b %d"):
        ends = (" %H:%M:%S %Y",) if "%a" in form else (" %H:%M:%S%.f", " %H:%M")
        for end in ends:
            if known.null_count():
                known = known.zip_with(known.is_not_null(), dates.str.to_datetime(
                    form + end, strict=False, time_unit="us"))
    if known.count():
        zoned = zones.field("1").count() + zones.field("2").count() > 0
        return known.dt.epoch("us") - ahead_us, not zoned
    numbers = plain.str.extract(r"^([+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*m?s?$").cast(pl.Float64, strict=False)
    numbers = numbers.set((numbers.is_finite() & (numbers.abs() < 1e19)).not_().fill_null(True), None)
    scale = 1e3 if plain.str.ends_with("ms").any() else 1e6
    while (numbers.max() or 0.0) * scale > 1e17:  # of the year 5138
        scale /= 1e3
    return (numbers * scale).round().cast(pl.Int64, strict=False), False
