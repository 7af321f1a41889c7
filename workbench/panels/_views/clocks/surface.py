"""What a tuner believes of every setting, as a table and as what is drawn of it: lines over one knob, cells
over both clocks.

Times and energies are changes against the default in per cent. Errors are half widths of 95 % intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....search.tradeoff import Z95

if TYPE_CHECKING:
    import polars as pl

Table = np.ndarray[Any, np.dtype[np.float32]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Columns = dict[str, list[Any]]

COLUMNS = (
    "power_limit_w", "sm_clock_mhz", "mem_clock_mhz", "time", "time_error", "energy", "energy_error",
    "allowed",
)
LEVELS = 6  # of the ground
DEEPEST = 30.0  # per cent of more energy, beyond which the ground gets no darker


def surface(belief: pl.DataFrame | None) -> Table:
    """A row of `COLUMNS` for every setting; NaN where a knob is the driver's."""
    if belief is None or not belief.height:
        return np.empty((0, len(COLUMNS)), np.float32)
    time, energy = _floats(belief["time_ratio"]), _floats(belief["energy_ratio"])
    columns = [
        *(_floats(belief[name]) for name in COLUMNS[:3]),
        100 * (time - 1), 100 * Z95 * time * _floats(belief["time_sd"]),
        100 * (energy - 1), 100 * Z95 * energy * _floats(belief["energy_sd"]),
        _floats(belief["p_allowed"]) >= 0.5,
    ]
    return np.column_stack(columns).astype(np.float32)


def knobs_of(table: Table) -> list[str]:
    """What can be drawn: "clocks" (SM against memory), else the lines "sm" (one memory clock) and "limit"."""
    clocks = table[~np.isnan(table[:, 1])]
    found = []
    if len(clocks):
        found.append("clocks" if len(memory_clocks(table)) > 1 else "sm")
    if (~np.isnan(table[:, 0]) & np.isnan(table[:, 1])).any():
        found.append("limit")
    return found


def memory_clocks(table: Table) -> tuple[int, ...]:
    """In MHz, lowest first."""
    values = table[~np.isnan(table[:, 1]), 2]
    return tuple(int(value) for value in np.unique(values[~np.isnan(values)]))


def line(table: Table, knob: str) -> Columns:
    """The settings of one knob in its order; missing is None."""
    column = COLUMNS.index("sm_clock_mhz" if knob == "sm" else "power_limit_w")
    rows = table[~np.isnan(table[:, column]) & ((knob == "sm") | np.isnan(table[:, 1]))]
    rows = rows[np.argsort(rows[:, column], kind="stable")]
    spans = list(_allowed(rows[:, column], rows[:, 7] > 0))
    values = {"x": rows[:, column], **{name: rows[:, COLUMNS.index(name)] for name in COLUMNS[3:7]}}
    return {
        **{
            name: [round(float(v), 3) if math.isfinite(v) else None for v in each]
            for name, each in values.items()
        },
        "allowed_from": [x0 for x0, _ in spans], "allowed_to": [x1 for _, x1 in spans],
    }


def cells(table: Table) -> tuple[Columns, Columns]:
    """Stretches of SM clocks, in rows of memory clocks: those of one shade, and those that keep the bound.

    Shades go from -`LEVELS` (as much is saved as anywhere) to `LEVELS` (much more is spent).
    """
    best = max(-float(np.nanmin(table[:, 5], initial=0.0)), 1.0)
    shaded: Columns = {"from": [], "to": [], "row": [], "shade": []}
    allowed: Columns = {"from": [], "to": [], "row": []}
    for row, memory in enumerate(memory_clocks(table)):
        rows = table[(table[:, 2] == memory) & ~np.isnan(table[:, 1])]
        rows = rows[np.argsort(rows[:, 1], kind="stable")]
        edges, shades = _edges(rows[:, 1]), _shade(rows[:, 5], best)
        changes = np.flatnonzero(np.diff(shades)) + 1
        for first, after in zip([0, *changes], [*changes, len(shades)], strict=True):
            if shades[first]:
                add_row(shaded, (float(edges[first]), float(edges[after]), row, int(shades[first])))
        for x0, x1 in _allowed(rows[:, 1], rows[:, 7] > 0):
            add_row(allowed, (x0, x1, row))
    return shaded, allowed


def opacity(shade: int) -> float:
    """Of the ground of a shade."""
    deepest = 0.5 if shade < 0 else 0.2
    return float(0.06 + deepest * (abs(shade) / LEVELS) ** 1.5)


def _shade(energy: Table, best: float) -> np.ndarray[Any, np.dtype[np.int_]]:
    scaled = np.where(energy < 0, energy / best, energy / DEEPEST)
    return np.asarray(np.round(LEVELS * np.clip(np.nan_to_num(scaled), -1, 1))).astype(np.int_)


def _allowed(values: Table, flags: Flags) -> Iterator[tuple[float, float]]:
    """From where to where settings are allowed; each reaches half way to its neighbours."""
    edges = _edges(values)
    changes = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    for first, after in zip(changes[::2], changes[1::2], strict=True):
        yield float(edges[first]), float(edges[after])


def _edges(values: Table) -> Table:
    """Half way between neighbours; the outer ones as far again."""
    if len(values) < 2:
        return np.concatenate([values - 1, values + 1])
    between = (values[1:] + values[:-1]) / 2
    return np.concatenate([[2 * values[0] - between[0]], between, [2 * values[-1] - between[-1]]])


def add_row(columns: Columns, row: Sequence[Any]) -> None:
    """A value for each of the columns."""
    for values, value in zip(columns.values(), row, strict=True):
        values.append(value)


def _floats(column: pl.Series) -> np.ndarray[Any, Any]:
    import polars as pl

    return column.cast(pl.Float64).fill_null(math.nan).to_numpy()
