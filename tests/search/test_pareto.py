"""The frontier: exact, pooled, with its uncertainty, and what one may ask of it."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common import area
from workbench.errors import UsageError
from workbench.search import frontier
from workbench.search.tradeoff import collect


def points(*rows: tuple[float, float], **columns: list[object]) -> pl.DataFrame:
    return pl.DataFrame(
        {"time_s": [float(t) for t, _ in rows], "energy_j": [float(e) for _, e in rows], **columns}
    )


FRONT = points((1, 10), (2, 6), (4, 3), (8, 2))
some = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=40)


def beaten(row: tuple[float, float], others: list[tuple[float, float]]) -> bool:
    return any(t <= row[0] and e <= row[1] and (t, e) != row for t, e in others)


@given(some)
def test_the_frontier_is_what_nothing_beats_and_each_point_once(rows: list[tuple[float, float]]) -> None:
    found = frontier.frontier(points(*rows)).select("time_s", "energy_j").rows()
    assert found == sorted({row for row in rows if not beaten(row, rows)})


@given(some, st.randoms(use_true_random=False))
def test_the_order_of_the_points_does_not_matter(rows: list[tuple[float, float]], random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(rows)
    random.shuffle(shuffled)
    one, other = (frontier.frontier(points(*each)).select("time_s", "energy_j") for each in (rows, shuffled))
    assert one.equals(other)


@given(some)
def test_the_hypervolume_is_the_number_of_unit_squares_that_are_dominated(
    rows: list[tuple[float, float]],
) -> None:
    squares = sum(any(t <= x and e <= y for t, e in rows) for x in range(1, 13) for y in range(1, 13))
    time_s, energy_j = np.array(rows, float).T
    assert area(time_s, energy_j, 13.0, 13.0) == pytest.approx(squares)


def test_a_point_outside_the_reference_adds_no_area() -> None:
    assert area(np.array([5.0]), np.array([1.0]), 4.0, 4.0) == 0.0


def test_columns_that_are_not_understood_stay_with_their_rows() -> None:
    assert frontier.frontier(points((2, 1), (1, 2), (3, 3), note=["x", "y", "z"]))["note"].to_list() == [
        "y",
        "x",
    ]


# repeats and uncertainty


def test_repeats_are_pooled_with_the_error_of_their_mean() -> None:
    frame = points((1, 10), (3, 14), (5, 5), power_limit_w=[100, 100, 200])
    pooled = collect(frame).points
    assert pooled["repeats"].to_list() == [2, 1]
    assert pooled.select("time_s", "energy_j").row(0) == (2.0, 12.0)
    assert pooled["time_se_s"].to_list() == [pytest.approx(1.0), 0.0]  # spread sqrt(2), two of them


def test_repeats_that_agree_by_chance_keep_their_own_errors() -> None:
    frame = points((1, 10), (1, 10), power_limit_w=[100, 100], time_se_s=[0.3, 0.4])
    assert collect(frame).points["time_se_s"].item() == pytest.approx(0.25)


def test_a_driver_s_choice_is_a_configuration_too() -> None:
    frame = points((1, 10), (1, 12), (2, 8), power_limit_w=[None, None, 100])
    assert collect(frame).points["repeats"].to_list() == [2, 1]


def test_without_errors_a_point_is_on_the_frontier_or_not() -> None:
    assert frontier.membership(points((1, 2), (2, 1), (2, 2))).tolist() == [1.0, 1.0, 0.0]


def test_two_indistinguishable_points_share_the_probability() -> None:
    frame = points((1, 10), (2, 5), (2, 5), (3, 50), time_se_s=[0, 0, 0, 0], energy_se_j=[0.1, 0.5, 0.5, 0.5])
    chance = frontier.membership(frame, draws=2000)
    assert chance[0] == 1.0
    assert chance[1] == pytest.approx(0.5, abs=0.05)
    assert chance[1] + chance[2] == pytest.approx(1.0)
    assert chance[3] == 0.0


def test_pruning_clearly_dominated_points_changes_no_probability() -> None:
    rng = np.random.default_rng(3)
    frame = points(*rng.uniform(1, 10, (60, 2)).tolist()).with_columns(
        time_se_s=pl.lit(0.2), energy_se_j=pl.lit(0.2)
    )
    time_s, energy_j = frame["time_s"].to_numpy(), frame["energy_j"].to_numpy()
    counts = np.zeros(60)
    for _ in range(3000):
        counts[
            frontier.on_frontier(
                time_s + 0.2 * rng.standard_normal(60), energy_j + 0.2 * rng.standard_normal(60)
            )
        ] += 1
    assert np.abs(frontier.membership(frame, draws=3000) - counts / 3000).max() < 0.05


# choices


def test_the_knee_is_where_the_frontier_bends() -> None:
    assert frontier.knee(points((0.001, 10), (1, 1), (10, 0.001))) == 1
    assert frontier.knee(points((1, 2))) == 0


def test_a_lost_selection_goes_to_the_nearest_row() -> None:
    assert frontier.nearest(FRONT, 3.9, 3.1) == 2


def test_the_distance_to_the_frontier_is_the_possible_saving() -> None:
    assert frontier.distance(FRONT, 5.0, 7.0) == frontier.Distance(energy_j=4.0, time_s=3.0)
    assert math.isnan(frontier.distance(FRONT, 0.5, 20.0).energy_j)


# bad input


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (points().clear(), "no points yet"),
        (pl.DataFrame({"time_s": [1.0]}), "no column 'energy_j'"),
        (points((1, 2), (math.nan, 2)), "row 1 .* time_s of nan"),
        (points((1, 2), (1, -2)), "row 1 .* energy_j of -2"),
        (points((1, math.inf)), "of inf"),
        (pl.DataFrame({"time_s": ["fast"], "energy_j": [1.0]}), "are numbers"),
    ],
)
def test_points_that_are_none_are_named(frame: pl.DataFrame, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        frontier.frontier(frame)


def test_one_point_is_a_frontier() -> None:
    assert frontier.frontier(points((1, 2))).height == 1


def test_a_negative_error_is_refused() -> None:
    with pytest.raises(UsageError, match="0 or more"):
        frontier.membership(points((1, 2), time_se_s=[-1.0]))
