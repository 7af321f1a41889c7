"""What a trace gives: numbers on paper, and a sentence where there is no number."""

from __future__ import annotations

import polars as pl
import pytest

from workbench import trace
from workbench.errors import UsageError
from workbench.records import Window


def a_trace(time_s: list[float], power_w: list[float | None]) -> pl.DataFrame:
    return pl.DataFrame(
        {"time_s": time_s, "power_w": power_w}, schema={"time_s": pl.Float64, "power_w": pl.Float64}
    )


RAMP = a_trace([0.0, 1.0, 3.0], [100.0, 200.0, 200.0])


def test_energy_is_the_area_and_power_its_mean_over_time() -> None:
    assert trace.duration_s(RAMP) == 3.0
    assert trace.energy_j(RAMP) == 550.0  # 1 s x 150 W and 2 s x 200 W
    assert trace.mean_power_w(RAMP) == pytest.approx(550 / 3)


def test_rows_without_power_are_bridged_and_never_count_as_zero() -> None:
    assert trace.energy_j(a_trace([0.0, 1.0, 2.0], [100.0, None, 300.0])) == 400.0
    assert trace.mean_power_w(a_trace([0.0, 1.0, 2.0], [None, 100.0, 100.0])) == 100.0


@pytest.mark.parametrize(
    "few", [a_trace([], []), a_trace([1.0], [100.0]), a_trace([1.0, 2.0], [None, 100.0])]
)
def test_less_than_two_readings_have_no_energy_and_no_mean(few: pl.DataFrame) -> None:
    assert trace.energy_j(few) == 0.0
    with pytest.raises(UsageError, match="mean power needs two readings"):
        trace.mean_power_w(few)


def test_a_cut_keeps_the_edges_by_interpolation() -> None:
    part = trace.cut(RAMP, Window("w", 0.5, (), end_s=2.0))
    assert part.rows() == [(0.5, 150.0), (1.0, 200.0), (2.0, 200.0)]
    assert trace.energy_j(part) == 287.5


def test_neighbouring_cuts_add_up() -> None:
    whole = trace.cut(RAMP, Window("w", 0.25, (), end_s=2.75))
    parts = [trace.cut(RAMP, Window("w", a, (), end_s=b)) for a, b in ((0.25, 0.6), (0.6, 1.9), (1.9, 2.75))]
    assert sum(map(trace.energy_j, parts)) == pytest.approx(trace.energy_j(whole))


def test_a_cut_is_never_wider_than_the_trace() -> None:
    assert trace.cut(RAMP, Window("w", -5.0, (), end_s=50.0)).rows() == RAMP.rows()
    assert trace.cut(RAMP, Window("w", 4.0, (), end_s=5.0)).is_empty()
    assert trace.cut(RAMP.clear(), Window("w", 0.0, (), end_s=5.0)).is_empty()


def test_a_cut_keeps_the_columns_and_their_types() -> None:
    whole = pl.DataFrame({name: [0, 2] for name in trace.SCHEMA.names()}, schema=trace.SCHEMA)
    part = trace.cut(whole, Window("w", 0.5, (), end_s=1.5))
    assert part.schema == trace.SCHEMA
    assert part["power_w"].to_list() == [0.5, 1.5]
    assert part["sm_clock_mhz"].to_list() == [None, None]  # a clock was not read there


def test_an_open_window_cuts_nothing() -> None:
    with pytest.raises(UsageError, match=r"window 'epoch' is still open; close it before"):
        trace.cut(RAMP, Window("epoch", 0.0, ()))


def test_resampling_gives_means_of_bins_and_leaves_gaps() -> None:
    frame = a_trace([0.0, 0.5, 1.0, 1.5, 5.0], [100.0, 200.0, 300.0, 500.0, 50.0])
    assert trace.resample(frame, 1.0).rows() == [(0.5, 150.0), (1.5, 400.0), (5.5, 50.0)]


@pytest.mark.parametrize("every_s", [0.0, -1.0, float("nan")])
def test_resampling_needs_a_positive_step(every_s: float) -> None:
    with pytest.raises(UsageError, match=f"a positive number of seconds, not {every_s:g}"):
        trace.resample(RAMP, every_s)
