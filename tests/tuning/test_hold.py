"""A tuner estimates the slowdown of a job that waits, learns from a setting that it holds, and reports its
errors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from workbench.experiments.iteration_sources import Rate, guessed
from workbench.experiments.probe import Reading
from workbench.records import Limits, Setting
from workbench.search.clocks.make import Trial, make_search
from workbench.search.space import SettingSpace, space_from
from workbench.tuning import choice
from workbench.tuning.accounts import SavingsAccounts, Stretch
from workbench.tuning.params import PARAMS
from workbench.tuning.results import Saved

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


class Rows:
    """A recorder that has seen a GPU at one utilisation and at one pair of clocks."""

    def __init__(self, busy: float, sm_mhz: float, mem_mhz: float) -> None:
        rows = np.zeros(100, [(name, "<f4") for name in ("utilisation", "sm_clock_mhz", "mem_clock_mhz")])
        rows["utilisation"], rows["sm_clock_mhz"], rows["mem_clock_mhz"] = busy, sm_mhz, mem_mhz
        self.rows = lambda uuid, from_s, to_s: rows


def slowdown(busy0: float, busy: float, sm_mhz: float, mem_mhz: float) -> float | None:
    source = Rate(Rows(busy, sm_mhz, mem_mhz), "GPU-0", busy0, 1500.0, 7000.0)  # type: ignore[arg-type]
    found = source.runs(0.0, 10.0, guessed(0.1, 0.03))
    return found[0].iteration_s / 0.1 - 1.0 if found else None


def test_waits_show_the_slowdown_by_slow_memory_without_iterations() -> None:
    """A tenth of the time was the GPU's; at an eighth of the time the whole has become longer by 0.9 /
    0.875, 2.9 %.
    """
    seen = slowdown(0.10, 0.125, 1500.0, 810.0)
    assert seen is not None
    assert 0.029 - 0.004 < seen < 0.029 + 0.01
    assert slowdown(0.95, 0.95, 1500.0, 810.0) is None  # hardly a wait to tell by


def test_a_slower_clock_slows_all_gpu_work_unless_waits_show_less() -> None:
    assert slowdown(0.95, 0.95, 1200.0, 7000.0) == pytest.approx(0.95 * 0.25, abs=0.02)
    known = slowdown(0.5, 0.51, 1200.0, 7000.0)
    assert known is not None
    assert known < 0.5 * 0.25
    assert known > 0.5 / 0.49 - 1 - 0.004


def test_the_error_of_a_rate_covers_a_smaller_loss() -> None:
    source = Rate(Rows(0.95, 1200.0, 7000.0), "GPU-0", 0.95, 1500.0)  # type: ignore[arg-type]
    (found,) = source.runs(0.0, 10.0, guessed(0.1, 0.03))
    assert 1.96 * found.common_sd == pytest.approx(0.95 * 0.25, rel=0.01)


def test_the_error_of_a_rate_counts_both_measured_utilisations() -> None:
    """Waits of 45 % become 70 % of the time; each utilisation is known to 0.3 points."""
    source = Rate(Rows(0.30, 1000.0, 7000.0), "GPU-0", 0.55, 1500.0)  # type: ignore[arg-type]
    (found,) = source.runs(0.0, 10.0, guessed(0.1, 0.03))
    assert found.sd_s / found.iteration_s == pytest.approx(math.hypot(0.003, 0.003 / 0.45, 0.003 / 0.70))


def reading(iteration_s: float = 1.0, iteration_j: float = 100.0) -> Reading:
    return Reading(Setting(), 100, 100 * iteration_s, 100 * iteration_j, 0.0, 0.001 * iteration_s, 0.0, 100.0)


def test_an_error_that_all_stretches_share_does_not_become_less_with_their_number() -> None:
    """A hundred stretches of ten iterations, each wrong by the same 1 %."""
    book = SavingsAccounts()
    book.open(None)  # type: ignore[arg-type]
    book.read(reading())
    for number in range(100):
        book.add(Stretch("held", Setting(sm_clock_mhz=900), 10, 10.3, 900.0, common_sd=0.01, at_s=50.0 + number))
    saved = book.saved()
    assert saved is not None
    assert saved.uncertainty_j > 1.96 * 0.01 * 100_000
    at_default = SavingsAccounts()
    at_default.open(None)  # type: ignore[arg-type]
    at_default.read(reading())
    at_default.add(Stretch("baseline", Setting(), 1000, 1000.0, 100_000.0, common_sd=0.01))
    at_default_saved = at_default.saved()
    assert at_default_saved is not None
    assert (at_default_saved.energy_j, at_default_saved.uncertainty_j) == (0.0, 0.0)


def test_slowdown_beyond_the_limit_is_compensated_later() -> None:
    """6 % in 100 s is 1.3 s more than 94 % of 5 %, made up for in 90 s."""
    def lost(slowdown: float) -> float:
        saved = Saved(0.0, 0.0, 0.0, 0.0, slowdown, 0.004, 100.0, 100.0 * (1 + slowdown))
        return choice.lost(saved, 0.05)

    assert lost(0.06) == pytest.approx((0.06 - PARAMS.aim * 0.05) * 100 / PARAMS.make_up_s)
    assert lost(0.04) == 0.0
    assert choice.lost(None, 0.05) == 0.0
