"""Which limit next: few slices, the right optimum, the reason told; numbers that one can work out on
paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from workbench.errors import MeasurementError, UsageError
from workbench.search.clocks.power_profile import Done, PowerProfile, Slice
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
) -> Done:
    """Tell a profile what an exact meter would, of a job or of what `of` says of a limit."""
    for _ in range(most):
        step = profile.next_slice()
        if isinstance(step, Done):
            return step
        time_s, energy_j = of(step.limit_w) if of else truth(step.limit_w, job)
        n = max(step.iterations, math.ceil(step.seconds / time_s))
        profile.tell(step.limit_w, n, n * time_s, n * energy_j * gpus, 0.5, 0.005 * time_s)
    raise AssertionError("the profile does not end")


def best(cost: object, job: np.ndarray = JOB) -> float:
    return min(LIMITS_W[::-1], key=lambda limit: cost(*truth(limit, job)))  # type: ignore[operator]


@pytest.mark.parametrize("eta", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_it_finds_the_optimum_of_any_eta(eta: float) -> None:
    objective = ZeusCost(eta, 250.0)
    profile = PowerProfile(LIMITS_W, objective)
    drive(profile)
    found = profile.optimum()
    costs = {limit: objective.cost(*truth(limit)) for limit in LIMITS_W}
    assert costs[int(found.limit_w)] <= 1.002 * min(costs.values())


def test_three_limits_at_least_and_not_all_of_many() -> None:
    profile = PowerProfile(np.arange(100, 251, 5), Energy())
    drive(profile)
    assert 3 <= profile.slices["limit_w"].n_unique() <= 12  # of 31


def test_it_begins_at_the_highest_limit_with_a_warm_up() -> None:
    step = PowerProfile(LIMITS_W, Energy()).next_slice()
    assert isinstance(step, Slice)
    assert (step.limit_w, step.warm_up) == (250.0, 5)


def test_a_lower_limit_cannot_win_when_time_is_all_that_counts() -> None:
    profile = PowerProfile(LIMITS_W, Time())
    done = drive(profile)
    assert len(profile.slices) == 1
    assert done.reason == "a lower limit cannot win: what counts is time, and no lower limit is faster"
    assert profile.optimum().limit_w == 250.0


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
    assert profile.optimum().limit_w == best(ZeusCost(0.5, 250.0).cost, flat_out) == 250.0
    assert profile.slices["limit_w"].n_unique() <= 4  # of 7


def test_it_stops_above_the_lowest_limit() -> None:
    profile = PowerProfile(np.arange(60, 251, 10), ZeusCost(0.3, 250.0))
    drive(profile)
    assert profile.slices["limit_w"].min() > 60.0


def test_one_profile_serves_every_objective() -> None:
    profile = PowerProfile(LIMITS_W, Energy())
    drive(profile)
    for eta in (0.3, 0.5, 0.7):
        objective = ZeusCost(eta, 250.0)
        chosen = profile.optimum(objective).limit_w
        assert objective.cost(*truth(chosen)) <= 1.01 * min(
            objective.cost(*truth(limit)) for limit in LIMITS_W
        )


def test_energy_within_a_slowdown_is_bounded_by_the_fastest_limit() -> None:
    profile = PowerProfile(LIMITS_W, EnergyWithin(1.05, 123.0))
    drive(profile)
    fastest_s = truth(250)[0]
    allowed = [limit for limit in LIMITS_W if truth(limit)[0] <= 1.05 * fastest_s]
    chosen = profile.optimum().limit_w
    assert chosen in allowed
    assert truth(chosen)[1] <= 1.02 * min(truth(limit)[1] for limit in allowed)


def test_several_gpus_have_one_limit_and_the_choice_of_one() -> None:
    one, four = (
        PowerProfile(LIMITS_W, ZeusCost(0.5, 250.0)),
        PowerProfile(LIMITS_W, ZeusCost(0.5, 250.0, gpus=4), gpus=4),
    )
    drive(one)
    drive(four, gpus=4)
    assert one.optimum().limit_w == four.optimum().limit_w
    assert four.optimum().cost == pytest.approx(4 * one.optimum().cost, rel=1e-3)
    assert four.optimum().iteration_j == pytest.approx(4 * one.optimum().iteration_j, rel=1e-3)


def test_a_slice_is_as_long_as_the_counter_and_the_iteration_ask_for() -> None:
    coarse = PowerProfile(LIMITS_W, Energy(), error=0.01, counter_update_s=0.1).next_slice()
    fine = PowerProfile(LIMITS_W, Energy(), error=0.01, counter_update_s=0.02).next_slice()
    strict = PowerProfile(LIMITS_W, Energy(), error=0.002, counter_update_s=0.1).next_slice()
    assert isinstance(coarse, Slice)
    assert isinstance(fine, Slice)
    assert isinstance(strict, Slice)
    assert coarse.seconds == pytest.approx(5 * fine.seconds)
    assert strict.seconds == pytest.approx(5 * coarse.seconds)
    assert strict.iterations == pytest.approx(25 * coarse.iterations, rel=0.1)  # scatter falls with the root


def test_a_slice_that_came_out_too_uncertain_is_added_to() -> None:
    profile = PowerProfile(LIMITS_W, Energy(), error=0.01)
    profile.tell(250.0, 10, 1.0, 200.0, 10.0)  # 5 %
    step = profile.next_slice()
    assert isinstance(step, Slice)
    assert step.limit_w == 250.0
    assert step.seconds == pytest.approx(5.0)  # 10 J are 1 % of five seconds at 200 W
    profile.tell(250.0, 50, 5.0, 1000.0, 10.0)
    assert profile.frame()["iteration_s"][0] == pytest.approx(0.1, rel=0.01)


def test_it_resumes_from_its_slices() -> None:
    whole = PowerProfile(LIMITS_W, ZeusCost(0.5, 250.0))
    drive(whole)
    begun = PowerProfile(LIMITS_W, ZeusCost(0.5, 250.0), slices=whole.slices.head(2))
    step = begun.next_slice()
    assert isinstance(step, Slice)
    assert step.limit_w == whole.slices["limit_w"][2]
    drive(begun)
    assert begun.slices.equals(whole.slices)
    assert isinstance(PowerProfile(LIMITS_W, ZeusCost(0.5, 250.0), slices=whole.slices).next_slice(), Done)


def test_its_own_cost_is_the_sum_of_its_slices() -> None:
    profile = PowerProfile(LIMITS_W, Energy())
    profile.tell(250.0, 10, 2.0, 400.0)
    profile.tell(175.0, 10, 2.5, 400.0)
    assert (profile.time_s, profile.energy_j) == (4.5, 800.0)


def test_a_limit_that_cannot_be_set_is_left_out() -> None:
    profile = PowerProfile(LIMITS_W, Energy())
    profile.cannot(250.0, "held by another process")
    step = profile.next_slice()
    assert isinstance(step, Slice)
    assert step.limit_w == 225.0
    for limit in LIMITS_W:
        profile.cannot(limit, "no rights")
    assert profile.next_slice() == Done("no limit can be set: held by another process")


def test_a_profile_ends_when_it_has_taken_its_time() -> None:
    profile = PowerProfile(np.arange(100, 251, 5), Energy(), budget_s=1.0)
    done = drive(profile)
    assert profile.slices["limit_w"].n_unique() == 3
    assert "1 s are what a profile may take" in done.reason


def test_bad_input_is_told_and_changes_nothing() -> None:
    with pytest.raises(UsageError, match="no power limits"):
        PowerProfile([], Energy())
    with pytest.raises(UsageError, match="watts above 0"):
        PowerProfile([100.0, -5.0], Energy())
    with pytest.raises(UsageError, match=r"0\.01 for 1 %"):
        PowerProfile(LIMITS_W, Energy(), error=0.0)
    profile = PowerProfile(LIMITS_W, Energy())
    for time_s, energy_j in (
        (math.nan, 1.0),
        (-1.0, 1.0),
        (1.0, math.nan),
        (1.0, -1.0),
        (0.0, 1.0),
        (1.0, 0.0),
    ):
        with pytest.raises(MeasurementError):
            profile.tell(250.0, 10, time_s, energy_j)
    with pytest.raises(UsageError, match="not one of the limits"):
        profile.tell(90.0, 10, 1.0, 100.0)
    assert len(profile.slices) == 0
    with pytest.raises(MeasurementError, match="run a slice first"):
        profile.optimum()


def test_where_limits_follow_no_smooth_curve_more_of_them_are_measured_and_believed() -> None:
    # A job of 80 W that no limit binds; epochs of the second scatter from limit to limit, as measured tables
    # of short ones do.
    beside = {250.0: 1.0, 225.0: 1.04, 200.0: 0.93, 175.0: 1.05, 150.0: 1.01, 125.0: 0.97, 100.0: 1.03}
    rough = PowerProfile(LIMITS_W, Energy())
    drive(rough, of=lambda limit_w: (0.1, 8.0 * beside[limit_w]))
    measured = rough.slices["limit_w"].unique().to_list()
    assert len(measured) >= 6
    assert rough.optimum().limit_w == min(measured, key=lambda limit_w: beside[limit_w])
    assert rough.optimum().iteration_j == pytest.approx(8.0 * beside[rough.optimum().limit_w], rel=0.01)


def test_two_limits_that_cost_nearly_the_same_are_told_apart_by_more_slices_but_not_for_ever() -> None:
    rng = np.random.default_rng(1)
    profile = PowerProfile((150.0, 200.0, 250.0), Energy(), worth=1e-5)
    for _ in range(20):
        step = profile.next_slice()
        if isinstance(step, Done):
            break
        time_s = truth(step.limit_w)[0]
        # 200 W and 250 W differ by less than the error of one slice, 150 W is dearer.
        energy_j = truth(250.0)[1] * {150.0: 1.1, 200.0: 0.998, 250.0: 1.0}[step.limit_w]
        n = max(step.iterations, math.ceil(step.seconds / time_s))
        profile.tell(
            step.limit_w,
            n,
            n * time_s,
            n * energy_j * (1 + 0.003 * rng.standard_normal()),
            0.01 * n * energy_j,
            0.01 * time_s,
        )
    else:
        raise AssertionError("the profile does not end")
    assert 3 < len(profile.slices) <= 9
    assert profile.slices["limit_w"].n_unique() == 3
    assert profile.slices.filter(profile.slices["limit_w"] == 150.0).height == 1


def test_what_an_earlier_run_measured_is_tried_first_and_believed_once_a_slice_agrees() -> None:
    costs = {limit: truth(limit)[1] for limit in LIMITS_W}
    cheapest = float(min(costs, key=lambda limit: costs[limit]))
    (time_s, energy_j), at = truth(250), {float(limit): truth(limit) for limit in LIMITS_W}
    known = [(limit, each[0] / time_s, each[1] / energy_j) for limit, each in at.items()]
    taught, wrong = (
        PowerProfile(LIMITS_W, Energy(), known=each)
        for each in (known, [(limit, time, 3 - 2 * energy) for limit, time, energy in known])
    )
    drive(taught)
    assert taught.slices["limit_w"].to_list()[1] == cheapest
    assert taught.optimum().limit_w == cheapest
    alone = PowerProfile(LIMITS_W, Energy())
    drive(alone)
    assert len(taught.slices) < len(alone.slices)
    drive(wrong)
    assert len(wrong.slices) <= len(alone.slices) + 1
    assert costs[int(wrong.optimum().limit_w)] <= 1.002 * costs[int(cheapest)]


@pytest.mark.parametrize(
    ("objective", "best_w"),
    [(ZeusCost(0.5, 250.0), 200.0), (EnergyWithin(1.05, 0.2), 200.0), (Energy(), 150.0)],
)
def test_the_best_limit_of_an_earlier_run_is_that_of_the_objective_and_its_bound(
    objective: object, best_w: float
) -> None:
    at = {250.0: (1.0, 1.0), 200.0: (1.03, 0.85), 150.0: (1.3, 0.7), 100.0: (1.9, 0.9)}
    profile = PowerProfile(list(at), objective, known=[(w, *each) for w, each in at.items()])  # type: ignore[arg-type]
    drive(profile, of=lambda limit_w: (0.1 * at[limit_w][0], 20.0 * at[limit_w][1]))
    assert profile.slices["limit_w"][1] == best_w


def test_a_limit_that_was_measured_and_then_cannot_be_set_leaves_nothing_behind() -> None:
    profile = PowerProfile((150.0, 200.0, 250.0), Energy())
    profile.tell(250.0, 20, 2.0, 400.0, 0.1)
    profile.tell(200.0, 20, 2.1, 380.0, 40.0)  # an error of a tenth
    profile.cannot(200.0, "its energy could not be measured")
    step = profile.next_slice()
    assert not isinstance(step, Slice) or step.limit_w == 150.0
    assert profile.measured
    profile.cannot(250.0, "its energy could not be measured")
    assert not profile.measured
    assert isinstance(profile.next_slice(), Slice)
    profile.cannot(150.0, "its energy could not be measured")
    assert isinstance(profile.next_slice(), Done)
