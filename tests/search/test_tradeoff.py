"""A choice on a frontier: its reference, its slowdown limit, and its saving."""

from __future__ import annotations

import math
import re

import polars as pl
import pytest

from workbench.errors import UsageError
from workbench.records import Configuration, Setting
from workbench.search.tradeoff import (
    FrontierAnalysis,
    Work,
    analyse_frontier,
    best_configuration,
    collect,
    configuration,
    describe,
    find,
    follow,
    python,
    savings,
)

LIMITS = pl.DataFrame(
    {
        "power_limit_w": [300.0, 250.0, 200.0, 150.0],
        "time_s": [10.0, 10.4, 12.0, 20.0],
        "energy_j": [3000.0, 2600.0, 2200.0, 2400.0],
    }
)


def seen(frame: pl.DataFrame = LIMITS) -> FrontierAnalysis:
    return analyse_frontier(collect(frame).points)


def at(limit_w: float | None, batch_size: int | None = None) -> Configuration:
    return Configuration(Setting(power_limit_w=limit_w), batch_size)


def test_repeats_are_pooled_with_their_spread_and_their_measurements() -> None:
    points = collect(
        pl.DataFrame(
            {
                "time_s": [10.0, 12.0, 5.0],
                "energy_j": [100.0, 104.0, 300.0],
                "power_limit_w": [100.0, 100.0, 200.0],
                "measurement": ["a", "b", None],
            }
        )
    ).points
    assert points["time_s"].to_list() == [11.0, 5.0]
    assert points["energy_se_j"].to_list() == [
        pytest.approx(2.0),
        0.0,
    ]  # of the mean of two: half of their distance
    assert points["repeats"].to_list() == [2, 1]
    assert points["measurements"].to_list() == [["a", "b"], []]


def test_points_that_nothing_names_are_not_pooled() -> None:
    assert len(collect(pl.DataFrame({"time_s": [1.0, 2.0], "energy_j": [2.0, 1.0]})).points) == 2


def test_a_prediction_gives_way_to_a_measurement_of_the_same_configuration() -> None:
    points = collect(
        LIMITS.head(2)
        .with_columns(measured=pl.Series([True, False]))
        .vstack(LIMITS.head(2).with_columns(pl.lit(9.0).alias("time_s"), measured=pl.Series([False, False])))
    ).points
    assert points.select("power_limit_w", "time_s", "measured").rows() == [
        (300.0, 10.0, True),
        (250.0, 9.7, False),
    ]


