"""Rights lent by the Zeus daemon: the messages on its socket, and the behaviour when it refuses."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from workbench.device import lease, nvml, zeusd
from workbench.device.discovery import open_device
from workbench.device.nvml import NvmlDevice
from workbench.errors import DriverError, NotPermitted
from workbench.records import Setting
from workbench.simulation import machine as machines
from workbench.simulation.machine import Machine

Asked = tuple[str, dict[str, str], str]
CLOCKS = {"sm": 1800, "mem": 9501}  # MHz, of a GPU whose clocks are not locked
NAME = "NVIDIA GeForce RTX 3080 Ti (simulated)"
WAY_OUT = "set ZEUSD_GPU_ID"


class Daemon(socketserver.ThreadingUnixStreamServer):
    """Answers like zeusd, for a node whose GPU `ours` is the simulated one; records the requested changes."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        self.asked: list[Asked] = []
        self.status, self.refused = 200, ""
        self.names, self.ours, self.reports_limits = [NAME], 0, True
        self.limits_w: dict[int, float] = {}  # of the others, where not at 350 W
        self.locks_mhz: dict[tuple[int, str], int] = {}
        self.discovery: tuple[int, str] | None = None
        self.machine: Machine | None = None
        super().__init__(str(path), _Handler)

    def limit_w(self, gpu: int) -> float:
        if gpu == self.ours and self.machine is not None:
            return float(self.machine.state.control(0, "limit_w"))
        return self.limits_w.get(gpu, 350.0)

    def read(self, what: str, values: dict[str, str]) -> tuple[int, str]:
        if what == "/discover":
            gpus = [{"id": number, "name": name} for number, name in enumerate(self.names)]
            return self.discovery or (200, json.dumps({"gpus": gpus, "cpus": [], "auth_required": False}))
        if what == "/gpu/get_power_limit" and self.reports_limits:
            limit_mw = round(1000 * self.limit_w(int(values["gpu_ids"])))
            return 200, json.dumps({values["gpu_ids"]: {"power_limit_mw": limit_mw}})
        return 403, "gpu-read is not granted"

    def change(self, what: str, values: dict[str, str]) -> None:
        gpu, kind = int(values["gpu_ids"]), "mem" if "_mem_" in what else "sm"
        if what == "/gpu/set_power_limit":
            limit_w = int(values["power_limit_mw"]) / 1000
            if gpu == self.ours and self.machine is not None:
                self.machine.state.change_setting(0, limit_w=limit_w)
            else:
                self.limits_w[gpu] = limit_w
        elif what.startswith("/gpu/reset"):
            self.locks_mhz.pop((gpu, kind), None)
        else:
            self.locks_mhz[gpu, kind] = int(values["max_clock_mhz"])
        if self.machine is not None:
            sm_mhz, mem_mhz = (self.locks_mhz.get((self.ours, kind), idle) for kind, idle in CLOCKS.items())
            runs_at(self.machine, sm_mhz, mem_mhz)


class _Handler(BaseHTTPRequestHandler):
    server: Daemon

    def do_GET(self) -> None:
        what, values = self.note()
        self.answer(*self.server.read(what, values))

    def do_POST(self) -> None:
        what, values = self.note()
        self.server.asked.append((what, values, self.headers.get("Authorization", "")))
        status = 403 if self.server.refused and self.server.refused in f"{self.path}" else self.server.status
        if status == 200:
            self.server.change(what, values)
        self.answer(status, "" if status == 200 else "not in the group zeusd")

    def note(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        return parts.path, {name: texts[0] for name, texts in parse_qs(parts.query).items()}

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def address_string(self) -> str:
        return "a Unix socket"

    def log_message(self, *_: object) -> None:
        pass


def runs_at(machine: Machine, sm_mhz: int, mem_mhz: int) -> None:
    """From now on the simulated GPU shows these clocks."""
    watts, _, _, *rest = machines.idle(machine.card(0))
    machine.state.publish(0, machine.clock(), [], (watts, sm_mhz, mem_mhz, *rest))


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    path = tmp_path / "zeusd.sock"
    server = Daemon(path)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(path))
    monkeypatch.delenv("ZEUSD_GPU_ID", raising=False)
    monkeypatch.delenv("ZEUSD_TOKEN", raising=False)
    monkeypatch.setattr(zeusd, "NODE_GPUS", tmp_path / "gpus")  # not those of this machine
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def unprivileged(simulated: Callable[..., Machine], daemon: Daemon) -> NvmlDevice:
    """A GPU that its user may not change, which passes for a real one; the daemon changes it behind the
    driver's back.
    """
    daemon.machine = simulated("RTX3080Ti", stepped=True, privileged=False, seed=None)
    runs_at(daemon.machine, *CLOCKS.values())
    device = open_device(0)
    device.simulated = False
    return device


