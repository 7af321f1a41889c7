"""The simulated cards follow laws of physics, numbers worked out on paper, and measured traces."""

from dataclasses import replace
from itertools import pairwise

import pytest

from workbench.errors import UnknownGpu
from workbench.simulation.catalogue import CARDS, WORKLOADS, card, evaluation, fits, iteration, law
from workbench.simulation.physics import Card, Load, clock_at_most, nearest_clock, operate

LOADS = (Load(0.8, 0.12, 200.0), Load(0.2, 0.5, 120.0), Load(0.5, 0.5, 350.0), Load(0.0, 1.0, 150.0))

every_card = pytest.mark.parametrize("gpu", CARDS.values(), ids=CARDS)
every_load = pytest.mark.parametrize("load", LOADS, ids=str)
every_workload = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)


def paper_card(**changes: object) -> Card:
    """A card whose numbers are easy: 1000 MHz at most, half the voltage up to 500 MHz, 50 W static."""
    easy = {
        "sm_clocks_mhz": tuple(range(1000, 99, -100)), "mem_clocks_mhz": (1000, 500),
        "power_limit_w": (60.0, 250.0, 250.0), "static_w": 50.0, "gap_w": 40.0, "knee": 0.5, "v_knee": 0.5,
        "x_min": 0.1,
    }
    return replace(CARDS["V100"], **(easy | changes))


def test_at_the_highest_clocks_nothing_is_stretched():
    point = operate(paper_card(), Load(0.6, 0.4, 160.0), power_limit_w=250.0)
    assert (point.sm_clock_mhz, point.power_w, point.stretch, point.capped) == (1000, 210.0, 1.0, False)


def test_a_locked_clock_costs_time_and_saves_power():
    # Three quarters of the clock at three quarters of the voltage: 50 + 160 * 0.75**3; k/x + 1 - k = 0.6/0.75
    # + 0.4.
    steps = paper_card(sm_clocks_mhz=(1000, 750))
    point = operate(steps, Load(0.6, 0.4, 160.0), power_limit_w=250.0, max_sm_clock_mhz=750)
    assert (point.power_w, point.stretch, point.capped) == (pytest.approx(117.5), pytest.approx(1.2), False)


def test_a_power_limit_is_drawn_exactly_and_its_clock_rounded():
    # 20 W over static is D * x * V**2 at x = 0.5, V = 0.5.
    point = operate(paper_card(), Load(0.6, 0.4, 160.0), power_limit_w=70.0)
    assert (point.sm_clock_mhz, point.power_w, point.capped) == (500, 70.0, True)
    assert point.stretch == pytest.approx(1.6)


def test_a_limit_below_the_lowest_clock_is_exceeded():
    # At x = 0.1 the card still draws 50 + 160 * 0.1 / 4 = 54 W.
    point = operate(paper_card(), Load(0.6, 0.4, 160.0), power_limit_w=52.0)
    assert (point.power_w, point.sm_clock_mhz) == (pytest.approx(54.0), 100)
    assert point.stretch == pytest.approx(0.6 / 0.1 + 0.4)


def test_half_the_memory_clock_doubles_the_memory_bound_share():
    point = operate(paper_card(), Load(0.6, 0.3, 160.0), power_limit_w=250.0, mem_clock_mhz=500)
    assert (point.mem_clock_mhz, point.stretch) == (500, pytest.approx(1.3))


def test_overlapping_compute_and_memory_time_add_as_a_power_mean():
    # Shares of one half each at half the memory clock: ((1 + 2**2) / 2) ** (1/2).
    point = operate(paper_card(overlap=2.0), Load(0.5, 0.5, 160.0), power_limit_w=250.0, mem_clock_mhz=500)
    assert point.stretch == pytest.approx(2.5**0.5)


def test_a_memory_clock_takes_its_static_power_away():
    frugal = paper_card(mem_static_w=(30.0, 10.0))
    point = operate(frugal, Load(0.6, 0.0, 160.0), power_limit_w=250.0, mem_clock_mhz=500)
    assert point.power_w == pytest.approx(190.0)
    assert operate(frugal, None, power_limit_w=250.0, mem_clock_mhz=500).power_w == pytest.approx(20.0)


