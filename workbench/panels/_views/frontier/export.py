"""A frontier as the bytes of a file."""

from __future__ import annotations

import io

import polars as pl

from ....errors import UsageError
from ....search.tradeoff import FrontierAnalysis


def table_file(seen: FrontierAnalysis, row: int, what: str) -> bytes:
    """The points with what is known of each ("csv" or "parquet"); `row` is the one that is chosen.

    Raises:
        UsageError: another kind of file.
    """
    if what not in ("csv", "parquet"):
        hint = "; the panel's own button makes PNG" if what == "png" else ""
        raise UsageError(f"a frontier is exported as .svg, .csv or .parquet, not as .{what}{hint}")
    rows = pl.Series(range(len(seen.points)))
    frame = seen.points.with_columns(
        on_frontier=rows.is_in(seen.front.tolist()), frontier_probability=pl.Series(seen.chance),
        chosen=rows == row,
    )
    if what == "csv":
        return frame.with_columns(pl.col("measurements").list.join(" ")).write_csv().encode()
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()
