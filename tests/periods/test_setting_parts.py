"""Changes of a setting inside a window are found in its samples."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from workbench.logbook.report import describe_iterations
from workbench.measurement.iterations import from_stored
from workbench.periods.segment import iterations
from workbench.periods.setting_parts import setting_parts
from workbench.records import DetectedPeriod, Periods

Column = Callable[[np.ndarray], np.ndarray]


def trace(seconds: float = 40.0, every_s: float = 0.1, **columns: Column) -> pl.DataFrame:
    times = np.arange(0.0, seconds, every_s)
    return pl.DataFrame({"time_s": times, **{name: values(times) for name, values in columns.items()}})


def steps(*levels: tuple[float, float]) -> Column:
    """Values from each moment on."""
    moments, values = zip(*levels, strict=True)
    return lambda times: np.array(values)[np.searchsorted(moments, times, side="right") - 1]


def wavers(low: float, high: float, until_s: float, then: float) -> Column:
    """As under a power cap, and then held."""
    def column(times: np.ndarray) -> np.ndarray:
        loose = np.random.default_rng(3).uniform(low, high, len(times))
        return np.where(times < until_s, loose, then)

    return column


def borders(*traces: pl.DataFrame) -> Sequence[float]:
    return [part.start_s for part in setting_parts(traces, (0.0, float(traces[0]["time_s"].item(-1))))]


def test_a_changed_limit_begins_a_part() -> None:
    found = setting_parts([trace(power_limit_w=steps((0, 250), (12, 150), (30, 250)))], (0.0, 39.9))
    assert [part.start_s for part in found] == pytest.approx([0.0, 12.0, 30.0])
    assert [part.end_s for part in found] == pytest.approx([12.0, 30.0, 39.9])
    assert [part.setting for part in found] == ["250 W", "150 W", "250 W"]


def test_nothing_changed_is_no_parts() -> None:
    assert borders(trace(power_limit_w=steps((0, 250)), sm_clock_mhz=steps((0, 1380)))) == []
    assert borders(trace(power_w=steps((0, 250)))) == []
    assert borders(trace(power_limit_w=steps((0, np.nan)))) == []
    assert borders(trace(power_limit_w=lambda times: 250 + 0.3 * np.sin(times))) == []


def test_changes_at_the_edges_or_in_quick_succession_are_no_separate_parts() -> None:
    limit = steps((0, 250), (0.4, 200), (20, 150), (20.4, 120), (39.5, 250))
    assert borders(trace(power_limit_w=limit)) == pytest.approx([0.0, 20.0])


def test_a_limit_that_changes_all_the_time_is_nobodys_setting() -> None:
    assert borders(trace(300.0, power_limit_w=lambda times: 250 - 10 * (times // 3 % 2))) == []


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        (steps((0, 1380), (15, 900)), [0.0, 15.0]),
        (wavers(1245, 1380, 15, 900), [0.0, 15.0]),
        (wavers(1245, 1380, 15, 1380), []),  # lighter work runs at the highest clock
        (steps((0, 1380), (15, 900), (15.9, 1380)), []),  # for a moment
        (lambda times: 1410 - 15 * (times // 8), []),  # warming up
        (lambda times: 1300 + 80 * np.sin(9 * times), []),
    ],
)
def test_a_clock_that_is_held_begins_a_part(clock: Column, expected: list[float]) -> None:
    assert borders(trace(sm_clock_mhz=clock)) == pytest.approx(expected, abs=0.2)


def test_the_clock_of_a_gpu_at_rest_is_no_setting() -> None:
    resting = trace(sm_clock_mhz=steps((0, 1380), (15, 300), (25, 1380)),
                    utilisation=steps((0, 1.0), (15, 0.0), (25, 1.0)))
    assert borders(resting) == []


def test_a_change_on_any_gpu_of_a_job_counts() -> None:
    first, second = trace(power_limit_w=steps((0, 250))), trace(power_limit_w=steps((0, 250), (20, 150)))
    found = setting_parts([first, second], (0.0, 39.9))
    assert [(part.start_s, part.setting) for part in found] == [(0.0, "250 W"), (20.0, "250/150 W")]


def repeated(period_s: float, since_s: float, times: np.ndarray) -> np.ndarray:
    return np.where((times - since_s) % period_s < 0.7 * period_s, 220.0, 90.0)


def test_an_evaluation_at_a_clock_of_its_own_is_not_counted() -> None:
    """Its steps, a third as long, would fill an iteration of the training three by three."""
    times = np.arange(0.0, 90.0, 0.05)
    evaluates = (times > 40.0) & (times < 55.0)
    power = np.where(evaluates, repeated(0.3, 40.0, times) - 60.0, repeated(0.9, 0.0, times))
    power += np.random.default_rng(1).normal(0.0, 2.0, len(times))
    observed = pl.DataFrame({"time_s": times, "power_w": power, "sm_clock_mhz": np.where(evaluates, 1380.0, 1245.0)})
    assert len(setting_parts([observed], (0.0, 89.9))) == 3
    found = from_stored(observed)
    assert found.summary.time_s == pytest.approx(0.9, rel=0.01)
    assert found.summary.count == pytest.approx(75 / 0.9, abs=3)


def test_a_part_that_is_not_followed_is_no_pause() -> None:
    """Nor is it bridged, unless its few iterations fit between those of its neighbours."""
    times = np.arange(0.0, 60.0, 0.05)
    observed = pl.DataFrame({
        "time_s": times, "power_w": repeated(0.9, 0.0, times),
        "power_limit_w": steps((0, 400), (20, 300), (30, 400), (40, 300), (41.8, 400))(times),
    })
    parts = setting_parts([observed], (0.0, 59.9))
    known = Periods((DetectedPeriod("iteration", 0.9, 0.01, 0.9, 0.0, 0.9),), sure=True)
    followed = [replace(part, periods=known if part.setting == "400 W" else None) for part in parts]
    frame = iterations(observed, known, within_s=(0.0, 59.9), parts=followed)
    between = frame.filter((pl.col("start_s") > 1) & (pl.col("end_s") < 59) & (pl.col("time_s") > 1.5))
    assert between["kind"].to_list() == ["other"]
    assert between.select("start_s", "end_s").row(0) == pytest.approx((20.0, 30.0), abs=1.0)
    assert frame["iteration"].drop_nulls().to_list() == list(range(frame["iteration"].n_unique() - 1))
    assert frame["time_s"].sum() == pytest.approx(59.9)


def test_a_limit_that_does_not_bind_leaves_one_period() -> None:
    times = np.arange(0.0, 60.0, 0.05)
    power = repeated(0.9, 0.0, times) + np.random.default_rng(1).normal(0.0, 2.0, len(times))
    observed = pl.DataFrame({"time_s": times, "power_w": power, "power_limit_w": np.where(times < 30, 400.0, 350.0)})
    found = from_stored(observed)
    assert found.summary.time_s == pytest.approx(0.9, rel=0.01)
    assert found.summary.count == pytest.approx(60 / 0.9, abs=2)
    assert [each.setting for each in found.summary.levels if each.setting] == ["400 W", "350 W"]


def noise(times: np.ndarray, watts: float = 2.0) -> np.ndarray:
    return np.random.default_rng(1).normal(0.0, watts, len(times))


def pieces(*each: tuple[float, float, float | None]) -> pl.DataFrame:
    """Stretches of some seconds under a limit, with iterations of a length, or idle."""
    times = np.arange(0.0, sum(length for length, _, _ in each), 0.05)
    power, limit, at_s = np.full(len(times), 60.0), np.zeros(len(times)), 0.0
    for length_s, limit_w, period_s in each:
        here = (times >= at_s) & (times < at_s + length_s)
        limit[here] = limit_w
        if period_s is not None:
            power[here] = repeated(period_s, at_s, times[here]) - 0.4 * (250 - limit_w)
        at_s += length_s
    return pl.DataFrame({"time_s": times, "power_w": power + noise(times), "power_limit_w": limit})


@pytest.mark.parametrize("third", ["idle", "flat", "noise", "another job", "evaluation"])
def test_a_setting_that_comes_back_is_not_counted_by_itself(third: str) -> None:
    """The card is back at its limit, and does something else."""
    times = np.arange(0.0, 90.0, 0.05)
    last = {
        "idle": np.full(len(times), 60.0), "flat": np.full(len(times), 200.0),
        "noise": 150 + noise(times, 30.0),
        "another job": repeated(1.4, 60.0, times), "evaluation": repeated(0.3, 60.0, times) - 60,
    }[third]
    slower = np.where(times < 60, repeated(1.3, 30.0, times) - 40, last)
    power = np.where(times < 30, repeated(0.9, 0.0, times), slower)
    limit = steps((0, 250), (30, 150), (60, 250))
    found = from_stored(pl.DataFrame({
        "time_s": times, "power_w": power + noise(times), "power_limit_w": limit(times),
    }))
    assert found.summary.count == pytest.approx(30 / 0.9 + 30 / 1.3, abs=2)
    assert found.frame.filter(pl.col("start_s") > 60.5)["iteration"].drop_nulls().is_empty()


@pytest.mark.parametrize(
    ("stretches", "expected"),
    [
        # the other setting's part is idle, or another job whose two iterations are about as long as one
        (((30, 250, 0.9), (30, 150, 1.3), (30, 250, 0.9), (29, 150, None)), 90),
        (((30, 250, 0.9), (33, 150, 1.3), (30, 250, 0.9), (29, 150, 0.7)), 92),
        # the longest part of a setting is idle
        (((30, 250, 0.9), (30, 150, 1.3), (35, 250, None)), 56),
        # few iterations are recognised as well, but for those that run while the limit changes
        (((30, 250, 0.9), (20, 150, 1.3), (2.7, 250, 0.9), (20, 150, 1.3), (5.4, 250, 0.9)), 68),
    ],
)
def test_iterations_are_recognised_in_each_part(
    stretches: Sequence[tuple[float, float, float | None]], expected: int
) -> None:
    found = from_stored(pieces(*stretches))
    assert found.summary.sure
    assert found.summary.count == pytest.approx(expected, abs=2)
    assert found.periods is not None
    assert re.findall(r"[\d.]+ \w+", found.periods.notes[-1]) == ["0.9 s", "250 W", "1.3 s", "150 W"]


def test_another_memory_clock_alone_is_another_setting() -> None:
    times = np.arange(0.0, 60.0, 0.05)
    power = np.where(times < 30, repeated(0.9, 0.0, times), repeated(1.5, 30.0, times)) + noise(times)
    found = from_stored(pl.DataFrame({
        "time_s": times, "power_w": power, "sm_clock_mhz": np.full(len(times), 1380.0),
        "mem_clock_mhz": np.where(times < 30, 877.0, 405.0),
    }))
    assert [part.setting for part in found.parts] == ["877 MHz memory", "405 MHz memory"]
    assert [part.number for part in found.parts] == [0, 1]
    under = [each for each in found.summary.levels if each.setting]
    assert [each.each_s for each in under] == pytest.approx([0.9, 1.5], rel=0.03)
    assert found.summary.count == pytest.approx(30 / 0.9 + 30 / 1.5, abs=2)


def test_limits_of_several_gpus_are_all_named() -> None:
    """Three at (250, 250, 150) and at (250, 150, 150) are not under one setting."""
    times = np.arange(0.0, 90.0, 0.05)
    power = np.where(times < 45, repeated(0.9, 0.0, times), repeated(1.3, 45.0, times)) + noise(times)
    limits = {"a": steps((0, 250)), "b": steps((0, 250), (45, 150)), "c": steps((0, 150))}
    found = from_stored(pl.concat([
        pl.DataFrame({"uuid": [uuid] * len(times), "time_s": times, "power_w": power - 5 * number,
                      "power_limit_w": limit(times)})
        for number, (uuid, limit) in enumerate(limits.items())
    ]))
    assert [part.setting for part in found.parts] == ["250/250/150 W", "250/150/150 W"]
    assert found.summary.count == pytest.approx(45 / 0.9 + 45 / 1.3, abs=2)


def test_unknown_values_of_a_setting_are_not_named() -> None:
    clock = steps((0, 1380), (10, 900), (20, np.nan))
    first = trace(power_limit_w=steps((0, 250), (20, 150)), sm_clock_mhz=clock)
    second = trace(power_limit_w=steps((0, np.nan)))
    found = setting_parts([first, second], (0.0, 39.9))
    assert [part.setting for part in found] == ["250 W, 1380 MHz", "250 W, 900 MHz", "150 W"]
    assert [part.number for part in found] == [0, 1, 2]
    clocked = trace(sm_clock_mhz=clock, power_limit_w=steps((0, np.nan), (20, 150)))
    assert "nan" not in "".join(part.setting for part in setting_parts([clocked], (0.0, 39.9)))


def test_a_limit_that_was_held_for_a_moment_is_not_mixed_in() -> None:
    found = setting_parts([trace(power_limit_w=steps((0, 250), (20, 150), (39.5, 250)))], (0.0, 39.9))
    assert [part.setting for part in found] == ["250 W", "150 W"]


@pytest.mark.parametrize(("slower_s", "reported"), [(0.9, 0), (0.98, 2)])
def test_a_clock_that_moves_by_itself_is_no_setting(slower_s: float, reported: int) -> None:
    """The GPU warms up and cools down. The cost of an iteration is given for each clock at which its time
    differs.
    """
    times = np.arange(0.0, 120.0, 0.1)
    warm = times // 20 % 2 >= 1
    power = np.where(warm, repeated(slower_s, 0.0, times), repeated(0.9, 0.0, times)) + noise(times)
    found = from_stored(pl.DataFrame({
        "time_s": times, "power_w": power, "sm_clock_mhz": np.where(warm, 1365.0, 1410.0),
    }))
    assert len(found.parts) == 6
    assert found.periods is not None
    assert "clock changed inside" in found.periods.notes[-1]
    assert len([each for each in found.summary.levels if each.setting]) == reported


def test_many_settings_are_left_to_the_details() -> None:
    times = np.arange(0.0, 120.0, 0.1)
    found = from_stored(pl.DataFrame({
        "time_s": times, "power_w": repeated(0.9, 0.0, times) + noise(times),
        "power_limit_w": 300 + 10 * (times // 20),
    }))
    assert "; 6 settings, see details" in describe_iterations(found.summary)
