"""Features of a running job: their source, and that they describe the job that ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from benchmarks.fixtures.bulk import plans
from workbench.device.discovery import open_device
from workbench.errors import GpuLost, MeasurementError, UsageError
from workbench.measurement.recorder import Recorder
from workbench.simulation import activity
from workbench.simulation.machine import Machine
from workbench.simulation.physics import Load, operate
from workbench.simulation.training import TrainingJob
from workbench.tuning.features import LOAD, FeatureReader, Features

Make = Callable[..., Machine]
Readers = Callable[[], FeatureReader]


def run(machine: Machine, workload: str = "imagenet", iterations: int = 30) -> None:
    TrainingJob(workload, iterations=iterations, machine=machine, evaluate=False).run()


@pytest.fixture
def reader_of() -> Iterator[Readers]:
    """Readers of the first GPU, whose recorders stop in the end."""
    recorders: list[Recorder] = []

    def make() -> FeatureReader:
        device = open_device()
        recorders.append(Recorder([device]))
        return FeatureReader(device, recorders[-1])

    yield make
    for each in recorders:
        each.stop()


def watched(machine: Machine, reader: FeatureReader, workload: str = "imagenet") -> Features:
    run(machine, workload, 5)
    reader.start()
    run(machine, workload, 1000 if workload == "movielens" else 30)
    return reader.read()


# which there are


@pytest.mark.parametrize(("card", "best"), [("H100", "gpm"), ("A100", "nvml")])
def test_the_best_source_that_is_there_is_read(simulated: Make, reader_of: Readers, card: str, best: str) -> None:
    simulated(card, stepped=True)
    assert reader_of().source == best


def test_a_gpu_without_readings_has_no_features(simulated: Make, reader_of: Readers) -> None:
    machine = simulated("A100", stepped=True)
    machine.state.set_card(0, "abilities", 0)
    with pytest.raises(MeasurementError, match="A100"):
        reader_of()


def test_counters_refused_during_reading_leave_the_nvml_features(
    simulated: Make, reader_of: Readers
) -> None:
    machine = simulated("H100", stepped=True)
    reader = reader_of()
    reader.start()
    run(machine)
    machine.inject("nvmlGpmSampleGet", 4)
    found = reader.read()
    assert (found.source, set(found.values)) == ("nvml", set(LOAD))


def test_a_gpu_in_instances_has_no_counters_for_its_whole(simulated: Make, reader_of: Readers) -> None:
    machine = simulated("H100", stepped=True)
    machine.state.set_card(0, "mig", 1)
    assert reader_of().source == "nvml"


# what they tell


def test_counters_power_and_clocks_are_those_of_the_iterations_that_ran(
    simulated: Make, reader_of: Readers
) -> None:
    machine = simulated("H100", stepped=True)
    found = watched(machine, reader_of())
    assert found.source == "gpm"
    job = TrainingJob("imagenet", machine=machine)
    (plan,), _ = plans(job, machine.clock())
    whole_s = sum(row[0] for row in plan)
    busy = sum(row[0] * row[4] for row in plan) / whole_s
    expected = sum(row[0] * activity.unpack(row[6]) for row in plan) / whole_s
    assert found.values["dram_active"] == pytest.approx(expected, rel=0.03)
    true_w = sum(row[0] * row[1] for row in plan) / whole_s
    assert found.values["power_share"] == pytest.approx(true_w * machine.gain(0) / 700.0, rel=0.03)
    assert found.values["gpu_utilisation"] == pytest.approx(busy, abs=0.15)
    assert found.values["sm_clock_ratio"] <= 1.0
    assert found.values["mem_clock_ratio"] == 1.0
    assert not [name for name in found.values if name.startswith("nvlink")]  # not modelled, so absent


def test_an_older_gpu_has_only_the_nvml_features(
    simulated: Make, reader_of: Readers
) -> None:
    found = watched(simulated("A100", stepped=True), reader_of())
    assert (found.source, set(found.values)) == ("nvml", set(LOAD))


def test_features_separate_a_light_job_from_a_heavy_one(simulated: Make, reader_of: Readers) -> None:
    machine = simulated("H100", stepped=True)
    heavy, light = (watched(machine, reader_of(), each) for each in ("squad", "movielens"))
    for name in ("dram_active", "power_share", "gpu_utilisation"):
        assert heavy.values[name] > 1.5 * light.values[name]


def test_utilisation_of_what_ran_before_does_not_leak_in(simulated: Make, reader_of: Readers) -> None:
    """NVML's utilisation covers up to the last second; the first second of a stretch contains little of it.
    """
    machine = simulated("A100", stepped=True)
    reader = reader_of()
    machine.state.publish(
        0, machine.clock(), [(5.0, 60.0, 1410, 1593, 0.0, 0.0, 0)], (300.0, 1410, 1593, 1.0, 0.5, 0)
    )
    machine.step(5.0)
    reader.start()
    machine.step(3.0)
    found = reader.read()
    assert found.values["gpu_utilisation"] == 1.0
    assert found.values["memory_utilisation"] == pytest.approx(0.5)


def test_a_reading_without_power_is_absent(simulated: Make, reader_of: Readers) -> None:
    machine = simulated("A100", stepped=True)
    for function in (
        "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption", "field:83", "field:186", "field:185",
    ):
        machine.inject(function, 3)
    assert "power_share" not in watched(machine, reader_of()).values


# when they are asked


def test_features_are_read_after_a_start_and_a_moment(simulated: Make, reader_of: Readers) -> None:
    machine = simulated("H100", stepped=True)
    reader = reader_of()
    with pytest.raises(UsageError):
        reader.read()
    reader.start()
    machine.step(0.05)
    with pytest.raises(MeasurementError, match=r"0\.050 s"):
        reader.read()


def test_a_lost_gpu_is_lost_here_too(simulated: Make, reader_of: Readers) -> None:
    machine = simulated("H100", stepped=True)
    reader = reader_of()
    reader.start()
    machine.step(1.0)
    machine.lose(0)
    with pytest.raises(GpuLost):
        reader.read()


def test_a_later_reading_is_of_a_longer_stretch_and_a_start_forgets(simulated: Make, reader_of: Readers) -> None:
    machine = simulated("H100", stepped=True)
    card, load = machine.card(0), Load(1.0, 0.0, 300.0)
    bits = activity.packed(card, load, operate(card, load, power_limit_w=700.0))
    reader = reader_of()
    machine.state.publish(
        0, machine.clock(), [(1.0, 300.0, 1980, 2619, 1.0, 0.2, bits)], (116.0, 1980, 2619, 0.0, 0.0, 0)
    )
    reader.start()
    machine.step(1.0)
    whole = reader.read().values["dram_active"]
    machine.step(1.0)
    assert reader.read().values["dram_active"] == pytest.approx(0.5 * whole)
    reader.start()
    machine.step(1.0)
    assert reader.read().values["dram_active"] == 0.0
