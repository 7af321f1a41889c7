"""The energy between two moments: exact where the counter gives it, with an error elsewhere."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workbench.measurement.energy_estimate import EnergyEstimate, EnergyTimeline, add_estimates
from workbench.measurement.sensor_updates import SensorUpdates, energies_by_refreshes, energy_by_refreshes
from workbench.records import Edge, Window
from workbench.samples import ROWS

NAN = math.nan
Power = Callable[[float], float]


def steps_of(
    energy_at: Power, *, period_s: float = 0.1, window_s: float = 0.1, end_s: float = 10.0,
    counted: bool = True, read: bool = True, tick_error_s: float = 1e-5,
) -> SensorUpdates:
    """The counter of a noiseless sensor on a GPU whose energy up to a moment is known."""
    ticks = np.arange(0, round(end_s / period_s) + 1) * period_s
    energy = np.array([energy_at(t) for t in ticks])
    power = np.array([(energy_at(t) - energy_at(t - window_s)) / window_s for t in ticks])
    nothing = np.full(len(ticks), NAN)
    power = power if read else nothing
    return SensorUpdates(
        ticks, energy if counted else nothing, power, ticks if read else nothing, window_s, period_s,
        tick_error_s,
    )


def window_energy(updates: SensorUpdates, start_s: float, end_s: float) -> EnergyEstimate:
    energy_j, half_j = energy_by_refreshes(updates, np.array([start_s, end_s]))
    return EnergyEstimate(float(energy_j[0]), float(half_j[0]))


def constant(power_w: float) -> Power:
    return lambda at_s: power_w * at_s


def jump(at_s: float, low_w: float, high_w: float) -> Power:
    """Energy of a GPU that goes from one level to another at a moment."""
    return lambda t: low_w * t + (high_w - low_w) * max(0.0, t - at_s)


def covers(found: EnergyEstimate, true_j: float) -> bool:
    return abs(found.energy_j - true_j) <= found.uncertainty_j


@pytest.mark.parametrize("window_s", [0.1, 0.025])
@pytest.mark.parametrize(
    ("start_s", "end_s"), [(2.03, 7.77), (2.0, 7.0), (3.01, 3.09), (5.0, 5.05), (4.04, 4.31)]
)
def test_constant_power_is_exact(window_s: float, start_s: float, end_s: float) -> None:
    found = window_energy(steps_of(constant(200.0), window_s=window_s), start_s, end_s)
    assert found.energy_j == pytest.approx(200.0 * (end_s - start_s), abs=0.05)
    assert covers(found, 200.0 * (end_s - start_s))
    assert found.uncertainty_j < 0.1 * 200.0 * 0.1  # a tenth of a step


def test_between_two_steps_the_counter_alone_speaks() -> None:
    rng = np.random.default_rng(5)
    energy = np.concatenate([[0.0], np.cumsum(rng.uniform(2.0, 30.0, 100))])
    steps = SensorUpdates(np.arange(101) * 0.1, energy, np.full(101, NAN), np.full(101, NAN), 0.1, 0.1, 0.0)
    found = window_energy(steps, float(steps.tick_s[20]), float(steps.tick_s[70]))
    assert found.energy_j == pytest.approx(energy[70] - energy[20], abs=1e-9)
    assert found.uncertainty_j < 1e-3


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.35, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("window_s", [0.1, 0.025])
def test_work_that_starts_with_the_window_is_found_within_the_error(fraction: float, window_s: float) -> None:
    begin_s = 3.0 + 0.1 * fraction
    found = window_energy(steps_of(jump(begin_s, 50.0, 250.0), window_s=window_s), begin_s, begin_s + 4.02)
    assert covers(found, 250.0 * 4.02)
    assert (
        found.uncertainty_j < 0.5 * 250.0 * 0.1
    )  # half a step of the counter: better than the counter alone


def test_nineteen_of_twenty_errors_are_within_the_error_bar() -> None:
    rng = np.random.default_rng(11)
    hits, cases = 0, 150
    for _ in range(cases):
        begin_s, span_s = 3.0 + rng.uniform(0, 0.1), rng.uniform(0.3, 4.0)
        changes = np.sort(rng.uniform(begin_s, begin_s + span_s, 6))
        levels = [rng.uniform(40, 70), *rng.uniform(120, 300, 7), rng.uniform(40, 70)]
        times = np.array([-10.0, begin_s, *changes, begin_s + span_s, 20.0])
        energies = np.concatenate([[0.0], np.cumsum(np.diff(times) * levels)])
        steps = steps_of(lambda t, times=times, energies=energies: float(np.interp(t, times, energies)))
        true_j = float(np.interp(begin_s + span_s, times, energies) - np.interp(begin_s, times, energies))
        hits += covers(window_energy(steps, begin_s, begin_s + span_s), true_j)
    assert hits >= 0.92 * cases


def periodic(iteration_s: float, low_w: float, high_w: float, busy_share: float) -> Power:
    """Energy of a load that repeats without end: busy for a share of each iteration."""
    mean_w = low_w + (high_w - low_w) * busy_share

    def energy_at(at_s: float) -> float:
        number, into_s = divmod(at_s, iteration_s)
        into_w = low_w * into_s + (high_w - low_w) * min(into_s, busy_share * iteration_s)
        return number * iteration_s * mean_w + into_w

    return energy_at


@pytest.mark.parametrize("iteration_s", [0.1, 0.05, 0.0993])
def test_the_bar_covers_a_load_in_phase_with_the_sensor(iteration_s: float) -> None:
    """The counter and the readings average whole refreshes, as on an A40, so that all steps are alike."""
    rng = np.random.default_rng(29)
    hits, windows = 0, 0
    for busy_share in (0.3, 0.5, 0.8):
        energy_at = periodic(iteration_s, 80.0, 230.0, busy_share)
        steps = dataclasses.replace(steps_of(energy_at, end_s=20.0), most_w=300.0)
        for _ in range(34):
            start_s, span_s = rng.uniform(8.0, 9.0), rng.uniform(0.05, 5.0)
            found = window_energy(steps, start_s, start_s + span_s)
            hits += covers(found, energy_at(start_s + span_s) - energy_at(start_s))
            assert found.uncertainty_j < 2 * 0.1 * 300.0  # never more than all power in a step at either edge
            windows += 1
    assert hits >= 0.9 * windows


def test_the_bar_stays_narrow_where_the_refreshes_fall_at_changing_phases() -> None:
    energy_at = periodic(0.023, 80.0, 230.0, 0.5)
    steps = dataclasses.replace(steps_of(energy_at, end_s=20.0), most_w=300.0)
    rng = np.random.default_rng(31)
    found = [window_energy(steps, at, at + 5.0) for at in rng.uniform(8.0, 9.0, 30).tolist()]
    assert np.median([each.uncertainty_j for each in found]) < 0.1 * 0.1 * 155.0  # a tenth of a step


def test_parts_of_a_load_in_phase_with_the_sensor_add_up() -> None:
    energy_at = periodic(0.1, 80.0, 230.0, 0.5)
    steps = dataclasses.replace(steps_of(energy_at, end_s=20.0), most_w=300.0)
    moments = np.sort(np.random.default_rng(37).uniform(8.0, 11.0, 12))
    parts = energy_by_refreshes(steps, moments)
    whole = window_energy(steps, moments[0], moments[-1])
    assert parts.energy_j.sum() == pytest.approx(whole.energy_j, rel=1e-9)
    assert energies_by_refreshes(steps, moments).sum() == pytest.approx(whole.energy_j, rel=1e-9)
    assert np.isfinite(parts.uncertainty_j).all()


def test_neighbouring_windows_add_up_within_their_bars() -> None:
    steps = steps_of(jump(4.0, 60.0, 180.0))
    parts = [window_energy(steps, a, b) for a, b in ((1.03, 3.33), (3.33, 5.87), (5.87, 8.01))]
    whole = window_energy(steps, 1.03, 8.01)
    bar_j = math.hypot(*(part.uncertainty_j for part in parts), whole.uncertainty_j)
    assert abs(sum(part.energy_j for part in parts) - whole.energy_j) <= bar_j


def test_an_empty_window_costs_nothing() -> None:
    assert window_energy(steps_of(constant(200.0)), 5.0, 5.0).energy_j == 0.0


def test_without_a_counter_the_readings_are_integrated() -> None:
    """Windows of 10 ms every 20 ms, as on Pascal: half of the time is seen."""
    steps = steps_of(jump(3.0, 40.0, 240.0), period_s=0.02, window_s=0.01, counted=False)
    found = window_energy(steps, 3.0, 7.0)
    assert covers(found, 960.0)
    assert found.energy_j == pytest.approx(960.0, rel=0.01)
    assert (
        found.uncertainty_j
        > window_energy(steps_of(jump(3.0, 40.0, 240.0), period_s=0.02), 3.0, 7.0).uncertainty_j
    )


def test_what_comes_after_the_last_step_is_less_sure() -> None:
    steps = steps_of(constant(200.0), end_s=5.0)
    inside, beyond = window_energy(steps, 2.0, 4.95), window_energy(steps, 2.0, 5.15)
    assert covers(beyond, 630.0)
    assert beyond.uncertainty_j > inside.uncertainty_j


def test_a_window_that_no_reading_is_near_reports_that_it_knows_little() -> None:
    found = window_energy(steps_of(constant(200.0), end_s=5.0), 6.0, 6.05)
    assert found.uncertainty_j > 200.0 * 0.05  # as much as there may be


def test_unread_refreshes_in_the_middle_cost_no_accuracy() -> None:
    steps = steps_of(jump(3.0, 50.0, 250.0))
    steps.energy_j[45:55], steps.power_w[45:55] = NAN, NAN
    assert covers(window_energy(steps, 3.0, 7.0), 1000.0)


def test_an_error_of_time_is_an_error_of_energy() -> None:
    sharp = window_energy(steps_of(constant(200.0)), 2.03, 7.77)
    blurred = window_energy(steps_of(constant(200.0), tick_error_s=0.003), 2.03, 7.77)
    assert blurred.uncertainty_j - sharp.uncertainty_j > 0.5  # 1.96 x sqrt(2) x 3 ms x 200 W is 1.7 J


# the timeline


def rows_of(updates: SensorUpdates, every_s: float = 0.02) -> np.ndarray[Any, Any]:
    """The rows that a sampler writes for these refreshes."""
    at_s = np.arange(updates.tick_s[0] + 0.001, updates.tick_s[-1] + updates.period_s, every_s)
    last = np.searchsorted(updates.tick_s, at_s, side="right") - 1
    rows = np.zeros(len(at_s), ROWS)
    for name in ("power_limit_w", "sm_clock_mhz", "mem_clock_mhz", "utilisation", "memory_utilisation"):
        rows[name] = NAN
    rows["time_s"], rows["tick_error_s"] = at_s, updates.tick_error_s
    for name in ("tick_s", "energy_j", "power_w", "power_tick_s"):
        rows[name] = getattr(updates, name)[last]
    return rows


def unticked(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same from a sampler that did not find the refreshes."""
    rows = rows.copy()
    rows["tick_s"] = rows["power_tick_s"] = NAN
    return rows


