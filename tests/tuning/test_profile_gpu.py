"""Profiling a GPU: the measurements are right, none is lost, and the GPU is restored in every case."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from workbench.cli import main as command_line
from workbench.device import journal, lease
from workbench.errors import (
    DeviceHeld,
    GpuLost,
    MeasurementError,
    NotPermitted,
    NotSupported,
    StoreError,
    UsageError,
)
from workbench.measurement import session
from workbench.measurement.session import Session
from workbench.records import Limits, Setting
from workbench.search.space import KNOBS, space_of
from workbench.search.surrogates.predictor import ClockModel
from workbench.simulation import catalogue
from workbench.simulation import graded as loads
from workbench.simulation.machine import Machine, attached
from workbench.simulation.physics import operate
from workbench.tuning import models
from workbench.tuning.features import LOAD, NAMES
from workbench.tuning.gpu_profile import command
from workbench.tuning.gpu_profile import workloads as graded
from workbench.tuning.gpu_profile.collector import SCHEMA, Collector, read_rows, settings_to_try

SLOW = Setting(sm_clock_mhz=705)
CAPPED = Setting(power_limit_w=200.0)


@pytest.fixture
def bench(simulated: Callable[..., Machine]) -> Iterator[Callable[..., Collector]]:
    """A simulated card, and collectors that profile it into one file."""
    sessions: list[Session] = []

    def collector(
        path: Path, workloads: int = 2, card: str = "A100", settings: tuple[Setting, ...] = (SLOW, CAPPED),
        seconds: float = 0.4,
    ) -> Collector:
        if attached() is None:
            simulated(
                card, stepped=True, seed=os.getpid()
            )  # one GPU at a time is held by one process: no other has this one
        sessions.append(Session([0], sync=False))
        (device,) = sessions[-1].devices
        every = graded.workloads(device)
        chosen = tuple(every[:: len(every) // workloads][:workloads])
        return Collector(sessions[-1].meter, chosen, settings, path, seconds)

    yield collector
    for each in sessions:
        each.close()


def machine() -> Machine:
    found = attached()
    assert found is not None
    return found


def untouched(collector: Collector) -> bool:
    device = collector.device
    at_default = device.setting() == Setting(power_limit_w=device.limits.default_power_limit_w)
    return at_default and lease.holder(device.uuid) == "" and journal.of(device.uuid) is None


# what is measured


def test_time_and_power_of_every_setting_are_those_of_the_physics(
    bench: Callable[..., Collector], tmp_path: Path
) -> None:
    collector = bench(tmp_path / "rows.csv", workloads=3)
    for _ in collector.run():
        pass
    frame = collector.rows
    card, gain = catalogue.card("A100"), machine().gain(0)
    truth = {each.key: each.phases for _, each in loads.workloads(card)}
    assert frame.height == 3 * 4
    for row in frame.iter_rows(named=True):
        limit_w = row["power_limit_w"] or 400.0
        points = [
            (
                phase.time_s,
                operate(card, phase.load, power_limit_w=limit_w, max_sm_clock_mhz=row["sm_clock_mhz"]),
            )
            for phase in truth[row["workload"]]
        ]
        time_s = loads.TOGETHER * sum(span_s * point.stretch for span_s, point in points)
        energy_j = loads.TOGETHER * sum(span_s * point.stretch * point.power_w for span_s, point in points)
        # Gaps vary by 15 %, and a stretch has 25 or more.
        assert row["iteration_s"] == pytest.approx(time_s, rel=0.08 if len(points) > 1 else 0.003)
        assert row["power_w"] == pytest.approx(
            gain * energy_j / time_s, rel=0.06 if len(points) > 1 else 0.01
        )
        assert row["iteration_j"] == pytest.approx(row["iteration_s"] * row["power_w"])
        assert row["time_s"] >= 0.4


def test_a_row_has_the_columns_that_a_model_is_trained_on(
    bench: Callable[..., Collector], tmp_path: Path
) -> None:
    collector = bench(
        tmp_path / "rows.csv",
        card="H100",
        settings=(Setting(sm_clock_mhz=1005), Setting(power_limit_w=300.0)),
    )
    for _ in collector.run():
        pass
    frame = collector.rows
    assert frame["gpu"].unique().to_list() == [collector.device.name]
    assert frame["feature_set"].drop_nulls().to_list() == ["gpm", "gpm"]
    assert frame["nvlink_tx_bytes_per_s"].is_null().all()  # never reported: no zeros
    by_workload = frame.partition_by("workload")
    assert len(by_workload) == 2
    for rows in by_workload:
        assert rows["reference"].to_list() == [True, False, False, True]
        seen = rows.select(pl.all_horizontal(pl.col(*LOAD, "dram_active").is_not_null()))
        assert seen.to_series().to_list() == [True, False, False, False]  # at the reference only
        assert rows.filter("reference")["power_limit_w"].to_list() == [700.0, 700.0]
        others = rows.filter(~pl.col("reference")).select(*KNOBS).rows()
        assert set(others) == {(None, 1005, None), (300.0, None, None)}
    assert by_workload[0]["dram_active"][0] != by_workload[1]["dram_active"][0]


def test_the_gpu_is_as_it_was_afterwards_and_at_its_default_meanwhile(
    bench: Callable[..., Collector], tmp_path: Path
) -> None:
    collector = bench(tmp_path / "rows.csv", workloads=1)
    device = collector.device
    device.write(Setting(power_limit_w=250.0))  # somebody's own limit
    seen = [(words.split(", ")[1], device.setting().power_limit_w) for words in collector.run()]
    assert seen[0] == ("default", 400.0)
    assert device.setting() == Setting(power_limit_w=250.0)
    assert (collector.left, collector.rows.height) == ([], 4)


def test_a_stretch_whose_energy_was_not_seen_is_measured_again_and_once_only(
    bench: Callable[..., Collector], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = bench(tmp_path / "rows.csv", workloads=1)
    whole, asked = collector.meter.energy, []

    def blind(start_s: float, end_s: float) -> object:
        asked.append((start_s, end_s))
        return None if len(asked) in (1, 3, 4) else whole(start_s, end_s)

    monkeypatch.setattr(collector.meter, "energy", blind)
    for _ in collector.run():
        pass
    assert len(asked) == 2 + 2 + 1 + 1
    frame = collector.rows
    assert frame["iteration_s"].is_null().to_list() == [False, True, False, False]
    assert frame["note"][1] == "its energy was not seen"


def of_card(limits: Limits, *cannot: str) -> SimpleNamespace:
    return SimpleNamespace(limits=limits, can=lambda name: name not in cannot)


def test_settings_cover_clocks_at_each_memory_clock_or_limits_below_the_default() -> None:
    limits = Limits(
        100.0,
        350.0,
        350.0,
        {9501: tuple(range(2100, 200, -15)), 5001: tuple(range(2100, 200, -15)), 405: (420, 405)},
    )
    found = settings_to_try(of_card(limits))  # type: ignore[arg-type]
    at = {
        mem: [each.sm_clock_mhz for each in found if each.mem_clock_mhz == mem] for mem in (9501, 5001, 405)
    }
    assert (len(at[9501]), at[9501][0], at[5001][0]) == (8, 2100, 2100)
    assert 0.3 * 2100 <= min(each for each in at[9501] if each) < 0.35 * 2100
    assert at[405] == [420]  # it goes with low clocks only
    assert len(set(found)) == len(found)
    unlocked = settings_to_try(of_card(limits, "lock_mem_clock"))  # type: ignore[arg-type]
    assert {each.mem_clock_mhz for each in unlocked} == {None}
    limits_only = settings_to_try(of_card(limits, "lock_sm_clock"))  # type: ignore[arg-type]
    assert limits_only == [Setting(power_limit_w=each) for each in (308.0, 267.0, 225.0, 183.0, 142.0, 100.0)]
    assert settings_to_try(of_card(limits, "lock_sm_clock", "set_power_limit")) == []  # type: ignore[arg-type]
    assert settings_to_try(of_card(Limits())) == []  # type: ignore[arg-type]


# nothing is lost


def test_a_memory_clock_without_sm_clocks_is_passed_over() -> None:
    limits = Limits(sm_clocks_mhz={9501: (), 810: (1500, 900), 405: ()})
    found = settings_to_try(of_card(limits))  # type: ignore[arg-type]
    assert found == [Setting(sm_clock_mhz=1500), Setting(sm_clock_mhz=900)]


def test_an_interrupted_profile_goes_on_and_measures_no_finished_workload_again(
    bench: Callable[..., Collector], tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    collector = bench(path, workloads=3)
    running = collector.run()
    for _ in range(7):
        next(running)
    with pytest.raises(KeyboardInterrupt):
        running.throw(KeyboardInterrupt())
    assert len(path.read_text().splitlines()) == 1 + 4  # the workload that was finished
    assert untouched(collector)
    again = bench(path, workloads=3)
    assert len(again.left) == 2
    list(again.run())
    assert again.rows.group_by("workload").len()["len"].to_list() == [4, 4, 4]
    assert read_rows(path, again.device.name).equals(again.rows)
    last = bench(path, workloads=3)
    assert (last.left, list(last.run())) == ([], [])


def kept(path: Path, gpu: str = "a GPU", *rows: dict[str, object]) -> None:
    """Write a profile's file."""
    about = {"gpu": gpu, "run": 1, "workload": "w", "group": "g", "reference": True}
    pl.DataFrame([{**about, **each} for each in rows], schema=SCHEMA).write_csv(path)


