"""Random jobs: their costs can be computed, and the generator keeps its promises."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fixtures.recurring_job import RandomJob
from benchmarks.fixtures.recurring_jobs import FAMILIES, jobs
from benchmarks.replay_contestants import Default
from benchmarks.replay_random import as_job, expected, play, summary


def plain(epochs: object, max_epochs: int = 20) -> RandomJob:
    """Two batch sizes; an epoch takes 10 s and 1000 J, or half of both."""
    each_s = np.array([[10.0], [5.0]])
    return RandomJob(
        "plain", "plain", (32, 64), 32, (200.0,), max_epochs, epochs, each_s, 100 * each_s, 12  # type: ignore[arg-type]
    )


def test_jobs_are_the_same_for_the_same_seed_and_of_all_families() -> None:
    first, again = jobs(24, 5), jobs(12, 5)
    assert [job.name for job in first[:12]] == [job.name for job in again]
    assert first[3].epoch_time_s == pytest.approx(again[3].epoch_time_s)
    assert {job.family for job in first} == set(FAMILIES)
    for job in first:
        rng = np.random.default_rng(1)
        runs = [job.epochs(job.default_batch_size, rng) for _ in range(60)]
        assert sum(run is not None for run in runs) >= 30  # at least every second at the default
        assert 4 <= len(job.batch_sizes) <= 12
        assert 50 <= job.recurrences <= 300


def test_the_best_is_stopped_at_its_best_moment() -> None:
    # Every other run never gets there, the others take 4 epochs: 4 epochs lost for each that does.
    job = as_job(plain(lambda size, rng: 4.0 if rng.random() < 0.5 else None), 0)
    reached = np.mean([path.epochs < np.inf for path in job.paths[0]])
    each = 0.5 * 1000 + 0.5 * 200 * 10
    assert expected(job)[0, 0] == pytest.approx(each * 4 / reached, rel=1e-6)


def test_what_never_gets_there_costs_ever_so_much() -> None:
    job = as_job(plain(lambda size, rng: 4.0 if size == 32 else None), 0)
    assert np.isinf(expected(job)[1, 0])


def test_the_default_pays_for_every_run_and_retry() -> None:
    played, bill = play(Default(), plain(lambda size, rng: 6.0), 0)
    assert bill.cost == pytest.approx([6 * (0.5 * 1000 + 0.5 * 200 * 10)] * 12)
    assert (played.runs, played.runs_max) == (12, 1)
    assert played.regret == pytest.approx(12)  # 64 takes half
    assert played.last_gap == pytest.approx(1)


def test_the_summary_has_plain_numbers() -> None:
    row = {
        "regret_runs": 2.0, "regret_runs_zeus": 8.0, "last_gap": 0.03, "last_gap_zeus": 0.0, "runs_max": 2,
        "tries_max": 2, "runs": 30, "lost": 1, "recurrences": 20,
    }
    found = summary([row, {**row, "last_gap": 0.0, "regret_runs": 9.0}], [0.9, 1.03], [1.0, 1.2])
    assert found["random_jobs_ratio"] == pytest.approx(11 / 16)
    assert found["random_jobs_worse_than_zeus"] == 0.5
    assert found["random_jobs_gap_share"] == 0.5
    assert found["runs_in_a_recurrence_max"] == 2
    assert found["recurrences_lost_share"] == pytest.approx(0.05)
    assert found["safe_mode_random_share_within"] == 0.5
    assert all(isinstance(value, float) for value in found.values())


def test_ours_gives_a_batch_size_up_that_never_gets_there() -> None:
    from workbench.search.batch_size.knowledge_gradient import KnowledgeGradient

    played, bill = play(KnowledgeGradient(), plain(lambda size, rng: 6.0 if size == 32 else None), 0)
    assert played.runs_max <= 2
    assert played.runs <= 15
    assert [arm for arm, _ in bill.chosen][-6:] == [0] * 6


def test_three_failed_runs_end_a_recurrence_and_a_training_is_charged() -> None:
    from workbench.search.batch_size.knowledge_gradient import KnowledgeGradient

    often = plain(lambda size, rng: 4.0 if rng.random() < 0.5 else None, max_epochs=10)
    played, bill = play(KnowledgeGradient(), often, 3)
    assert played.runs_max == 3
    assert played.lost == sum(bill.lost) > 0
    job = as_job(often, 3)
    at = bill.lost.index(True)
    arm, _ = bill.chosen[at]
    owed = job.mean_epochs()[arm] * (1.0, 0.5)[arm] * (0.5 * 1000 + 0.5 * 200 * 10)
    assert bill.cost[at] > owed + 3 * 4 * 500  # three runs of 4 epochs or more at half the price