def test_a_gap_has_the_same_power_and_time_under_any_limit():
    point = operate(paper_card(), None, power_limit_w=60.0)
    assert (point.power_w, point.stretch, point.capped) == (40.0, 1.0, False)


def test_the_power_limit_is_stronger_than_a_lowest_clock():
    point = operate(paper_card(), Load(0.6, 0.4, 160.0), power_limit_w=70.0, min_sm_clock_mhz=900)
    assert (point.sm_clock_mhz, point.power_w) == (500, 70.0)


def test_an_rtx_3080_ti_lifts_its_memory_for_a_high_sm_clock():
    asked = {"power_limit_w": 350.0, "max_sm_clock_mhz": 630, "mem_clock_mhz": 405}
    ti = CARDS["RTX3080TI"]
    assert operate(ti, LOADS[0], min_sm_clock_mhz=630, **asked).mem_clock_mhz == 810
    assert operate(ti, LOADS[0], **asked).sm_clock_mhz == 420


def test_clocks_snap_to_the_drivers_list():
    clocks = (1000, 900, 800)
    assert [clock_at_most(clocks, mhz) for mhz in (1200, 1000, 999, 850, 100)] == [1000, 1000, 900, 800, 800]
    assert [nearest_clock(clocks, mhz) for mhz in (1200, 960, 940, 100)] == [1000, 1000, 900, 800]


@every_card
@every_load
def test_a_lower_clock_never_draws_more_nor_works_faster(gpu: Card, load: Load):
    points = [operate(gpu, load, power_limit_w=1e6, max_sm_clock_mhz=mhz) for mhz in gpu.sm_clocks_mhz]
    for higher, lower in pairwise(points):
        assert lower.power_w <= higher.power_w + 1e-9
        assert lower.stretch >= higher.stretch - 1e-12
    assert points[0].stretch == pytest.approx(1.0)


@every_card
@every_load
def test_a_lower_memory_clock_never_draws_more_nor_works_faster(gpu: Card, load: Load):
    points = [operate(gpu, load, power_limit_w=1e6, mem_clock_mhz=mhz) for mhz in gpu.mem_clocks_mhz]
    for higher, lower in pairwise(points):
        assert lower.power_w <= higher.power_w + 1e-9
        assert lower.stretch >= higher.stretch - 1e-12


@every_card
@every_load
def test_a_limit_holds_and_a_lower_one_never_works_faster(gpu: Card, load: Load):
    low, _, high = (round(watts) for watts in gpu.power_limit_w)
    points = [operate(gpu, load, power_limit_w=float(watts)) for watts in range(high, low - 1, -10)]
    for watts, point in zip(range(high, low - 1, -10), points, strict=True):
        assert point.power_w <= watts + 1e-6 or point.sm_clock_mhz == nearest_clock(
            gpu.sm_clocks_mhz, gpu.x_min * gpu.sm_clocks_mhz[0]
        )
    stretches = [point.stretch for point in points]
    assert stretches == sorted(stretches)


@every_card
def test_a_card_is_as_the_driver_would_list_it(gpu: Card):
    low, default, high = gpu.power_limit_w
    assert low < default <= high
    assert list(gpu.sm_clocks_mhz) == sorted(set(gpu.sm_clocks_mhz), reverse=True)
    assert list(gpu.mem_clocks_mhz) == sorted(set(gpu.mem_clocks_mhz), reverse=True)
    assert 0 < gpu.idle_w < gpu.gap_w < low
    assert len(gpu.mem_static_w) in (0, len(gpu.mem_clocks_mhz))
    assert len(gpu.mem_top_sm_mhz) in (0, len(gpu.mem_clocks_mhz))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("v100", "V100"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("rtx 3080 ti", "RTX3080TI"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("a100-80gb", "A100"),
        ("Quadro RTX 6000", "RTX6000"),
        ("h100", "H100"),
    ],
)
def test_a_card_is_found_however_it_is_spelled(name: str, key: str):
    assert card(name) is CARDS[key]