def energy_of(rng: np.random.Generator) -> Power:
    """A GPU that idles, and works at changing levels from 3 s to 8 s."""
    times = np.array([-10.0, 3.0, *np.sort(rng.uniform(3.0, 8.0, 8)), 8.0, 20.0])
    levels = [rng.uniform(40, 70), *rng.uniform(120, 300, 9), rng.uniform(40, 70)]
    energies = np.concatenate([[0.0], np.cumsum(np.diff(times) * levels)])
    return lambda t: float(np.interp(t, times, energies))


SENSORS: dict[str, dict[str, Any]] = {"counter": {}, "fast readings": {"window_s": 0.025},
           "no counter": {"period_s": 0.02, "window_s": 0.01, "counted": False}}


@pytest.mark.parametrize("followed", [True, False])
@pytest.mark.parametrize("sensor", SENSORS)
def test_parts_add_up_to_the_window(sensor: str, followed: bool) -> None:
    rng = np.random.default_rng(17)
    for span_s in (0.03, 0.15, 0.35, 0.6, 4.9):
        for _ in range(4):
            energy_at = energy_of(rng)
            rows = rows_of(steps_of(energy_at, **SENSORS[sensor]))
            timeline = EnergyTimeline(
                rows if followed else unticked(rows), power_window_s=SENSORS[sensor].get("window_s", 0.1)
            )
            start_s = rng.uniform(3.0, 3.0 + 4.95 - span_s)
            moments = np.sort([start_s, start_s + span_s, *rng.uniform(start_s, start_s + span_s, 12)])
            moments[3] = moments[2]  # of a part without length
            whole = timeline.between(moments[0], moments[-1])
            parts = timeline.parts(moments)
            assert whole is not None
            assert parts.energy_j.sum() == pytest.approx(whole.energy_j, rel=1e-9)
            assert timeline.energies_j(moments).sum() == pytest.approx(whole.energy_j, rel=1e-9)
            assert parts.known.all()
            assert parts.energy_j[2] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("sensor", SENSORS)
