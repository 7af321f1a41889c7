"""The model-guided search: a job that waits for its host, shorter trials, and choices near tried settings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from workbench.records import Limits
from workbench.search.clocks.make import Trial, make_search
from workbench.search.space import SettingSpace, space_from

CLOCKS = space_from(
    Limits(100.0, 300.0, 300.0, {m: tuple(range(1800, 585, -15)) for m in (5001, 810)}), "clocks"
)


def hosted(space: SettingSpace, search: Any) -> int:
    """Probe a job whose GPU works for 6 % of the time, half of that for its memory; returns how many
    probes it took.
    """
    time_s = 0.94 + 0.03 / space.x + 0.03 / space.mu
    energy_j = 30 * time_s + 40 * space.mu * time_s + 100 * space.x**2 * 0.03 / space.x
    number = 0
    while number < 30 and isinstance(step := search.next(), Trial):
        row = space.row(step.setting)
        search.tell(step.setting, 20, 20 * time_s[row], 20 * energy_j[row], 0.01 * 20 * energy_j[row], 0.01)
        number += 1
    return number


def test_a_job_that_waits_for_its_host_is_given_a_slow_memory() -> None:
    """Its memory at 3500 of 5001 MHz would cost 1.2 % of time; at 810 MHz, a sixth, it costs 15 %, more
    than is allowed.
    """
    space = space_from(
        Limits(100.0, 300.0, 300.0, {m: tuple(range(1800, 585, -60)) for m in (5001, 3500, 810)}), "clocks"
    )
    search = make_search("model-guided", space, max_slowdown=0.05, wait_share=0.94)
    assert hosted(space, search) <= 12
    found = search.choice().setting
    assert found.mem_clock_mhz == 3500


def test_a_probe_is_shorter_where_the_choice_is_measured_for_longer_anyhow() -> None:
    steps = [make_search("model-guided", CLOCKS, learns_later=later).next() for later in (False, True)]
    plain, later = steps
    assert isinstance(plain, Trial)
    assert isinstance(later, Trial)
    assert later.seconds < plain.seconds
    assert later.iterations <= plain.iterations


@pytest.mark.parametrize("compute", [0.1, 0.5, 0.9])
def test_the_held_setting_was_tried_or_is_near_a_tried_one(compute: float) -> None:
    """A curve known only by its shape may be wrong, and a training would stay at that setting until it shows.
    """
    limits = space_from(Limits(100.0, 300.0, 300.0), "power", step_w=5)
    search = make_search("model-guided", limits, max_slowdown=0.05, learns_later=True)
    x = np.minimum(1.0, (np.clip(limits.limit * 300 - 70, 1, None) / 180) ** (1 / 3))
    time_s = compute / x + 1 - compute
    energy_j = time_s * (70 + 150 * x**3)
    tried = []
    while len(tried) < 20 and isinstance(step := search.next(), Trial):
        row = limits.row(step.setting)
        tried.append(limits.limit[row])
        search.tell(step.setting, 10, 10 * time_s[row], 10 * energy_j[row], 0.02 * 10 * energy_j[row], 0.01)
    held = limits.limit[limits.row(search.choice().setting)]
    assert min(abs(math.log(each / held)) for each in tried) < 0.13
    assert time_s[limits.row(search.choice().setting)] < 1.06
