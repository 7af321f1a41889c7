"""A saving is measured against the default setting as the job is then, not as it was at the beginning."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from workbench.experiments.probe import Reading
from workbench.records import Setting
from workbench.tuning.accounts import SavingsAccounts, Stretch
from workbench.tuning.cost_ratios import cost_ratios
from workbench.tuning.results import Saved

HELD = Setting(sm_clock_mhz=900)
ENERGY_RATIO, TIME_RATIO = 0.9, 1.04
# Of holding 600 s: the default is measured before, soon after the beginning, and seldom then.
CHECKS_S = (0.0, 60.0, 140.0, 320.0)


def work(kind: str, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """What each iteration of half a second takes, relative to the first."""
    count, at = 1300, np.arange(1300) / 1300
    each = 1.0 + 0.01 * rng.normal(size=count)
    if kind == "growing":
        each *= 1.0 + rng.uniform(0.1, 0.5) * at
    elif kind == "warming up":
        each *= 1.0 + 0.03 * (1.0 - np.exp(-at / 0.1))
    elif kind == "bucketed":
        each *= rng.choice([0.6, 0.8, 1.0, 1.3, 1.6], count)
    elif kind == "correlated":
        noise = rng.normal(size=count)
        for n in range(1, count):
            noise[n] = 0.9 * noise[n - 1] + math.sqrt(0.19) * noise[n]
        each *= np.exp(0.06 * noise)
    return each


def tuned(kind: str, seed: int) -> tuple[Saved, float, float]:
    """The reported saving of a simulated account, the true share, and the true slowdown."""
    rng = np.random.default_rng(seed)
    each, book = work(kind, rng), SavingsAccounts()
    none: Any = None
    book.open(none)
    now, took, took_s, would = 0, 0.0, 0.0, 0.0

    def take(count: int, setting: Setting) -> tuple[float, float, float, float]:
        nonlocal now, took, took_s, would
        part, at_s = each[now : now + count], 0.5 * (now + count / 2)
        now += count
        ratio = ENERGY_RATIO if setting == HELD else 1.0
        took, would = took + 100 * ratio * part.sum(), would + 100 * part.sum()
        time_s = 0.5 * (TIME_RATIO if setting == HELD else 1.0) * part.sum()
        took_s += time_s
        energy_j = 100 * ratio * part.sum() * (1 + 0.0005 * rng.normal())
        return at_s, time_s, energy_j, float(part.std(ddof=1) / part.mean() / math.sqrt(count))

    while now < 1280:
        if any(now <= 2 * at_s < now + 20 for at_s in CHECKS_S):
            at_s, time_s, energy_j, sd = take(20, Setting())
            book.read(Reading(Setting(), 20, time_s, energy_j, 0.001 * energy_j, sd * time_s / 20,
                              at_s - 5.0, at_s + 5.0))
            book.add(Stretch("re-check", Setting(), 20, time_s, energy_j))
        at_s, time_s, energy_j, sd = take(20, HELD)
        book.add(Stretch("held", HELD, 20, time_s, energy_j, 0.001 * energy_j, sd, at_s=at_s))
    saved = book.saved()
    assert saved is not None
    return saved, 1.0 - took / would, took_s / (0.005 * would) - 1.0


@pytest.mark.parametrize("kind", ["steady", "growing", "warming up", "bucketed", "correlated"])
def test_the_interval_of_a_saving_covers_the_truth(kind: str) -> None:
    found = [tuned(kind, seed) for seed in range(40)]
    covered = sum(abs(saved.share - share) <= saved.share_uncertainty for saved, share, _ in found)
    slower = sum(abs(saved.slowdown - slow) <= saved.slowdown_uncertainty for saved, _, slow in found)
    assert covered >= 34
    assert slower >= 34


def test_a_growing_job_does_not_count_as_slower_and_the_interval_stays_narrow() -> None:
    saved, share, slower = tuned("growing", 3)
    assert saved.share == pytest.approx(share, abs=0.01)
    assert saved.share_uncertainty < 0.01
    assert saved.slowdown == pytest.approx(slower, abs=0.01)


def test_without_a_baseline_close_in_time_the_interval_is_wide() -> None:
    def error(first_s: float) -> float:
        samples = [("default", 0.0), *(("held", first_s + 10.0 * n) for n in range(10))]
        _, covariance = cost_ratios(samples, np.ones(11), np.full(11, 1e-6), samples[1:2], "default")
        return float(covariance[0, 0])

    assert error(300.0) > 10 * error(10.0)


def test_a_ratio_that_changes_with_the_job_is_followed() -> None:
    """A card warms up: the default costs 5 % more in the end, a power limit 2 %."""
    at_s = np.arange(0.0, 600.0, 10.0)
    warm = 1.0 - np.exp(-at_s / 120.0)
    checks = np.isin(at_s, [0.0, 50.0, 130.0, 250.0, 400.0, 590.0])
    samples = [("default" if check else "held", at) for check, at in zip(checks, at_s, strict=True)]
    costs = np.where(checks, 1.0 + 0.05 * warm, 0.95 * (1.0 + 0.02 * warm))
    logs, covariance = cost_ratios(samples, costs, np.full(60, 4e-6), [("held", at) for at in at_s], "default")
    true = np.log(0.95 * (1.0 + 0.02 * warm) / (1.0 + 0.05 * warm))
    assert abs(logs.mean() - true.mean()) < 1.96 * math.sqrt(covariance.mean())
    assert logs.mean() == pytest.approx(true.mean(), abs=0.003)


def test_a_long_job_keeps_few_samples() -> None:
    book = SavingsAccounts()
    none: Any = None
    book.open(none)
    book.read(Reading(Setting(), 100, 100.0, 10_000.0, 0.0, 0.001, 0.0, 100.0))
    for number in range(2000):
        book.add(Stretch("held", HELD, 3, 3.12, 270.0, at_s=100.0 + 3.0 * number))
    assert len(book.accounts[0].samples) <= 100
    saved = book.saved()
    assert saved is not None
    assert saved.share == pytest.approx(0.1, abs=1e-6)
    assert saved.iterations == 6000
