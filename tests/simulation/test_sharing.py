"""Jobs that share a simulated GPU: the published tables hold, time and energy follow the laws, and no job is
lost.
"""

from __future__ import annotations

import csv
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fixtures.bulk import total_segments
from benchmarks.fixtures.together import together
from workbench.device import nvml
from workbench.errors import SimulationError, UsageError
from workbench.simulation import activity, catalogue, tenants, training
from workbench.simulation.catalogue import Workload, WorkloadPhase
from workbench.simulation.machine import Machine
from workbench.simulation.physics import Load
from workbench.simulation.state import RING
from workbench.simulation.tenants import Demand, Tenant, TimelineStretch
from workbench.simulation.training import OutOfMemory, TrainingJob

NAMES = {"J1": "AlexNet", "J2": "ResNet-18", "J3": "ResNet-50", "J4": "VGG-16"}
NODE_IDLE_W, GPUS = 650.0, 8  # of the published server: the idle draw of the power form that fits its tables


@pytest.fixture
def regular(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "ITERATION_JITTER", 0.0)
    monkeypatch.setattr(training, "GAP_JITTER", 0.0)


@pytest.fixture
def published(data_dir: Path) -> dict[str, dict[str, float]]:
    path = data_dir / "colocation" / "eaco_tables.csv"
    if not path.exists():
        pytest.skip(f"the published tables of shared GPUs are not here ({path})")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {
        row["job_set"]: {key: float(value) for key, value in row.items() if key != "job_set" and value}
        for row in rows
    }


def one(
    key: str, busy_s: float, gap_s: float, busy_w: float, memory_gib: float = 1.0, card: str = "V100"
) -> Workload:
    """A job of one busy phase at that power on that card, and one gap."""
    static_w = catalogue.CARDS[card].static_w
    phases = (
        WorkloadPhase("kernels", "forward", busy_s, Load(0.5, 0.3, busy_w - static_w), 1.0, 0.4),
        WorkloadPhase("waiting", "data", gap_s, None, 0.0, 0.0),
    )
    return Workload(
        key=key, title=key, samples=1 << 40, evaluation_samples=0, default_batch_size=1,
        batch_sizes=(1,), fixed_bytes=int(memory_gib * 2**30), sample_bytes=0, checkpoint_bytes=0,
        phases=phases, card=card,
    )


def iteration_s(job: TrainingJob) -> float:
    """Mean of a job's iterations, without the first and the last two."""
    inner = job.marks[1:-1]
    return (inner[-1] - inner[0]) / (len(inner) - 1)


# the published tables


def test_the_published_slowdowns_hold_within_two_points(published: dict[str, dict[str, float]]) -> None:
    alone = {name: row for name, row in published.items() if "&" not in name}
    for name, row in published.items():
        members = [alone[each] for each in name.split("&")]
        measured = row["avg_jct_h"] / (sum(each["avg_jct_h"] for each in members) / len(members))
        assert tenants.stretch([each["avg_gpu_util"] / 100 for each in members]) == pytest.approx(
            measured, abs=0.02
        ), name


def test_the_published_powers_hold_within_four_percent(published: dict[str, dict[str, float]]) -> None:
    """From what each training draws alone: the server's power over idle, an eighth of it on each card."""
    alone = {name: row for name, row in published.items() if "&" not in name}
    for name, row in published.items():
        demands = [
            Demand(
                alone[each]["avg_gpu_util"] / 100, (alone[each]["avg_power_w"] - NODE_IDLE_W) / GPUS, 300.0,
                0.0,
            )
            for each in name.split("&")
        ]
        node_w = NODE_IDLE_W + GPUS * tenants.dynamic_w(demands)
        assert node_w == pytest.approx(row["avg_power_w"], rel=0.04 if "&" in name else 1e-9), name
    added_w = NODE_IDLE_W + sum(row["avg_power_w"] - NODE_IDLE_W for row in alone.values())
    assert added_w > 1.3 * published["J1&J2&J3&J4"]["avg_power_w"]  # which powers that merely add up do not