def test_other_settings_are_measured_in_a_new_pass_and_the_latest_pass_counts(
    bench: Callable[..., Collector], tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    list(bench(path, workloads=1).run())
    again = bench(path, workloads=1, settings=(SLOW,))
    assert again.left == []
    more = bench(path, workloads=1, settings=(SLOW, CAPPED, Setting(sm_clock_mhz=1005)))
    assert len(more.left) == 1
    list(more.run())
    assert (more.rows.height, more.rows["run"].n_unique()) == (5, 1)


def test_numbers_come_back_from_the_file_as_they_were(tmp_path: Path) -> None:
    path, numbers = tmp_path / "rows.csv", {"iteration_s": 1.0 / 3.0, "power_w": 2.0 / 3.0}
    kept(path, "a GPU", {**numbers, "workload": 'a "b", c', "power_limit_w": 100.0 / 3.0, "iterations": 7})
    (row,) = read_rows(path, "a GPU").rows(named=True)
    assert (row["workload"], row["iterations"], row["sm_active"]) == ('a "b", c', 7, None)
    assert {name: row[name] for name in numbers} == numbers
    assert row["power_limit_w"] == 100.0 / 3.0


def test_a_lost_gpu_ends_it_and_finished_workloads_are_kept(
    bench: Callable[..., Collector], tmp_path: Path
) -> None:
    collector = bench(tmp_path / "rows.csv")
    running = collector.run()
    for _ in range(7):
        next(running)
    machine().lose(0)
    with pytest.raises(GpuLost):
        next(running)
    machine().lose(0, 0)
    assert read_rows(tmp_path / "rows.csv", collector.device.name).height == 4


def test_a_file_of_another_gpu_or_of_something_else_is_refused(
    bench: Callable[..., Collector], tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    kept(path, "Tesla T4", {"iteration_s": 1.0, "power_w": 50.0})
    with pytest.raises(UsageError, match=r"Tesla T4.*--output"):
        bench(path)
    damaged = path.read_text().replace("1.0", "one")
    for text in ("time,power\n1,2\n", "one line", "run,gpu,work", damaged):
        path.write_text(text)
        with pytest.raises(UsageError, match="of this version"):
            bench(path)
        assert path.read_text() == text
    path.unlink()
    collector = bench(path, workloads=1)
    collector.path = tmp_path / "rows.csv" / "below.csv"
    path.touch()
    with pytest.raises(StoreError, match="cannot be written"):
        list(collector.run())
    assert untouched(collector)


# rights and company


def test_without_rights_it_is_refused_before_it_measures(
    bench: Callable[..., Collector], tmp_path: Path
) -> None:
    collector = bench(tmp_path / "rows.csv")
    machine().state.set_header("unprivileged", 1)
    with pytest.raises(NotPermitted, match="CAP_SYS_ADMIN"):
        list(collector.run())
    assert not (tmp_path / "rows.csv").exists()
    assert untouched(collector)


def test_rights_are_found_out_without_setting_anything(
    bench: Callable[..., Collector], tmp_path: Path
) -> None:
    collector = bench(tmp_path / "rows.csv")
    machine().inject("nvmlDeviceSetPowerManagementLimit", 4)
    machine().inject("nvmlDeviceSetGpuLockedClocks", 4)
    run = collector.run()
    next(run)
    assert lease.holder(collector.device.uuid) == "this process"
    run.close()
    assert not lease.holder(collector.device.uuid)
    assert not collector.notes  # "2 settings were left out" where they were tried


def test_with_a_right_to_limits_alone_it_learns_about_limits(
    bench: Callable[..., Collector], tmp_path: Path
) -> None:
    collector = bench(tmp_path / "rows.csv", workloads=1)
    machine().inject("nvmlDeviceSetGpuLockedClocks", 4)
    for _ in collector.run():
        pass
    frame = collector.rows.filter(~pl.col("reference"), pl.col("note").is_null())
    assert frame.select(*KNOBS).rows() == [(200.0, None, None)]
    assert len(collector.notes) == 1
    assert re.match("1 setting .* SM clock", collector.notes[0])
    assert bench(tmp_path / "rows.csv", workloads=1).left == []  # it is not tried again for ever


def test_a_gpu_that_others_use_is_not_measured(
    bench: Callable[..., Collector], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = bench(tmp_path / "rows.csv")
    monkeypatch.setattr("workbench.measurement.foreign.is_ours", lambda pid: False)  # not even our children
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        machine().state.set_process(0, other.pid, 1 << 30)
        with pytest.raises(MeasurementError, match=rf"other processes.*\({other.pid}\)"):
            list(collector.run())
        other.communicate(b"\n")


def test_a_gpu_that_another_process_changes_is_left_alone(
    bench: Callable[..., Collector], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = bench(tmp_path / "rows.csv")
    monkeypatch.setattr(journal, "lock", lambda *_: None)
    with pytest.raises(DeviceHeld):
        list(collector.run())


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), 1e9])
def test_a_length_that_cannot_be_measured_is_refused(
    seconds: float, bench: Callable[..., Collector], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"choose 0\.2 to 600 seconds"):
        bench(tmp_path / "rows.csv", seconds=seconds)


def test_a_workload_that_does_not_fit_is_left_out_and_reported(
    bench: Callable[..., Collector], tmp_path: Path
) -> None:
    fits = bench(tmp_path / "rows.csv", workloads=2)
    big = dataclasses.replace(catalogue.WORKLOADS["squad"], fixed_bytes=1 << 50, phases=(), card="")

    def too_big() -> object:
        from workbench.simulation.training import TrainingJob

        return TrainingJob(big, machine=machine())

    first, *others = fits.left
    large = dataclasses.replace(first, running=too_big)
    collector = Collector(fits.meter, [large, *others], fits.settings, tmp_path / "rows.csv", 0.4)
    for _ in collector.run():
        pass
    assert re.match(f"{first.name} .*memory", "".join(collector.notes))
    assert (collector.left, collector.rows.height) == ([large], 4)


# the command


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, simulated: Callable[..., Machine]) -> Iterator[None]:
    """Few workloads and settings, so that the command is quick."""
    whole = graded.workloads
    monkeypatch.setattr(graded, "workloads", lambda device: whole(device)[::5])
    monkeypatch.setattr("workbench.tuning.gpu_profile.collector.SM_CLOCKS", 3)
    monkeypatch.setattr("workbench.tuning.gpu_profile.collector.POWER_LIMITS", 2)
    yield
    session.current().close()
    if (found := attached()) is not None:
        found.close()


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_the_command_profiles_a_gpu_and_keeps_a_model_for_each_set_of_features(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = arguments("--simulate", "H100", "--seconds", "0.3")
    assert command.run(options)[0] == 0
    said = capsys.readouterr()
    gpu = "NVIDIA H100 80GB HBM3 (simulated)"
    assert re.search("9 workloads .* 45 of 45", said.out)
    assert re.search("gpm: .* 9 workloads", said.out)
    assert re.search("nvml: .* 9 workloads", said.out)
    assert "45/45" in said.err
    # the models
    assert models.find_model(gpu, "gpm") == models.model_path(gpu, "gpm")
    assert models.find_model(gpu, "nvml") == models.model_path(gpu, "nvml")
    assert (
        models.find_model(gpu.removesuffix(" (simulated)"), "gpm") is None
    )  # what was learnt on a simulated card is not for the real one
    (file,) = models.models_directory().glob("*.profile.csv")
    rows = read_rows(file, gpu)
    # The sampler keeps its pace beyond the minute after which it rests when no window is open.
    # Until a load has shown what the counter is, bars are wider.
    sharp = rows.filter(pl.col("energy_uncertainty_j") < 0.05 * pl.col("energy_j"))
    assert sharp.height > 10
    first = rows.row(0, named=True)
    features = {name: first[name] for name in NAMES if first[name] is not None}
    for source in ("gpm", "nvml"):
        model = ClockModel.load(models.model_path(gpu, source))
        assert (model.gpu, model.feature_set) == (gpu, source)
        space = space_of([Setting(sm_clock_mhz=clock) for clock in (1980, 1290, 600)])
        frame = model.predict(features, space, power_w=first["power_w"]).frame
        assert frame["log_time"].to_list()[0] == 0.0
        assert frame["log_time"].is_sorted()
    # the same command again
    before = file.read_text()
    options = arguments("--simulate", "H100", "--seconds", "0.3", "--list")
    assert command.run(options)[0] == 0
    assert "0 of 45" in capsys.readouterr().out
    assert file.read_text() == before


def test_a_job_is_predicted_by_the_stored_model_of_its_gpu_only(
    bench: Callable[..., Collector], tmp_path: Path
) -> None:
    collector = bench(tmp_path / "rows.csv")
    device, recorder = collector.device, collector.meter.recorder
    assert recorder is not None
    space = space_of([Setting(sm_clock_mhz=clock) for clock in (1410, 1005)])
    without = models.Forecast(device, recorder)
    assert (without.notes, without.prediction(space, 200.0)) == ([], (None, ""))
    path = models.model_path(device.name, "nvml")
    rows = [
        {
            "workload": f"w{number}", "group": f"g{number % 3}", "reference": clock == 1410,
            "sm_clock_mhz": clock, "iteration_s": 1410 / clock, "power_w": 200.0 * clock / 1410 + number,
        }
        for number in range(9) for clock in (1410, 1005)
    ]
    model = ClockModel.train(pl.DataFrame(rows), gpu=device.name, feature_set="nvml")
    model.save(path)
    forecast = models.Forecast(device, recorder)
    device.clock.sleep(1.0)
    prediction, why = forecast.prediction(space, 200.0)
    assert (forecast.notes, why) == ([], "")
    assert prediction is not None
    assert prediction.source == f"a nvml model of the {device.name} (9 workloads)"
    assert prediction.frame["log_time"].to_list() == pytest.approx([0.0, 0.0], abs=0.02)  # it is idle
    assert prediction.frame["log_energy"][1] < -0.1
    path.write_bytes(b"damaged")
    assert "damaged" in models.Forecast(device, recorder).notes[0]
    dataclasses.replace(model, gpu="Tesla T4").save(path)
    other = models.Forecast(device, recorder)
    assert re.search("of a Tesla T4.*profile-gpu.*without a model", other.notes[0])
    assert other.prediction(space, 200.0) == (None, "")
    assert models.Forecast(device, recorder, False).notes == []


def test_a_model_needs_workloads() -> None:
    row = {"workload": "w", "reference": True, "iteration_s": 1.0, "power_w": 50.0, "power_share": 0.5}
    with pytest.raises(UsageError, match=r"8 workloads.*has 1"):
        command.train(pl.DataFrame([row], schema=SCHEMA), "a GPU", [])


@pytest.mark.usefixtures("small")
def test_a_source_that_was_there_for_a_few_workloads_only_costs_no_other_model() -> None:
    rows = []
    for number in range(10):
        for clock, ratio in ((1000, 1.0), (800, 1.1 + 0.01 * number)):
            told = (
                {"dram_active": 0.05 * number, "feature_set": "gpm"}
                if number < 3
                else {"feature_set": "nvml"}
            )
            about = {
                "workload": f"w{number}", "group": f"g{number % 3}", "gpu": "A card", "sm_clock_mhz": clock,
                "reference": clock == 1000,
            }
            seen = {
                "iteration_s": ratio, "power_w": 200.0 / ratio, "memory_utilisation": 0.05 * number,
                "dram_active": None,
            }
            rows.append({**about, **seen, **told})
    notes: list[str] = []
    made = command.train(pl.DataFrame(rows, infer_schema_length=None), "A card", notes)
    assert [(model.feature_set, model.workloads) for _, model in made] == [("nvml", 10)]
    assert re.search("gpm: .* 8 workloads", notes[0])


def test_an_interrupt_shows_how_to_continue(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, counted = Collector._measured, []

    def interrupted(collector: Collector, *values: object) -> object:
        counted.append(1)
        if len(counted) == 2 * collector.steps + 1:
            raise KeyboardInterrupt
        return measured(collector, *values)  # type: ignore[arg-type]

    monkeypatch.setattr(Collector, "_measured", interrupted)
    options = arguments("--simulate", "A100", "--seconds", "0.3")
    assert command.run(options)[0] == 130
    assert "stopped: 2 of 45" in (said := capsys.readouterr().err)
    assert "the same command" in said


def test_the_command_line_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line(["profile-gpu", "--help"])
    assert "--simulate" in capsys.readouterr().out


# kernels of a real GPU, on a processor


def test_kernels_run_whole_iterations_of_about_the_wanted_length() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.set_num_threads(1)
    found = graded.kernels("cpu", busy_s=0.001, scale=0.01)
    assert len({each.name for each in found}) == len(found) >= 24
    one_of_each = {each.group: each for each in found}
    assert len(one_of_each) >= 8
    for workload in one_of_each.values():
        with workload.running() as step:
            step()


def test_a_waiting_kernel_waits_for_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    slept: list[float] = []
    monkeypatch.setattr(graded.time, "sleep", slept.append)
    moments = iter(range(1000))  # each reading of the clock is 10 ms later
    monkeypatch.setattr(graded.time, "perf_counter", lambda: 0.010 * next(moments))
    with graded._run(torch, "cpu", lambda: lambda: None, 0.4, 0.010) as step:
        step()
        step()
    assert slept == pytest.approx([0.010 * 0.4 / 0.6] * 2)


def test_without_pytorch_or_a_device_it_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NotSupported, match=r"install torch.*--simulate"):
        graded.kernels()


@pytest.mark.parametrize(
    ("uuids", "answer"), [(("aaaa",), 0), (("bbbb", "aaaa"), 1), (("bbbb",), None), ((), 0)]
)
def test_kernels_run_on_the_gpu_that_is_measured_or_not_at_all(
    uuids: tuple[str, ...], answer: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = SimpleNamespace(
        device_count=lambda: len(uuids),
        get_device_properties=lambda index: SimpleNamespace(uuid=uuids[index]),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=seen))
    monkeypatch.setattr(graded, "kernels", lambda where: where)
    device = SimpleNamespace(uuid="GPU-aaaa", name="a GPU", simulated=False)
    if answer is None:
        with pytest.raises(NotSupported, match="CUDA_VISIBLE_DEVICES"):
            graded.workloads(device)  # type: ignore[arg-type]
    else:
        assert graded.workloads(device) == f"cuda:{answer}"  # type: ignore[arg-type, comparison-overlap]


def test_without_cuda_it_is_refused() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(NotSupported, match="no CUDA device"):
        graded.kernels()