def test_a_limit_is_set_through_the_daemon_and_read_back(unprivileged: NvmlDevice, daemon: Daemon) -> None:
    assert unprivileged.write(Setting(power_limit_w=250.0)).power_limit_w == 250.0
    assert daemon.asked == [
        ("/gpu/set_power_limit", {"gpu_ids": "0", "power_limit_mw": "250000", "block": "true"}, "")
    ]


def test_clocks_are_locked_and_given_back(unprivileged: NvmlDevice, daemon: Daemon) -> None:
    unprivileged.write(Setting(sm_clock_mhz=1200, mem_clock_mhz=5001))
    unprivileged.reset(("sm_clock_mhz", "mem_clock_mhz"))
    assert [
        (what, values.get("min_clock_mhz"), values.get("max_clock_mhz")) for what, values, _ in daemon.asked
    ] == [
        ("/gpu/set_mem_locked_clocks", "5001", "5001"),  # does our GPU follow?
        ("/gpu/set_mem_locked_clocks", "405", "5001"),  # then it is a ceiling
        ("/gpu/set_gpu_locked_clocks", "1200", "1200"),
        ("/gpu/set_gpu_locked_clocks", "210", "1200"),
        ("/gpu/reset_gpu_locked_clocks", None, None),
        ("/gpu/reset_mem_locked_clocks", None, None),
    ]
    assert unprivileged.locked() == Setting()


def test_a_setting_made_through_the_daemon_is_restored_through_it(
    unprivileged: NvmlDevice, daemon: Daemon
) -> None:
    before_w = unprivileged.setting().power_limit_w
    with lease.applied(unprivileged, Setting(power_limit_w=200.0)):
        assert unprivileged.setting().power_limit_w == 200.0
    assert unprivileged.setting().power_limit_w == before_w


