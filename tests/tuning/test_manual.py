"""A configuration put to a GPU by hand: whole, read back, undone, and whose it is."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import workbench
from workbench.device import lease, watchdog
from workbench.errors import (
    DeviceHeld,
    GpuLost,
    NotPermitted,
    NotSupported,
    OutOfRange,
    UnknownGpu,
    UsageError,
)
from workbench.experiments.job import RecurringJob
from workbench.measurement import session as sessions
from workbench.records import Configuration, Setting
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob
from workbench.tuning import manual
from workbench.tuning.driver import TunerThread
from workbench.tuning.manual import ManualControl
from workbench.tuning.state_machine import Tuner

Simulated = Callable[..., Machine]
SET_LIMIT, LOCK_SM, RESET_SM = (
    "nvmlDeviceSetPowerManagementLimit",
    "nvmlDeviceSetGpuLockedClocks",
    "nvmlDeviceResetGpuLockedClocks",
)
NO_PERMISSION, LOST = 4, 15


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    sessions.current().close()
    workbench.chosen.choose(None)
    yield
    lease._held.clear()
    lease._owed.clear()
    watchdog.stop()
    workbench.chosen.choose(None)


@pytest.fixture
def machine(simulated: Simulated) -> Iterator[Machine]:
    made = simulated("V100", stepped=True)
    yield made
    made.state.clear_faults()
    made.lose(0, 0)
    lease.restore_all()
    sessions.current().close()


@pytest.fixture
def hand(machine: Machine) -> ManualControl:
    return manual.gpu_control()


def truth(machine: Machine) -> tuple[float, int]:
    return float(machine.state.control(0, "limit_w")), int(machine.state.control(0, "lock_sm_max"))


# what is in force


def test_a_gpu_that_nobody_touched_is_at_the_drivers_default(hand: ManualControl) -> None:
    now = hand.active()
    assert (now.setting, now.origin, now.holder) == (Setting(250.0), "default", "")
    assert manual.gpu_control(hand.device.uuid) is hand is manual.gpu_control(0)


def test_a_gpu_that_the_session_does_not_measure_is_no_gpu(hand: ManualControl) -> None:
    with pytest.raises(UnknownGpu, match="GPU 7"):
        manual.gpu_control(7)
    with pytest.raises(UsageError, match="one GPU"):
        manual.gpu_control([])


def test_it_shows_the_origin_of_the_active_setting(machine: Machine, hand: ManualControl) -> None:
    machine.state.change_setting(0, limit_w=200.0)
    assert hand.active().origin == "program"
    applied = hand.apply(Setting(150.0))
    assert hand.active().origin == "applied"
    assert hand.active().text.endswith(str(applied.at))
    machine.state.change_setting(0, limit_w=180.0)
    assert re.match("another program.*150 W", hand.active().text)
    machine.lose(0, LOST)
    lost = hand.active()
    assert (lost.setting, lost.origin) == (None, "lost")
    assert hand.difference(Setting(150.0)) == ()
    machine.lose(0, 0)
    hand.undo_all()
    sessions.current().set_power_limit(hand.device.uuid, 170.0)
    assert hand.active().origin == "slider"
    sessions.current().restore()
    with lease.applied(hand.device, Setting(160.0)):
        assert hand.active().origin == "run"


# apply


def test_a_configuration_is_applied_whole_and_read_back(machine: Machine, hand: ManualControl) -> None:
    first = hand.apply(Setting(150.0, 1005))
    assert (first.before, first.after, truth(machine)) == (
        Setting(250.0),
        Setting(150.0, 1005),
        (150.0, 1005),
    )
    assert [text.partition(" → ")[2] for text in first.text] == ["150 W", "1005 MHz"]
    assert "250 W (default)" in first.text[0]
    second = hand.apply(Setting(sm_clock_mhz=900))  # the limit goes back to the driver
    assert (second.after, truth(machine)) == (Setting(250.0, 900), (250.0, 900))
    third = hand.apply(Configuration(Setting(175.0)))
    assert (third.after, truth(machine)) == (Setting(175.0), (175.0, 0))
    assert "already" in hand.apply(Setting(175.0)).text[0]
    assert [each.after for each in hand.history] == [
        Setting(150.0, 1005),
        Setting(250.0, 900),
        Setting(175.0),
        Setting(175.0),
    ]
    with pytest.raises(UsageError, match="not int"):
        hand.apply(150)  # type: ignore[arg-type]


def test_every_step_can_be_undone_to_the_original_setting(machine: Machine, hand: ManualControl) -> None:
    machine.state.change_setting(0, limit_w=200.0)
    hand.apply(Setting(150.0, 1005))
    hand.apply(Setting(sm_clock_mhz=900))
    hand.restore_default()
    assert truth(machine) == (250.0, 0)
    assert "250 W, SM 900 MHz" in hand.undo()
    hand.undo()
    assert truth(machine) == (150.0, 1005)
    assert "200 W" in hand.undo()
    assert truth(machine) == (200.0, 0)
    assert lease.holder(hand.device.uuid) == ""
    with pytest.raises(UsageError, match="nothing to undo"):
        hand.undo()


@pytest.mark.parametrize(
    ("wanted", "error"),
    [(Setting(275.0), OutOfRange), (Setting(float("nan")), OutOfRange), (Setting(150.0, 777), OutOfRange),
     (Setting(mem_clock_mhz=877), NotSupported), (Configuration(Setting(150.0), 0), UsageError)],
)
def test_an_unsupported_setting_leaves_the_earlier_one(
    machine: Machine, hand: ManualControl, wanted: Setting | Configuration, error: type[Exception]
) -> None:
    hand.apply(Setting(200.0, 1005))
    with pytest.raises(error):
        hand.apply(wanted)
    assert truth(machine) == (200.0, 1005)
    assert len(hand.history) == 1


@pytest.mark.parametrize("function", [SET_LIMIT, LOCK_SM])
def test_a_refusal_keeps_the_setting_and_gives_commands_for_an_administrator(
    machine: Machine, hand: ManualControl, function: str
) -> None:
    hand.apply(Setting(200.0, 1005))
    machine.inject(function, NO_PERMISSION, times=1)
    with pytest.raises(NotPermitted):
        hand.apply(Setting(150.0, 900))
    assert truth(machine) == (200.0, 1005)
    rights = hand.rights(Setting(150.0, 900))
    smi = f"sudo nvidia-smi -i {hand.device.uuid}"
    assert (rights.who, rights.command) == ("", f"{smi} -pl 150\n{smi} -lgc 135,900")
    assert "root" in rights.text
    hand.apply(Setting(150.0, 900))
    assert hand.rights(Setting(200.0)).command == f"{smi} -pl 200\n{smi} -rgc"
    assert not hand.refused


def test_a_failed_release_of_a_lock_keeps_the_setting(machine: Machine, hand: ManualControl) -> None:
    hand.apply(Setting(200.0, 1005))
    machine.inject(RESET_SM, NO_PERMISSION, times=1)
    with pytest.raises(NotPermitted):
        hand.apply(Setting(150.0))
    assert truth(machine) == (200.0, 1005)
    hand.undo()
    assert truth(machine) == (250.0, 0)


# others


def test_a_cells_end_does_not_undo_an_applied_setting(machine: Machine, hand: ManualControl) -> None:
    session = sessions.current()
    session.set_power_limit(hand.device.uuid, 170.0)
    applied = hand.apply(Setting(150.0))
    assert "the limit slider" in applied.text[0]
    assert applied.before == Setting(250.0)
    session.restore()
    assert truth(machine) == (150.0, 0)
    session.set_power_limit(hand.device.uuid, 170.0)
    assert hand.active().origin == "slider"
    session.restore()
    assert truth(machine) == (150.0, 0)
    hand.undo()
    assert truth(machine) == (250.0, 0)


def test_a_run_of_this_process_is_named_as_the_restorer(machine: Machine, hand: ManualControl) -> None:
    with lease.applied(hand.device, Setting(200.0)):
        assert "a run" in hand.apply(Setting(150.0)).text[0]
        hand.undo()
        assert truth(machine) == (200.0, 0)
        hand.apply(Setting(150.0))
    assert truth(machine) == (250.0, 0)
    assert hand.history == ()


def test_a_tuner_at_work_is_stopped(machine: Machine, hand: ManualControl) -> None:
    tuner = Tuner(sessions.current().meter, label="train", model=False)
    driver = TunerThread(tuner)
    for _ in TrainingJob("imagenet", 256, machine=machine, iterations=40, evaluate=False):
        workbench.step()
        if hand.active().origin == "tuner":
            break
    else:
        pytest.fail("the tuner never held the GPU")
    applied = hand.apply(Setting(150.0))
    assert "tuner of 'train'" in applied.text[0]
    assert tuner.ended
    driver.end()
    assert truth(machine) == (150.0, 0)


def test_another_process_that_holds_the_gpu_is_named(
    machine: Machine, hand: ManualControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import sys; from workbench.device.journal import lock; lock(*sys.argv[1:]); print(flush=True); input()"
    )
    command = [sys.executable, "-c", code, hand.device.uuid, hand.device.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert hand.active().origin == "process"
        with pytest.raises(DeviceHeld, match="by process"):
            hand.apply(Setting(150.0))
        other.communicate("\n")
    assert truth(machine) == (250.0, 0)


def test_a_setting_by_another_program_is_left_alone_and_reported(
    machine: Machine, hand: ManualControl
) -> None:
    hand.apply(Setting(200.0))
    hand.apply(Setting(150.0, 1005))
    machine.state.change_setting(0, limit_w=180.0)
    assert re.search("180 W: another program", hand.undo())
    assert truth(machine) == (180.0, 0)
    machine.state.change_setting(0, limit_w=190.0)
    assert "190 W" in hand.undo_all()


def test_a_lost_gpu_is_restored_when_it_answers_again(machine: Machine, hand: ManualControl) -> None:
    hand.apply(Setting(150.0, 1005))
    machine.lose(0, LOST)
    with pytest.raises(GpuLost):
        hand.apply(Setting(200.0))
    assert "lost" in hand.undo()
    assert truth(machine) == (150.0, 1005)
    with pytest.raises(GpuLost):
        hand.undo()
    machine.lose(0, 0)
    assert "250 W" in hand.undo()
    assert truth(machine) == (250.0, 0)


# batch sizes


def test_a_batch_size_goes_to_the_next_recurrence_with_a_note(hand: ManualControl) -> None:
    job = RecurringJob("nightly", [32, 64, 128], 128, target=0.6, seed=1)
    assert job.next().batch_size == 128
    applied = hand.apply(Configuration(Setting(200.0), 64), jobs=(job,))
    assert re.match("batch size 64 .* 'nightly'", applied.text[-1])
    assert (workbench.chosen.batch_size, job.next().batch_size) == (64, 64)
    assert [attempt.state for attempt in job.study.attempts if attempt.ended] == ["withdrawn"]
    hand.undo()
    assert workbench.chosen.batch_size is None
    with pytest.raises(UsageError, match="32, 64, 128"):
        hand.apply(Configuration(Setting(150.0), 48), jobs=(job,))
    with pytest.raises(UsageError, match="48 is not"):
        job.choose(48)
    assert hand.history == ()


# the power follows


def test_the_power_follows_the_limit(machine: Machine, hand: ManualControl) -> None:
    done: list[manual.Applied] = []
    for number, _ in enumerate(TrainingJob("imagenet", 256, machine=machine, iterations=60, evaluate=False)):
        if number == 25:
            done.append(hand.apply(Setting(125.0)))
    followed = hand.follow(done[0])
    assert followed is not None
    assert followed.before_w is not None
    assert followed.after_w == pytest.approx(125.0, rel=0.05)
    assert followed.before_w > 180.0
    assert followed.text.count(f"{followed.before_w:.0f} W to 1")


@pytest.mark.parametrize(
    ("power", "text"),
    [(np.where(np.arange(80) < 30, 200.0, 150.0), "200 W to 150 W"),
     (np.full(80, 200.0), "stays at 200 W"),
     (np.full(30, 200.0), "no reading"),
     (np.full(0, 200.0), "not recorded")],
)
def test_the_change_of_the_power_is_described(power: np.ndarray, text: str) -> None:
    assert text in manual.followed(np.arange(len(power)) * 0.1 - 3.0 + 1e-6, power, 0.0).text


def test_the_zeus_daemons_rights_are_shown_as_lent(
    hand: ManualControl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hand.device, "simulated", False)
    monkeypatch.setattr("workbench.device.nvml.is_privileged", lambda: False)
    assert hand.rights(Setting(150.0)).who == ""
    socket = tmp_path / "zeusd.sock"
    socket.touch()
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(socket))
    assert hand.rights(Setting(150.0)).who == "lent"
    socket.unlink()
    assert hand.rights(Setting(150.0)).who == ""
    monkeypatch.setattr("workbench.device.nvml.is_privileged", lambda: True)
    assert hand.rights(Setting(150.0)).who == "root"
