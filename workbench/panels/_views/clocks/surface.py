"""A tuner's estimate of every setting, as a table; lines over one knob and cells over both clocks of it.

Times and energies are changes against the default in per cent. Errors are half widths of 95 % intervals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....search.tradeoff import Z95

if TYPE_CHECKING:
    import polars as pl

Table = np.ndarray[Any, np.dtype[np.float64]]
Spans = list[tuple[float, float]]

# Columns of the table.
LIMIT, SM, MEMORY, TIME, TIME_ERROR, ENERGY, ENERGY_ERROR, ALLOWED = range(8)
LEVELS = 6  # of the ground: any number from 4 to 12 looks alike


class Cell(NamedTuple):
    """A stretch of SM clocks in a row of one memory clock.

    Attributes:
        shade: From -`LEVELS` (as much is saved as anywhere) to `LEVELS` (as much more is spent).
    """

    start: float
    end: float
    row: int
    shade: int


def surface(belief: pl.DataFrame | None) -> Table:
    """A row for every setting; NaN where a knob is the driver's."""
    if belief is None:
        return np.empty((0, 8))
    names = ("time_ratio", "time_sd", "energy_ratio", "energy_sd")
    time, time_sd, energy, energy_sd = belief.select(names).to_numpy().T
    errors = 100 * Z95 * time * time_sd, 100 * Z95 * energy * energy_sd
    percent = [100 * (time - 1), errors[0], 100 * (energy - 1), errors[1]]
    knobs = belief.select("power_limit_w", "sm_clock_mhz", "mem_clock_mhz").to_numpy().astype(float)
    return np.column_stack([knobs, *percent, belief["p_allowed"].to_numpy() >= 0.5])


def line(table: Table, knob: str) -> Table:
    """The settings of one knob ("sm", "limit"), in its order."""
    column = SM if knob == "sm" else LIMIT
    rows = table[~np.isnan(table[:, column]) & ((column == SM) | np.isnan(table[:, SM]))]
    return rows[np.argsort(rows[:, column], kind="stable")]


def knobs_of(table: Table) -> list[str]:
    """Possible drawings: "clocks" (SM against memory), else the lines "sm" (one memory clock) and "limit"."""
    found = ["clocks" if len(memory_clocks(table)) > 1 else "sm"] if len(line(table, "sm")) else []
    return found + ["limit"] * bool(len(line(table, "limit")))


def memory_clocks(table: Table) -> list[int]:
    """In MHz, lowest first."""
    values = table[~np.isnan(table[:, SM]), MEMORY]
    return [int(value) for value in np.unique(values[~np.isnan(values)])]


def allowed(values: Table, flags: Table) -> Spans:
    """Ranges of allowed settings; each setting extends half way to its neighbours."""
    edges = _edges(values)
    ends = np.flatnonzero(np.diff(np.concatenate([[0], flags > 0, [0]])))
    return [(float(edges[first]), float(edges[after])) for first, after in ends.reshape(-1, 2)]


def cells(table: Table) -> tuple[list[Cell], list[Cell]]:
    """Cells of one shade each, and those within the slowdown limit."""
    best = np.nanmax(np.abs(table[:, ENERGY]), initial=1.0)
    shaded, kept = list[Cell](), list[Cell]()
    for number, memory in enumerate(memory_clocks(table)):
        rows = line(table[table[:, MEMORY] == memory], "sm")
        shades = np.round(LEVELS * np.nan_to_num(rows[:, ENERGY] / best)).astype(int)
        shaded += [Cell(*span, number, shade) for shade in np.unique(shades) if shade
                   for span in allowed(rows[:, SM], shades == shade)]
        kept += [Cell(*span, number, 0) for span in allowed(rows[:, SM], rows[:, ALLOWED])]
    return shaded, kept


def opacity(shade: int) -> float:
    """Of the ground of a shade."""
    return float(0.06 + (0.5 if shade < 0 else 0.2) * (abs(shade) / LEVELS) ** 1.5)


def _edges(values: Table) -> Table:
    """Half way between neighbours; the outer ones as far again."""
    if len(values) < 2:
        return np.concatenate([values - 1, values + 1])
    between = (values[1:] + values[:-1]) / 2
    return np.concatenate([[2 * values[0] - between[0]], between, [2 * values[-1] - between[-1]]])
