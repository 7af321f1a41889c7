"""Measured grids of time and energy over settings, as one tidy frame per problem, with an interpolation rule.

A problem was run at many settings of one GPU: a kernel, an application, a pass of a pipeline stage, a
training. The columns identify the type of a file, so that files of another GPU can be read, too:

    clocks/*.csv                       kernel | application | stage and instruction, by SM (and memory) clock
    zeus/summary_power_*.csv           trainings of a batch size, by power limit
    zeus/power_limit_windows_*.csv     forty iterations, by power limit
    counters/*_{applications,microbenchmarks}.csv     by SM (and memory) clock

The rule for settings without a measurement: at one memory clock, the logarithms of time and of energy are
linear in the logarithm of the SM clock (of the power limit) between measured neighbours. There are no values
beyond the lowest and highest measured clock of that memory clock, and none between memory clocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from workbench.records import Setting

Array = np.ndarray[Any, Any]

SCHEMA = pl.Schema(
    {
        "sm_clock_mhz": pl.Int64, "mem_clock_mhz": pl.Int64, "power_limit_w": pl.Float64,
        "time_s": pl.Float64, "energy_j": pl.Float64,
    }
)
EMPTY = ["nan", "NaN"]  # what cells hold that were not measured, next to nothing
SAME = 0.001  # curves that differ by less than this share everywhere are one
STEP_MHZ = 15  # between the SM clocks of most cards' lists


@dataclass(frozen=True)
class Grid:
    """One problem on one GPU.

    Attributes:
        file: Stem of the file that it comes from.
        kind: "kernels", "applications", "stages", "trainings", "windows" or "counters".
        problem: Which of the file's.
        points: Measured points (`SCHEMA`); a knob that was not turned is null throughout. `time_s` and
            `energy_j` are of one execution.
    """

    file: str
    kind: str
    problem: str
    points: pl.DataFrame

    @property
    def name(self) -> str:
        return f"{self.file}: {self.problem}"

    @property
    def by_limit(self) -> bool:
        """Whether power limits were measured, not clocks."""
        return self.points["power_limit_w"].null_count() == 0

    @cached_property
    def mem_clocks_mhz(self) -> tuple[int | None, ...]:
        """Memory clocks, highest first; (None,) where there was one that nobody wrote down."""
        found = self.points["mem_clock_mhz"].unique().to_list()
        return tuple(sorted(found, key=lambda clock: -(clock or 0)))

    @cached_property
    def rows(self) -> dict[int | None, tuple[Array, Array, Array]]:
        """By memory clock: log of the knob ascending, log time, log energy; repeated measurements are
        averaged.
        """
        knob = "power_limit_w" if self.by_limit else "sm_clock_mhz"
        found = {}
        for mem in self.mem_clocks_mhz:
            mine = (
                self.points.filter(pl.col("mem_clock_mhz").eq_missing(mem))
                .group_by(knob)
                .agg(pl.col("time_s", "energy_j").log().mean())
            )
            mine = mine.sort(knob)
            found[mem] = (
                np.log(mine[knob].to_numpy().astype(float)), mine["time_s"].to_numpy(),
                mine["energy_j"].to_numpy(),
            )
        return found

    @cached_property
    def reference(self) -> Setting:
        """The highest memory clock and at it the highest SM clock; the highest power limit."""
        mem = self.mem_clocks_mhz[0]
        top = math.exp(self.rows[mem][0][-1])
        return (
            Setting(power_limit_w=round(top, 6))
            if self.by_limit
            else Setting(sm_clock_mhz=round(top), mem_clock_mhz=mem)
        )

    def settings(self, step_mhz: int | None = STEP_MHZ) -> tuple[Setting, ...]:
        """Measured settings, highest first, and (except for power limits) the SM clocks between in steps;
        None: only measured settings.

        A memory clock with only one measured SM clock has only that.
        """
        found = []
        for mem, (logs, _, _) in self.rows.items():
            measured = [round(value, 6) for value in np.exp(logs).tolist()]
            if self.by_limit:
                found += [Setting(power_limit_w=watts) for watts in reversed(measured)]
                continue
            clocks = {round(clock) for clock in measured}
            if step_mhz and len(clocks) > 1:
                lowest, highest = min(clocks), max(clocks)
                clocks |= {highest - step_mhz * i for i in range((highest - lowest) // step_mhz + 1)} - _near(
                    clocks, step_mhz
                )
            found += [
                Setting(sm_clock_mhz=clock, mem_clock_mhz=mem) for clock in sorted(clocks, reverse=True)
            ]
        return tuple(found)

    def at(self, setting: Setting) -> tuple[float, float]:
        """Time (s) and energy (J) of one execution at a setting, measured or interpolated. A memory clock of
        None is the highest.

        Raises:
            ValueError: A setting beyond the measured ones.
        """
        times, energies = self.table([setting])
        return float(times[0]), float(energies[0])

    def table(self, settings: Sequence[Setting]) -> tuple[Array, Array]:
        """Times and energies, each (settings,), as `at`."""
        times, energies = np.empty(len(settings)), np.empty(len(settings))
        for number, setting in enumerate(settings):
            knob = setting.power_limit_w if self.by_limit else setting.sm_clock_mhz
            mem = self.mem_clocks_mhz[0] if setting.mem_clock_mhz is None else setting.mem_clock_mhz
            if mem not in self.rows or knob is None:
                raise ValueError(f"{self.name} was not measured at {setting}")
            logs, log_times, log_energies = self.rows[mem]
            at = math.log(knob)
            if not logs[0] - 1e-9 <= at <= logs[-1] + 1e-9:
                low, high = np.exp(logs[[0, -1]])
                raise ValueError(f"{self.name} was measured from {low:g} to {high:g} there, not at {setting}")
            times[number] = math.exp(float(np.interp(at, logs, log_times)))
            energies[number] = math.exp(float(np.interp(at, logs, log_energies)))
        return times, energies

    def optimum(self, settings: Sequence[Setting], max_slowdown: float | None = None) -> Setting:
        """The setting of least energy whose time is at most (1 + max_slowdown) of the reference's."""
        times, energies = self.table(settings)
        allowed = (
            np.full(len(settings), True)
            if max_slowdown is None
            else times <= (1 + max_slowdown) * self.at(self.reference)[0]
        )
        if not allowed.any():
            return self.reference
        return settings[int(np.argmin(np.where(allowed, energies, np.inf)))]


