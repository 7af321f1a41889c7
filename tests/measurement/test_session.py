"""One process, one session: its GPUs, made when first needed and let go completely."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import workbench
from workbench import _shared_memory
from workbench._processes import runs as alive
from workbench.device import lease
from workbench.device.discovery import open_device, why_no_gpu
from workbench.errors import NoDriver, SimulationError, UnknownGpu
from workbench.measurement import session as sessions
from workbench.measurement.session import Session, simulate
from workbench.records import Setting
from workbench.simulation.machine import Machine, attached
from workbench.simulation.state import ENVIRONMENT_VARIABLE

Simulated = Callable[..., Machine]


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch, simulated: Simulated, tmp_path: Path) -> Iterator[None]:
    """Each test starts as a new process does, with locks of its own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    sessions.current().close()
    sessions.current().messages.clear()
    yield
    sessions.current().close()
    if os.environ.get(ENVIRONMENT_VARIABLE) and (made := attached()) is not None:
        made.close()


def test_a_session_measures_all_visible_gpus(simulated: Simulated) -> None:
    simulated("V100,A100", stepped=True)
    mine = sessions.current()
    assert mine is sessions.current()
    assert [device.name.split()[0] for device in mine.devices] == ["Tesla", "NVIDIA"]
    assert mine.meter is mine.meter
    assert mine.recorder is not None
    assert mine.messages == []


def test_the_first_window_begins_after_an_observed_update(simulated: Simulated) -> None:
    simulated("V100")
    for _ in range(10):  # a busy machine may keep the sampler from the window's end
        meter = sessions.current().meter
        window = meter.open("first")
        time.sleep(0.2)
        measurement = meter.measure(meter.close(window))
        if not [note for note in measurement.gpus[0].notes if "counter updates" in note]:
            return
        sessions.current().close()
    pytest.fail("no first window began after an observed update")


def test_a_session_may_measure_some_gpus_only(simulated: Simulated) -> None:
    simulated("V100,A100", stepped=True)
    mine = Session([1])
    assert [device.index for device in mine.devices] == [1]
    mine.close()
    with pytest.raises(UnknownGpu):
        _ = Session(["GPU-nobody"]).meter


def test_without_a_gpu_a_session_still_has_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "devices", list)
    mine = Session()
    assert (mine.devices, mine.recorder) == ((), None)
    m = mine.meter.measure(mine.meter.close(mine.meter.open()))
    assert (m.energy_j, m.source) == (None, "none")


def test_choosing_simulated_gpus_replaces_those_that_were_measured(simulated: Simulated) -> None:
    mine, rings = f"workbench-gpus-{os.getpid()}-*", f"workbench-ring-{os.getpid()}-*"
    before, rings_before = (set(_shared_memory.directory().glob(each)) for each in (mine, rings))
    first = simulate("V100", scale=10.0)
    assert [device.simulated for device in first.devices] == [True]
    (ring,) = set(_shared_memory.directory().glob(rings)) - rings_before
    pid = (first.recorder and first.recorder.pid) or 0
    second = simulate(["A100", "H100"], scale=10.0)
    assert second is first
    assert len(second.devices) == 2
    assert not alive(pid)
    assert not ring.exists()
    assert len(set(_shared_memory.directory().glob(mine)) - before) == 1


def test_an_unknown_card_is_reported_and_the_old_ones_stay(simulated: Simulated) -> None:
    simulate("V100", scale=10.0)
    with pytest.raises(UnknownGpu, match="Z9000"):
        simulate("Z9000")
    assert [device.name.split()[1][:4] for device in sessions.current().devices] == ["V100"]