@pytest.mark.parametrize(
    ("value", "words_of_it"),
    [
        (math.nan, "nan as its"),
        (-1.0, "-1 as its"),
        (math.inf, "inf as its"),
        (0.0, "0 as its"),
        (None, "no"),
    ],
)
def test_an_impossible_row_is_left_out_and_reported(
    value: float | None, words_of_it: str
) -> None:
    frame = LIMITS.with_columns(energy_j=pl.Series([3000.0, value, 2200.0, 2400.0], dtype=pl.Float64))
    points, said = collect(frame)[:2]
    assert points["power_limit_w"].to_list() == [300.0, 200.0, 150.0]
    (note,) = said
    assert note.startswith("1 of 4")
    assert note.endswith(f"{words_of_it} energy_j)")


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (LIMITS.clear(), "no points"),
        (LIMITS.drop("energy_j"), "'energy_j'"),
        (LIMITS.with_columns(energy_j=pl.lit("much")), "are numbers"),
        (
            LIMITS.with_columns(time_s=pl.lit(math.nan)),
            "row 0 .* time_s of nan",
        ),
    ],
)
def test_points_that_are_none_are_refused_with_a_sentence(frame: pl.DataFrame, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        collect(frame)


def test_the_default_is_the_drivers_own_setting_or_the_highest_at_its_fastest_batch_size() -> None:
    assert seen().reference == 0
    assert "highest setting" in seen().why
    free = LIMITS.with_columns(power_limit_w=pl.Series([300.0, None, 200.0, 150.0]))
    assert seen(free).reference == 1
    assert "own setting" in seen(free).why
    batches = pl.concat(
        [LIMITS.with_columns(batch_size=64, time_s=pl.col("time_s") * 2), LIMITS.with_columns(batch_size=128)]
    )
    found = seen(batches)
    assert found.reference is not None
    assert configuration(found.points, found.reference) == at(300.0, 128)
    assert "fastest" in found.why
    given = analyse_frontier(collect(batches).points, default=at(250.0, 64))
    assert given.reference_time_s == 20.8
    with pytest.raises(UsageError, match="260 W, is none"):
        analyse_frontier(collect(LIMITS).points, default=at(260.0))


def test_without_knobs_nothing_is_known_to_be_the_default_and_nothing_is_saved() -> None:
    found = seen(LIMITS.drop("power_limit_w"))
    assert found.reference is None
    assert "no point" in found.why
    assert savings(found, 1, Work()) == []


def test_the_bound_is_against_the_default_and_always_leaves_the_fastest() -> None:
    found = seen()
    assert found.front.tolist() == [0, 1, 2]
    assert [found.allowed(bound) for bound in (None, 0.0, 0.04, 0.05, 0.2)] == [3, 1, 2, 2, 3]
    assert analyse_frontier(collect(LIMITS).points, default=at(150.0)).allowed(0.0) == 3


def test_eta_goes_from_the_fastest_to_the_least_energy() -> None:
    found = seen()
    assert [found.optimum(eta) for eta in (0.0, 1.0)] == [0, 2]
    # At 0.5 a second costs as much as 300 J: 0.4 s more for 400 J less pay, another 1.6 s for another 400 J
    # do not.
    assert found.optimum(0.5) == 1
    assert found.optimum(1.0, 0.05) == 1
    assert found.optima([0.0, 0.5, 1.0]).tolist() == [[0, 0, 0], [0, 1, 1], [0, 1, 2]]
    assert found.slowdowns == pytest.approx([0.0, 0.04, 0.2], abs=1e-8)


def test_choices_in_python() -> None:
    assert best_configuration(LIMITS, max_slowdown=None) == at(200.0)
    assert best_configuration(LIMITS) == best_configuration(LIMITS, eta=1.0) == at(250.0)
    assert best_configuration(LIMITS, objective="time") == best_configuration(LIMITS, objective=0) == at(300.0)
    with pytest.raises(UsageError, match=r"objective='edp' and eta=0\.5"):
        best_configuration(LIMITS, objective="edp", eta=0.5)
    assert best_configuration(LIMITS, eta=0.0) == at(300.0)
    with pytest.raises(UsageError, match=r"max_slowdown=-0\.1"):
        best_configuration(LIMITS, max_slowdown=-0.1)
    with pytest.raises(UsageError, match="eta=2"):
        best_configuration(LIMITS, eta=2.0)
    with pytest.raises(UsageError, match="several gpus"):
        best_configuration(LIMITS.with_columns(gpu=pl.Series(["A", "A", "B", "B"])))


def test_a_line_of_python_makes_the_same_configuration() -> None:
    import workbench

    for wanted in (at(150.0, 64), Configuration(Setting(212.5, 1200, 5000)), Configuration()):
        names = {"workbench": workbench}
        exec(f"import workbench.records\n{python(wanted, 'least energy')}", names)
        assert names["chosen"] == wanted


def test_a_configuration_is_found_by_its_knobs_and_any_batch_size_where_none_is_asked_for() -> None:
    points = collect(
        pl.concat(
            [
                LIMITS.with_columns(batch_size=64, time_s=pl.col("time_s") * 2),
                LIMITS.with_columns(batch_size=128),
            ]
        )
    ).points
    assert configuration(points, find(points, at(200.0, 64)) or 0) == at(200.0, 64)
    assert configuration(points, find(points, at(200.0)) or 0) == at(200.0, 128)
    assert find(points, at(199.0)) is None
    assert describe(at(None, 64)).endswith(", batch size 64")


# savings, worked out on paper


def test_savings_are_given_per_hour_epoch_and_job() -> None:
    hour, epoch, job = savings(seen(), 1, Work("epoch", epochs=90))
    # 400 J less and 0.4 s more an epoch of 10 s: 360 of them are an hour at the default.
    assert [(each.per, each.energy_j, round(each.time_s, 6)) for each in (hour, epoch, job)] == [
        ("hour", 144_000.0, -144.0),
        ("epoch", 400.0, -0.4),
        ("job", 36_000.0, -36.0),
    ]


@pytest.mark.parametrize(
    ("work", "factors"),
    [
        (Work(), {"hour": 360.0, "job": 1.0}),
        (Work("job", epochs=4), {"hour": 360.0, "epoch": 0.25, "job": 1.0}),
        (Work("sample", per_epoch=1000, epochs=2), {"hour": 360.0, "epoch": 1000.0, "job": 2000.0}),
        (Work("sample", per_epoch=1000), {"hour": 360.0, "epoch": 1000.0}),
        (Work("epoch"), {"hour": 360.0, "epoch": 1.0}),
        (Work("iteration", epochs=3), {"hour": 360.0}),
    ],
)
def test_unknown_facts_of_the_work_are_left_out(work: Work, factors: dict[str, float]) -> None:
    assert work.factors(10.0) == factors


def test_savings_have_the_errors_of_both_and_the_default_has_none() -> None:
    found = seen(LIMITS.with_columns(energy_se_j=pl.Series([30.0, 40.0, 0.0, 0.0])))
    assert savings(found, 1, Work("epoch"))[1].uncertainty_j == pytest.approx(98.0)
    assert savings(found, 0, Work("epoch")) == []


def test_a_work_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="'week'"):
        Work("week")
    with pytest.raises(UsageError, match="epochs is 0"):
        Work("epoch", epochs=0)


# a choice among new points


def test_a_lost_or_dominated_choice_moves_to_the_nearest_point_with_a_note() -> None:
    before = seen()
    assert follow(before, 1, seen(LIMITS.reverse())) == (2, "")
    gone = follow(before, 1, seen(LIMITS.filter(pl.col("power_limit_w") != 250.0)))
    assert gone[0] == 0
    assert re.search("^250 W .* 300 W$", gone[1])
    better = pl.concat(
        [LIMITS, pl.DataFrame({"power_limit_w": [240.0], "time_s": [10.3], "energy_j": [2500.0]})]
    )
    beaten = follow(before, 1, seen(better))
    assert beaten[0] == 4
    assert re.search("^250 W .* 240 W$", beaten[1])


def test_a_beaten_point_that_was_chosen_on_purpose_stays_chosen() -> None:
    assert follow(seen(), 3, seen(LIMITS)) == (3, "")
