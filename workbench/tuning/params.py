"""Constants of the tuner's states."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TunerParams:
    """Constants of `Tuner`, set by hand; `benchmarks.truth` and `benchmarks.clocks --only online` score whole
    jobs with them.
    """

    # of holding until the default setting is measured again: soon, as the job may have changed in the search
    first_check_s: float = 20.0
    rarest_check_s: float = 900.0  # the same at most: it doubles each time
    tries: int = 3  # probes in a row without a result before something else is tried
    most_limits: int = 100  # power limits of the search: 2 or 3 W apart, about what drivers keep to
    aim: float = 0.94  # of the bound, for the whole job: its end can no longer be made up for
    # standard deviations that a setting stays farther inside the bound than the search asks: an error of the
    # baseline is in all of them. Without it one marked job in seven of `benchmarks.truth` broke the bound
    caution: float = 0.5
    make_up_s: float = 90.0  # in which time that was lost is made up for
    stretch_s: float = 3.0  # of a look at the held setting, at least: several readings of every sensor
    stretch_iterations: int = 5  # the same in iterations
    lost_s: float = 30.0  # without an observed iteration, then it is another job: checkpoints take less
    same_job: float = 0.04  # relative change of a baseline below which it is the job from before
    better: float = 0.003  # of the cost, below which the held setting stays: what a probe's error hides
    pace_s: float = 0.1  # between two calls of `advance`
    odd: float = 1.3  # times what is possible: beyond it, iterations are another job's
    known_sd: float = 0.02  # relative, of an iteration's length at a setting that was measured
    # of the clock before, at which each test of a period runs: an alias moves three times as far or more
    test_clock: float = 0.94
    tests: int = 2  # of a period from the power readings: an alias may pass one of them by chance
    compared_s: float = 60.0  # between readings that are compared: older ones may differ by drift
    # relative, of a ratio of times: clocks are sampled, and iterations drift; next to three standard errors
    ratio_error: float = 0.04
    busy_refusals: int = 20  # refusals of the driver in a row that may pass


PARAMS = TunerParams()
