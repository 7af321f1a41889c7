"""The second generator of recurring jobs: properties of each job and of its families."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fixtures.recurring_job import RandomJob
from benchmarks.fixtures.recurring_jobs_second import FAMILIES, EpochCount, best_epoch_cost_j, jobs

JOBS = jobs(200, seed=0)


def _counts(job: RandomJob) -> EpochCount:
    assert isinstance(job.epochs, EpochCount)
    return job.epochs


def _costs_j(job: RandomJob) -> np.ndarray:
    """Mean cost of reaching the target at each batch size, J."""
    epoch_cost_j = best_epoch_cost_j(job.epoch_time_s, job.epoch_energy_j, job.power_limits_w[-1])
    return np.asarray(_counts(job).mean_epochs() * epoch_cost_j)


def test_a_seed_gives_the_same_jobs_and_a_longer_list_begins_like_a_shorter() -> None:
    for job, again in zip(jobs(5, seed=7), jobs(9, seed=7), strict=False):
        assert job.name == again.name
        assert np.array_equal(job.epoch_energy_j, again.epoch_energy_j)
        draws = [[j.epochs(size, np.random.default_rng(3)) for size in j.batch_sizes] for j in (job, again)]
        assert draws[0] == draws[1]
    assert not np.array_equal(jobs(1, seed=8)[0].epoch_energy_j, jobs(1, seed=7)[0].epoch_energy_j)


def test_jobs_are_within_the_ranges_and_cover_every_family() -> None:
    assert {job.family for job in JOBS} == set(FAMILIES)
    assert sum(FAMILIES.values()) == pytest.approx(1.0)
    assert 0.15 < np.mean([job.drift is not None for job in JOBS]) < 0.35
    for job in JOBS:
        assert 4 <= len(job.batch_sizes) <= 12
        assert 50 <= job.recurrences <= 300
        assert 100 <= job.power_limits_w[-1] <= 700
        if job.drift is not None:
            assert 0 < job.drift.recurrence < job.recurrences
            assert job.drift.job.drift is None


def test_the_default_reaches_the_target_before_and_after_a_drift() -> None:
    for job in JOBS:
        for one in [job] + ([job.drift.job] if job.drift else []):
            default = one.batch_sizes.index(one.default_batch_size)
            assert _counts(one).reach(seed=1)[default] >= 0.9, one.name


def test_a_run_takes_whole_epochs_within_the_limit_or_fails() -> None:
    rng = np.random.default_rng(0)
    runs = [(job, job.epochs(size, rng)) for job in JOBS for size in job.batch_sizes]
    assert all(e is None or (1 <= e <= job.max_epochs and e == int(e)) for job, e in runs)
    assert 0.05 < np.mean([e is None for _, e in runs]) < 0.4


def test_an_epoch_costs_what_a_card_would_draw() -> None:
    for job in JOBS:
        power_w = job.epoch_energy_j / job.epoch_time_s
        assert (power_w <= np.array(job.power_limits_w) * (1 + 1e-9)).all()
        assert (power_w > 0.05 * job.power_limits_w[-1]).all()
        time_s = job.epoch_time_s  # each point lies up to 3 % off
        assert (time_s[1:, -1] <= 1.1 * time_s[:-1, -1]).all(), "a larger batch is not slower"
        assert (time_s[:, :-1] >= 0.938 * time_s[:, 1:]).all(), "a lower limit is not faster"


def test_each_family_has_the_property_in_its_name() -> None:
    for job in JOBS:
        cost = _costs_j(job)
        if job.family == "edge-optimal":
            assert min(cost[0], cost[-1]) <= 1.01 * cost.min(), job.name
        if job.family == "fails beyond a batch size":
            assert not np.isfinite(cost).all()
    drifts = [(job, job.drift.job) for job in JOBS if job.drift is not None]
    moved = [_costs_j(job).argmin() != _costs_j(later).argmin() for job, later in drifts]
    assert 0.25 < np.mean(moved) < 0.85