@pytest.mark.slow
def test_a_shared_card_shows_the_published_tables_through_its_driver(
    published: dict[str, dict[str, float]], simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card that stands for an eighth of the published server, with its trainings: time, power,
    utilisation by NVML.
    """
    share_w = NODE_IDLE_W / GPUS
    card = replace(
        catalogue.CARDS["V100"], key="SERVER8", name="an eighth of a server", static_w=share_w, gap_w=share_w,
        idle_w=share_w, power_limit_w=(100.0, 600.0, 600.0),
    )
    monkeypatch.setitem(catalogue.CARDS, "SERVER8", card)
    machine = simulated("SERVER8", stepped=True)
    for name, value in {"noise": 0.0, "gain": 1.0}.items():
        machine.state.set_card(0, name, value)
    alone = {name: row for name, row in published.items() if "&" not in name}

    def job(name: str) -> TrainingJob:
        used = alone[name]["avg_gpu_util"] / 100
        busy_w = share_w + (alone[name]["avg_power_w"] / GPUS - share_w) / used
        seconds = 0.2 + 0.017 * int(name[1])
        work = one(NAMES[name], used * seconds, (1 - used) * seconds, busy_w, card="SERVER8")
        return TrainingJob(work, iterations=10_000, machine=machine, seed=int(name[1]))

    device = nvml.open_index(0)
    solo_s: dict[str, float] = {}
    for name, row in published.items():
        jobs = [job(each) for each in name.split("&")]
        before_j, before_s, used = device.energy_j(), machine.clock(), []
        machine.clock.on_step.append(lambda _at_s, used=used: used.append(device.sample().utilisation))
        together(jobs, 40.0)
        machine.clock.on_step.clear()
        power_w = GPUS * (device.energy_j() - before_j) / (machine.clock() - before_s)
        assert power_w == pytest.approx(row["avg_power_w"], rel=0.045), name
        assert 100 * sum(used) / len(used) == pytest.approx(row["avg_gpu_util"], abs=5.0), name
        times = [iteration_s(each) for each in jobs]
        if len(jobs) == 1:
            solo_s[name] = times[0]
            continue
        slowdown = sum(took / solo_s[each] for took, each in zip(times, name.split("&"), strict=True)) / len(
            jobs
        )
        members = [alone[each]["avg_jct_h"] for each in name.split("&")]
        assert slowdown == pytest.approx(row["avg_jct_h"] / (sum(members) / len(members)), abs=0.025), name


# the laws


def test_one_job_alone_is_not_slowed() -> None:
    assert tenants.stretch([0.97]) == 1.0
    assert tenants.dynamic_w([Demand(0.4, 60.0, 150.0, 38.0)]) == 60.0


def test_a_full_card_has_no_more_time_to_give() -> None:
    assert tenants.stretch([0.9, 0.8]) == pytest.approx(1.7)
    assert tenants.stretch([1.0, 1.0, 1.0]) == pytest.approx(3.0)
    assert tenants.stretch([0.2, 0.3]) == pytest.approx(1 + 0.078 * 0.5)


def test_power_is_concave_in_utilisation() -> None:
    """Two halves draw more than one half and less than twice as much; equal jobs at their full load draw
    what one draws.
    """
    half, full = Demand(0.5, 80.0, 160.0, 38.0), Demand(1.0, 150.0, 150.0, 38.0)
    assert 80.0 < tenants.dynamic_w([half, half]) < 160.0
    assert tenants.dynamic_w([full, full]) == pytest.approx(150.0)
    shares = [tenants.concave(number / 20) for number in range(21)]
    steps = [b - a for a, b in itertools.pairwise(shares)]
    assert steps == sorted(steps, reverse=True)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


def rows(
    begin_s: float, end_s: float, busy_s: float, gap_s: float, demand: Demand
) -> tuple[TimelineStretch, ...]:
    """A timeline of busy phases and gaps."""
    out, at_s = [], begin_s
    while at_s < end_s:
        out += [TimelineStretch(at_s, demand.resident_w + demand.peak_w, 1380, 877, 1.0, 0.4, 0)]
        out += [TimelineStretch(at_s + busy_s, demand.resident_w, 1380, 877, 0.0, 0.0, 0)]
        at_s += busy_s + gap_s
    return tuple(out)


@pytest.mark.parametrize(
    ("first", "second"),
    [((0.1, 0.4), (0.13, 0.21)), ((0.3, 0.02), (0.25, 0.05)), ((0.011, 0.3), (0.2, 0.21))],
)
def test_over_many_phases_a_shared_timeline_has_the_means_of_the_laws(
    first: tuple[float, float], second: tuple[float, float]
) -> None:
    def tenant(slot: int, busy_s: float, gap_s: float, peak_w: float) -> Tenant:
        used = busy_s / (busy_s + gap_s)
        demand = Demand(used, used * peak_w, peak_w, 38.0)
        return Tenant(
            slot, os.getpid(), slot, 1 << 30, demand, 1000.0, rows(0.0, 999.0, busy_s, gap_s, demand)
        )

    pair = [tenant(0, *first, 180.0), tenant(1, *second, 140.0)]
    plan = tenants.compose(pair, 0.0, (26.0, 135, 877, 0.0, 0.0, 1))
    within = []
    for row, begin_s in zip(plan, itertools.accumulate([0.0, *(row[0] for row in plan)]), strict=False):
        if begin_s < 990.0:
            within.append(row)
    whole_s = sum(row[0] for row in within)
    demands = [each.demand for each in pair]
    power_w = sum(row[0] * row[1] for row in within) / whole_s
    used = sum(row[0] * row[4] for row in within) / whole_s
    total = min(1.0, sum(each.utilisation for each in demands))
    assert power_w == pytest.approx(38.0 + tenants.dynamic_w(demands), rel=0.01)
    assert used == pytest.approx(total, abs=0.01)
    assert all(38.0 <= row[1] <= 38.0 + 180.0 + 1e-9 and 0.0 <= row[4] <= 1.0 for row in within)


def test_a_timeline_too_long_for_its_slot_keeps_its_energy() -> None:
    demand = Demand(0.5, 90.0, 180.0, 38.0)
    long = rows(0.0, 3000.0, 0.11, 0.22, demand)
    end_s = long[-1].start_s + 0.22
    short = tenants.coarser(long, end_s)

    def energy_j(found: Any) -> float:
        ends = [*(row.start_s for row in found[1:]), end_s]
        return float(
            sum(row.power_w * (stop_s - row.start_s) for row, stop_s in zip(found, ends, strict=True))
        )

    assert len(short) <= tenants.MOST_ROWS < len(long)
    assert energy_j(short) == pytest.approx(energy_j(long), rel=1e-9)


def test_counters_of_jobs_add_up_to_no_more_than_all_there_is() -> None:
    busy = activity.pack(0.3)
    demand = Demand(0.5, 90.0, 180.0, 38.0)
    pair = [
        Tenant(slot, 1, slot, 1, demand, 1.0, (TimelineStretch(0.0, 200.0, 1380, 877, 1.0, 0.4, busy | 4),))
        for slot in (0, 1)
    ]
    plan = tenants.compose(pair, 0.0, (26.0, 135, 877, 0.0, 0.0, 1))
    assert plan[0][6] & activity.REASONS == 4
    assert activity.unpack(plan[0][6]) == pytest.approx(0.6, abs=0.01)


# on the machine


@pytest.mark.usefixtures("regular")
def test_two_jobs_slow_each_other_while_both_run_and_no_longer(stepped: Machine) -> None:
    light, heavy = one("light", 0.05, 0.2, 150.0), one("heavy", 0.3, 0.1, 180.0)
    long, short = (
        TrainingJob(heavy, iterations=150, machine=stepped),
        TrainingJob(light, iterations=100, machine=stepped),
    )
    together([long, short])
    slower = 1 + 0.078 * (0.2 + 0.75)
    assert iteration_s(short) == pytest.approx(0.25 * slower, rel=1e-6)
    shared_s = [b - a for a, b in itertools.pairwise(long.marks) if b < short.marks[-1]]
    after_s = [b - a for a, b in itertools.pairwise(long.marks) if a > short.marks[-1] + 1.0]
    assert shared_s[5:-5] == pytest.approx([0.4 * slower] * len(shared_s[5:-5]))
    assert len(after_s) > 30
    assert after_s == pytest.approx([0.4] * len(after_s))
    assert tenants.present(stepped.state, 0) == []
    stepped.step(1.0)
    assert stepped.state.segment_at(0, stepped.clock()).power_w == stepped.card(0).idle_w


@pytest.mark.usefixtures("regular")
def test_a_power_limit_slows_both_jobs_of_a_card(stepped: Machine) -> None:
    pair = [
        TrainingJob(one("a", 0.3, 0.1, 240.0), iterations=400, machine=stepped),
        TrainingJob(one("b", 0.1, 0.3, 200.0), iterations=400, machine=stepped),
    ]
    together(pair, 20.0)
    free_s = [iteration_s(job) for job in pair]
    stepped.state.change_setting(0, limit_w=120.0)
    pair = [TrainingJob(job.workload, iterations=400, machine=stepped) for job in pair]
    together(pair, 20.0)
    # Either has a half of its kernels' time bound by the clock; the second one waits for its host most of the
    # time.
    assert all(
        limited > 1.04 * free
        for limited, free in zip([iteration_s(job) for job in pair], free_s, strict=True)
    )
    state = stepped.state
    assert state.true_mean_power_w(0, stepped.clock() - 15.0, stepped.clock() - 1.0) < 120.0


def test_the_driver_shows_every_process_and_memory_adds_up(stepped: Machine) -> None:
    program = (
        "import sys\nfrom workbench.simulation.training import TrainingJob\n"
        "for batch in TrainingJob('squad', 8):\n    print('here', flush=True)\n    sys.stdin.read()\n    "
        "break\n"
    )
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == b"here\n"
        theirs = catalogue.WORKLOADS["squad"].memory_bytes(8)
        ours = [catalogue.WORKLOADS["imagenet"].memory_bytes(batch) for batch in (64, 32)]
        with TrainingJob("imagenet", 64).claimed(), TrainingJob("imagenet", 32).claimed():
            shown = {process.pid: process.memory_bytes for process in nvml.open_index(0).processes()}
            assert shown == {other.pid: theirs, os.getpid(): sum(ours)}
            with pytest.raises(OutOfMemory, match=rf"process {other.pid} holds"):
                TrainingJob("imagenet", 256).run()
        assert {process.pid for process in nvml.open_index(0).processes()} == {other.pid}
    finally:
        other.stdin.close()
        other.wait(10)
        other.stdout.close()
    assert nvml.open_index(0).processes() == ()


def test_a_ninth_job_on_a_card_is_an_error(stepped: Machine) -> None:
    jobs = [TrainingJob("cifar100", 8) for _ in range(9)]
    with pytest.raises(SimulationError, match="8 jobs"):
        together(jobs, 1.0)
    assert tenants.present(stepped.state, 0) == []


def test_jobs_run_together_only_where_they_share_a_machine(stepped: Machine) -> None:
    with pytest.raises(UsageError, match="0 jobs"):
        together([])


def test_a_job_that_runs_already_does_not_run_a_second_time(stepped: Machine) -> None:
    job = TrainingJob("cifar100", 8)
    with job.claimed(), pytest.raises(SimulationError, match="GPU 0"):
        job.run()


# several processes, in real time


@pytest.fixture
def training_process(simulated: Callable[..., Machine]) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        program = (
            "from workbench.simulation.training import TrainingJob\n"
            "for batch in TrainingJob('squad', 16, seed=2):\n    print(batch.iteration, flush=True)\n"
        )
        started.append(subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE))
        assert started[-1].stdout is not None
        started[-1].stdout.readline()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_job_of_another_process_slows_this_one_and_no_longer_when_it_is_killed(
    simulated: Callable[..., Machine], training_process: Callable[[], subprocess.Popen[bytes]]
) -> None:
    machine = simulated("V100", scale=2.0)
    job = TrainingJob("squad", 16, machine=machine, variation=0.0)
    running = iter(job)

    def took_s(seconds: float) -> float:
        """Mean iteration while so many real seconds pass, without the first and the last one."""
        until, first = time.monotonic() + seconds, len(job.marks)
        while time.monotonic() < until:
            next(running)
        observed = job.marks[first + 1 : -1]
        return (observed[-1] - observed[0]) / (len(observed) - 1)

    next(running)
    used = tenants.present(machine.state, 0)[0].demand.utilisation
    alone_s = took_s(1.5)
    other = training_process()
    beside_s = took_s(1.5)
    assert total_segments(machine.state, 0) < RING
    other.send_signal(signal.SIGKILL)
    other.wait()
    again_s = took_s(1.5)
    assert beside_s / alone_s == pytest.approx(tenants.stretch([used, used]), rel=0.15)
    assert again_s == pytest.approx(alone_s, rel=0.15)
    running.close()  # type: ignore[attr-defined]
