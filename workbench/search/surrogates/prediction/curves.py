"""A training frame as relative curves: one row per workload, one column per setting except the reference (1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from ....errors import UsageError

Array = np.ndarray
NEEDED = ("workload", "iteration_s", "power_w")
KNOBS = ("sm_clock_mhz", "mem_clock_mhz", "power_limit_w")
# Power limit over power at the reference: where curves over limits are read.
CAPS = 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3
LEAST_WORKLOADS = 8


@dataclass(frozen=True)
class Nodes:
    """The settings of a training set.

    Attributes:
        x, mu: SM and memory clock relative to the highest, (nodes,).
        cap: Power limit over the workload's power at the reference, (nodes,); 1 = the limit has no effect.
        max_sm_clock_mhz, max_mem_clock_mhz: Clock of the value 1; None if no clock was set.
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
class RelativeCurves:
    """Relative time and power of every workload.

    Attributes:
        features: (workloads, names); NaN = not reported.
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

    def part(self, keep: Array) -> RelativeCurves:
        """Some of the workloads."""
        at = np.flatnonzero(keep)
        return replace(
            self, workloads=tuple(self.workloads[i] for i in at), groups=tuple(self.groups[i] for i in at),
            features=self.features[at], power_w=self.power_w[at], log_time=self.log_time[at],
            log_power=self.log_power[at],
        )


def curves_of(frame: pl.DataFrame, names: Sequence[str]) -> RelativeCurves:
    """Relative curves of a training frame.

    Args:
        frame: One row per workload and setting: workload, group, sm_clock_mhz, mem_clock_mhz, power_limit_w
            (null = the driver's), iteration_s, power_w, features (those of the rows at the reference count),
            and optionally `reference`. It is true at the GPU's default setting; without it that is the
            highest clocks and limit.
        names: Features to use; those that the frame lacks, or that are never known, are left out.

    Raises:
        UsageError: Missing columns, impossible values, or too few remaining workloads.
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
    long = pl.concat([_by_clock(others, max_sm, max_mem), _by_cap(others)])
    keys = long.group_by("x", "mu", "cap").agg(pl.col("workload").n_unique())
    keys = keys.filter(pl.col("workload") >= LEAST_WORKLOADS).drop("workload")
    keys = keys.sort("cap", "mu", "x", descending=True)
    if keys.is_empty():
        raise UsageError(
            "this training set has one setting only; measure every workload at some lower clocks or limits "
            "too"
        )
    order = {name: row for row, name in enumerate(base["workload"].to_list())}
    column = {key: at for at, key in enumerate(keys.rows())}
    log_time, log_power = np.full((2, len(order), len(column)), np.nan)
    for workload, *key, lt, lp in long.join(keys, on=keys.columns).rows():
        log_time[order[workload], column[tuple(key)]] = lt
        log_power[order[workload], column[tuple(key)]] = lp
    features = base.select(numbers).to_numpy().astype(float) if numbers else np.empty((base.height, 0))
    power_w = base["power_w"].to_numpy().astype(float)
    if "power_share" in numbers:
        unit_w = float(np.nanmedian(power_w / features[:, numbers.index("power_share")]))
    else:
        unit_w = float(power_w.max())
        numbers, features = [*numbers, "power_share"], np.column_stack([features, power_w / unit_w])
    x, mu, cap = (keys[name].to_numpy() for name in ("x", "mu", "cap"))
    nodes = Nodes(x, mu, cap, max_sm, max_mem)
    return RelativeCurves(
        nodes, tuple(numbers), tuple(order), tuple(base["group"].to_list()), features, power_w, unit_w,
        log_time, log_power, dropped,
    )


def _checked(frame: pl.DataFrame) -> pl.DataFrame:
    missing = [name for name in NEEDED if name not in frame.columns]
    if missing:
        raise UsageError(
            f"a training set needs the columns {', '.join(NEEDED)}; {', '.join(missing)} is not there"
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
    # A limit as high as the highest has no effect: it is the default in another notation.
    highest = pl.col("power_limit_w").max()
    rows = rows.with_columns(power_limit_w=pl.when(pl.col("power_limit_w") < highest).then("power_limit_w"))
    if "reference" in rows.columns:
        return rows.with_columns(_reference=pl.col("reference").fill_null(False))
    at_top = [pl.col(name).eq_missing(pl.col(name).max()) for name in ("sm_clock_mhz", "mem_clock_mhz")]
    return rows.with_columns(_reference=pl.all_horizontal(*at_top, pl.col("power_limit_w").is_null()))


def _highest(rows: pl.DataFrame, name: str) -> float | None:
    value = rows[name].max()
    return None if value is None else float(value)  # type: ignore[arg-type]


def _by_clock(rows: pl.DataFrame, max_sm: float | None, max_mem: float | None) -> pl.DataFrame:
    """Mean logarithms by workload and setting (x, mu, cap), where no limit was set."""
    rows = rows.filter(pl.col("power_limit_w").is_null()).with_columns(
        x=(pl.col("sm_clock_mhz") / (max_sm or 1.0)).fill_null(1.0),
        mu=(pl.col("mem_clock_mhz") / (max_mem or 1.0)).fill_null(1.0), cap=1.0,
    )
    return rows.group_by("workload", "x", "mu", "cap", maintain_order=True).agg(pl.col("lt", "lp").mean())


def _by_cap(rows: pl.DataFrame) -> pl.DataFrame:
    """Curves over limits, read at equal shares of the workload's own power; logarithms interpolated."""
    # A lock and a limit immediately are evidence of neither.
    alone = pl.col("sm_clock_mhz").is_null() & pl.col("mem_clock_mhz").is_null()
    shares = rows.filter(alone, pl.col("power_limit_w").is_not_null())
    shares = shares.with_columns(c=pl.col("power_limit_w") / pl.col("top_w")).filter(pl.col("c") < 1)
    found = []
    for (workload,), mine in shares.sort("c").group_by("workload"):
        at = np.log([*mine["c"], 1.0])
        caps = np.array([cap for cap in CAPS if np.log(cap) >= at[0] - 1e-9])
        lt, lp = (np.interp(np.log(caps), at, [*mine[name], 0.0]) for name in ("lt", "lp"))
        found += [(workload, 1.0, 1.0, *each) for each in zip(caps, lt, lp, strict=True)]
    kinds = {"workload": pl.String} | dict.fromkeys(("x", "mu", "cap", "lt", "lp"), pl.Float64)
    return pl.DataFrame(found, schema=kinds, orient="row")
