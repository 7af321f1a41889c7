"""Power traces: a plain Polars frame with `SCHEMA`.

A row is one look at one GPU, at `time_s`. `tick_s` is the moment of the last refresh of what energy comes
from, to which `energy_j` belongs, `power_tick_s` that of the power reading (null while they are not known).
Values that a GPU does not report are null.
"""

from __future__ import annotations

import io
from typing import Any

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
        raise UsageError(f"{name} has {rows:,} rows of {columns} columns; up to 100 million values are read. "
                         "Keep fewer rows or columns")
    return scan.collect()


def moments(texts: pl.Series) -> tuple[pl.Series, bool]:
    """Microseconds since 1970 of times as text, null where it is no time; and whether they are civil times
    without a zone, of which the place is not known (then as in UTC).

    Takes dates (2026/11/20 10:11:12.123, 2026-11-20T10:11:12+02:00, 20.11.2026 10:11:12, 11/20/2026 10:11:12,
    2026/11/20-10:11:12) and numbers: seconds, or from 1e11 on milli-, micro- or nanoseconds.
    """
    plain = texts.str.replace(",", ".", literal=True)
    zones = plain.str.extract(r"(?i):\d\d(?:\.\d+)?\s*(Z|UTC|GMT|[+-]\d\d:?(?:\d\d)?)$")
    dates = plain.str.replace(r"(?i)(:\d\d(?:\.\d+)?)\s*(Z|UTC|GMT|[+-]\d\d:?(?:\d\d)?)$", "$1")
    dates = dates.str.replace(r"^(\d{4})[/.-](\d+)[/.-](\d+)[T _-]*(\d)", "$1-$2-$3 $4")
    dates = dates.str.replace(r"( \d+:\d+)$", "$1:00")
    forms = ("%Y-%m-%d %H:%M:%S%.f", "%d.%m.%Y %H:%M:%S%.f", "%m/%d/%Y %H:%M:%S%.f")
    known = (dates.str.to_datetime(form, strict=False, time_unit="us") for form in forms)
    if (civil := pl.select(pl.coalesce(known)).to_series()).count():
        ahead = zones.str.extract_groups(r"([+-]\d\d):?(\d\d)?").struct
        hours, minutes = (ahead.field(place).cast(pl.Float64).fill_null(0) for place in ("1", "2"))
        ahead_us = 3.6e9 * hours + 6e7 * minutes * hours.sign()
        return civil.dt.epoch("us") - ahead_us.cast(pl.Int64), not zones.count()
    numbers = plain.str.extract(r"^([+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*s?$").cast(pl.Float64, strict=False)
    numbers = numbers.set(~(numbers.abs() < 1e19), None)
    highest: Any = numbers.max() or 0.0
    scale = 1e6
    while highest * scale > 1e17:  # of the year 5138
        scale /= 1e3
    return (numbers * scale).round().cast(pl.Int64, strict=False), False