def test_nineteen_of_twenty_parts_are_within_their_intervals(sensor: str) -> None:
    rng = np.random.default_rng(3)
    held = []
    for _ in range(25):
        energy_at = energy_of(rng)
        moments = np.sort(rng.uniform(2.5, 8.5, 12))
        updates = steps_of(energy_at, **SENSORS[sensor])
        timeline = EnergyTimeline(rows_of(updates), power_window_s=updates.window_s)
        found = timeline.parts(moments)
        error_j = np.abs(found.energy_j - np.diff([energy_at(at) for at in moments]))
        held += (error_j <= found.uncertainty_j + 1e-9).tolist()
    assert np.mean(held) >= 0.9


def test_the_source_of_an_energy_is_reported() -> None:
    rows = rows_of(steps_of(constant(200.0)))
    read = EnergyTimeline(unticked(rows)).between(2.0, 7.0)
    window = Window("w", 2.0, (Edge(2.0, 400.0),), 7.0, (Edge(7.0, 1390.0),))
    difference = EnergyTimeline(rows[:0], window=window, counted=True).between(2.0, 7.0)
    assert [each and each.source for each in (EnergyTimeline(rows).between(2.0, 7.0), read, difference)] == [
        "refreshes", "readings", "difference"
    ]
    assert read is not None
    assert abs(read.energy_j - 1000.0) <= read.uncertainty_j < 20.0
    assert difference is not None
    assert difference.energy_j == 990.0
    # One update of 0.1 s at 300 W at most, which nobody knows better: 0.78 of it.
    assert difference.uncertainty_j == pytest.approx(0.78 * 0.1 * 198.0, rel=0.01)


