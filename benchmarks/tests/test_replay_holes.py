"""Traces with missing records: the existing ones are replayed, and no replay waits for ever."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks.replay import Job, Training, load, replay, zeus_cost
from workbench.search.batch_size.history import Evidence, Space
from workbench.search.batch_size.knowledge_gradient import KnowledgeGradient
from workbench.search.batch_size.policy import Proposal
from workbench.search.batch_size.zeus import DefaultBatchSize, ZeusPolicy
from workbench.search.objective import Objective

SIZES, LIMITS = (8, 16, 32, 64), (100, 150, 200, 250)


def _traces(folder: Path, *, power: pl.Expr, runs: pl.Expr) -> list[Job]:
    """Three workloads on a made-up GPU; the expressions select the rows that exist."""
    (folder / "zeus").mkdir()
    names = ["squad", "cifar100", "sentiment140"]
    pl.DataFrame({
        "workload": names, "gpu": "x1", "batch_sizes": " ".join(map(str, SIZES)),
        "power_limits": " ".join(map(str, LIMITS)), "b0": 32, "max_power": 250,
    }).write_csv(folder / "zeus" / "policy_baseline_setup.csv")
    kind = pl.DataFrame({"dataset": names, "optimizer": "adam"})
    table = kind.join(pl.DataFrame({"batch_size": SIZES}), how="cross")
    table.join(pl.DataFrame({"power_limit": LIMITS}), how="cross").with_columns(
        time_per_epoch=(1000 / pl.col("batch_size") + 20) * (250 / pl.col("power_limit")) ** 0.4,
        average_power=0.9 * pl.col("power_limit").cast(pl.Float64),
    ).filter(power).write_csv(folder / "zeus" / "summary_power_x1.csv")
    targets = pl.DataFrame({"dataset": names, "target_metric": [84.0, 0.6, 0.84], "target_epoch": [4, 20, 3]})
    table.join(targets, on="dataset").join(pl.DataFrame({"run": [1, 2]}), how="cross").filter(
        runs
    ).write_csv(folder / "zeus" / "summary_train.csv")
    return load(folder)


ALL = pl.lit(True)
SIZE, LIMIT, NAME = pl.col("batch_size"), pl.col("power_limit"), pl.col("dataset")


class Cheapest(DefaultBatchSize):
    """Requests a profiling window at the lowest limit of 16, and then a run of it at the best limit."""

    def ask(self, evidence: Evidence, objective: Objective, rng: np.random.Generator) -> Proposal:
        if not evidence.slices:
            return Proposal(16, 100.0, "slice")
        return Proposal(16, None, stop_after_epochs=evidence.space.max_epochs)


def test_a_power_table_with_holes_is_replayed_to_the_end(tmp_path: Path) -> None:
    there = ~((NAME == "squad") & (SIZE == 16) & (LIMIT < 200)) & (LIMIT != 150)
    jobs = _traces(tmp_path, power=there & (NAME != "cifar100") & (SIZE != 64), runs=ALL)
    assert [job.workload for job in jobs] == ["squad", "sentiment140"]
    for job in jobs:
        assert job.space.batch_sizes == (8, 16, 32)
        assert job.space.power_limits_w == (100.0, 200.0, 250.0)
        for policy in (KnowledgeGradient(), KnowledgeGradient(safe=True), ZeusPolicy(), Cheapest()):
            for seed in range(4):
                bill = replay(policy, job, zeus_cost(job, 0.5), seed, 12)
                assert np.isfinite(bill.cost).all()
                assert all(np.isfinite(job.epoch_time_s[place]) for place in bill.chosen)


def test_batch_sizes_and_workloads_without_trainings_are_left_out(tmp_path: Path) -> None:
    lost = (NAME == "cifar100") | ((NAME == "squad") & (SIZE == 32)) | (SIZE == 8)
    jobs = _traces(tmp_path, power=ALL, runs=~lost)
    assert [job.workload for job in jobs] == ["sentiment140"]
    assert jobs[0].space.batch_sizes == (16, 32, 64)
    assert np.isfinite(replay(KnowledgeGradient(), jobs[0], zeus_cost(jobs[0], 0.5), 0, 8).cost).all()


def test_a_batch_size_that_was_never_measured_stops_the_replay_by_name() -> None:
    job = Job("squad", "x1", Space((8,), 8, (100.0, 200.0)), np.full((1, 2), np.nan), np.full((1, 2), 90.0),
              [[Training(4.0)]], 250.0)
    with pytest.raises(ValueError, match=r"squad x1: .* 8"):
        replay(KnowledgeGradient(), job, zeus_cost(job, 0.5), 0, 2)
