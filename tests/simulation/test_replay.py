"""A recorded driver, replayed: the same answers, times and refusals, and settings that cannot be changed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

import workbench
from workbench import cli
from workbench.device.nvml.recording import record
from workbench.errors import NotPermitted, NotSupported, SimulationError, UsageError
from workbench.experiments.workloads import any_training
from workbench.measurement import marks, session
from workbench.records import Setting
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob

PACE = {"every_s": 0.003, "share": 0.1, "status_s": 0.2}
SMI = """timestamp, index, power.draw [W], clocks.current.sm [MHz], utilization.gpu [%]
2026/11/20 10:11:12.000, 0, 100.00 W, 1000 MHz, 50 %
2026/11/20 10:11:13.000, 0, 200.00 W, 1400 MHz, 100 %
2026/11/20 10:11:14.000, 0, 300.00 W, 1400 MHz, 100 %
"""
DMON = """#Entity   POWER      TOTEC      GRACT  DRAMA
ID          W          mJ
GPU 0       100.0      1000000    0.500  0.250
GPU 0       200.0      1200000    0.900  0.500
GPU 0       200.0      1400000    0.900  0.500
"""


@pytest.fixture
def replayed(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., session.Session]]:
    """Replay a file on a stepped clock."""
    monkeypatch.setattr(session, "_current", None)
    monkeypatch.setattr(marks, "_open", {})
    yield lambda file, **options: workbench.simulate(recording=file, stepped=True, **options)
    session.current().close()


@pytest.fixture
def recorded(simulated: Callable[..., Machine], tmp_path: Path) -> tuple[Path, list[float], float]:
    """The file of twelve seconds of a training, when two seconds of it began, and their true energy (J)."""
    machine = simulated("A100", stepped=True)
    job = iter(TrainingJob("squad", machine=machine, iterations=10**9, grain_s=60.0))
    begun_s = machine.clock()
    for _ in range(100):
        next(job)
    assert machine.clock() == begun_s
    answers = record(workbench.devices(), 12.0, **PACE)
    file = tmp_path / "gpu.jsonl.gz"
    answers.write(file)
    truth_j = machine.true_energy_j(0, begun_s + 6.0, begun_s + 8.0) * machine.gain(0)
    job.close()
    machine.close()
    return file, [6.0, 8.0], truth_j


def test_a_replay_has_the_energy_of_the_recorded_session(
    recorded: tuple[Path, list[float], float], replayed: Callable[..., session.Session]
) -> None:
    file, (from_s, to_s), truth_j = recorded
    mine = replayed(file)
    meter = mine.meter
    meter.clock.sleep(from_s - meter.clock())
    with workbench.measure("window") as window:
        meter.clock.sleep(to_s - from_s)
    measurement = window.measurement
    assert measurement.simulated
    assert "(replayed)" in measurement.gpus[0].name
    assert measurement.energy_j == pytest.approx(truth_j, abs=measurement.energy_uncertainty_j + 0.005 * truth_j)


def test_a_file_holds_no_identifier(recorded: tuple[Path, list[float], float]) -> None:
    text = gzip.decompress(recorded[0].read_bytes()).decode()
    assert "GPU-" not in text
    assert "0000:" not in text
    assert json.loads(text.splitlines()[0])["gpus"] == [{"name": "NVIDIA A100-SXM4-80GB (simulated)"}]


def test_process_ids_are_replaced(simulated: Callable[..., Machine], tmp_path: Path) -> None:
    machine = simulated("V100", stepped=True)
    job = iter(TrainingJob("squad", machine=machine, iterations=10**9, grain_s=5.0))
    next(job)
    assert workbench.open_device(0).processes()
    record(workbench.devices(), 1.0, **PACE).write(tmp_path / "gpu.jsonl")
    job.close()
    pids = [int(each) for each in __import__("re").findall(r'"pid":(\d+)', (tmp_path / "gpu.jsonl").read_text())]
    assert pids
    assert min(pids) >= 1 << 23


def test_refusals_are_replayed_and_settings_refused(
    simulated: Callable[..., Machine], replayed: Callable[..., session.Session], tmp_path: Path
) -> None:
    machine = simulated("V100", stepped=True)
    machine.inject("nvmlDeviceGetUtilizationRates", 3)
    before = workbench.open_device(0)
    record([before], 1.0, **PACE).write(tmp_path / "gpu.jsonl")
    absent = {each.name for each in before.capabilities if not each.present}
    machine.close()
    (device,) = replayed(tmp_path / "gpu.jsonl").devices
    assert "utilisation" in absent
    knobs = {"set_power_limit", "lock_sm_clock", "lock_mem_clock"}
    assert {each.name for each in device.capabilities if not each.present} - knobs == absent - knobs
    assert device.limits == before.limits
    with pytest.raises(NotSupported, match="a recording is replayed, and no setting can be changed"):
        device.apply(power_limit_w=200.0)
    assert "a recording is replayed" in device.missing_rights()
    with pytest.raises((NotPermitted, NotSupported)):
        device.write(Setting(sm_clock_mhz=1000))
    assert any_training(device) is None
    with pytest.raises(SimulationError, match="no job can run on it"):
        next(iter(workbench.example_training("squad", iterations=1)))


def test_the_doctor_records_and_examines_a_replay(
    simulated: Callable[..., Machine], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "_current", None)
    file = tmp_path / "gpu.jsonl"
    assert cli.main(["doctor", "--simulate", "V100", "--record", str(file), "--seconds", "4"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("nvmlDeviceGetFieldValues") < shown.index(f"written to {file}")
    assert cli.main(["doctor", "--simulate", str(file), "--seconds", "1"]) == 0
    assert "Tesla V100-PCIE-32GB (simulated) (replayed), simulated" in capsys.readouterr().out
    session.current().close()


def test_a_replayed_nvidia_smi_trace_offers_only_its_own_columns(
    replayed: Callable[..., session.Session], tmp_path: Path
) -> None:
    (tmp_path / "smi.csv").write_text(SMI)
    (device,) = replayed(tmp_path / "smi.csv").devices
    assert not device.can("energy")
    assert not device.can("temperature")
    assert device.sample().power_w == 100.0
    device.clock.sleep(1.5 - device.clock())
    sample = device.sample()
    assert (sample.power_w, sample.sm_clock_mhz, sample.utilisation) == (200.0, 1400.0, 1.0)


def test_a_table_of_dcgm_is_replayed_with_its_counter(
    replayed: Callable[..., session.Session], tmp_path: Path
) -> None:
    (tmp_path / "dmon.txt").write_text(DMON)
    (device,) = replayed(tmp_path / "dmon.txt", every_s=1.0).devices
    begun_j = device.energy_j()
    device.clock.sleep(2.5 - device.clock())
    assert device.energy_j() - begun_j == 400.0
    assert device.sample().memory_utilisation == 0.5


def test_a_trace_of_our_own_log_is_replayed(replayed: Callable[..., session.Session], tmp_path: Path) -> None:
    times = [0.1 * number for number in range(30)]
    pl.DataFrame({
        "time_s": times * 2, "gpu": ["a"] * 30 + ["b"] * 30, "power_w": [100.0] * 30 + [50.0] * 30,
        "energy_j": [100 * each for each in times] + [None] * 30,
    }).write_parquet(tmp_path / "trace.parquet")
    first, second = replayed(tmp_path / "trace.parquet").devices
    assert (first.sample().power_w, second.sample().power_w) == (100.0, 50.0)
    assert first.can("energy")
    assert not second.can("energy")


@pytest.mark.parametrize("content", ["", "{}", "[1]\n", '{"format": "gpu-energy-workbench recording 1", "gpus": []}', "a,b\n1,2"])
@pytest.mark.parametrize("name", ["gpu.jsonl", "gpu.jsonl.gz", "gpu.csv"])
def test_a_damaged_file_is_an_error_with_its_name(
    replayed: Callable[..., session.Session], tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises((SimulationError, UsageError), match=r"gpu\."):
        replayed(tmp_path / name)
