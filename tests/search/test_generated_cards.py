"""Generated cards over clocks, the searches' figures on them, and which online jobs a quick look takes."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from benchmarks import clocks_jobs, clocks_online, clocks_search
from benchmarks.clocks_grids import Grid
from benchmarks.fixtures.cards import CLOCK_FAMILIES, clock_grid


def grids(family: str, count: int = 6) -> list[Grid]:
    return clocks_search.generated(family, count)


def shape(grid: Grid) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Relative clock, time and energy at the highest memory clock, from the lowest clock up."""
    logs, times, energies = grid.rows[grid.mem_clocks_mhz[0]]
    return np.exp(logs - logs[-1]), np.exp(times - times[-1]), np.exp(energies - energies[-1])


@pytest.mark.parametrize("family", CLOCK_FAMILIES)
def test_every_family_is_the_same_each_time_and_no_two_cards_are_alike(family: str) -> None:
    first, again = clock_grid(family, 3), clock_grid(family, 3)
    assert first.equals(again)
    assert not first.equals(clock_grid(family, 4))
    for name in ("time_s", "energy_j"):
        assert bool((first[name] > 0).all())
        assert bool(first[name].is_finite().all())
    assert first["power_limit_w"].null_count() == first.height


def test_each_family_has_the_property_in_its_name() -> None:
    assert all(len(grid.mem_clocks_mhz) == 1 for grid in grids("plain"))
    counts = {len(grid.mem_clocks_mhz) for grid in grids("memories", 24)}
    assert min(counts) == 2
    assert max(counts) == 5
    for grid in grids("twentieth"):
        clocks = [clock or 0 for clock in grid.mem_clocks_mhz]
        assert clocks[-1] == pytest.approx(0.05 * clocks[0], rel=0.03)
    for grid in grids("flattened"):
        x, time_s, energy_j = shape(grid)
        upper = x > 0.96
        assert np.abs(np.log(time_s[upper])).max() < 0.03  # noise alone
        assert np.abs(np.log(energy_j[upper])).max() < 0.03
    jumps = [float(np.abs(np.diff(np.log(shape(grid)[1]))).max()) for grid in grids("steps")]
    assert min(jumps) > 0.03
    flat = [int((shape(grid)[2] < 1.03 * shape(grid)[2].min()).sum()) for grid in grids("flat")]
    assert np.median(flat) >= 10
    low = [float(shape(grid)[0][np.argmin(shape(grid)[2])]) for grid in grids("low", 12)]
    assert 0.2 < float(np.median(low)) < 0.5


def test_families_that_constants_were_chosen_on_are_half_of_all() -> None:
    assert len(clocks_search.CHOSEN_ON) * 2 == len(CLOCK_FAMILIES)


def test_each_family_has_its_figures_also_where_nothing_was_measured(
    tmp_path, monkeypatch: pytest.MonkeyPatch  # type: ignore[no-untyped-def]
) -> None:
    monkeypatch.setattr(clocks_search, "GENERATED", 3)
    monkeypatch.setattr(clocks_search, "NOISES", (0.01, 0.02, 0.03))
    monkeypatch.setattr(clocks_search, "CLOCK_FAMILIES", ("plain", "waits"))
    monkeypatch.setattr(clocks_search, "CHOSEN_ON", ("plain",))
    monkeypatch.setattr(clocks_search, "_all", _alone)
    summary = clocks_search.search(tmp_path, True)["summary"]
    assert set(summary["by_family"]) == {"plain", "waits"}
    assert set(summary["generated"]) == {"chosen_on", "left_out"}
    for row in summary["by_family"].values():
        for key in ("share", "kept", "slowdown", "trials", "excess", "choice_beyond"):
            assert math.isfinite(row[key])
    assert summary["generated"]["left_out"]["trials"] == summary["by_family"]["waits"]["trials"]


def _alone(tasks):  # type: ignore[no-untyped-def]
    import polars as pl

    return pl.DataFrame([clocks_search.one(task) for task in tasks], infer_schema_length=None)


def test_the_first_jobs_are_even_over_cards_and_workloads() -> None:
    jobs = list(clocks_jobs.simulated_jobs([0]))
    ordered = clocks_online.spread(jobs)
    assert sorted(map(repr, ordered)) == sorted(map(repr, jobs))
    cards = len(clocks_jobs.CARDS)
    for most in (cards, 2 * cards, 3 * cards):
        seen = Counter(job.card for job in ordered[:most])
        assert set(seen.values()) == {most // cards}
        workloads = Counter(job.parts[0].workload for job in ordered[:most])
        assert max(workloads.values()) - min(workloads.values()) <= 2
    share = sum(job.told for job in jobs) / len(jobs)
    assert sum(job.told for job in ordered[: 3 * cards]) / (3 * cards) == pytest.approx(share, abs=0.15)
