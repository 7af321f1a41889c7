"""NVML does not outlive a fork: a forked process starts it again and finds its GPUs by their UUIDs."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from workbench.device.discovery import devices
from workbench.device.protocol import Device
from workbench.records import Setting
from workbench.simulation.machine import Machine

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


def in_a_fork(answer: Callable[[], object]) -> str:
    """The answer of a forked process, or the name of its error."""
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = str(answer())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(there, text.encode())
        os._exit(0)
    os.close(there)
    os.waitpid(pid, 0)
    with open(here, encoding="utf-8") as file:
        return file.read()


READINGS: dict[str, Callable[[Device], object]] = {
    "energy": lambda device: device.energy_j() > 0,
    "sample": lambda device: device.sample().power_w > 0,
    "limit": lambda device: device.setting().power_limit_w == device.limits.default_power_limit_w,
    "write": lambda device: device.write(Setting(power_limit_w=200.0)).power_limit_w == 200.0,
}


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("cards", ["A100,V100", "A100,V100,fork"])
def test_a_gpu_that_was_open_is_read_and_set_in_a_fork(
    simulated: Callable[..., Machine], cards: str, reading: str
) -> None:
    machine = simulated(cards, stepped=True)
    machine.step(1.0)
    for device in devices():  # before: DriverError, an unknown error (NVML 999)
        assert in_a_fork(lambda device=device: READINGS[reading](device)) == "True"
        assert device.energy_j() > 0


def test_gpus_are_listed_in_a_fork(simulated: Callable[..., Machine]) -> None:
    simulated("A100,V100,fork", stepped=True)
    names = [device.name for device in devices()]
    assert in_a_fork(lambda: [device.name for device in devices()]) == str(names)


def test_a_gpu_that_is_gone_keeps_no_other_from_being_found(simulated: Callable[..., Machine]) -> None:
    simulated("V100,fork", stepped=True)
    gone = devices()
    simulated("A100,fork", stepped=True)
    (device,) = devices()
    assert in_a_fork(lambda: device.sample().power_w > 0) == "True"
    del gone


def test_a_fork_of_a_fork_reads_too(simulated: Callable[..., Machine]) -> None:
    simulated("A100,fork", stepped=True)
    (device,) = devices()

    def child() -> str:
        device.sample()
        return in_a_fork(lambda: device.sample().power_w > 0)

    assert in_a_fork(child) == "True"
    assert device.sample().power_w > 0
