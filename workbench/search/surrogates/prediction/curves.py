"""A training frame as relative curves: one row a workload, one column a setting but the reference (1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from ....errors import UsageError

Array = np.ndarray[Any, Any]
NEEDED = ("workload", "iteration_s", "power_w")
KNOBS = ("sm_clock_mhz", "mem_clock_mhz", "power_limit_w")
# Power limit over power at the reference: where curves over limits are read.
CAPS = 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3
LEAST_WORKLOADS = 8


@dataclass(frozen=True)
class Nodes:
    """The settings that a training set tells of.

    Attributes:
        x, mu: SM and memory clock relative to the highest, (nodes,).
        cap: Power limit over what the workload draws at the reference, (nodes,); 1 = no limit bites.
        max_sm_clock_mhz, max_mem_clock_mhz: What 1 stands for; None where no clock was set.
    """

    x: Array
    mu: Array
    cap: Array
    max_sm_clock_mhz: float | None
    max_mem_clock_mhz: float | None

    def __len__(self) -> int:
        return len(self.x)

    @property
    def inputs(self) -> Array:
        return np.column_stack([self.x, self.mu, self.cap])


@dataclass(frozen=True)
class Curves:
    """Relative time and power of every workload.

    Attributes:
        features: (workloads, names); NaN = not told.
        power_w: Mean power at the reference, (workloads,).
        log_time, log_power: ln of the ratio to the reference, (workloads, nodes); NaN = not measured.
        dropped: Workloads that could not be used, each with the reason.
    """

    nodes: Nodes
    names: tuple[str, ...]
    workloads: tuple[str, ...]
    groups: tuple[str, ...]
    features: Array
    power_w: Array
    power_unit_w: float
    log_time: Array
    log_power: Array
    dropped: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.workloads)

    def part(self, keep: Array) -> Curves:
        """Some of the workloads."""
        at = np.flatnonzero(keep)
        return replace(
            self, workloads=tuple(self.workloads[i] for i in at), groups=tuple(self.groups[i] for i in at),
            features=self.features[at], power_w=self.power_w[at], log_time=self.log_time[at],
            log_power=self.log_power[at],
        )


def curves_of(frame: pl.DataFrame, names: Sequence[str]) -> Curves:
    """Relative curves of a training frame.

    Args:
        frame: One row a workload and setting: workload, group, sm_clock_mhz, mem_clock_mhz, power_limit_w
            (null = the driver's), iteration_s, power_w, features (those of the rows at the reference count),
            and optionally `reference`: true at the setting that the GPU runs by default; without it that is
            the highest clocks and limit.
        names: Features to use; those that the frame does not have, or never tells, are left out.

    Raises:
        UsageError: columns are missing, values cannot be, or too few workloads are left.
    """
    rows = _checked(frame)
    tops = rows.filter("_reference")
    numbers = [name for name in names if name in rows.columns and rows[name].is_not_null().any()]
    base = tops.group_by("workload", maintain_order=True).agg(
        pl.col("group").first(), pl.col("iteration_s").mean(), pl.col("power_w").mean(),
        *(pl.col(name).mean() for name in numbers),
    )
    known = set(base["workload"].to_list())
    lost = [each for each in rows["workload"].unique(maintain_order=True).to_list() if each not in known]
    dropped = tuple(f"{each}: not measured at the reference" for each in lost)
    if base.height < LEAST_WORKLOADS:
        raise UsageError(
            f"a model needs {LEAST_WORKLOADS} workloads measured at the reference and below, this training "
            f"set has {base.height}; `workbench profile-gpu` collects one"
        )
    heads = base.select("workload", top_s="iteration_s", top_w="power_w")
    others = rows.filter(~pl.col("_reference")).join(heads, on="workload")
    others = others.with_columns(
        lt=(pl.col("iteration_s") / pl.col("top_s")).log(), lp=(pl.col("power_w") / pl.col("top_w")).log()
    )
    max_sm, max_mem = _highest(rows, "sm_clock_mhz"), _highest(rows, "mem_clock_mhz")
    order = {name: row for row, name in enumerate(base["workload"].to_list())}
    clocked = _by_clock(others.filter(pl.col("power_limit_w").is_null()), order, max_sm, max_mem)
    capped = _by_cap(others.filter(pl.col("power_limit_w").is_not_null()), order)
    x, mu, cap, log_time, log_power = (
        np.concatenate(parts, axis=-1) for parts in zip(clocked, capped, strict=True)
    )
    if not len(x):
        raise UsageError(
            "this training set tells of one setting only; measure every workload at some lower clocks or "
            "limits too"
        )
    features = base.select(numbers).to_numpy().astype(float) if numbers else np.empty((base.height, 0))
    power_w = base["power_w"].to_numpy().astype(float)
    if "power_share" in numbers:
        unit_w = float(np.nanmedian(power_w / features[:, numbers.index("power_share")]))
    else:
        unit_w = float(power_w.max())
        numbers, features = [*numbers, "power_share"], np.column_stack([features, power_w / unit_w])
    nodes = Nodes(x, mu, cap, max_sm, max_mem)
    return Curves(
        nodes, tuple(numbers), tuple(order), tuple(base["group"].to_list()), features, power_w, unit_w,
        log_time, log_power, dropped,
    )


def _checked(frame: pl.DataFrame) -> pl.DataFrame:
    missing = [name for name in NEEDED if name not in frame.columns]
    if missing:
        raise UsageError(
            f"a training set needs the columns {', '.join(NEEDED)}; {', '.join(missing)} is not there"
        )
    if all(name not in frame.columns for name in KNOBS):
        raise UsageError(
            f"a training set needs at least one of the columns {', '.join(KNOBS)}; none is there"
        )
    absent = [name for name in KNOBS if name not in frame.columns]
    rows = frame.with_columns(pl.lit(None, pl.Float64).alias(name) for name in absent)
    if "group" not in rows.columns:
        rows = rows.with_columns(group=pl.col("workload"))
    rows = rows.with_columns(
        pl.col("workload", "group").cast(pl.String), pl.col(*KNOBS, "iteration_s", "power_w").cast(pl.Float64)
    )
    measured = pl.col("iteration_s", "power_w")
    good = pl.all_horizontal((measured > 0) & measured.is_finite()).fill_null(False)
    bad = rows.filter(~good)
    if bad.height:
        one = bad.row(0, named=True)
        raise UsageError(
            f"{bad.height} of {rows.height} rows have no time or power above zero (first: {one['workload']}, "
            f"{one['iteration_s']} s, {one['power_w']} W); leave them out"
        )
    # A limit as high as any changes nothing: it is the default, told in another way.
    highest = pl.col("power_limit_w").max()
    rows = rows.with_columns(power_limit_w=pl.when(pl.col("power_limit_w") < highest).then("power_limit_w"))
    if "reference" in rows.columns:
        return rows.with_columns(_reference=pl.col("reference").fill_null(False))
    at_top = [pl.col(name).eq_missing(pl.col(name).max()) for name in ("sm_clock_mhz", "mem_clock_mhz")]
    return rows.with_columns(_reference=pl.all_horizontal(*at_top, pl.col("power_limit_w").is_null()))


def _highest(rows: pl.DataFrame, name: str) -> float | None:
    value = rows[name].max()
    return None if value is None else float(value)  # type: ignore[arg-type]


Columns = tuple[Array, Array, Array, Array, Array]


def _by_clock(
    rows: pl.DataFrame, order: dict[str, int], max_sm: float | None, max_mem: float | None
) -> Columns:
    rows = rows.with_columns(
        x=(pl.col("sm_clock_mhz") / max_sm).fill_null(1.0) if max_sm else pl.lit(1.0),
        mu=(pl.col("mem_clock_mhz") / max_mem).fill_null(1.0) if max_mem else pl.lit(1.0),
    )
    given = rows.group_by("x", "mu").agg(pl.col("workload").n_unique())
    keys = given.filter(pl.col("workload") >= LEAST_WORKLOADS).select("x", "mu")
    keys = keys.sort("mu", "x", descending=True)
    column = {key: at for at, key in enumerate(keys.rows())}
    times, powers = np.full((len(order), keys.height), np.nan), np.full((len(order), keys.height), np.nan)
    means = rows.join(keys, on=["x", "mu"]).group_by("workload", "x", "mu").agg(pl.col("lt", "lp").mean())
    for workload, x, mu, lt, lp in means.select("workload", "x", "mu", "lt", "lp").rows():
        times[order[workload], column[x, mu]], powers[order[workload], column[x, mu]] = lt, lp
    x, mu = (keys[name].to_numpy().astype(float) for name in ("x", "mu"))
    return x, mu, np.ones(keys.height), times, powers


def _by_cap(rows: pl.DataFrame, order: dict[str, int]) -> Columns:
    """Curves over limits, read at equal shares of the workload's own power; logarithms interpolated."""
    # A lock and a limit at once tell of neither.
    rows = rows.filter(pl.col("sm_clock_mhz").is_null() & pl.col("mem_clock_mhz").is_null())
    caps = np.array(CAPS if rows.height else ())
    times, powers = np.full((len(order), len(caps)), np.nan), np.full((len(order), len(caps)), np.nan)
    shares = rows.with_columns(c=pl.col("power_limit_w") / pl.col("top_w"))
    shares = shares.group_by("workload", "c").agg(pl.col("lt", "lp").mean())
    for (workload,), mine in shares.filter(pl.col("c") < 1).sort("c").group_by("workload"):
        at = np.log([*mine["c"].to_list(), 1.0])
        inside = np.log(caps) >= at[0] - 1e-9
        row = order[str(workload)]
        times[row, inside] = np.interp(np.log(caps[inside]), at, [*mine["lt"].to_list(), 0.0])
        powers[row, inside] = np.interp(np.log(caps[inside]), at, [*mine["lp"].to_list(), 0.0])
    given = np.isfinite(times).sum(axis=0) >= LEAST_WORKLOADS
    ones = np.ones(int(given.sum()))
    return ones, ones, caps[given], times[:, given], powers[:, given]
