"""Cards made of measurements return the measured values, through the driver interface too."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.clocks_grids import Grid, grids, whole_iterations
from benchmarks.fixtures.tables import Measured, Point, measured_card, measured_workload
from workbench.device.discovery import open_device
from workbench.errors import OutOfRange, UsageError
from workbench.records import Setting
from workbench.simulation import catalogue
from workbench.simulation.machine import Machine
from workbench.simulation.physics import operate
from workbench.simulation.training import TrainingJob


def sweep(name: str = "kernel") -> Measured:
    """Two memory clocks and, at the lower, fewer SM clocks. At 1000 MHz it takes twice the time and a
    quarter of the power of 2000.
    """
    return Measured(
        name,
        [
            Point(2000, 5000, None, 1.0, 400.0), Point(1000, 5000, None, 2.0, 100.0),
            Point(500, 5000, None, 4.0, 90.0), Point(1000, 800, None, 3.0, 60.0),
            Point(500, 800, None, 4.5, 50.0),
        ],
    )


def by_limit() -> Measured:
    return Measured(
        "training", [Point(None, None, watts, 400.0 / watts, 0.9 * watts) for watts in (100.0, 200.0, 400.0)]
    )


def held(card: str, setting: Setting, simulated: Callable[..., Machine], job: object) -> tuple[float, float]:
    """Mean length and energy of twenty iterations on a stepped machine at a setting."""
    machine = simulated(card, stepped=True)
    device = open_device(0)
    device.write(setting)
    machine.step(1.0)
    training = TrainingJob(job, machine=machine, iterations=20, variation=0.0)  # type: ignore[arg-type]
    start_s = machine.clock()
    training.run()
    return (machine.clock() - start_s) / 20, machine.true_energy_j(0, start_s, machine.clock()) / 20


def test_measured_points_are_exact_and_interpolation_is_linear_in_logarithms() -> None:
    work = sweep()
    card = measured_card("PAPER", [work])

    def at(sm: int, mem: int) -> tuple[float, float]:
        point = operate(
            card, work, power_limit_w=1e6, min_sm_clock_mhz=sm, max_sm_clock_mhz=sm, mem_clock_mhz=mem
        )
        return point.stretch, point.power_w

    assert at(2000, 5000) == pytest.approx((1.0, 400.0))
    assert at(500, 800) == pytest.approx((4.5, 50.0))
    # 1400 lies log(1.4) / log(2) of the way from 1000 to 2000: time goes with 1/f there and power with its
    # square
    assert at(1400, 5000) == pytest.approx((2000 / 1400, 400 * (1400 / 2000) ** 2))


def test_a_card_that_nobody_locks_runs_at_the_highest_clocks_that_were_measured() -> None:
    work = sweep()
    card = measured_card("PAPER", [work])
    point = operate(card, work, power_limit_w=card.power_limit_w[1])
    assert (point.sm_clock_mhz, point.mem_clock_mhz, point.stretch, point.capped) == (
        2000, 5000, pytest.approx(1.0), False,
    )


def test_a_power_limit_lowers_the_clock_until_the_power_between_the_points_fits() -> None:
    work = sweep()
    card = measured_card("PAPER", [work])
    point = operate(card, work, power_limit_w=225.0)  # 400 W * (f / 2000)**2
    assert point.power_w == pytest.approx(225.0)
    assert point.stretch == pytest.approx(2000 / 1500)
    assert point.sm_clock_mhz == pytest.approx(1500, abs=15)
    assert point.capped
    least = operate(card, work, power_limit_w=20.0)
    assert (least.power_w, least.stretch) == (pytest.approx(90.0), pytest.approx(4.0))


def test_a_limit_that_power_crosses_twice_is_kept_at_the_higher_clock() -> None:
    work = Measured(
        "dip",
        [
            Point(f, None, None, 1000 / f, w)
            for f, w in ((400, 90.0), (600, 120.0), (800, 80.0), (1000, 160.0))
        ],
    )
    card = measured_card("PAPER", [work])
    point = operate(card, work, power_limit_w=100.0)
    assert point.power_w == pytest.approx(100.0)
    assert 800 < point.sm_clock_mhz < 1000


def test_where_limits_were_measured_the_limit_is_the_only_knob(simulated: Callable[..., Machine]) -> None:
    work = by_limit()
    card = measured_card("LIMITS", [work])
    job = measured_workload(card, "training", [(work, 2.0)])
    time_s, energy_j = held("LIMITS", Setting(power_limit_w=200.0), simulated, job)
    device = open_device(0)
    assert (device.limits.min_power_limit_w, device.limits.max_power_limit_w) == (100.0, 400.0)
    assert not device.can("lock_sm_clock")
    assert not device.can("lock_mem_clock")
    assert not device.limits.sm_clocks_mhz
    assert math.isnan(device.sample().sm_clock_mhz)
    assert time_s == pytest.approx(4.0, rel=1e-3)
    assert energy_j == pytest.approx(4.0 * 180.0, rel=1e-3)


def test_the_driver_pairs_each_memory_clock_with_the_sm_clocks_that_were_measured_there(
    simulated: Callable[..., Machine],
) -> None:
    measured_card("PAPER", [sweep()])
    simulated("PAPER", stepped=True)
    device = open_device(0)
    clocks = device.limits.sm_clocks_mhz
    assert list(clocks) == [5000, 800]
    assert (clocks[5000][0], clocks[5000][-1]) == (2000, 500)
    assert (clocks[800][0], clocks[800][-1]) == (1000, 500)
    with pytest.raises(OutOfRange, match="clock of 1500 MHz"):
        device.write(Setting(sm_clock_mhz=1500, mem_clock_mhz=800))


def test_a_job_at_a_setting_has_the_measured_cost(simulated: Callable[..., Machine]) -> None:
    work = sweep()
    card = measured_card("PAPER", [work])
    job = measured_workload(card, "job", [(work, 0.5)])
    time_s, energy_j = held("PAPER", Setting(sm_clock_mhz=1000, mem_clock_mhz=800), simulated, job)
    assert time_s == pytest.approx(1.5, rel=1e-3)
    assert energy_j == pytest.approx(1.5 * 60.0, rel=1e-3)


def test_several_sweeps_share_a_card_where_all_were_measured(simulated: Callable[..., Machine]) -> None:
    other = Measured(
        "other",
        [
            Point(1800, 5000, None, 1.0, 200.0), Point(600, 5000, None, 1.5, 80.0),
            Point(700, 300, None, 9.0, 40.0),
        ],
    )
    card = measured_card("BOTH", [sweep(), other])
    assert card.mem_clocks_mhz == (5000,)
    assert (card.sm_clocks_mhz[0], card.sm_clocks_mhz[-1]) == (1800, 600)
    job = measured_workload(card, "mixed", [(sweep(), 0.4), (other, 0.6)], gap_s=0.1)
    assert [phase.kind for phase in job.phases] == ["forward", "backward", "data"]
    time_s, _ = held("BOTH", Setting(), simulated, job)
    assert time_s == pytest.approx(0.4 * 2000 / 1800 + 0.6 + 0.1, rel=0.02)  # the gap varies


@pytest.mark.parametrize(
    ("points", "shown"),
    [
        ([], "no measured point"), ([Point(1000, None, None, 0.0, 100.0)], "not positive"),
        ([Point(1000, None, None, 1.0, math.inf)], "not positive"),
        ([Point(1000, None, None, 1.0, 100.0), Point(900, 800, None, 1.0, 100.0)], "a memory clock"),
        ([Point(1000, None, 200.0, 1.0, 100.0)], "a power limit"),
    ],
)
def test_unusable_measurements_are_refused(points: list[Point], shown: str) -> None:
    with pytest.raises(UsageError, match=shown):
        Measured("kernel", points)


def test_a_card_needs_sweeps_of_one_kind_that_meet_and_a_key_of_its_own() -> None:
    high = Measured("high", [Point(2000, None, None, 1.0, 100.0)])
    low = Measured("low", [Point(1000, None, None, 1.0, 100.0)])
    with pytest.raises(UsageError, match="in common"):
        measured_card("PAPER", [high, low])
    with pytest.raises(UsageError, match="or all by"):
        measured_card("PAPER", [sweep(), by_limit()])
    with pytest.raises(UsageError, match="needs some"):
        measured_card("PAPER", [])
    with pytest.raises(UsageError, match="than 1 MHz"):
        measured_card("PAPER", [sweep()], step_mhz=1)


def test_a_workload_measured_on_one_card_runs_on_no_other(simulated: Callable[..., Machine]) -> None:
    work = sweep()
    job = measured_workload(measured_card("PAPER", [work]), "job", [(work, 0.5)])
    simulated("PAPER,V100", stepped=True)
    with pytest.raises(UsageError, match="on Tesla V100"):
        TrainingJob(job, gpu=1)
    with pytest.raises(UsageError, match="on PAPER"):
        TrainingJob("imagenet", gpu=0)
    with pytest.raises(UsageError, match="number of seconds"):
        measured_workload(catalogue.card("PAPER"), "job", [])


@pytest.fixture(scope="module")
def measured(data_dir: Path) -> list[Grid]:
    found = grids(data_dir, ("kernels", "applications", "stages", "trainings", "windows"))
    if not found:
        pytest.skip("no measured grids of time and energy in the published data")
    return found


def test_a_card_of_published_measurements_answers_by_the_same_rule_as_their_grid(
    measured: list[Grid],
) -> None:
    for grid in [*measured[::5], *whole_iterations([each for each in measured if each.kind == "stages"])]:
        work = Measured(grid.problem, points_of(grid))
        card = measured_card("PUBLISHED", [work])
        settings = grid.settings()
        for setting, time_s, energy_j in zip(settings, *grid.table(settings), strict=True):
            sm = setting.sm_clock_mhz
            point = operate(
                card, work, power_limit_w=setting.power_limit_w or 1e6, min_sm_clock_mhz=sm,
                max_sm_clock_mhz=sm, mem_clock_mhz=setting.mem_clock_mhz,
            )
            found_s = point.stretch * work.time_s
            assert (found_s, found_s * point.power_w) == (pytest.approx(time_s), pytest.approx(energy_j)), (
                grid.name, setting,
            )


def points_of(grid: Grid) -> list[Point]:
    rows = grid.points.iter_rows(named=True)
    return [
        Point(
            r["sm_clock_mhz"], r["mem_clock_mhz"], r["power_limit_w"], r["time_s"],
            r["energy_j"] / r["time_s"],
        )
        for r in rows
    ]
