"""The next limit to measure: few profiling windows, the right optimum, the reason given. The numbers can be
checked on paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from workbench.errors import MeasurementError, UsageError
from workbench.records import Setting
from workbench.search.clocks.descent import Plan
from workbench.search.clocks.power_profile import PowerProfile
from workbench.search.earlier import EarlierCurve
from workbench.search.objective import Energy, EnergyWithin, Time, ZeusCost

CLOCKS = np.linspace(0.1, 1.0, 181)
LIMITS_W = tuple(range(100, 251, 25))
# A tenth of a second at 250 W; 80 % of busy time bound by the clock, a tenth a gap, static 18 %, knee 0.7 at
# 0.8 V.
JOB = np.array([math.log(0.1), 0.8, 0.1, math.log(0.9), 0.1, 0.18, 0.7, 0.8, 0.15])


def model(parameters: np.ndarray, limits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log time and log mean power at limits (relative to the highest)."""
    log_time, compute, gap, log_dynamic, spread, static, knee, v_knee, gap_power = parameters
    volts = np.where(knee >= CLOCKS, v_knee, v_knee + (1 - v_knee) * (CLOCKS - knee) / (1 - knee))
    shape = CLOCKS * volts**2
    time = np.full(len(limits), gap)
    energy = np.full(len(limits), gap * gap_power)
    for factor in (1 + spread, 1 - spread):
        power = static + np.exp(log_dynamic) * factor * shape
        x = np.interp(limits, power, CLOCKS)
        busy = 0.5 * (1 - gap) * (1 + compute * (1 / x - 1))
        time += busy
        energy += busy * np.interp(x, CLOCKS, power)
    return log_time + np.log(time), np.log(energy / time)


def truth(limit_w: float, job: np.ndarray = JOB) -> tuple[float, float]:
    """Seconds and joules of an iteration at a limit, on a card of 250 W."""
    log_time, log_power = model(job, np.array([limit_w / 250.0]))
    time_s = math.exp(log_time[0])
    return time_s, time_s * math.exp(log_power[0]) * 250.0


def drive(
    profile: PowerProfile,
    *,
    job: np.ndarray = JOB,
    gpus: int = 1,
    most: int = 30,
    of: Callable[[float], tuple[float, float]] | None = None,
) -> list[float]:
    """Report exact measurements of a job, or of the function `of`, to a profile; returns the limits
    requested.
    """
    asked: list[float] = []
    for _ in range(most):
        step = profile.next()
        if not isinstance(step, Plan):
            return asked
        limit_w = profile.limits_w[step.row]
        asked.append(limit_w)
        time_s, energy_j = of(limit_w) if of else truth(limit_w, job)
        n = max(step.count, math.ceil(step.seconds / time_s))
        profile.tell(step.row, n, n * time_s, n * energy_j * gpus, 0.5, 0.005 * time_s)
    raise AssertionError("the profile does not end")


def limits_of(profile: PowerProfile) -> list[float]:
    """Limits that were measured, highest first."""
    return profile.frame().filter("measured")["limit_w"].to_list()


def joules(profile: PowerProfile) -> float:
    """Energy of an iteration at the best limit."""
    (row,) = profile.frame().filter(limit_w=profile.best_w).to_dicts()
    return float(row["iteration_s"] * row["power_w"])


def best(cost: object, job: np.ndarray = JOB) -> float:
    return min(LIMITS_W[::-1], key=lambda limit: cost(*truth(limit, job)))  # type: ignore[operator]