def test_a_token_goes_with_every_request(
    unprivileged: NvmlDevice, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUSD_TOKEN", "secret")
    unprivileged.write(Setting(power_limit_w=250.0))
    assert daemon.asked[0][2] == "Bearer secret"


@pytest.mark.parametrize("token", ["one\ntwo", "caf\u20ac"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(
    token: str, unprivileged: NvmlDevice, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUSD_TOKEN", token)
    with pytest.raises(NotPermitted, match="ZEUSD_TOKEN") as caught:
        unprivileged.write(Setting(power_limit_w=250.0))
    assert token not in str(caught.value)


def test_the_error_has_the_daemon_s_reason(unprivileged: NvmlDevice, daemon: Daemon) -> None:
    daemon.status = 403
    with pytest.raises(NotPermitted, match=r"set_power_limit \(HTTP 403\)"):
        unprivileged.write(Setting(power_limit_w=250.0))


def test_a_daemon_that_is_gone_is_reported(unprivileged: NvmlDevice, daemon: Daemon) -> None:
    daemon.shutdown()
    daemon.server_close()
    with pytest.raises(NotPermitted, match="does not answer"):
        unprivileged.write(Setting(power_limit_w=250.0))


def test_no_daemon_is_asked_for_a_simulated_gpu(simulated: Callable[..., Machine], daemon: Daemon) -> None:
    simulated("A100", stepped=True, privileged=False)
    with pytest.raises(NotPermitted, match="CAP_SYS_ADMIN"):
        open_device(0).write(Setting(power_limit_w=250.0))
    assert daemon.asked == []
    assert nvml.library.library_is_simulated()


# Whose GPU it is: the daemon numbers those of the node, NVML those that the process may use.

LOCKS = [Setting(None, 1200), Setting(None, 1800), Setting(None, None, 5001), Setting(None, None, 9501)]
SETTINGS = [Setting(power_limit_w=250.0), Setting(sm_clock_mhz=1200), Setting(mem_clock_mhz=5001)]
OTHER_VIEWS = {
    "one of four": lambda daemon: setattr(daemon, "names", [NAME] * 4),
    "another model": lambda daemon: setattr(daemon, "names", ["NVIDIA A40"]),
    "none": lambda daemon: setattr(daemon, "names", []),
    "a kernel driver with four": lambda _: [(zeusd.NODE_GPUS / bus).mkdir(parents=True) for bus in "1234"],
    "an old daemon": lambda daemon: setattr(daemon, "discovery", (404, "")),
    "numbers without names": lambda daemon: setattr(daemon, "discovery", (200, '{"gpu_ids": [0]}')),
    "no JSON": lambda daemon: setattr(daemon, "discovery", (200, "<html>")),
}


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("view", OTHER_VIEWS)
def test_nothing_is_changed_where_the_daemon_may_number_other_gpus(
    view: str, setting: Setting, unprivileged: NvmlDevice, daemon: Daemon
) -> None:
    OTHER_VIEWS[view](daemon)
    with pytest.raises(NotPermitted, match=WAY_OUT):
        lease.change(unprivileged, setting)
    assert daemon.asked == []
    assert lease.holder(unprivileged.uuid) == ""


def test_both_views_are_named(unprivileged: NvmlDevice, daemon: Daemon) -> None:
    daemon.names = [NAME] * 8
    with pytest.raises(NotPermitted, match=rf"8 GPUs.* 1 GPU .*{WAY_OUT}"):
        unprivileged.write(Setting(power_limit_w=250.0))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_number_given_is_used_and_led_back_by(
    setting: Setting, unprivileged: NvmlDevice, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.names, daemon.ours = [NAME] * 4, 3
    monkeypatch.setenv("ZEUSD_GPU_ID", "3")
    with lease.applied(unprivileged, setting) as shown:
        assert shown.power_limit_w == (setting.power_limit_w or 350.0)
    assert {values["gpu_ids"] for _, values, _ in daemon.asked} == {"3"}
    assert daemon.limit_w(3) == 350.0
    assert daemon.locks_mhz == {}


@pytest.mark.parametrize("number", ["x", "-1", "0,1", "1.5", "\u0663"])
def test_a_number_that_is_none_is_refused(
    number: str, unprivileged: NvmlDevice, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUSD_GPU_ID", number)
    with pytest.raises(NotPermitted, match=rf"ZEUSD_GPU_ID={number} .*1 number"):
        unprivileged.write(Setting(power_limit_w=250.0))
    assert daemon.asked == []


def test_several_gpus_have_a_number_each(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEUSD_GPU_ID", "5, 2")
    assert [zeusd.gpu_id(position, [NAME, NAME]) for position in range(2)] == [5, 2]
    with pytest.raises(NotPermitted, match="3 number"):
        zeusd.gpu_id(0, [NAME] * 3)


def test_the_daemon_s_own_numbers_count(daemon: Daemon) -> None:
    gpus = [{"id": 7, "name": "NVIDIA A40"}, {"id": 4, "name": NAME}]
    daemon.discovery = 200, json.dumps({"gpus": gpus})
    assert [zeusd.gpu_id(position, [NAME, "NVIDIA A40"]) for position in range(2)] == [4, 7]


def test_restoring_does_not_depend_on_other_gpus(unprivileged: NvmlDevice, daemon: Daemon) -> None:
    with lease.applied(unprivileged, Setting(power_limit_w=200.0)):
        daemon.names = [NAME] * 2
    assert daemon.limit_w(0) == 350.0


def test_another_gpu_with_another_limit_is_not_changed(
    unprivileged: NvmlDevice, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.limits_w[2] = 300.0
    monkeypatch.setenv("ZEUSD_GPU_ID", "2")
    with pytest.raises(NotPermitted, match=rf"GPU 2.*350 W.*{WAY_OUT}"):
        lease.change(unprivileged, Setting(power_limit_w=250.0))
    assert daemon.asked == []


def test_another_gpu_that_was_changed_gets_its_limit_back(
    unprivileged: NvmlDevice, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.limits_w[2] = 350.4  # within the driver's rounding of ours
    monkeypatch.setenv("ZEUSD_GPU_ID", "2")
    with pytest.raises(DriverError, match=rf"250 W.*350.4 W.*{WAY_OUT}"):
        lease.change(unprivileged, Setting(power_limit_w=250.0))
    assert daemon.limits_w == {2: 350.4}
    assert len(daemon.asked) == 2
    assert lease.holder(unprivileged.uuid) == ""


def test_another_gpu_whose_limit_is_not_known_is_changed_once_and_named(
    unprivileged: NvmlDevice, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.reports_limits = False
    monkeypatch.setenv("ZEUSD_GPU_ID", "2")
    with pytest.raises(DriverError, match=r"GPU 2.*250 W"):
        lease.change(unprivileged, Setting(power_limit_w=250.0))
    assert len(daemon.asked) == 1


def test_another_gpu_that_cannot_be_set_back_is_named_with_both_limits(
    unprivileged: NvmlDevice, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUSD_GPU_ID", "2")
    daemon.refused = "power_limit_mw=350000"
    with pytest.raises(DriverError, match=r"350 W.*403"):
        lease.change(unprivileged, Setting(power_limit_w=250.0))


def test_a_daemon_that_reports_no_limits_is_used_too(unprivileged: NvmlDevice, daemon: Daemon) -> None:
    daemon.reports_limits = False
    with lease.applied(unprivileged, Setting(power_limit_w=200.0)) as shown:
        assert shown.power_limit_w == 200.0
    assert daemon.limit_w(0) == 350.0


@pytest.mark.parametrize("setting", LOCKS, ids=str)
def test_a_lock_that_our_clock_does_not_follow_is_reset(
    setting: Setting, unprivileged: NvmlDevice, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUSD_GPU_ID", "2")
    with pytest.raises(DriverError, match=rf"GPU 2.*reset.*{WAY_OUT}"):
        lease.change(unprivileged, setting)
    assert daemon.locks_mhz == {}
    assert unprivileged.locked() == Setting()
    assert lease.holder(unprivileged.uuid) == ""


def test_a_clock_that_is_there_already_moves_first(unprivileged: NvmlDevice, daemon: Daemon) -> None:
    unprivileged.write(Setting(sm_clock_mhz=1800))
    assert [int(values["max_clock_mhz"]) for _, values, _ in daemon.asked] == [1845, 1800, 1800]
    assert unprivileged.locked().sm_clock_mhz == 1800


def test_a_lock_that_stays_on_another_gpu_is_named(
    unprivileged: NvmlDevice, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUSD_GPU_ID", "2")
    daemon.refused = "reset_"
    with pytest.raises(DriverError, match=r"GPU 2.*1200 MHz"):
        unprivileged.write(Setting(sm_clock_mhz=1200))


def test_a_clock_may_take_its_time(unprivileged: NvmlDevice, daemon: Daemon) -> None:
    machine = daemon.machine
    assert machine is not None
    daemon.ours = 9  # the clocks of ours are moved here, a second after the lock
    at_s = machine.clock()
    watts, _, _, *rest = machines.idle(machine.card(0))
    machine.state.publish(0, at_s, [(1.0, watts, 1800, 9501, 0.0, 0.0, 0x1)], (watts, 1200, 9501, *rest))
    daemon.machine = None
    unprivileged.write(Setting(sm_clock_mhz=1200))
    assert 1.0 < machine.clock() - at_s < zeusd.FOLLOW_S
