"""Rights that the Zeus daemon lends: what goes over its socket, and what happens where it refuses."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from workbench.device import control, nvml
from workbench.device.nvml import NvmlDevice
from workbench.errors import NotPermitted
from workbench.finder import open_device
from workbench.records import Setting
from workbench.simulation.machine import Machine

Asked = tuple[str, dict[str, str], str]


class Daemon(socketserver.ThreadingUnixStreamServer):
    """Answers as zeusd does, and writes down what it was asked."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        self.asked: list[Asked] = []
        self.status, self.act = 200, lambda what, values: None
        super().__init__(str(path), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Daemon

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        values = {name: texts[0] for name, texts in parse_qs(parts.query).items()}
        self.server.asked.append((parts.path, values, self.headers.get("Authorization", "")))
        if self.server.status == 200:
            self.server.act(parts.path, values)  # type: ignore[call-arg]
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(b"" if self.server.status == 200 else b"not in the group zeusd")

    def address_string(self) -> str:
        return "a Unix socket"

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    path = tmp_path / "zeusd.sock"
    server = Daemon(path)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(path))
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def unprivileged(simulated: Callable[..., Machine], daemon: Daemon) -> NvmlDevice:
    """A GPU that its user may not change, which passes for a real one; the daemon changes it behind the driver's back."""
    machine = simulated("RTX3080Ti", stepped=True, privileged=False, seed=None)
    device = open_device(0)
    device.simulated = False

    def act(what: str, values: dict[str, Any]) -> None:
        if what == "/gpu/set_power_limit":
            machine.state.change_setting(0, limit_w=int(values["power_limit_mw"]) / 1000)

    daemon.act = act  # type: ignore[assignment]
    return device


def test_a_limit_is_set_through_the_daemon_and_read_back(unprivileged: NvmlDevice, daemon: Daemon) -> None:
    assert unprivileged.apply(Setting(power_limit_w=250.0)).power_limit_w == 250.0
    assert daemon.asked == [("/gpu/set_power_limit", {"gpu_ids": "0", "power_limit_mw": "250000", "block": "true"}, "")]


def test_clocks_are_locked_and_given_back(unprivileged: NvmlDevice, daemon: Daemon) -> None:
    unprivileged.apply(Setting(sm_clock_mhz=1200, mem_clock_mhz=5001))
    unprivileged.reset(("sm_clock_mhz", "mem_clock_mhz"))
    assert [(what, values.get("min_clock_mhz"), values.get("max_clock_mhz")) for what, values, _ in daemon.asked] == [
        ("/gpu/set_mem_locked_clocks", "5001", "5001"),
        ("/gpu/set_gpu_locked_clocks", "1200", "1200"),
        ("/gpu/reset_gpu_locked_clocks", None, None),
        ("/gpu/reset_mem_locked_clocks", None, None),
    ]
    assert unprivileged.locked() == Setting()


def test_what_was_set_through_the_daemon_is_put_back_through_it(unprivileged: NvmlDevice, daemon: Daemon) -> None:
    before_w = unprivileged.setting().power_limit_w
    with control.applied(unprivileged, Setting(power_limit_w=200.0)):
        assert unprivileged.setting().power_limit_w == 200.0
    assert unprivileged.setting().power_limit_w == before_w


def test_a_token_goes_with_every_request(unprivileged: NvmlDevice, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEUSD_TOKEN", "secret")
    unprivileged.apply(Setting(power_limit_w=250.0))
    assert daemon.asked[0][2] == "Bearer secret"


@pytest.mark.parametrize("token", ["one\ntwo", "caf\u20ac"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(
    token: str, unprivileged: NvmlDevice, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUSD_TOKEN", token)
    with pytest.raises(NotPermitted, match="ZEUSD_TOKEN is no token") as caught:
        unprivileged.apply(Setting(power_limit_w=250.0))
    assert token not in str(caught.value)


def test_a_refusal_is_told_in_the_daemon_s_words(unprivileged: NvmlDevice, daemon: Daemon) -> None:
    daemon.status = 403
    with pytest.raises(NotPermitted, match=r"refused set_power_limit \(HTTP 403\): not in the group zeusd"):
        unprivileged.apply(Setting(power_limit_w=250.0))


def test_a_daemon_that_is_gone_is_told(unprivileged: NvmlDevice, daemon: Daemon) -> None:
    daemon.shutdown()
    daemon.server_close()
    with pytest.raises(NotPermitted, match="does not answer"):
        unprivileged.apply(Setting(power_limit_w=250.0))


def test_no_daemon_is_asked_for_a_simulated_gpu(simulated: Callable[..., Machine], daemon: Daemon) -> None:
    simulated("A100", stepped=True, privileged=False)
    with pytest.raises(NotPermitted, match="takes root"):
        open_device(0).apply(Setting(power_limit_w=250.0))
    assert daemon.asked == []
    assert nvml.library_is_simulated()
