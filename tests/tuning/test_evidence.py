"""Measurements of an earlier run in a search: its best setting is tried first, once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np

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


def test_the_earlier_best_is_tried_first_and_only_measurements_count() -> None:
    """After it, the search is the same as one that tried this setting by itself."""
    belief, alone = posterior(known(cost)), posterior()
    for each in (belief, alone):
        read(each, Setting())
    step = belief.next()
    assert not isinstance(step, Done)
    allowed = [each for each in SPACE.settings if cost(each)[0] <= 1.04 * cost(Setting())[0]]
    assert step.setting == min(allowed, key=lambda each: cost(each)[1])
    assert re.match("11 settings .* sweep .*2026-11-22: tried first", step.reason)
    for each in (belief, alone):
        read(each, step.setting)
    assert belief.frame.equals(alone.frame)
    assert belief.next() == alone.next()


def test_wrong_evidence_is_tried_once_and_breaks_no_bound() -> None:
    """The best setting of the wrong run is tried; then the search continues as if without evidence."""
    for seed in range(4):
        misled, same = posterior(known(other)), posterior()
        asked = run(misled, seed)
        for setting in asked[:2]:
            read(same, setting, seed=seed)
        assert run(same, seed) == asked[2:]
        assert len(asked) - len(run(posterior(), seed)) <= 2
        chosen = misled.choice(0.05).setting
        assert cost(chosen)[0] <= 1.05 * cost(Setting())[0]


def test_another_objective_keeps_the_measurements_and_tries_nothing_twice() -> None:
    belief = posterior(known(cost))
    run(belief)
    again = belief.again(Energy(), 0.1)
    assert again.measured() == belief.measured()
    assert again.max_slowdown == 0.1
    step = again.next()
    assert isinstance(step, Done) or "tried first" not in step.reason


def test_evidence_makes_no_probe_longer() -> None:
    def longest(*curves: EarlierCurve) -> float:
        belief = posterior(*curves)
        belief.tell(Setting(), 4, 16.0, 4000.0, 5.0, 0.02)
        assert isinstance(belief.search, Probing)
        return belief.search.trial(1, "").seconds

    assert longest(known(cost)) == longest()
