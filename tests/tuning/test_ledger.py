"""A saving is measured against the default setting as the job is then, and its interval covers the truth."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from workbench.records import Configuration, Limits, Observation
from workbench.search.clocks.descent import Descent
from workbench.search.clocks.effects import ladders
from workbench.search.space import space_from
from workbench.tuning import ledger as ledgers
from workbench.tuning.ledger import Ledger
from workbench.tuning.results import Saved

SPACE = space_from(Limits(100.0, 300.0, 300.0, {5001: tuple(range(1800, 885, -15))}), "clocks")
RUNGS = ladders(SPACE, 1800.0, 250.0)
DEFAULT = RUNGS.reference
HELD = SPACE.row(next(each for each in SPACE.settings if each.sm_clock_mhz == 1500))
TRUE = {DEFAULT: (1.0, 1.0), HELD: (1.04, 0.9)}  # ratios of time and energy
CHECKS_S = (0.0, 60.0, 140.0, 320.0)  # from when on the default setting is measured again


def work(kind: str, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """What each iteration of half a second takes, relative to the first."""
    count, at = 1400, np.arange(1400) / 1400
    each = 1.0 + 0.01 * rng.normal(size=count)
    if kind == "growing":
        each *= 1.0 + rng.uniform(0.02, 0.1) * at
    elif kind == "warming up":
        each *= 1.0 + 0.03 * (1.0 - np.exp(-at / 0.1))
    elif kind == "bucketed":
        each *= rng.choice([0.6, 0.8, 1.0, 1.3, 1.6], count)
    return each


class Job:
    """A job that is booked stretch by stretch, and its true cost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, *, counted: bool = True) -> None:
        self.rng, self.now_s, self.joules = rng, 0.0, {(0.0, 0.0): 0.0}
        self.method = Descent(RUNGS, np.full(len(RUNGS.z), 1.2), max_slowdown=0.05)
        self.method.count(counted)
        self.ledger = Ledger()
        self.ledger.open(self.method, 0.0)
        self.took_s = self.took_j = self.would_s = self.would_j = 0.0

        def energy(meter: object, from_s: float, to_s: float) -> Any:
            used_j = self.joules.pop((from_s, to_s))
            return SimpleNamespace(energy_j=used_j * (1 + 0.0005 * rng.normal()), uncertainty_j=0.001 * used_j)

        monkeypatch.setattr(ledgers, "energy", energy)

    def block(self, row: int, kind: str, each: np.ndarray[Any, Any]) -> None:
        time, energy = TRUE[row]
        begin_s, time_s, energy_j = self.now_s, 0.5 * time * each.sum(), 100 * energy * each.sum()
        self.now_s += time_s
        self.joules[begin_s, self.now_s] = energy_j
        self.took_s, self.took_j = self.took_s + time_s, self.took_j + energy_j
        self.would_s, self.would_j = self.would_s + 0.5 * each.sum(), self.would_j + 100 * each.sum()
        self.ledger.cut(self.now_s, row, kind)
        count = float(len(each)) if self.method.counted else 0.0
        self.method.tell(Observation(
            Configuration(self.method.rungs.settings[row]), count, time_s, energy_j, 0.0005 * energy_j,
            float(each.std(ddof=1) / each.mean()), at_s=begin_s + 0.5 * time_s,
        ))
        self.ledger.count(None, math.inf)  # type: ignore[arg-type]
        self.ledger.believe()

    @property
    def saved(self) -> Saved:
        saved = self.ledger.saved()
        assert saved is not None
        return saved


def tuned(monkeypatch: pytest.MonkeyPatch, kind: str, seed: int) -> Job:
    """A job of which most is spent at one setting."""
    rng = np.random.default_rng(seed)
    each, job, now, due = work(kind, rng), Job(monkeypatch, rng), 0, list(CHECKS_S)
    while now < 1280:
        check = bool(due) and job.now_s >= due[0]
        if check:
            due.pop(0)
        count = 20 if check else 40
        job.block(DEFAULT if check else HELD, "default" if check else "held", each[now : now + count])
        now += count
    return job