@every_card
def test_a_card_is_found_by_the_name_its_driver_reports(gpu: Card):
    assert card(gpu.name) is card(gpu.key) is gpu


def test_an_unknown_card_is_reported_with_the_known_ones():
    with pytest.raises(UnknownGpu, match=r"'K80'.*V100.*RTX4090"):
        card("K80")


def run(gpu: Card, phases: tuple, limit_w: float) -> tuple[float, float]:
    """Seconds and mean watts of phases at a power limit."""
    points = [operate(gpu, phase.load, power_limit_w=limit_w) for phase in phases]
    times_s = [phase.time_s * point.stretch for phase, point in zip(phases, points, strict=True)]
    energy_j = sum(time_s * point.power_w for time_s, point in zip(times_s, points, strict=True))
    return sum(times_s), energy_j / sum(times_s)


@every_card
@every_workload
def test_training_draws_what_a_card_can(gpu: Card, workload):
    default_w = gpu.power_limit_w[1]
    for batch_size in workload.batch_sizes:
        time_s, power_w = run(gpu, iteration(gpu, workload, batch_size), default_w)
        assert time_s > 0
        assert min(gpu.gap_w, gpu.static_w) - 1e-6 <= power_w <= 1.15 * default_w
        evaluation_s, _ = run(gpu, evaluation(gpu, workload, batch_size), default_w)
        assert 0 < evaluation_s < time_s


@every_workload
def test_the_phases_of_an_iteration_add_up_to_its_law(workload):
    gpu = CARDS["V100"]
    gap_s, busy_s, load = law(gpu, workload).at(workload.default_batch_size)
    phases = iteration(gpu, workload, workload.default_batch_size)
    busy = [phase for phase in phases if phase.load]
    assert [phase.kind for phase in phases] == ["forward", "backward", "optimizer", "data"]
    assert sum(phase.time_s for phase in phases) == pytest.approx(gap_s + busy_s)
    assert sum(phase.time_s * phase.load.dynamic_w for phase in busy) == pytest.approx(
        busy_s * load.dynamic_w
    )
    assert sum(phase.time_s * phase.load.compute for phase in busy) == pytest.approx(
        busy_s * load.compute, rel=0.01
    )


# Zeus NSDI'23, summary_power_v100.csv and _p100.csv: seconds for an epoch and mean watts.
@pytest.mark.parametrize(
    ("gpu", "workload", "batch_size", "limit_w", "epoch_s", "watts"),
    [
        ("V100", "imagenet", 256, 250.0, 3515.0, 220.0),
        ("V100", "squad", 32, 125.0, 2735.0, 122.0),
        ("V100", "librispeech", 192, 250.0, 6182.0, 161.0),
        ("V100", "cifar100", 1024, 250.0, 8.0, 188.0),
        ("P100", "imagenet", 128, 125.0, 7172.0, 113.0),
        ("P100", "movielens", 1024, 250.0, 39.0, 34.0),
    ],
)
def test_training_takes_the_time_and_power_measured(gpu, workload, batch_size, limit_w, epoch_s, watts):
    job = WORKLOADS[workload]
    time_s, power_w = run(CARDS[gpu], iteration(CARDS[gpu], job, batch_size), limit_w)
    assert time_s * job.samples / batch_size == pytest.approx(epoch_s, rel=0.10)
    assert power_w == pytest.approx(watts, rel=0.10)


@pytest.mark.parametrize(
    ("gpu", "workload", "largest", "too_large"),
    [
        ("V100", "imagenet", 360, 512),
        ("V100", "librispeech", 192, 256),
        ("V100", "squad", 56, 72),
        ("P100", "imagenet", 128, 192),
        ("P100", "librispeech", 72, 96),
        ("P100", "squad", 24, 32),
        ("P100", "sentiment140", 64, 128),
        ("P100", "cifar100", 2048, 4096),
    ],
)
def test_the_largest_batch_measured_fits_and_a_larger_one_does_not(gpu, workload, largest, too_large):
    assert fits(CARDS[gpu], WORKLOADS[workload], largest)
    assert not fits(CARDS[gpu], WORKLOADS[workload], too_large)
