"""The answers of the simulated NVML, and the same answers from a C library over the same memory."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from workbench import _shared_memory
from workbench.errors import SimulationError
from workbench.simulation import machine as machines
from workbench.simulation import nvml_library
from workbench.simulation.catalogue import CARDS
from workbench.simulation.machine import Machine
from workbench.simulation.state import ENVIRONMENT_VARIABLE

FIXTURE = Path(__file__).parent.parent / "fixtures" / "nvml"


class Elsewhere:
    """Another process that asks the C NVML."""

    def __init__(self, directory: Path, machine: Machine) -> None:
        environment = {
            **os.environ, "LD_LIBRARY_PATH": str(directory), ENVIRONMENT_VARIABLE: str(machine.state.path),
        }
        self.process = subprocess.Popen(
            [sys.executable, str(FIXTURE / "answers.py")], env=environment, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.line() == "CDLL"  # the linker found it under the driver's name

    def line(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def __call__(self, *question: Any) -> Any:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self.line()

    def close(self) -> None:
        with self.process:
            assert self.process.stdin
            self.process.stdin.close()
        assert self.process.returncode == 0


@pytest.fixture
def both(
    simulated: Callable[..., Machine], c_nvml: Path
) -> Iterator[tuple[Machine, Elsewhere, Callable[..., Any]]]:
    """A machine of four generations, the last with a part-time counter, another process with the C library,
    and a question put to both.
    """
    import answers

    machine = simulated("P100,V100,A40,H100", stepped=True)
    machine.state.set_card(3, "counter_part_time", 1)
    answers.taken.clear()
    elsewhere = Elsewhere(c_nvml, machine)
    nvml.nvmlInit()

    def ask(*question: Any) -> Any:
        here = answers.everything(question[1]) if question[0] == "ask" else answers.do(*question)
        here = json.loads(json.dumps(here))
        there = elsewhere(*question)
        if isinstance(here, dict):
            assert here.keys() == there.keys()
            assert [(name, here[name], there[name]) for name in here if here[name] != there[name]] == []
        assert here == there
        return here

    yield machine, elsewhere, ask
    elsewhere.close()


def test_the_c_library_has_every_function_of_the_python_one(c_nvml: Path) -> None:
    symbols = (FIXTURE / "nvml.c").read_text()
    functions = [name[1:] for name in dir(nvml_library.SimulatedLibrary) if name.startswith("_nvml")]
    assert len(functions) > 50
    assert [name for name in functions if f" {name}(" not in symbols and f"*{name}(" not in symbols] == []


def test_c_and_python_answer_alike_at_random_times_and_settings(both: Any) -> None:
    machine, _, ask = both
    rng = random.Random(7)
    changes: list[Callable[[int], tuple[Any, ...]]] = [
        lambda gpu: ("nvmlDeviceSetPowerManagementLimit", gpu, rng.randrange(50_000, 800_000)),
        lambda gpu: (
            "nvmlDeviceSetGpuLockedClocks",
            gpu,
            *sorted(rng.choices([100, 210, 900, 1200, 1500, 3000], k=2)),
        ),
        lambda gpu: (
            "nvmlDeviceSetMemoryLockedClocks", gpu, *rng.choices([405, 5001, 7251, 20000, 0xFFFFFF02], k=2),
        ),
        lambda gpu: ("nvmlDeviceSetGpuLockedClocks", gpu, 0xFFFFFF01, 0xFFFFFF02),
        lambda gpu: ("nvmlDeviceResetGpuLockedClocks", gpu),
        lambda gpu: ("nvmlDeviceResetMemoryLockedClocks", gpu),
        lambda gpu: ("nvmlDeviceSetPersistenceMode", gpu, rng.randrange(2)),
    ]
    readings = set()
    for _ in range(150):
        gpu = rng.randrange(4)
        now_s = machine.clock()
        plan = [
            (
                rng.uniform(0.001, 0.3), rng.uniform(30, 400), rng.randrange(200, 1500),
                rng.choice([877, 405]), rng.random(), rng.random(),
                rng.choice([0, 2, 4]) | rng.getrandbits(53) << 11,
            )
            for _ in range(8)
        ]
        machine.state.publish(gpu, now_s, plan, (rng.uniform(30, 400), 1000, 877, 1.0, 0.5, 0))
        machine.state.set_process(gpu, os.getpid(), rng.randrange(2**30))
        machine.state.set_control(gpu, "enforced_w", rng.choice([0.0, 0.0, 120.0]))
        machine.state.set_control(gpu, "forced_reasons", rng.choice([0, 0x40]))
        machine.step(rng.choice([0.0, 0.02, 0.1, rng.uniform(0, 3)]))
        ask(*rng.choice(changes)(gpu))
        readings.add(ask("ask", gpu)["nvmlDeviceGetPowerUsage"])
    assert len(readings) > 100


def test_what_one_process_sets_through_c_takes_effect_here_after_the_governors_delay(both: Any) -> None:
    machine, elsewhere, _ = both
    state, gpu = machine.state, 1
    generation = state.generation(gpu)
    assert elsewhere("nvmlDeviceSetPowerManagementLimit", gpu, 150_000) is None
    assert nvml.nvmlDeviceGetPowerManagementLimit(nvml.nvmlDeviceGetHandleByIndex(gpu)) == 150_000
    assert state.generation(gpu) == generation + 1
    delay_s = machines.GOVERNOR_DELAY_S
    assert state.effective(gpu, machine.clock() + 0.99 * delay_s)[0] == 250.0
    assert state.effective(gpu, machine.clock() + delay_s)[0] == 150.0


def test_faults_strike_through_both_libraries(both: Any) -> None:
    machine, elsewhere, ask = both
    machine.lose(2)
    assert ask("nvmlDeviceGetName", 2).startswith("error 15")
    machine.lose(2, 16)
    assert ask("nvmlDeviceGetPowerUsage", 2).startswith("error 16")
    machine.lose(2, 0)
    machine.inject("nvmlDeviceGetPowerUsage", 999, gpu=3)
    machine.inject("field:186", 3, times=6, gpu=1)
    assert ask("nvmlDeviceGetPowerUsage", 3).startswith("error 999")
    assert not str(ask("nvmlDeviceGetPowerUsage", 2)).startswith("error")
    assert ask("ask", 1)["fields"][3][2] == 3  # asked in three scopes by two libraries: now they are used up
    assert ask("ask", 1)["fields"][3][2] == 0
    machine.inject("nvmlDeviceGetHandleByIndex_v2", 17, gpu=0)
    assert elsewhere("nvmlDeviceGetName", 0).startswith("error 17")
    assert "A40" in elsewhere("nvmlDeviceGetName", 2)
    machine.state.set_header("unprivileged", 1)
    assert ask("nvmlDeviceSetPowerManagementLimit", 1, 150_000).startswith("error 4")
    assert ask("nvmlDeviceSetPersistenceMode", 1, 1).startswith("error 4")


def test_mig_and_module_scope_are_alike_too(both: Any) -> None:
    machine, _, ask = both
    machine.state.set_card(3, "mig", 1)
    machine.state.set_card(3, "power_scope", 1)
    machine.step(1.0)
    found = ask("ask", 3)
    assert found["nvmlDeviceGetMigMode"] == [1, 1]
    assert (found["instances"][0], found["instances"][1][::2]) == (0, [1, 3])  # an instance, without power, of GPU 3
    assert found["instances"][1][1].startswith("error 3")  # an instance, without power, of GPU 3
    assert found["nvmlDeviceGetUtilizationRates"].startswith("error 3")


@pytest.mark.parametrize(
    ("card", "averaged"), [("V100", False), ("A100", False), ("A40", True), ("RTX4090", True), ("H100", True)]
)
def test_power_usage_is_the_one_second_average_where_nvml_documents_it(
    simulated: Callable[..., Machine], card: str, averaged: bool
) -> None:
    """Ampere but GA100 and newer average over a second (nvml.h); the instant field does not."""
    machine = simulated(card, stepped=True)
    state = machine.state
    for name, value in (("noise", 0.0), ("gain", 1.0), ("sensor_phase_s", 0.0), ("counter_lag_s", 0.0)):
        state.set_card(0, name, value)
    idle_w = state.card(0, "idle_w")
    machine.step(1.5 if card != "A100" else 1.515)  # a tick of its sensor
    state.publish(0, machine.clock(), [], (300.0, 1000, 1000, 1.0, 1.0, 0))
    machine.step(2 * state.card(0, "power_update_s") + 1e-6)
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetFieldValues(handle, [186])[0].value.uiVal == 300_000
    expected_w = idle_w + 0.2 * (300 - idle_w) if averaged else 300
    assert nvml.nvmlDeviceGetPowerUsage(handle) == pytest.approx(1000 * expected_w, abs=1)


def test_processes_are_those_that_live(stepped: Machine) -> None:
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    stepped.state.set_process(0, os.getpid(), 3 << 30)
    stepped.state.set_process(0, int(gone.stdout), 5 << 30)
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert [(row.pid, row.usedGpuMemory) for row in nvml.nvmlDeviceGetComputeRunningProcesses(handle)] == [
        (os.getpid(), 3 << 30)
    ]
    assert nvml.nvmlDeviceGetMemoryInfo(handle).used == 3 << 30


def test_a_machine_that_is_closed_leaves_pynvml_environment_and_disk_as_they_were(
    simulated: Callable[..., Machine],
) -> None:
    machine = simulated("V100")
    path = machine.state.path
    assert os.environ[ENVIRONMENT_VARIABLE] == str(path)
    machine.close()
    assert (nvml.nvmlLib, path.exists(), ENVIRONMENT_VARIABLE in os.environ) == (None, False, False)
    machine.close()  # as at exit


def test_a_machine_that_was_replaced_is_taken_off_the_disk_too(simulated: Callable[..., Machine]) -> None:
    first, second = simulated("V100"), simulated("A100")
    first.close()
    assert not first.state.path.exists()
    assert (nvml_library.installed(), os.environ[ENVIRONMENT_VARIABLE]) == (
        second.library,
        str(second.state.path),
    )


def test_a_child_finds_the_machine_through_the_environment(simulated: Callable[..., Machine]) -> None:
    simulated("A100,V100")
    program = (
        "from workbench.device.discovery import devices; print([(d.name, d.simulated) for d in devices()])"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == str([(f"{CARDS[key].name} (simulated)", True) for key in ("A100", "V100")])


def test_a_machine_that_is_gone_shows_how_to_get_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(SimulationError, match=r"/gone.*gpu simulate A100"):
        machines.attached()


def test_simulated_gpus_never_join_real_ones(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "nvmlLib", object())  # a real library is any object that is not ours
    machines_before = {*_shared_memory.directory().glob(f"workbench-gpus-{os.getpid()}-*")}  # of other tests
    with pytest.raises(SimulationError, match="cannot use simulated GPUs"):
        simulated("V100")
    assert {*_shared_memory.directory().glob(f"workbench-gpus-{os.getpid()}-*")} == machines_before
    assert ENVIRONMENT_VARIABLE not in os.environ


def test_a_refused_machine_shows_the_allowed_values(simulated: Callable[..., Machine]) -> None:
    with pytest.raises(SimulationError, match="1 to 16"):
        simulated("")
    with pytest.raises(SimulationError, match="-1"):
        simulated("V100", scale=-1)
    with pytest.raises(LookupError, match=r"'K80'.*V100"):
        simulated("K80")


def test_a_machine_runs_by_itself_at_its_scale(simulated: Callable[..., Machine]) -> None:
    machine = simulated("V100", scale=1000)
    with pytest.raises(SimulationError, match="runs in real time"):
        machine.step(1.0)
    start_s = machine.clock()
    machine.clock.sleep(20.0)
    assert machine.clock() - start_s >= 20.0


def test_a_stepped_clock_reports_its_listeners_first_and_never_goes_back(stepped: Machine) -> None:
    reported = []
    stepped.clock.on_step.append(lambda to_s: reported.append((to_s, stepped.clock())))
    stepped.step(1.5)
    stepped.clock.sleep(0.5)
    assert reported == [(1.5, 0.0), (2.0, 1.5)]
    with pytest.raises(SimulationError, match="time"):
        stepped.step(-1.0)