def test_a_simulated_machine_whose_file_is_gone_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As after a logout that empties /dev/shm: later kernels of that server have the name in their
    environment.
    """
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(SimulationError, match=r"workbench.simulate\('A100'\)"):
        _ = sessions.current().devices
    mine = simulate("A100", scale=10.0)
    assert [device.name for device in mine.devices] == ["NVIDIA A100-SXM4-80GB (simulated)"]
    assert mine.meter.measure(mine.meter.close(mine.meter.open())).outcome == "ok"
    assert os.environ[ENVIRONMENT_VARIABLE] != str(tmp_path / "gone")


def test_real_and_simulated_gpus_never_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.device.nvml.real_library_loaded", lambda: True)
    with pytest.raises(SimulationError, match="restart the kernel"):
        simulate("V100")


def test_a_power_limit_lasts_until_it_is_restored(simulated: Simulated) -> None:
    machine = simulated("V100", stepped=True)
    mine = sessions.current()
    uuid = mine.devices[0].uuid
    assert mine.set_power_limit(uuid, 150.0) == 150.0
    assert machine.state.control(0, "limit_w") == 150.0
    assert mine.restore() == []
    assert machine.state.control(0, "limit_w") == 250.0
    with pytest.raises(NoDriver, match="GPU-other"):
        mine.set_power_limit("GPU-other", 150.0)


def test_a_gpu_that_is_named_twice_is_counted_once(simulated: Simulated) -> None:
    simulated("V100,A100", stepped=True)
    mine = Session([1, 0, 1])
    assert [device.index for device in mine.devices] == [1, 0]
    mine.close()


def test_only_what_a_session_has_set_is_undone_by_it(simulated: Simulated) -> None:
    machine = simulated("V100,A100", stepped=True)
    mine = sessions.current()
    one, two = mine.devices
    lease.change(
        open_device(0), Setting(power_limit_w=200.0, sm_clock_mhz=1005)
    )  # by the user, for longer than a cell
    assert mine.restore() == []
    assert machine.state.control(0, "limit_w") == 200.0
    for watts in (150.0, 120.0):
        mine.set_power_limit(one.uuid, watts)
        mine.set_power_limit(two.uuid, watts + 60.0)
    assert mine.restore() == []
    assert [machine.state.control(0, name) for name in ("limit_w", "lock_sm_max")] == [200.0, 1005]
    assert machine.state.control(1, "limit_w") == two.limits.default_power_limit_w
    assert mine.restore_all() == []
    assert [machine.state.control(0, name) for name in ("limit_w", "lock_sm_max")] == [250.0, 0]


def test_a_hold_that_ended_meanwhile_has_taken_the_sessions_limit_with_it(simulated: Simulated) -> None:
    machine = simulated("V100", stepped=True)
    mine = sessions.current()
    uuid = mine.devices[0].uuid
    with lease.applied(open_device(), Setting(power_limit_w=200.0)):
        mine.set_power_limit(uuid, 150.0)
    assert machine.state.control(0, "limit_w") == 250.0
    with lease.applied(open_device(), Setting(power_limit_w=180.0)):
        assert mine.restore() == []
        assert machine.state.control(0, "limit_w") == 180.0
        mine.set_power_limit(uuid, 150.0)
        assert mine.restore() == []
        assert machine.state.control(0, "limit_w") == 180.0


def test_a_closed_session_restores_stops_and_can_start_again(simulated: Simulated) -> None:
    machine = simulated("V100", stepped=True)
    mine = sessions.current()
    old = mine.meter
    mine.set_power_limit(mine.devices[0].uuid, 150.0)
    mine.close()
    mine.close()
    assert machine.state.control(0, "limit_w") == 250.0
    assert old.recorder is not None
    assert not old.recorder.running
    assert mine.meter is not old


def test_a_sampling_process_that_was_killed_is_replaced(simulated: Simulated) -> None:
    simulated("V100", scale=4.0)
    mine = sessions.current()
    first = mine.recorder
    assert first is not None
    os.kill(first.pid or 0, signal.SIGKILL)
    while first.running:
        time.sleep(0.01)
    assert mine.recorder is first  # a window that is open has its trace there
    second = mine.meter.recorder
    assert second is not None
    assert second is not first
    assert second.running


def no_memory(*_: object) -> Path:
    raise OSError("4 KB")


@pytest.mark.parametrize(
    ("module", "name", "value", "reason"),
    [(sys, "executable", "no-such-python", "no-such-python"), (_shared_memory, "create", no_memory, "4 KB")],
)
def test_without_a_sampling_process_or_memory_the_counter_alone_measures(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: Any, reason: str
) -> None:
    simulated("V100", scale=4.0)
    monkeypatch.setattr(module, name, value)
    mine = sessions.current()
    m = mine.meter.measure(mine.meter.close(mine.meter.open()))
    assert mine.recorder is None
    assert m.energy_j is not None
    assert [reason in each and "counter alone" in each for each in mine.messages] == [True]


def test_changes_left_by_a_killed_process_are_restored_and_reported_at_the_start(
    simulated: Simulated,
) -> None:
    machine = simulated("V100", stepped=True)
    code = (
        "import os, signal; from workbench.device import lease as control, watchdog; from "
        "workbench.device.discovery import open_device\n"
        "from workbench.records import Setting; control.change(open_device(), Setting(power_limit_w=150.0))\n"
        "os.kill(watchdog.pid(), signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert machine.state.control(0, "limit_w") == 150.0
    mine = sessions.current()
    _ = mine.meter
    assert machine.state.control(0, "limit_w") == 250.0
    assert [mine.devices[0].name in each for each in mine.messages] == [True]


def test_an_exit_leaves_nothing_behind() -> None:
    code = (
        "import os; from workbench.measurement import session; mine = session.simulate('V100'); uuid = "
        "mine.devices[0].uuid\n"
        "mine.set_power_limit(uuid, 150.0); print(os.getpid(), mine.recorder.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    pid, sampler = done.stdout.split()
    assert not alive(int(sampler))
    assert not list(_shared_memory.directory().glob(f"workbench-*-{pid}-*"))
    journals = Path(os.environ["XDG_DATA_HOME"]) / "gpu-energy-workbench" / "journals"
    assert list(journals.iterdir()) == []


def test_an_outer_hold_survives_a_session_that_opens(simulated: Simulated) -> None:
    machine = simulated("V100", stepped=True)
    with lease.applied(open_device(), Setting(power_limit_w=150.0)):
        _ = sessions.current().meter
        assert machine.state.control(0, "limit_w") == 150.0


# GPUs that cannot be used


@pytest.mark.parametrize("code", [9, 12, 17, 18, 999, 12345])
def test_without_a_driver_a_session_has_a_clock_and_the_reason(
    simulated: Simulated, code: int
) -> None:
    machine = simulated("V100", stepped=True)
    machine.state.set_header("driver_fault", code)
    mine = sessions.current()
    assert mine.devices == ()
    assert mine.why_no_gpu()
    assert mine.meter.why == mine.why_no_gpu()
    with pytest.raises(NoDriver, match="simulated"):
        open_device()
    machine.state.set_header("driver_fault", 0)
    assert Session().why_no_gpu() == ""


def test_the_message_for_a_container_that_lost_its_gpus_is_to_restart_it(simulated: Simulated) -> None:
    simulated("V100", stepped=True).state.set_header("driver_fault", 999)
    assert "systemctl daemon-reload" in why_no_gpu()


def test_a_container_without_the_driver_library_shows_how_to_get_it(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated("V100", stepped=True).state.set_header("driver_fault", 12)
    real = os.path.exists
    for there in (False, True):
        monkeypatch.setattr(
            os.path, "exists", lambda path, there=there: there if path == "/dev/nvidiactl" else real(path)
        )
        assert ("-e NVIDIA_DRIVER_CAPABILITIES=compute,utility" in why_no_gpu()) == there


def test_gpus_that_are_there_and_cannot_be_measured_have_a_reason_too(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = simulated("V100", stepped=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES=''" in why_no_gpu()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    machine.lose(0)
    assert "lost" in why_no_gpu()
    machine.lose(0, 0)
    assert why_no_gpu() == ""


def test_gpus_whose_order_is_unknown_cost_a_block_its_energy_and_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(gpus: object = None) -> list[object]:
        raise UnknownGpu("their CUDA order is unknown")

    monkeypatch.setattr(sessions, "_current", None)
    monkeypatch.setattr(sessions, "devices", unknown)
    with pytest.warns(RuntimeWarning, match="CUDA order is unknown"), workbench.measure("cell") as result:
        pass
    assert result.energy_j is None
    with pytest.raises(UnknownGpu):
        workbench.measure("cell", gpus="GPU-0").__enter__()