@pytest.mark.parametrize("kind", ["steady", "growing", "warming up", "bucketed"])
def test_the_interval_of_a_saving_covers_the_truth(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    jobs = [tuned(monkeypatch, kind, seed) for seed in range(20)]
    covered = slower = 0
    for job in jobs:
        saved = job.saved
        covered += abs(saved.share - (1 - job.took_j / job.would_j)) <= saved.share_uncertainty
        slower += abs(saved.slowdown - (job.took_s / job.would_s - 1)) <= saved.slowdown_uncertainty
    assert covered >= 17
    assert slower >= 17
    steady = kind in ("steady", "warming up")
    assert max(job.saved.share_uncertainty for job in jobs) < (0.025 if steady else 0.08)


def test_a_ledger_adds_up_and_separates_what_tuning_took(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    job = Job(monkeypatch, rng)
    assert job.ledger.saved() is None
    job.block(DEFAULT, "default", np.ones(20) + 0.001 * rng.normal(size=20))
    job.block(HELD, "trial", np.ones(20) + 0.001 * rng.normal(size=20))
    spent = job.ledger.spent
    job.block(HELD, "held", np.ones(200) + 0.001 * rng.normal(size=200))
    assert spent == job.ledger.spent == pytest.approx((0.5 * (20 + 20.8), 2000 + 1800), rel=0.002)
    saved = job.saved
    assert saved.time_s == pytest.approx(job.took_s)
    assert saved.iterations == pytest.approx(240, rel=0.01)
    assert saved.energy_j == pytest.approx(job.would_j - job.took_j, abs=saved.uncertainty_j)


def test_time_that_is_not_counted_is_on_neither_side(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    job = Job(monkeypatch, rng)
    job.block(DEFAULT, "default", np.ones(40))
    before = job.saved
    job.ledger.pause()
    assert job.ledger.oldest_s == math.inf  # the recorder keeps nothing for it
    job.ledger.cut(job.now_s + 100.0, DEFAULT, "held")
    job.ledger.count(None, math.inf)  # type: ignore[arg-type]
    job.ledger.believe()
    assert job.saved == before


def test_two_works_are_one_account(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    job = Job(monkeypatch, rng)
    job.block(DEFAULT, "default", np.ones(40))
    job.block(HELD, "held", np.ones(400))
    first = job.saved
    job.method = Descent(RUNGS, np.full(len(RUNGS.z), 1.2), max_slowdown=0.05)
    job.method.count(True)
    job.ledger.open(job.method, job.now_s)
    assert job.saved == first  # the second one has no baseline yet
    job.block(DEFAULT, "default", 2 * np.ones(40))
    job.block(HELD, "held", 2 * np.ones(200))
    assert job.saved.energy_j == pytest.approx(job.would_j - job.took_j, abs=job.saved.uncertainty_j)
    assert job.saved.iterations == pytest.approx(680, rel=0.01)


def test_without_counts_the_interval_of_the_slowdown_is_what_the_clocks_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    job = Job(monkeypatch, rng, counted=False)
    job.block(DEFAULT, "default", np.ones(40))
    job.block(HELD, "held", np.ones(200))
    saved = job.saved
    assert saved.slowdown - saved.slowdown_uncertainty <= 0.005
    assert saved.slowdown + saved.slowdown_uncertainty >= 0.17  # of the 20 % that the clocks allow
    assert saved.iterations == 0


def test_a_long_job_keeps_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    job = Job(monkeypatch, rng)
    job.block(DEFAULT, "default", np.ones(40))
    for _ in range(300):
        job.block(HELD, "held", 1 + 0.005 * rng.normal(size=20))
    assert len(job.method.blocks) <= 80
    saved = job.saved
    assert saved.iterations == pytest.approx(6040, rel=0.02)
    assert saved.share == pytest.approx(1 - job.took_j / job.would_j, abs=saved.share_uncertainty)