def grids(
    data: Path,
    kinds: Sequence[str] = ("kernels", "applications", "stages", "trainings", "windows", "counters"),
) -> list[Grid]:
    """Every grid of these kinds below a folder, by file and problem; points that lack a setting, a time or an
    energy are left out, and then problems of fewer than three points.
    """
    found = []
    for path in sorted(
        [*data.glob("clocks/*.csv"), *data.glob("counters/*.csv"), *data.glob("zeus/*power*.csv")]
    ):
        frame = pl.read_csv(path, infer_schema_length=None, null_values=EMPTY)
        reader = next((read for columns, read in _READERS if columns <= set(frame.columns)), None)
        if reader is None:
            continue
        kind, tidy = reader(frame, path)
        if kind not in kinds:
            continue
        for (problem,), part in tidy.group_by("problem", maintain_order=True):
            points = complete(part)
            if points.height >= 3:
                found.append(Grid(path.stem, kind, str(problem), points))
    return found


def complete(points: pl.DataFrame) -> pl.DataFrame:
    """In the columns of `SCHEMA`, those that have a clock or a limit, and a time and an energy above zero."""
    return points.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items()).filter(
        pl.any_horizontal(pl.col("sm_clock_mhz", "power_limit_w").is_not_null()),
        *(pl.col(name).is_finite() & (pl.col(name) > 0) for name in ("time_s", "energy_j")),
    )


def distinct(found: Sequence[Grid]) -> list[Grid]:
    """Without those whose numbers another one has, which would count a curve twice."""
    kept: list[Grid] = []
    shapes: list[Array] = []
    for grid in found:
        shape = _shape(grid)
        if not any(each.shape == shape.shape and np.abs(each - shape).max() < SAME for each in shapes):
            kept.append(grid)
            shapes.append(shape)
    return kept


def _shape(grid: Grid) -> Array:
    """Settings, and times and energies over those at the reference, sorted."""
    knobs = ("power_limit_w", "sm_clock_mhz", "mem_clock_mhz")
    points = grid.points.with_columns(pl.col(knobs).fill_null(0).cast(pl.Float64)).sort(knobs)
    values = (pl.col(each) / pl.col(each).last() for each in ("time_s", "energy_j"))
    return points.select(*knobs, *values).to_numpy()


