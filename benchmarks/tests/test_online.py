"""The accounts of the online benchmark: reported costs of a job, untuned and with the best setting, are its
true costs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import clocks_jobs
from benchmarks.clocks_jobs import Job, Part, Run
from workbench.device.discovery import open_device
from workbench.simulation import catalogue
from workbench.simulation.machine import Machine

FEW = {"least_s": 6.0, "least": 12}


def ran(
    job: Job, simulated: Callable[..., Machine], data: Path | None = None, *, best: bool
) -> tuple[tuple[float, float], clocks_jobs.Truth]:
    """Seconds and joules of a short job that is left alone, or held at the best setting of each part; and
    its truth.
    """
    key, workloads = clocks_jobs.built(job, data)
    true = clocks_jobs.truth(job, catalogue.card(key), workloads, **FEW)
    machine = simulated(key, stepped=True)
    device = open_device(0)
    if best:
        device.write(true.settings[0])
        machine.step(1.0)
    calls: list[float] = []

    def act(run: Run) -> float:
        calls.append(machine.clock())
        return 0.2

    taken = clocks_jobs.train(Run(job, machine), workloads, true.counts, act)
    assert min(after - before for before, after in itertools.pairwise(calls)) >= 0.2 - 1e-9
    return taken, true


@pytest.mark.parametrize("checkpoints", [False, True])
def test_an_untuned_job_has_the_calculated_default_cost(
    simulated: Callable[..., Machine], checkpoints: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks_jobs, "CHECKPOINT_EVERY", 5)
    job = Job(
        "simulated", "V100", (Part("imagenet", 64), Part("squad", 8)), 3, told=True, checkpoints=checkpoints
    )
    (time_s, energy_j), true = ran(job, simulated, best=False)
    assert (time_s, energy_j) == (
        pytest.approx(true.default_s, rel=1e-9), pytest.approx(true.default_j, rel=1e-9),
    )


def test_a_job_at_the_best_setting_from_its_first_moment_saves_what_the_oracle_saves(
    simulated: Callable[..., Machine],
) -> None:
    job = Job("simulated", "RTX3080TI", (Part("cifar100", 1024),), 4, told=True)
    (time_s, energy_j), true = ran(job, simulated, best=True)
    assert (time_s, energy_j) == (
        pytest.approx(true.oracle_s, rel=1e-9), pytest.approx(true.oracle_j, rel=1e-9),
    )
    assert true.oracle_j < 0.95 * true.default_j
    assert true.oracle_s <= 1.05 * true.default_s


def test_a_table_driven_job_is_worked_out_as_well(simulated: Callable[..., Machine], data_dir: Path) -> None:
    jobs = list(clocks_jobs.table_jobs(data_dir, [0]))
    if not jobs:
        pytest.skip("no measured grids of time and energy in the published data")
    for job in (
        next(each for each in jobs if each.family == family)
        for family in dict.fromkeys(each.family for each in jobs)
    ):
        (time_s, energy_j), true = ran(job, simulated, data_dir, best=False)
        assert (time_s, energy_j) == (
            pytest.approx(true.default_s, rel=1e-9), pytest.approx(true.default_j, rel=1e-9),
        )


def test_nothing_that_the_driver_takes_is_better_than_the_oracle_within_the_bound() -> None:
    card = catalogue.CARDS["A40"]
    phases = catalogue.iteration(card, catalogue.WORKLOADS["imagenet"], 128)
    setting, least, default = clocks_jobs.best(card, phases, "both", 0.05)
    everything = clocks_jobs.all_settings(card, "both")
    assert setting in everything
    assert {each.mem_clock_mhz for each in everything} == {None, *card.mem_clocks_mhz}
    assert all(
        each.sm_clock_mhz <= 420 for each in everything if each.mem_clock_mhz == 405 and each.sm_clock_mhz
    )
    assert sum(each.power_limit_w is not None for each in everything) == 201
    assert least.time_s <= 1.05 * default.time_s
    for each in everything[::7]:
        there = clocks_jobs.cost(card, phases, each)
        assert there.time_s > 1.05 * default.time_s or there.energy_j >= least.energy_j


def test_a_card_without_locks_is_tuned_by_its_limit_alone() -> None:
    assert all(
        each.sm_clock_mhz is None for each in clocks_jobs.all_settings(catalogue.CARDS["P100"], "both")
    )
    assert {each.mem_clock_mhz for each in clocks_jobs.all_settings(catalogue.CARDS["V100"], "clocks")} == {
        None
    }


def test_every_workload_card_and_way_of_telling_is_met_over_the_seeds() -> None:
    jobs = list(clocks_jobs.simulated_jobs(range(4)))
    assert len(jobs) == 4 * 6 * len(clocks_jobs.CARDS)
    assert {(job.card, job.parts[0].workload, job.told) for job in jobs} == set(
        itertools.product(clocks_jobs.CARDS, catalogue.WORKLOADS, (True, False))
    )
    assert 0.2 < sum(len(job.parts) == 2 for job in jobs) / len(jobs) < 0.3
    assert all(job.parts[0].workload != job.parts[1].workload for job in jobs if len(job.parts) == 2)
    assert math.isclose(sum(job.checkpoints for job in jobs) / len(jobs), 0.25, abs_tol=0.05)
