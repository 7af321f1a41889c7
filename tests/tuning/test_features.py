"""Features of a running job: which sources are there and why not, and that they tell what ran."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.fixtures.bulk import plans
from workbench.device.discovery import open_device
from workbench.errors import GpuLost, MeasurementError, UsageError
from workbench.measurement.recorder import Recorder
from workbench.simulation import activity
from workbench.simulation.machine import Machine
from workbench.simulation.physics import Load, operate
from workbench.simulation.training import TrainingJob
from workbench.tuning.features import FEATURE_SETS, LOAD, FeatureReader, Features

Make = Callable[..., Machine]


def run(machine: Machine, workload: str = "imagenet", iterations: int = 30) -> None:
    TrainingJob(workload, iterations=iterations, machine=machine, evaluate=False).run()


def watched(
    machine: Machine, workload: str = "imagenet", *, recorded: bool = True
) -> Features:
    device = open_device()
    recorder = Recorder([device]) if recorded else None
    reader = FeatureReader(device, recorder)
    run(machine, workload, 5)
    reader.start()
    run(machine, workload, 1000 if workload == "movielens" else 30)
    found = reader.read()
    reader.close()
    if recorder is not None:
        recorder.stop()
    return found


# which there are


@pytest.mark.parametrize(
    ("card", "best", "reason"),
    [("H100", "gpm", ""), ("A100", "nvml", "need Hopper or newer"), ("V100", "nvml", "need Hopper or newer")],
)
def test_sources_come_best_first_with_the_reasons_of_those_that_are_not_there(
    simulated: Make, card: str, best: str, reason: str
) -> None:
    simulated(card, stepped=True)
    device = open_device()
    found = {each.name: each for each in FeatureReader(device).sources}
    assert list(found) == list(FEATURE_SETS) == ["gpm", "nvml"]
    assert (found["gpm"].present, found["nvml"].present) == (card == "H100", True)
    assert reason in found["gpm"].reason
    assert FeatureReader(device).source == best


def test_a_gpu_that_tells_nothing_has_no_features(simulated: Make) -> None:
    machine = simulated("A100", stepped=True)
    machine.state.set_card(0, "abilities", 0)
    with pytest.raises(
        MeasurementError, match=r"gpm: .*; nvml: .*tells neither utilisation nor power nor clocks"
    ):
        FeatureReader(open_device())


def test_counters_that_are_refused_in_the_reading_leave_what_nvml_tells(simulated: Make) -> None:
    machine = simulated("H100", stepped=True)
    reader = FeatureReader(open_device())
    reader.start()
    run(machine)
    machine.inject("nvmlGpmSampleGet", 4)
    found = reader.read()
    assert (found.source, set(found.values)) == ("nvml", set(LOAD))
    assert "CAP_SYS_ADMIN" in found.missing["gpm"]


def test_a_gpu_in_instances_has_no_counters_for_its_whole(simulated: Make) -> None:
    machine = simulated("H100", stepped=True)
    machine.state.set_card(0, "mig", 1)
    found = {each.name: each for each in FeatureReader(open_device()).sources}
    assert not found["gpm"].present
    assert "does not support it" in found["gpm"].reason


# what they tell


@pytest.mark.parametrize("recorded", [True, False])
def test_counters_power_and_clocks_are_those_of_the_iterations_that_ran(
    simulated: Make, recorded: bool
) -> None:
    machine = simulated("H100", stepped=True)
    found = watched(machine, recorded=recorded)
    assert found.source == "gpm"
    job = TrainingJob("imagenet", machine=machine)
    (plan,), _ = plans(job, machine.clock())
    whole_s = sum(row[0] for row in plan)
    busy = sum(row[0] * row[4] for row in plan) / whole_s
    expected = sum(row[0] * activity.unpack(row[6]) for row in plan) / whole_s
    assert found.values["dram_active"] == pytest.approx(expected, rel=0.03)
    true_w = sum(row[0] * row[1] for row in plan) / whole_s
    assert found.power_w is not None
    assert found.power_w == pytest.approx(true_w * machine.gain(0), rel=0.03)
    assert found.values["power_share"] == pytest.approx(found.power_w / 700.0)
    assert found.values["gpu_utilisation"] == pytest.approx(busy, abs=0.15)
    assert found.values["sm_clock_ratio"] <= 1.0
    assert found.values["mem_clock_ratio"] == 1.0
    assert not [
        name for name in found.values if name.startswith("nvlink")
    ]  # not modelled, so absent, with the reason
    assert "nvlink_rx_bytes_per_s" in found.missing


def test_an_older_gpu_has_what_nvml_tells_and_nothing_that_is_made_up(simulated: Make) -> None:
    found = watched(simulated("A100", stepped=True))
    assert (found.source, set(found.values)) == ("nvml", set(LOAD))
    assert found.seconds > 3.0


def test_features_tell_a_light_job_from_a_heavy_one(simulated: Make) -> None:
    machine = simulated("H100", stepped=True)
    heavy, light = watched(machine, "squad"), watched(machine, "movielens")
    for name in ("dram_active", "power_share", "gpu_utilisation"):
        assert heavy.values[name] > 1.5 * light.values[name]


@pytest.mark.parametrize("recorded", [True, False])
def test_utilisation_of_what_ran_before_does_not_leak_in(simulated: Make, recorded: bool) -> None:
    """NVML's utilisation looks back by up to a second; the first second of a stretch says little of it."""
    machine = simulated("A100", stepped=True)
    device = open_device()
    recorder = Recorder([device]) if recorded else None
    state = machine.state
    state.publish(
        0, machine.clock(), [(5.0, 60.0, 1410, 1593, 0.0, 0.0, 0)], (300.0, 1410, 1593, 1.0, 0.5, 0)
    )
    machine.step(5.0)
    reader = FeatureReader(device, recorder)
    reader.start()
    machine.step(3.0)
    found = reader.read()
    if recorder is not None:
        recorder.stop()
    assert found.values["gpu_utilisation"] == 1.0
    assert found.values["memory_utilisation"] == pytest.approx(0.5)


