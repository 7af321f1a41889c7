"""The energy between two moments: exact where the counter tells, and honest about the rest."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest

from workbench.measurement.energy_estimate import EnergyEstimate, SensorUpdates, window_energy

NAN = math.nan
Power = Callable[[float], float]


def steps_of(
    energy_at: Power,
    *,
    period_s: float = 0.1,
    window_s: float = 0.1,
    end_s: float = 10.0,
    counted: bool = True,
    read: bool = True,
    tick_error_s: float = 1e-5,
) -> SensorUpdates:
    """What a noiseless sensor says about a GPU whose energy up to a moment is known."""
    ticks = np.arange(0, round(end_s / period_s) + 1) * period_s
    energy = np.array([energy_at(t) for t in ticks])
    power = np.array([(energy_at(t) - energy_at(t - window_s)) / window_s for t in ticks])
    nothing = np.full(len(ticks), NAN)
    power = power if read else nothing
    return SensorUpdates(
        ticks,
        energy if counted else nothing,
        power,
        ticks if read else nothing,
        window_s,
        period_s,
        tick_error_s,
    )


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


def test_nineteen_of_twenty_errors_lie_within_the_bar() -> None:
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


def test_a_window_that_no_reading_is_near_says_that_it_knows_little() -> None:
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


def test_bad_input_is_told_in_a_sentence() -> None:
    steps = steps_of(constant(200.0))
    with pytest.raises(ValueError, match=re.escape("the window ends 2 s before it starts")):
        window_energy(steps, 5.0, 3.0)
    one = SensorUpdates(
        *(column[:1] for column in (steps.tick_s, steps.energy_j, steps.power_w, steps.power_tick_s)),
        0.1,
        0.1,
        0.0,
    )
    with pytest.raises(ValueError, match="1 refreshes of the sensor are too few"):
        window_energy(one, 0.0, 1.0)
