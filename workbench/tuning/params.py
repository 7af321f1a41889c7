"""Tuned constants of the tuner's states."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TunerParams:
    """Tuned constants of `Tuner`; set by hand, `benchmarks.clocks --only online` scores whole jobs."""

    # of holding, until the default setting is measured again: soon, as the job may have changed in the search
    first_check_s: float = 20.0
    least_time: float = 0.94  # of the time at the default setting, that a setting takes
    unseen_sd: float = 0.12  # relative, of the time at a setting that nobody has seen
    failures: int = 3  # probes in a row without a result, before something else is tried
    limit_step_w: float = 2.0  # between power limits of the search,
    most_limits: int = 150  # unless these are more than so many
    trace_error: float = 0.008  # relative, of times from the power trace: what all of them have in common
    trace_margin: float = 0.5  # standard deviations of that by which a setting stays farther inside the bound
    aim: float = 0.94  # of the bound: what a setting, and the whole job, is believed to take at most
    slack_horizon_s: float = 300.0  # for which the time that the job has in hand must last at least
    make_up_s: float = 90.0  # in which what it has lost is made up for
    # standard deviations that a setting stays farther inside the bound than the search asks: an error
    # of the baseline is in all of them
    caution: float = 1.2
    most_slack: float = 0.008  # of time: more than this an error is not relied on to be
    stretch_s: float = 3.0  # of a look at the held setting, at least,
    stretch_iterations: int = 5  # and in iterations
    trace_stretch_s: float = 6.0  # the same where iterations are seen in the power trace
    trace_stretch_iterations: int = 12
    # how long iterations may be missing before it is another job: least and most,
    lost_s: tuple[float, float] = (12.0, 60.0)
    lost_share: float = 0.2  # and as a share of the time since the setting is held
    check_cost: float = 0.005  # share of what is saved that checks of the default setting may cost
    rarest_check_s: float = 900.0  # between two checks, at most
    check_s: float = 10.0  # of a check, at most
    check_sd: float = 0.0025  # relative error of a check that ends it
    other_job: float = 0.15  # relative change of the baseline, from which on it is another job
    better: float = 0.003  # of the cost: a change of the held setting for less is not worth the trouble
    doubted: float = 0.5  # probability of keeping the bound below which a setting is left
    step: float = 0.1  # of a clock or limit: no farther from what was measured does a held setting move
    most_more: int = 4  # times that a search is taken up again for a setting farther away
    steer_s: float = 20.0  # between two thoughts about the held setting
    calm_s: float = 40.0  # after one that the bound asked for
    pace_s: float = 0.1  # between two calls of `advance`
    quiet_pace_s: float = 0.2  # the same while nothing is measured
    same_job: float = 0.04  # relative change of the baseline, below which it is the job from before
    # of what is possible: beyond it, iterations are another job's
    odd_times: tuple[float, float] = (0.8, 1.3)
    test_clock: float = 0.94  # of the clock before, at which each test of a period runs
    tests: int = 2  # of a period from the power readings: an alias may pass one of them by chance
    compared_s: float = 60.0  # between readings that are compared: older ones may differ by drift
    busy_refusals: int = 20  # refusals of the driver in a row that may pass
    baseline_sd: float = 0.03  # relative, of the guessed iteration at the default setting
    # share that a held setting is taken to save at least, when the next check is planned
    checked_saving: float = 0.02
    check_growth: float = 1.5  # times the time between two checks, by which it grows at least
    # relative, of a ratio of times: clocks are sampled, and iterations drift; beside three standard errors
    ratio_error: float = 0.04


PARAMS = TunerParams()
