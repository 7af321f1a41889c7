"""Effect of a power limit and a locked clock on training, from the measured traces: speed and power above
idle, by share of the highest setting.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from workbench.cluster import CapLevel

IDLE_SHARE = 0.15  # of the highest limit: a V100 of 250 W idles at 35 to 40 W; other boards are much alike
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5)

# A workload: settings, seconds of the same work, mean watts
Curve = tuple[np.ndarray, np.ndarray, np.ndarray]


def limit_curves(data: Path) -> list[Curve]:
    """Every network on every card of the sweeps of power limits, files found by their columns."""
    curves: list[Curve] = []
    for path in sorted((data / "zeus").glob("*.csv")):
        frame = pl.read_csv(path, infer_schema_length=None)
        if {"network", "power_limit", "time_per_epoch", "average_power"} <= set(frame.columns):
            per_run = frame.group_by("network", "batch_size", "optimizer", "power_limit").agg(
                pl.col("time_per_epoch", "average_power").mean()
            )
            for _, network in per_run.group_by("network", maintain_order=False):
                top = (
                    network.sort("power_limit")
                    .group_by("batch_size", "optimizer")
                    .agg(pl.col("time_per_epoch").last().alias("top_s"))
                )
                # Batch sizes differ in length; each counts the same in its network's mean.
                joined = network.join(top, on=["batch_size", "optimizer"]).with_columns(
                    (pl.col("time_per_epoch") / pl.col("top_s")).alias("time")
                )
                curves.append(
                    _curve(
                        joined.group_by("power_limit").agg(
                            pl.col("time").mean(), pl.col("average_power").mean()
                        ),
                        "power_limit",
                    )
                )
        elif {"window_name", "elapsed_time"} <= set(frame.columns):
            energy = [name for name in frame.columns if re.fullmatch(r"gpu\d+_energy", name)]
            limits = [
                float(match[1]) if (match := re.search(r"(\d+)$", name)) else None
                for name in frame["window_name"]
            ]
            if energy and None not in limits:
                frame = frame.with_columns(
                    pl.Series("power_limit", limits), pl.col("elapsed_time").alias("time"),
                    (pl.sum_horizontal(energy) / len(energy) / pl.col("elapsed_time")).alias("average_power"),
                )
                curves.append(_curve(frame, "power_limit"))
    return [curve for curve in curves if len(curve[0]) >= 3]


def clock_curves(data: Path) -> list[Curve]:
    """Every training pipeline of the sweeps of SM clocks, forward and backward of all stages together."""
    curves: list[Curve] = []
    for path in sorted((data / "clocks").glob("*.csv")):
        frame = pl.read_csv(path, infer_schema_length=None)
        if {"stage", "instruction", "frequency", "time", "energy"} <= set(frame.columns):
            whole = (
                frame.group_by("frequency")
                .agg(pl.col("time", "energy").sum())
                .with_columns((pl.col("energy") / pl.col("time")).alias("average_power"))
            )
            curves.append(_curve(whole, "frequency"))
    return curves


def levels(curves: Sequence[Curve], top_w: float, *, idle_w: float | None = None) -> tuple[CapLevel, ...]:
    """Mean speed and power above idle of all workloads at each share of the highest setting.

    Args:
        top_w: The highest power limit of the node's GPUs, by which the levels are named.
        idle_w: Idle power of the measured card, where its setting is no power limit; else `IDLE_SHARE` of its
            highest limit.
    """
    found = []
    lowest_speed = lowest_active = 1.0
    for share in SHARES:
        speeds, power, top = [], 0.0, 0.0
        for settings, seconds, watts in curves:
            if share * settings[-1] < settings[0]:
                continue
            idle = IDLE_SHARE * settings[-1] if idle_w is None else idle_w
            at = share * settings[-1]
            speeds.append(seconds[-1] / float(np.interp(at, settings, seconds)))
            power += float(np.interp(at, settings, watts)) - idle
            top += float(watts[-1]) - idle
        if speeds:
            # Measurements scatter; a lower limit is neither faster nor hungrier.
            lowest_speed, lowest_active = (
                min(lowest_speed, float(np.mean(speeds))), min(lowest_active, max(float(power / top), 0.0)),
            )
            found.append(CapLevel(round(share * top_w, 1), round(lowest_speed, 4), round(lowest_active, 4)))
    return tuple(found)


def _curve(frame: pl.DataFrame, setting: str) -> Curve:
    frame = frame.sort(setting)
    return (
        frame[setting].cast(pl.Float64).to_numpy(), frame["time"].to_numpy(),
        frame["average_power"].to_numpy(),
    )
