"""Files that version 0.1 wrote open, with the contents that they had then.

Every number here belongs to the files in `fixtures/stored_0_1`, made by `fixtures/make_stored_0_1.py`.
People have such files, so no change of the code is a reason to change a number.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import polars as pl
import pytest

import workbench
from workbench import _processes, cli
from workbench.errors import UsageError
from workbench.experiments.executors import HereExecutor
from workbench.experiments.history.optuna_bridge import BanditSampler  # type: ignore[attr-defined]
from workbench.measurement import session as sessions
from workbench.measurement.store import Store
from workbench.records import Configuration, Measurement, Setting
from workbench.search.batch_size.history import Space
from workbench.search.surrogates.predictor import ClockModel
from workbench.simulation.machine import Machine
from workbench.tuning import models

STORED = Path(__file__).parent / "fixtures" / "stored_0_1"
A100, V100 = "NVIDIA A100-SXM4-80GB (simulated)", "Tesla V100-PCIE-32GB (simulated)"
SIZES, LIMITS_W = (256, 512, 1024, 8192), (150, 200, 250)
# The first eight measurements are in one file.
LOG = [  # id, label, seconds, joules, 95 % error of the joules, repeats, outcome
    ("cc94853d98ec", "ResNet grid", 1.7949426527495436, 315.6806818781446, 2.9753040066611978, 1, "ok"),
    ("6c6c56f9cb4f", "ResNet grid", 1.2270919727907366, 292.43818900150006, 4.841996953336042, 1, "ok"),
    ("376fd01e767d", "baseline", 3.453159980477823, 1276.968581393517, 8.65639477936586, 1, "ok"),
    ("501f4698818e", "baseline", 3.0729439327327537, 892.4171720958964, 9.798144517080534, 1, "ok"),
    ("a9f9867b0ded", "detected", 8.643512949946494, 2497.4710178544683, 5.23900768204181, 1, "ok"),
    ("765ff2f8d97c", "both", 3.0729439327327555, 1337.0775103921449, 10.077437163660738, 1, "ok"),
    ("801b649dc0d9", "failed", 1.1407546684410796, 429.1114578102729, 5.037604460390495, 1, "error"),
    ("9ee799634e87", "three runs", 1.1407546684410796, 429.4312913650613, 15.994403416161362, 3, "ok"),
    ("c3a77c6f20e2", "only V100", 2.452910700079485, 575.1222253088735, 0.746800623421003, 1, "ok"),
    ("774cc7d904af", "épuisé", 1.1407546684410796, 434.49311653103473, 12.15685911947125, 1, "ok"),
    ("721be44c2e41", "limited", 3.4532168960150464, 735.3123819505056, 9.771110293250198, 1, "ok"),
    ("a4230c8cdb7a", "phases", 5.46069733128293, 2021.4546058336348, 16.93675640380012, 1, "ok"),
]
TRACES = [  # id, rows, sum of power_w, highest reading of an energy counter
    ("cc94853d98ec", 126, 5455.177003860474, 197589.435),
    ("6c6c56f9cb4f", 104, 5161.602979660034, 197858.775),
    ("376fd01e767d", 236, 17937.304010391235, 199033.252),
    ("501f4698818e", 214, 40211.222969055176, 199206.006),
    ("a9f9867b0ded", 548, 112088.64413070679, 199682.085),
    ("765ff2f8d97c", 214, 47915.402950286865, 200294.254),
    ("801b649dc0d9", 99, 12530.483917236328, 200694.423),
    ("9ee799634e87", 98, 7704.050048828125, 201849.859),
    ("c3a77c6f20e2", 148, 29469.16003036499, 97936.36),
    ("774cc7d904af", 98, 11460.782983779907, 202395.222),
    ("721be44c2e41", 236, 13379.035987854004, 203043.08),
    ("a4230c8cdb7a", 357, 27131.95701980591, 204903.941),
]


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the files, with its home in use; the original stays as it is."""
    before = contents(STORED)
    copy = tmp_path / "stored"
    shutil.copytree(STORED, copy)
    monkeypatch.setenv("WORKBENCH_HOME", str(copy / "home"))
    yield copy
    assert contents(STORED) == before