@pytest.mark.parametrize("eta", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_it_finds_the_optimum_of_any_eta(eta: float) -> None:
    objective = ZeusCost(eta, 250.0)
    profile = PowerProfile(LIMITS_W, objective)
    drive(profile)
    costs = {limit: objective.cost(*truth(limit)) for limit in LIMITS_W}
    assert costs[int(profile.best_w)] <= 1.002 * min(costs.values())


def test_three_limits_at_least_and_not_all_of_many() -> None:
    profile = PowerProfile(np.arange(100, 251, 5), Energy())
    drive(profile)
    assert 3 <= len(limits_of(profile)) <= 12  # of 31


def test_a_lower_limit_cannot_win_when_time_is_all_that_counts() -> None:
    profile = PowerProfile(LIMITS_W, Time())
    assert drive(profile) == [250.0]
    assert profile.best_w == 250.0


def test_lower_limits_are_left_out_where_they_cannot_win() -> None:
    flat_out = JOB.copy()
    flat_out[[1, 2, 5, 7]] = (
        1.0,
        0.0,
        0.4,
        0.99,
    )  # all time bound by the clock, much static power, hardly any voltage to lower
    profile = PowerProfile(LIMITS_W, ZeusCost(0.5, 250.0))
    drive(profile, job=flat_out)
    assert profile.best_w == best(ZeusCost(0.5, 250.0).cost, flat_out) == 250.0
    assert len(limits_of(profile)) <= 4  # of 7


def test_it_stops_above_the_lowest_limit() -> None:
    profile = PowerProfile(np.arange(60, 251, 10), ZeusCost(0.3, 250.0))
    drive(profile)
    assert min(limits_of(profile)) > 60.0


def test_energy_within_a_slowdown_is_bounded_by_the_fastest_limit() -> None:
    profile = PowerProfile(LIMITS_W, EnergyWithin(1.05, 123.0))
    drive(profile)
    fastest_s = truth(250)[0]
    allowed = [limit for limit in LIMITS_W if truth(limit)[0] <= 1.05 * fastest_s]
    chosen = profile.best_w
    assert chosen in allowed
    assert truth(chosen)[1] <= 1.02 * min(truth(limit)[1] for limit in allowed)


def test_several_gpus_have_one_limit_and_the_choice_of_one() -> None:
    one, four = (
        PowerProfile(LIMITS_W, ZeusCost(0.5, 250.0)),
        PowerProfile(LIMITS_W, ZeusCost(0.5, 250.0, gpus=4), gpus=4),
    )
    drive(one)
    drive(four, gpus=4)
    assert one.best_w == four.best_w
    assert joules(four) == pytest.approx(4 * joules(one), rel=1e-3)


def test_without_limits_there_is_no_profile() -> None:
    with pytest.raises(UsageError, match="no setting to choose from"):
        PowerProfile([], Energy())


def test_before_the_first_window_nothing_is_known() -> None:
    profile = PowerProfile(LIMITS_W, Energy())
    assert not profile.measured
    assert math.isnan(profile.iteration_s(0))
    with pytest.raises(MeasurementError, match="run a profiling window first"):
        profile.frame()


def test_without_a_smooth_curve_more_limits_are_measured_and_used() -> None:
    # A job of 80 W that no limit binds; epochs of the second scatter from limit to limit, as measured tables
    # of short ones do.
    beside = {250.0: 1.0, 225.0: 1.04, 200.0: 0.93, 175.0: 1.05, 150.0: 1.01, 125.0: 0.97, 100.0: 1.03}
    rough = PowerProfile(LIMITS_W, Energy())
    drive(rough, of=lambda limit_w: (0.1, 8.0 * beside[limit_w]))
    measured = limits_of(rough)
    assert len(measured) >= 6
    assert rough.best_w == min(measured, key=lambda limit_w: beside[limit_w])
    assert joules(rough) == pytest.approx(8.0 * beside[rough.best_w], rel=0.01)


def earlier(rows: Iterable[tuple[float, float, float]]) -> EarlierCurve:
    """An earlier run: limits, and time and energy at each."""
    return EarlierCurve({Setting(power_limit_w=limit_w): (time, energy) for limit_w, time, energy in rows})


def test_an_earlier_optimum_is_tried_first_and_must_be_measured() -> None:
    costs = {limit: truth(limit)[1] for limit in LIMITS_W}
    cheapest = float(min(costs, key=lambda limit: costs[limit]))
    (time_s, energy_j), at = truth(250), {float(limit): truth(limit) for limit in LIMITS_W}
    known = [(limit, each[0] / time_s, each[1] / energy_j) for limit, each in at.items()]
    taught, wrong = (
        PowerProfile(LIMITS_W, Energy(), same=[earlier(each)])
        for each in (known, [(limit, time, 3 - 2 * energy) for limit, time, energy in known])
    )
    asked = drive(taught)
    assert asked[1] == cheapest
    assert taught.best_w == cheapest
    alone = PowerProfile(LIMITS_W, Energy())
    plain = drive(alone)
    assert len(asked) <= len(plain) + 1
    assert len(drive(wrong)) <= len(plain) + 1
    assert costs[int(wrong.best_w)] <= 1.002 * costs[int(cheapest)]


@pytest.mark.parametrize(
    ("objective", "best_w"),
    [(ZeusCost(0.5, 250.0), 200.0), (EnergyWithin(1.05, 0.2), 200.0), (Energy(), 150.0)],
)
def test_the_best_limit_of_an_earlier_run_is_that_of_the_objective_and_its_bound(
    objective: object, best_w: float
) -> None:
    at = {250.0: (1.0, 1.0), 200.0: (1.03, 0.85), 150.0: (1.3, 0.7), 100.0: (1.9, 0.9)}
    same = [earlier((w, *each) for w, each in at.items())]
    profile = PowerProfile(list(at), objective, same=same)  # type: ignore[arg-type]
    assert drive(profile, of=lambda limit_w: (0.1 * at[limit_w][0], 20.0 * at[limit_w][1]))[1] == best_w


def test_a_limit_that_cannot_be_set_is_left_out() -> None:
    profile = PowerProfile(LIMITS_W, Energy())
    first = profile.next()
    assert isinstance(first, Plan)
    assert profile.limits_w[first.row] == 250.0
    profile.tell(first.row, 20, 2.0, 400.0, 0.1)
    second = profile.next()
    assert isinstance(second, Plan)
    profile.cannot(second.row, "no rights")
    assert profile.limits_w[second.row] not in drive(profile)


def test_a_highest_limit_that_cannot_be_set_ends_the_profile_with_the_reason() -> None:
    profile = PowerProfile(LIMITS_W, Energy())
    profile.cannot(0, "no rights")
    assert profile.next() == "the highest limit cannot be set: no rights"
