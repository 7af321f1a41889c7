"""The generated cards, curves that stand twice, and the benchmark of power limits on other cards' data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks import limits
from benchmarks.clocks_grids import distinct
from benchmarks.fixtures.cards import FAMILIES, curve


@pytest.mark.parametrize("family", FAMILIES)
def test_a_generated_card_saves_something_and_is_the_same_again(family: str) -> None:
    for seed in range(12):
        made = curve(family, seed)
        assert made.equals(curve(family, seed))
        assert made.select(pl.all_horizontal(pl.col("time_s", "energy_j").is_finite().all())).item()
        assert (made["time_s"] > 0).all()
        assert made["power_limit_w"].is_sorted()
    least = [float(curve(family, seed)["energy_j"].min() / curve(family, seed)["energy_j"][-1])  # type: ignore[operator]
             for seed in range(12)]
    assert min(least) < 0.95


def test_a_cliff_makes_a_higher_limit_slower() -> None:
    falls = [np.diff(curve("cliff", seed)["time_s"].to_numpy()).max() for seed in range(12)]
    assert max(falls) > 0.02


def test_limits_of_other_cards_are_read_and_a_curve_that_stands_twice_counts_once(tmp_path: Path) -> None:
    (tmp_path / "limits").mkdir()
    one, other = (curve("plain", seed) for seed in (1, 2))
    twice = one.with_columns(workload=pl.lit("again"), time_s=2 * pl.col("time_s"))
    pl.concat([one, other, twice]).write_csv(tmp_path / "limits" / "another.csv")
    found = limits.measured(tmp_path)
    kept = (one, other)
    assert [grid.problem for grid in found] == [f"{each['gpu'][0]} {each['workload'][0]}" for each in kept]
    assert found[0].by_limit
    assert distinct(found) == found


def test_without_any_measured_curve_generated_cards_are_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FAMILIES", ("plain", "flat"))
    monkeypatch.setattr(limits, "GENERATED", 6)
    summary = limits.limits(tmp_path, True)["summary"]
    assert summary["measured"] is False
    assert set(summary) >= {"regret_1", "regret_2", "worst", "broken", "probes", "generated"}
