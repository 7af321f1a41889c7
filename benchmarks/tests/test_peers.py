"""Unmodified programs without knowledge of the workbench, on a simulated machine that trains.

They find its GPU through the dynamic linker, like a driver's, and their figures agree with the truth.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.simulation.machine import Machine
from workbench.simulation.state import ENVIRONMENT_VARIABLE
from workbench.simulation.training import TrainingJob

SCALE = 2.0  # the machine's seconds in one of ours
NAME_W, LIMIT_W = 17, 250


class Bench:
    """A V100 that trains ResNet-50 for as long as a peer looks at it."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        self.machine, self.name = machine, machine.state.card(0, "name")
        self._environment = {**os.environ, "LD_LIBRARY_PATH": str(directory), "COLUMNS": "120",
                             ENVIRONMENT_VARIABLE: str(machine.state.path)}

    def run(self, *arguments: str) -> str:
        """The output of a Python program that runs while the GPU trains."""
        with subprocess.Popen(
            [sys.executable, *arguments], env=self._environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as peer:
            for _ in TrainingJob("imagenet", 256):
                if peer.poll() is not None:
                    break
            out, err = peer.communicate()
        assert peer.returncode == 0, err
        assert "FunctionNotFound" not in err
        return out

    def truth_j(self, begun: list[float], ended: list[float]) -> tuple[float, float]:
        """The lowest and highest possible counter difference of a window whose edges were read within these
        times.

        The counter moves in steps: its value is at most one update period old.
        """
        state = self.machine.state
        step_s, gain = state.card(0, "counter_update_s"), self.machine.gain(0)
        early, begin, late, end = ((at - state.header("origin_s")) * SCALE for at in (*begun, *ended))
        return (gain * self.machine.true_energy_j(0, begin, late - step_s) - 0.001,
                gain * self.machine.true_energy_j(0, early - step_s, end) + 0.001)


@pytest.fixture
def bench(simulated: Callable[..., Machine], c_nvml: Path) -> Bench:
    return Bench(simulated("V100", scale=SCALE), c_nvml)


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; pip install {package}")


def window(begin: str, end: str, setup: str) -> str:
    """A program that measures one second of the machine's time with a peer and, within the same moments,
    with us.
    """
    return f"""
import json, time
from workbench.device import nvml as ours
{setup}
device = ours.open_index(0)
early = time.monotonic(); our_j = device.energy_j(); {begin}; begun = [early, time.monotonic()]
time.sleep({1.0 / SCALE})
early = time.monotonic(); {end}; our_j = device.energy_j() - our_j; ended = [early, time.monotonic()]
print(json.dumps(dict(begun=begun, ended=ended, theirs=their_j, ours=our_j, simulated=device.simulated)))
"""


def agrees(bench: Bench, printed: str) -> None:
    found = json.loads(printed.splitlines()[-1])
    assert not found["simulated"]  # we, too, came through the linker
    least_j, most_j = bench.truth_j(found["begun"], found["ended"])
    assert least_j <= found["theirs"] <= most_j
    assert least_j <= found["ours"] <= most_j
    assert abs(found["theirs"] - found["ours"]) <= most_j - least_j
    assert found["theirs"] > 100  # a job was running


def test_zeus_measures_what_we_measure_and_what_is_true(bench: Bench) -> None:
    needs("zeus")
    setup = "from zeus.monitor import ZeusMonitor\nzeus = ZeusMonitor(gpu_indices=[0])"
    begin = "zeus.begin_window('one', sync_execution=False)"
    end = "their_j = zeus.end_window('one', sync_execution=False).gpu_energy[0]"
    agrees(bench, bench.run("-c", window(begin, end, setup)))


def test_codecarbon_measures_what_we_measure_and_what_is_true(bench: Bench) -> None:
    needs("codecarbon")
    setup = (
        "from codecarbon.core.gpu import AllGPUDevices\nfrom codecarbon.core.units import Time\ngpus = "
        "AllGPUDevices()"
    )
    end = "their_j = gpus.get_delta(Time.from_seconds(1))[0]['delta_energy_consumption'].kWh * 3.6e6"
    agrees(bench, bench.run("-c", window("gpus.start()", end, setup)))


def test_a_limit_that_zeus_sets_is_the_machines(bench: Bench) -> None:
    needs("zeus")
    program = (
        "from zeus.device import get_gpus\ngpus = get_gpus()\ngpus.set_power_management_limit(0, 150_000)\n"
    )
    bench.run("-c", program + "gpus.set_gpu_locked_clocks(0, 900, 900)")
    state = bench.machine.state
    assert state.effective(0, bench.machine.clock() + 0.1) == (150.0, 900, 900, 0, 0)


def test_gpustat_shows_the_card_its_power_and_who_trains(bench: Bench) -> None:
    needs("gpustat")
    shown = bench.run("-m", "gpustat", "-P", "-p", "--no-color")
    line = re.search(
        r"\[0\] (.+?)\s*\| (\d+).C, +(\d+) %, +(\d+) / (\d+) W \| +(\d+) / 32768 MB \| (.*)", shown
    )
    assert line, shown
    assert line[1] == bench.name
    assert 26 <= int(line[4]) <= 1.05 * LIMIT_W
    assert int(line[5]) == LIMIT_W
    assert int(line[6]) == (1_200_000_000 + 256 * 87_500_000) >> 20
    assert f"/{os.getpid()}(" in line[7]


def test_nvitop_shows_the_card_its_power_and_who_trains(bench: Bench) -> None:
    needs("nvitop")
    shown = bench.run("-m", "nvitop", "-1", "--ascii")
    assert bench.name[-NAME_W:] in shown  # it cuts long names in front
    power = re.search(r"(\d+)W / (\d+)W", shown)
    assert power, shown
    assert 26 <= int(power[1]) <= 1.05 * LIMIT_W
    assert int(power[2]) == LIMIT_W
    assert re.search(rf"\b{os.getpid()} C\b", shown)
