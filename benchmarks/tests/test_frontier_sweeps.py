"""Problems of the frontier benchmark, and their scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from benchmarks.fixtures.grids import FAMILIES, KINDS, sweep
from benchmarks.frontier_sweeps import AXES, family, problem, problems, ratios


def _stages(path: Path, slower: float) -> None:
    """Two stages of the same numbers, and one that takes `slower` times as long at the lowest clocks."""
    clocks = range(900, 1500, 15)
    rows = [
        (stage, "forward", clock, (1500 / clock) ** (slower if stage == 2 else 1.0), 100 + clock / 30)
        for stage in range(3)
        for clock in clocks
    ]
    names = ["stage", "instruction", "frequency", "time", "energy"]
    path.parent.mkdir(parents=True)
    pl.DataFrame(rows, schema=names, orient="row").write_csv(path)


def test_a_curve_that_stands_twice_is_one_problem(tmp_path: Path) -> None:
    _stages(tmp_path / "clocks" / "some_card.csv", slower=1.2)
    assert list(problems(tmp_path)) == ["some_card stage 0 forward", "some_card stage 2 forward"]


def test_nothing_there_is_no_problem(tmp_path: Path) -> None:
    assert problems(tmp_path) == {}


def test_families() -> None:
    names = ("v100 squad adamw", "some_card stage 7 forward", "cards mm")
    assert [family(name) for name in names] == ["v100", "some_card forward passes", "cards"]


def test_what_one_measurement_solves_is_scored_by_measurements_not_by_ratio() -> None:
    """The fastest of six is the cheapest too, so that one who knows needs one."""
    clocks = [600, 700, 800, 900, 1000, 1100]
    frame = pl.DataFrame({"sm_clock_mhz": clocks, "time_s": [6.0, 5, 4, 3, 2, 1], "energy_j": clocks[::-1]})
    row: dict[str, Any] = problem("cards easy", frame, seeds=2)
    assert row["one"]
    assert row["extra"] == row["ours"] - 1
    hard = {"family": "cards", "one": False, "ratio": 0.5}
    assert ratios([row, hard, hard | {"ratio": 1.5}]) == {"cards": 1.0}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_generated_sweep_is_a_problem(name: str, kind: str) -> None:
    frame = sweep(name, kind, 3)
    assert frame.equals(sweep(name, kind, 3))
    axes = frame.columns[:-2]
    assert set(axes) < set(AXES)
    assert frame.select(axes).is_unique().all()
    values = frame.select("time_s", "energy_j").to_numpy()
    assert np.isfinite(values).all()
    assert (values > 0).all()