def test_a_reading_without_power_is_absent(simulated: Make) -> None:
    machine = simulated("A100", stepped=True)
    for function in (
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTotalEnergyConsumption",
        "field:83",
        "field:186",
        "field:185",
    ):
        machine.inject(function, 3)
    found = watched(machine, recorded=False)
    assert "power_share" not in found.values
    assert found.power_w is None
    assert "power_share" in found.missing


# when they are asked


def test_features_are_read_after_a_start_and_a_moment(simulated: Make) -> None:
    machine = simulated("H100", stepped=True)
    reader = FeatureReader(open_device())
    with pytest.raises(UsageError, match="nothing was started"):
        reader.read()
    reader.start()
    machine.step(0.05)
    with pytest.raises(MeasurementError, match=r"at least 0\.1 s of looking, and only 0\.050 s have passed"):
        reader.read()
    machine.step(0.2)
    assert reader.read().seconds == pytest.approx(0.25)


def test_a_lost_gpu_is_lost_here_too(simulated: Make) -> None:
    machine = simulated("H100", stepped=True)
    reader = FeatureReader(open_device())
    reader.start()
    machine.step(1.0)
    machine.lose(0)
    with pytest.raises(GpuLost):
        reader.read()


def test_a_later_reading_is_of_a_longer_stretch_and_a_start_forgets(simulated: Make) -> None:
    machine = simulated("H100", stepped=True)
    card, load = machine.card(0), Load(1.0, 0.0, 300.0)
    bits = activity.packed(card, load, operate(card, load, power_limit_w=700.0))
    machine.state.publish(
        0, 0.0, [(1.0, 300.0, 1980, 2619, 1.0, 0.2, bits)], (116.0, 1980, 2619, 0.0, 0.0, 0)
    )
    reader = FeatureReader(open_device())
    reader.start()
    machine.step(1.0)
    whole = reader.read().values["dram_active"]
    machine.step(1.0)
    assert reader.read().values["dram_active"] == pytest.approx(0.5 * whole)
    reader.start()
    machine.step(1.0)
    assert reader.read().values["dram_active"] == 0.0
