"""Measurements of an earlier run in a tuned job: tried first, used when confirmed, ignored when wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest

from workbench.records import Limits, Setting
from workbench.search.clocks.base import Done, Probing
from workbench.search.clocks.posterior import SettingPosterior
from workbench.search.earlier import EarlierCurve
from workbench.search.objective import Energy
from workbench.search.space import space_from

SPACE = space_from(Limits(100.0, 300.0, 300.0, {}), "power", step_w=20.0)
BASELINE = (0.5, 130.0)
Cost = Callable[[Setting], tuple[float, float]]


def cost(setting: Setting) -> tuple[float, float]:
    """Time and energy of an iteration of the job."""
    x = (setting.power_limit_w or 300.0) / 300.0
    busy = min(max((x - 0.2) / 0.75, 0.2), 1.0) ** 0.5
    time = 0.4 + 0.6 / busy
    return time, time * (60 + 200 * busy**2.2)


def other(setting: Setting) -> tuple[float, float]:
    """A job that hardly slows down and saves much: as evidence of the one above it is wrong."""
    x = (setting.power_limit_w or 300.0) / 300.0
    return 1.0 + 0.02 * (1 - x), 100 + 200 * x


def known(of: Cost, source: str = "a sweep of 2026-11-22") -> EarlierCurve:
    """A curve in a unit of its own."""
    values = {each: of(each) for each in SPACE.settings}
    return EarlierCurve({each: (7 * time, 3 * energy) for each, (time, energy) in values.items()}, source)


def posterior(*same: EarlierCurve, later: bool = True) -> SettingPosterior:
    return SettingPosterior("model-guided", SPACE, Energy(), 0.05, same=same, learns_later=later)


def read(belief: SettingPosterior, setting: Setting, of: Cost = cost, seed: int = 0) -> None:
    """Tell of a probe of 20 iterations."""
    top, here = of(Setting()), of(setting)
    luck_of = np.random.default_rng([seed, round(setting.power_limit_w or 300)])
    noise = np.exp(0.003 * luck_of.standard_normal(2))
    time_s, energy_j = (20 * base * a / b * luck
                        for base, a, b, luck in zip(BASELINE, here, top, noise, strict=True))
    belief.tell(setting, 20, time_s, energy_j, 0.005 * energy_j, 0.002 * time_s / math.sqrt(20))


def run(belief: SettingPosterior, seed: int = 0) -> list[Setting]:
    """Settings that were probed before the search ended."""
    asked: list[Setting] = []
    while not isinstance(step := belief.next(), Done) and len(asked) < 20:
        read(belief, step.setting, seed=seed)
        asked.append(step.setting)
    return asked


def test_the_earlier_best_is_tried_first_and_then_counts() -> None:
    belief = posterior(known(cost))
    read(belief, Setting())
    assert belief.earlier.agreed == []
    step = belief.next()
    assert not isinstance(step, Done)
    allowed = [each for each in SPACE.settings if cost(each)[0] <= 1.04 * cost(Setting())[0]]
    assert step.setting == min(allowed, key=lambda each: cost(each)[1])
    assert re.match("11 settings .* sweep .*2026-11-22", step.reason)
    read(belief, step.setting)
    assert belief.news.endswith("this run's measurements")
    elsewhere = Setting(power_limit_w=160.0)
    expected = [a / b for a, b in zip(cost(elsewhere), cost(Setting()), strict=True)]
    time_ratio, time_sd, energy_ratio = belief.ratios(elsewhere)
    assert (time_ratio, energy_ratio) == pytest.approx(expected, rel=0.03)
    assert time_sd < 0.03
    assert not belief.visited(elsewhere)


def test_a_search_from_known_points_tries_less_and_chooses_a_measured_setting() -> None:
    plain, informed = posterior(later=False), posterior(known(cost), later=False)
    count = [len(run(each)) for each in (plain, informed)]
    assert count[1] < count[0]
    chosen = informed.choice(0.05).setting
    assert informed.visited(chosen)
    assert cost(chosen)[0] <= 1.05 * cost(Setting())[0]


def test_wrong_evidence_is_tried_once_and_breaks_no_bound() -> None:
    """The best setting of the wrong run is tried; then the search continues as if without evidence."""
    for seed in range(4):
        misled, same = posterior(known(other)), posterior()
        asked = run(misled, seed)
        for setting in asked[:2]:
            read(same, setting, seed=seed)
        assert run(same, seed) == asked[2:]
        assert len(asked) - len(run(posterior(), seed)) <= 2
        assert not misled.earlier
        chosen = misled.choice(0.05).setting
        assert cost(chosen)[0] <= 1.05 * cost(Setting())[0]


def test_one_contradiction_leaves_a_curve_out_also_after_it_was_borne_out() -> None:
    def bent(setting: Setting) -> tuple[float, float]:
        time, energy = cost(setting)
        return (time, energy) if (setting.power_limit_w or 300.0) > 200 else (1.2 * time, energy)

    belief = posterior(known(bent))
    read(belief, Setting())
    read(belief, Setting(power_limit_w=260.0))
    assert len(belief.earlier.agreed) == 1
    read(belief, Setting(power_limit_w=160.0))
    assert not belief.earlier
    assert belief.news.endswith("not used")
    assert belief.ratios(Setting(power_limit_w=160.0))[0] == pytest.approx(
        cost(Setting(power_limit_w=160.0))[0] / cost(Setting())[0], rel=0.02
    )


def test_another_objective_keeps_the_measurements_and_the_evidence() -> None:
    belief = posterior(known(cost))
    run(belief)
    again = belief.again(Energy(), 0.1)
    assert len(again.earlier.agreed) == 1
    assert again.measured() == belief.measured()
    assert again.max_slowdown == 0.1


def test_other_jobs_of_the_card_shift_predictions_but_are_no_measurement() -> None:
    """The reference alone does not show how far a job slows down; one trial below it weighs the other jobs.
    """
    jobs = [EarlierCurve({each: cost(each) for each in SPACE.settings[::2]}, "x") for _ in range(2)]
    for watts in (220.0, 200.0, 180.0, 160.0):
        informed = SettingPosterior("model-guided", SPACE, Energy(), 0.05, others=jobs)
        error = []
        for belief in (posterior(), informed):
            read(belief, Setting())
            read(belief, Setting(power_limit_w=watts))
            got = [belief.ratios(each)[2] for each in SPACE.settings[1:]]
            true = [cost(each)[1] / cost(Setting())[1] for each in SPACE.settings[1:]]
            error.append(float(np.mean(np.abs(np.log(np.array(got) / true)))))
            assert not belief.visited(Setting(power_limit_w=280.0))
        assert error[1] < 0.5 * error[0]


def test_evidence_makes_no_probe_longer() -> None:
    def longest(*curves: EarlierCurve) -> float:
        belief = posterior(*curves)
        belief.tell(Setting(), 4, 16.0, 4000.0, 5.0, 0.02)
        assert isinstance(belief.search, Probing)
        return belief.search.trial(1, "").seconds

    assert longest(known(cost)) == longest()