def whole_iterations(stages: Sequence[Grid]) -> list[Grid]:
    """Forward and backward of each stage summed, as one problem a stage: what a stage's GPU does for one
    micro-batch.
    """
    found: dict[tuple[str, str], list[Grid]] = {}
    for grid in stages:
        found.setdefault((grid.file, grid.problem.rpartition(" ")[0]), []).append(grid)
    knobs = ["sm_clock_mhz", "mem_clock_mhz", "power_limit_w"]
    summed = []
    for (file, stage), parts in found.items():
        points = pl.concat(part.points for part in parts).group_by(knobs, maintain_order=True)
        both = (
            points.agg(pl.col("time_s", "energy_j").sum(), parts=pl.len())
            .filter(pl.col("parts") == len(parts))
            .drop("parts")
        )
        summed.append(Grid(file, "stages", stage, both))
    return summed


def _near(clocks: set[int], step_mhz: int) -> set[int]:
    """Clocks that are within half a step of one of these, without these: neighbours that no list has both
    of.
    """
    reach = (step_mhz - 1) // 2
    return {clock + i for clock in clocks for i in range(-reach, reach + 1)} - clocks


def _kernels(frame: pl.DataFrame, _path: Path) -> tuple[str, pl.DataFrame]:
    return "kernels", _clocked(frame, pl.col("kernel"))


def _applications(frame: pl.DataFrame, _path: Path) -> tuple[str, pl.DataFrame]:
    return "applications", _clocked(frame, pl.format("{} {}", "application", "argument"))


def _clocked(frame: pl.DataFrame, problem: pl.Expr) -> pl.DataFrame:
    return frame.select(
        "sm_clock_mhz", problem=problem,
        mem_clock_mhz="mem_clock_mhz" if "mem_clock_mhz" in frame.columns else pl.lit(None, pl.Int64),
        power_limit_w=pl.lit(None, pl.Float64), time_s=pl.col("time_ms") / 1e3,
        energy_j=pl.col("time_ms") / 1e3 * pl.col("power_w"),
    )


def _stages(frame: pl.DataFrame, _path: Path) -> tuple[str, pl.DataFrame]:
    return "stages", frame.select(
        problem=pl.format("stage {} {}", "stage", "instruction"), sm_clock_mhz="frequency",
        mem_clock_mhz=pl.lit(None, pl.Int64), power_limit_w=pl.lit(None, pl.Float64), time_s="time",
        energy_j="energy",
    )


def _trainings(frame: pl.DataFrame, _path: Path) -> tuple[str, pl.DataFrame]:
    return "trainings", frame.select(
        "power_limit_w" if "power_limit_w" in frame.columns else pl.col("power_limit").alias("power_limit_w"),
        problem=pl.format("{} {} {} {}", "dataset", "network", "batch_size", "optimizer"),
        sm_clock_mhz=pl.lit(None, pl.Int64), mem_clock_mhz=pl.lit(None, pl.Int64), time_s="time_per_epoch",
        energy_j=pl.col("time_per_epoch") * pl.col("average_power"),
    )


def _windows(frame: pl.DataFrame, path: Path) -> tuple[str, pl.DataFrame]:
    energies = [name for name in frame.columns if name.startswith("gpu") and name.endswith("_energy")]
    return "windows", frame.select(
        power_limit_w=pl.col("window_name").str.extract(r"(\d+)$").cast(pl.Float64),
        problem=pl.lit(path.stem), sm_clock_mhz=pl.lit(None, pl.Int64), mem_clock_mhz=pl.lit(None, pl.Int64),
        time_s="elapsed_time", energy_j=pl.sum_horizontal(energies),
    ).drop_nulls("power_limit_w")


def _counters(frame: pl.DataFrame, _path: Path) -> tuple[str, pl.DataFrame]:
    return "counters", frame.select(
        problem=pl.format("{} {} {}", "benchmark", "kernel", "argNo"), sm_clock_mhz="core_frequency",
        mem_clock_mhz="memory_frequency", power_limit_w=pl.lit(None, pl.Float64), time_s="time",
        energy_j=pl.col("time") * pl.col("average_power"),
    )


_READERS = (
    ({"kernel", "sm_clock_mhz", "time_ms", "power_w"}, _kernels),
    ({"application", "argument", "sm_clock_mhz", "time_ms", "power_w"}, _applications),
    ({"stage", "instruction", "frequency", "time", "energy"}, _stages),
    ({"dataset", "network", "batch_size", "power_limit", "time_per_epoch", "average_power"}, _trainings),
    ({"window_name", "elapsed_time"}, _windows),
    (
        {"benchmark", "kernel", "argNo", "core_frequency", "memory_frequency", "average_power", "time"},
        _counters,
    ),
)