@pytest.fixture
def machine(
    stored: Path, simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    """A simulated V100, the card of the recurring job, the profile and the journal."""
    monkeypatch.setattr(sessions, "_current", None)
    yield simulated("V100", stepped=True)
    sessions.current().close()


# measurements


def test_the_log_has_every_measurement(stored: Path) -> None:
    store = Store()
    log = store.log()
    columns = ("id", "label", "time_s", "energy_j", "energy_uncertainty_j", "repeats", "outcome")
    assert log.select(columns).rows() == LOG
    assert log["started_unix_s"][0] == 1795323220.6620853
    assert log["simulated"].all()
    assert store.messages() == []
    names = {path.name.partition("-")[0] for path in (stored / "home" / "measurements").iterdir()}
    assert names == {"log", "m"}  # a compacted file, single files, nothing set aside


def test_a_measurement_has_its_gpus_and_settings(stored: Path) -> None:
    limited = Store().find("limited")
    first, second = limited.gpus
    assert (first.name, first.uuid) == (A100, "GPU-8c2105ae-8fcf-4252-82e6-6583834c5a52")
    assert (second.name, second.uuid) == (V100, "GPU-9d0bd90a-4ee9-44d5-b643-118e2cc1b58e")
    assert (first.setting, second.setting) == (Setting(power_limit_w=200.0), Setting(power_limit_w=250.0))
    assert (first.energy_j, second.energy_j) == (645.5318237000707, 89.78055825043481)
    assert (first.mean_power_w, first.peak_power_w) == (186.93636778072164, 377.89801025390625)
    assert (first.idle_share, first.sm_clock_mhz) == (0.09088242053985596, 768.0882568359375)
    assert (first.throttle_reasons, first.source, first.samples) == (("power cap",), "counter", 34)
    (only,) = Store().find("only V100").gpus
    assert (only.name, only.energy_j) == (V100, 575.1222253088735)
    repeated = Store().find("9ee799")  # by the beginning of its id
    assert (repeated.label, repeated.repeats, repeated.energy_sd_j) == ("three runs", 3, 6.438613825838046)


def test_a_measurement_has_its_iterations(stored: Path) -> None:
    def levels(m: Measurement) -> list[tuple[str, int, float, float]]:
        assert m.iterations is not None
        return [(each.name, each.count, each.time_s, each.energy_j) for each in m.iterations.levels]

    marked, found = Store().find("phases"), Store().find("detected")
    assert marked.iterations is not None
    assert (marked.iterations.count, marked.iterations.source, marked.iterations.sure) == (16, "marks", True)
    assert (marked.iterations.seconds, marked.iterations.energy_j) == (0.2873350227644029, 105.92617014335852)
    assert levels(marked) == [
        ("iteration", 16, 4.597360364230447, 1694.8187222937363),
        ("evaluation", 1, 0.8533369670524849, 326.6358835398983),
        ("other", 1, 0.00999999999999801, 0.0),
    ]
    assert marked.iterations.detected_s == 0.28249833701550736
    assert found.iterations is not None
    assert (found.iterations.count, found.iterations.source, found.iterations.sure) == (13, "detected", True)
    assert (found.iterations.seconds, found.iterations.energy_j) == (0.6151462443108126, 177.94122433002545)


def test_traces_and_iterations_are_kept(stored: Path) -> None:
    store = Store()
    for name, rows, power_w, energy_j in TRACES:
        trace = store.trace(name)
        assert trace is not None
        assert trace.height == rows
        assert trace["uuid"].n_unique() == (1 if name == "c3a77c6f20e2" else 2)
        assert trace["power_w"].sum() == pytest.approx(power_w, rel=1e-12)
        assert trace["energy_j"].max() == energy_j
    trace = store.trace("c3a77c6f20e2")
    assert trace is not None
    assert trace.row(1, named=True) == {
        "time_s": 25.710383287295198,
        "tick_s": 25.704383426152642,
        "energy_j": 97349.254,
        "power_w": 25.882999420166016,
        "power_tick_s": 25.691875005252562,
        "power_limit_w": 250.0,
        "sm_clock_mhz": 135.0,
        "mem_clock_mhz": 877.0,
        "utilisation": 0.0,
        "memory_utilisation": 0.0,
        "temperature_c": 53.0,
        "throttle": 1,
        "uuid": "GPU-9d0bd90a-4ee9-44d5-b643-118e2cc1b58e",
    }
    iterations = store.iterations("a4230c8cdb7a")
    assert iterations is not None
    kinds = sorted(iterations["kind"].value_counts().rows())
    assert kinds == [("evaluation", 1), ("iteration", 17), ("other", 1)]
    assert iterations.filter(pl.col("kind") == "evaluation").row(0) == (
        None,
        "evaluation",
        35.54673442112798,
        36.400071388180464,
        0.8533369670524849,
        326.6358835398983,
        382.77479606694266,
    )
    assert iterations["energy_j"].sum() == pytest.approx(2021.4546058336346, rel=1e-12)
    assert store.iterations("cc94853d98ec") is None


def test_iterations_are_found_again_in_a_stored_trace(stored: Path) -> None:
    marked, found = workbench.iterations_of("phases"), workbench.iterations_of("detected")
    assert (marked.summary.count, marked.summary.source) == (16, "marks")
    assert marked.summary.energy_j == pytest.approx(105.92617014335852, rel=1e-9)
    assert marked.frame.height == 19
    # a trace of some seconds shows the rhythm for sure, and not that it is the iteration
    assert found.periods is not None
    assert found.periods.rhythm_sure
    (cycle,) = (level for level in found.summary.levels if level.name == "cycle")
    assert (cycle.count, cycle.each_s) == (13, pytest.approx(0.6151, abs=0.002))
    assert cycle.each_j == pytest.approx(177.8, abs=0.5)


def test_the_log_and_its_export_are_points_of_a_frontier(stored: Path) -> None:
    for what in (Store().log().head(2), stored / "exports" / "energy.parquet"):
        panel = workbench.panels.frontier(what)
        points = panel.look.points.select("job", "time_s", "energy_j", "power_limit_w", "measurements")
        assert points.rows() == [
            ("ResNet grid", 1.7949426527495436, 315.6806818781446, 150.0, ["cc94853d98ec"]),
            ("ResNet grid", 1.2270919727907366, 292.43818900150006, 250.0, ["6c6c56f9cb4f"]),
        ]
        assert panel.chosen == Configuration(Setting(power_limit_w=250.0))


# sweeps and frontiers


def test_a_named_sweep_goes_on_where_it_stopped(stored: Path) -> None:
    def never(batch_size: int | None) -> float:
        raise AssertionError(f"batch size {batch_size} is known already")

    space = {"batch_size": [128, 8192], "power_limit_w": [150.0, 250.0]}
    found = workbench.sweep(
        never, space, order="grid", executor=HereExecutor(), name="ResNet grid", progress=False
    )
    columns = (
        "trial",
        "batch_size",
        "power_limit_w",
        "applied_w",
        "restored_w",
        "outcome",
        "time_s",
        "energy_j",
    )
    assert found.trials.select(columns).rows() == [
        (0, 128, 150.0, 150.0, 400.0, "ok", 0.0023371649124343014, 0.4110425545288341),
        (1, 128, 250.0, 250.0, 400.0, "ok", 0.0015977760062379383, 0.3807788919290365),
        (2, 8192, 150.0, 150.0, 400.0, "out of memory", None, None),
    ]
    assert found.trials["reason"][2] == (
        "ResNet-50 on ImageNet at batch size 8192 needs 668.7 GiB and NVIDIA A100-SXM4-80GB has 80 GiB; "
        "take a smaller batch size"
    )
    assert found.points["measurement"].to_list() == ["cc94853d98ec", "6c6c56f9cb4f"]
    assert found.done == 4


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_an_exported_frontier_is_the_same_frontier(stored: Path, suffix: str) -> None:
    panel = workbench.panels.frontier(stored / "exports" / f"frontier.{suffix}")
    assert panel.look.points.select(
        "batch_size", "power_limit_w", "time_s", "energy_j", "measured"
    ).rows() == [
        (128, 150.0, 0.0023371649124343014, 0.4110425545288341, True),
        (128, 250.0, 0.0015977760062379383, 0.3807788919290365, True),
        (8192, 150.0, 0.002294076296989661, 0.4488704717116405, False),
        (8192, 250.0, 0.0012008733651540072, 0.3780069345881641, False),
    ]
    assert panel.chosen == Configuration(Setting(power_limit_w=250.0), 8192)


# recurring jobs


def test_a_recurring_job_knows_its_history(machine: Machine) -> None:
    nightly = workbench.RecurringJob(
        "nightly", SIZES, 1024, target=0.6, max_epochs=8, power_limits_w=LIMITS_W, seed=1, objective=0.5
    )
    frame = nightly.history()
    assert frame.select(
        "recurrence", "purpose", "batch_size", "power_limit_w", "state", "epochs", "oom"
    ).rows() == [
        (0, "slice", 1024, 250.0, "stopped", 2.0, False),
        (0, "slice", 8192, None, "crashed", 0.0, True),
        (0, "run", 512, 150.0, "reached", 3.0, False),
        (3, "run", 256, 150.0, "reached", 2.0, False),
        (4, "run", 256, 150.0, "reached", 2.0, False),
        (5, "run", 256, 150.0, "reached", 2.0, False),
        (6, "run", 256, 150.0, "reached", 2.0, False),
        (7, "run", 8192, None, "crashed", 0.0, True),
        (7, "run", 512, 200.0, "reached", 3.0, False),
        (9, "run", 256, 150.0, "interrupted", 0.0, False),
        (
            9,
            "run",
            256,
            150.0,
            "killed",
            1.0,
            False,
        ),  # was running when the file was written, silent since 2025
    ]
    assert frame["cost"].to_list() == pytest.approx(
        [
            2771.4188724586165,
            0.0,
            2137.4201049632143,
            842.403199801932,
            837.8866237473705,
            838.1122060725522,
            838.1009596772229,
            0.0,
            2144.5565057871922,
            0.0,
            2312.5,
        ],
        rel=1e-12,
    )
    assert set(frame["gpu"]) == {V100}
    assert frame["seen_unix_s"][2] == 1795323250.1681442
    ran = frame.filter(pl.col("purpose") == "run", pl.col("state").is_in(["reached", "crashed"]))
    assert ran.height == 7
    profiles, milestones = frame.explode("profile").drop_nulls("profile"), ran.explode("milestones")
    assert (profiles.height, milestones.drop_nulls("milestones").height) == (7, 120)
    assert profiles.filter(pl.col("number") == 2).select("batch_size", "profile").unnest("profile").rows() == [
        (512, 250.0, 3.379133279602401, 173.80314432693183),
        (512, 200.0, 3.399703194167303, 170.9601567336668),
        (512, 150.0, 3.688563169764187, 134.13221887685557),
    ]
    assert milestones.filter(pl.col("number") == 2)["milestones"][-1] == {"level": 0.42, "epoch": 3.0}
    assert nightly.study.barred() == {}  # batch size 8192 was pardoned
    evidence = nightly.study.evidence()
    assert evidence.count.tolist() == [4, 2, 0, 0]
    assert evidence.spent_energy_j == pytest.approx(9581.365051854917, rel=1e-12)
    assert nightly.next().batch_size in SIZES  # the job goes on
    assert workbench.panels.recurring(nightly).title() == "Recurring job nightly, by our policy (simulated)"


def test_an_exported_history_is_played_again_and_imported(machine: Machine, stored: Path) -> None:
    path = stored / "exports" / "history.csv"
    rows = workbench.panels.recurring(str(path)).outlook.recurrences
    assert rows.select("batch_size", "power_limit_w", "reached", "attempts", "time_s", "energy_j").rows() == [
        (512, 150.0, True, 3, 23.366747143581197, 3975.9911689483615),
        (256, 150.0, True, 1, 4.219265843831607, 629.9899386459622),
        (256, 150.0, True, 1, 4.391225954840092, 577.9667587847181),
        (256, 150.0, True, 1, 4.391225954840188, 578.4179234350576),
        (256, 150.0, True, 1, 4.391225954840188, 578.3954306443989),
        (512, 200.0, True, 2, 10.194036720711864, 1740.6038313964186),
        (256, 150.0, False, 1, 0.0, 0.0),
    ]
    known = workbench.RecurringJob("nightly", SIZES, 1024, target=0.6, power_limits_w=LIMITS_W)
    assert known.import_csv(path) == 0  # the job has all of it
    fresh = workbench.RecurringJob("weekly", SIZES, 1024, target=0.6, power_limits_w=LIMITS_W)
    assert fresh.import_csv(path) == 10


def test_a_plain_study_goes_on_with_the_bandit_sampler(stored: Path) -> None:
    storage = f"sqlite:///{stored / 'home' / 'recurring.db'}"
    sampler = BanditSampler(Space((16, 32, 64), 32), policy="zeus", seed=1)
    study = optuna.load_study(study_name="plain", storage=storage, sampler=sampler)
    found = [(trial.params, trial.value, trial.user_attrs["workbench"]["energy_j"]) for trial in study.trials]
    assert found == [
        ({"batch_size": 32}, 112.5, 10400.0),
        ({"batch_size": 16}, 225.0, 8800.0),
        ({"batch_size": 64}, 56.25, 13600.0),
        ({"batch_size": 16}, 225.0, 8800.0),
    ]
    assert study.ask().suggest_int("batch_size", 16, 64, log=True) in (16, 32, 64)
    assert sampler.ledger.evidence().count.tolist() == [2, 1, 1]


# a GPU's profile and model


def test_a_profile_goes_on_where_it_stopped(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile-gpu", "--simulate", "V100", "--over", "power", "--list"]) == 0
    first_line = capsys.readouterr().out.splitlines()[0]
    # Nine workloads are done, each at six limits and twice at the default.
    assert first_line == (
        f"{V100}: 45 workloads at the default and 6 other settings; 288 of 360 measurements are to be made"
    )


def test_a_clock_model_of_version_0_1_is_refused_with_the_remedy(stored: Path) -> None:
    path = models.find_model(V100, "nvml")
    assert path == stored / "home" / "models" / "tesla-v100-pcie-32gb-simulated.nvml.clocks.json.gz"
    with pytest.raises(UsageError, match="has version 1, this workbench reads version 2; `workbench profile-gpu`"):
        ClockModel.load(path, gpu=V100)


# journals of a changed GPU


def test_a_gpu_that_was_left_changed_is_put_back(machine: Machine, stored: Path) -> None:
    (path,) = (stored / "home" / "journals").iterdir()
    journal = json.loads(path.read_text(encoding="utf-8"))
    assert journal == {
        "uuid": path.stem,
        "name": V100,
        "pid": journal["pid"],
        "started": journal["started"],
        "before_w": 250.0,
        "simulated": "SIMULATED_GPUS",
        "touched": ["power_limit_w", "sm_clock_mhz"],
        "limits_w": [200.0, 150.0],
        "host": "node-7",
        "boot_id": "5b0d5f1c-9b0e-4f0b-8a53-1f2e3d4c5b6a",
    }
    # The machine of the journal: its GPU has the UUID and the last setting, its host and boot are this one's.
    machine.state.set_card(0, "uuid", journal["uuid"])
    workbench.open_device(0).write(Setting(power_limit_w=150.0, sm_clock_mhz=1005))
    assert (machine.state.control(0, "limit_w"), machine.state.control(0, "lock_sm_max")) == (150.0, 1005)
    here = {
        "simulated": os.environ["WORKBENCH_SIMULATED_GPUS"],
        "host": socket.gethostname(),
        "boot_id": _processes.boot_id(),
    }
    path.write_text(json.dumps(journal | here), encoding="utf-8")
    with workbench.measure("anything"):  # the next use of a GPU restores it
        pass
    (device,) = sessions.current().devices
    assert device.setting() == Setting(power_limit_w=250.0)
    assert (machine.state.control(0, "limit_w"), machine.state.control(0, "lock_sm_max")) == (250.0, 0)
    assert not path.exists()
    assert sessions.current().messages == [
        f"{V100} was left changed by a process that is gone; its setting is restored"
    ]