def test_a_counter_without_moments_steps_where_a_new_value_was_observed() -> None:
    rows = unticked(rows_of(steps_of(jump(5.0, 100.0, 200.0))))
    rows = rows[np.searchsorted(rows["time_s"], np.arange(0.5, 9.6, 1.0))]  # as a log that is written each second
    found = EnergyTimeline(rows).parts([2.5, 4.5, 6.5, 8.5])
    assert found.energy_j == pytest.approx([200.0, 350.0, 400.0], abs=15.0)
    assert found.known.all()


def test_a_stretch_without_samples_is_distinguished_from_one_with_samples() -> None:
    rows = rows_of(steps_of(constant(200.0)))
    hole = EnergyTimeline(rows[(rows["time_s"] < 4.0) | (rows["time_s"] > 7.0)])
    parts = hole.parts([2.0, 3.0, 5.5, 8.0, 9.0])
    assert parts.known.tolist() == [True, False, False, True]
    assert parts.energy_j == pytest.approx([200.0, 500.0, 500.0, 200.0], abs=1.0)
    assert hole.between(2.0, 9.0) is not None
    assert EnergyTimeline(rows).between(20.0, 21.0) is None
    assert EnergyTimeline(rows[:0]).between(2.0, 3.0) is None


def test_a_moment_in_a_short_hole_is_as_unsure_as_the_hole_is_long() -> None:
    rows = rows_of(steps_of(constant(200.0)))
    timeline = EnergyTimeline(rows[(rows["time_s"] < 4.0) | (rows["time_s"] > 5.0)])
    parts = timeline.parts([2.0, 3.0, 4.5, 6.0])
    assert parts.energy_j == pytest.approx([200.0, 300.0, 300.0], abs=1.0)
    assert parts.uncertainty_j[1:] == pytest.approx([0.55 * 200.0] * 2, rel=0.15)


@pytest.mark.parametrize("followed", [True, False])
def test_a_stretch_in_which_the_counter_goes_back_is_as_unsure_as_the_gpu_may_draw(followed: bool) -> None:
    updates = steps_of(constant(200.0))
    updates.energy_j[50:] -= 900.0
    rows = rows_of(updates)
    timeline = EnergyTimeline(rows if followed else unticked(rows))
    parts = timeline.parts([2.0, 4.0, 6.0, 8.0])
    assert parts.energy_j[[0, 2]] == pytest.approx([400.0, 400.0], rel=0.05)
    assert parts.uncertainty_j[[0, 2]].max() < parts.uncertainty_j[1] < 100.0
    assert abs(parts.energy_j[1] - 400.0) <= parts.uncertainty_j[1]
    updates.tick_s[50:] += 3.0  # nothing was read meanwhile
    rows = rows_of(updates)
    assert EnergyTimeline(rows if followed else unticked(rows)).between(2.0, 11.0) is None


def test_moments_that_go_back_are_refused() -> None:
    with pytest.raises(ValueError, match="2 s"):
        EnergyTimeline(rows_of(steps_of(constant(200.0)))).between(5.0, 3.0)


def test_estimates_of_several_gpus_add_up_with_their_errors() -> None:
    one, two = EnergyEstimate(100.0, 3.0), EnergyEstimate(50.0, 4.0)
    assert add_estimates([one, two]) == EnergyEstimate(150.0, 5.0)
    assert add_estimates([one, None]) is None
    assert add_estimates([]) is None
