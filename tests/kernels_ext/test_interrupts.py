"""An interrupt at any line of ours in a tuned cell: no thread is left, the GPU is as found, the next cell is
measured.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import kernels_ext
import workbench
from kernels_ext.magics import EnergyMagics
from kernels_ext.running import Running
from workbench import _paths
from workbench.device import lease
from workbench.device.discovery import open_device
from workbench.measurement import session
from workbench.simulation.machine import Machine
from workbench.tuning import state_machine

TRIALS = (10, pytest.param(40, marks=pytest.mark.slow))  # per cell
OURS = tuple(str(Path(str(each.__file__)).parent) for each in (kernels_ext, workbench))
QUICK = "--tune -q --no-settle --no-live --no-period"
CELLS = {
    "a tuned cell": f"%%energy {QUICK}\npass",
    "a tuned statement": f"%energy {QUICK} 6 * 7",
    "a tuned cell that runs twice": f"%%energy {QUICK} -r 2\npass",
    "a setting in a tuned cell":
        f"%%energy {QUICK}\nwith workbench.gpu_settings(power_limit_w=150, gpus=0): pass",
    "tuning in a cell": f"%%energy {QUICK.removeprefix('--tune')}\nwith workbench.tune(): pass",
}
FIRST = {"a tuned cell", "tuning in a cell"}


class Interrupter:
    """Runs cells in a shell, and interrupts them when the main thread has come to so many lines of ours."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self._lines = 0
        self._at: list[int] = []

    def run(self, cell: str, at: list[int]) -> int:
        """Run a cell, as ipykernel does; returns how many lines of ours it took."""
        self._lines, self._at = 0, sorted(at)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            sys.settrace(self._trace)
            self.shell.run_cell(cell)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
            signal.signal(signal.SIGINT, before)
        return self._lines

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        self._lines += 1
        if self._at and self._lines >= self._at[0]:
            del self._at[0]
            sys.settrace(self._trace)  # which the interrupt would end
            signal.raise_signal(signal.SIGINT)
        return self._trace


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    made = InteractiveShell()
    kernels_ext.load_ipython_extension(made)
    yield made
    kernels_ext.unload_ipython_extension(made)


@pytest.fixture
def interrupter(
    shell: InteractiveShell, simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Interrupter]:
    monkeypatch.setattr(session, "_current", None)
    simulated("V100", scale=20.0)
    yield Interrupter(shell)
    session.current().close()


def left(found: workbench.Setting) -> list[str]:
    """The traces that a cell has left behind."""
    tuners = [thread.name for thread in threading.enumerate() if "tuner" in thread.name]
    journals = [path.name for path in (_paths.home()[0] / "journals").glob("*.json")]
    gpu = open_device(0)
    changed = [str(gpu.setting())] if gpu.setting() != found or lease.holder(gpu.uuid) else []
    return [*tuners, *map(str, state_machine.running()), *journals, *changed]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a generator's end
@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("cell", [
    pytest.param(cell, id=name, marks=[] if name in FIRST else pytest.mark.slow) for name, cell in CELLS.items()
])
def test_an_interrupt_at_any_moment_leaves_nothing_and_the_next_cell_is_measured(
    cell: str, trials: int, interrupter: Interrupter, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, found = random.Random(11), open_device(0).setting()
    interrupter.run(cell, [])
    lines = interrupter.run(cell, [])
    for trial in range(trials):
        first = rng.randrange(lines)
        at = [first, *(first + rng.choice((1, 10, 100, 1000)) for _ in range(rng.randrange(3)))]
        interrupter.run(cell, at)
        assert left(found) == [], (trial, at)
        interrupter.run(f"%%energy next {trial} -q --no-settle --no-period -o kept\npass", [])
        kept = interrupter.shell.user_ns.pop("kept")
        assert (kept.label, kept.outcome) == (f"next {trial}", "ok"), (trial, at)
        assert kept.energy_j is not None
        capsys.readouterr()


@pytest.mark.parametrize("statement", ["a tuned cell", "a tuned statement"])
def test_a_cell_cleans_up_after_several_quick_interrupts(
    statement: str, interrupter: Interrupter, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, came = open_device(0).setting(), 0
    noting = Running.noting_interrupts

    def interrupted(running: Running) -> Any:
        nonlocal came
        came += 1
        if came <= 2:  # before the end has begun, and again in what would make up for it
            raise KeyboardInterrupt
        return noting(running)

    monkeypatch.setattr(Running, "noting_interrupts", interrupted)
    interrupter.run(CELLS[statement], [])
    assert came > 2
    assert left(found) == []


def test_an_interrupt_while_the_tuner_stops_leaves_no_lock_held(
    interrupter: Interrupter, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, came = open_device(0).setting(), 0
    told = threading.Event.set

    def interrupted(event: threading.Event) -> None:
        nonlocal came
        if threading.get_ident() == threading.main_thread().ident and state_machine.running():
            came += 1
            signal.raise_signal(signal.SIGINT)
        told(event)

    monkeypatch.setattr(threading.Event, "set", interrupted)
    interrupter.run(CELLS["a tuned cell"], [])
    assert came
    assert left(found) == []


@pytest.mark.parametrize("cell", [
    CELLS["a tuned cell"], "workbench.tune().__enter__()",  # which is interrupted before the block has begun
])
def test_a_tuner_ends_itself_where_an_interrupt_has_kept_every_hook_from_running(
    cell: str, interrupter: Interrupter, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, began = open_device(0).setting(), []
    trigger = interrupter.shell.events.trigger

    def interrupted(event: str, *arguments: Any) -> None:
        if event == "post_execute":
            began.extend(each for each in threading.enumerate() if each.name == "energy-tuner")
            raise KeyboardInterrupt
        trigger(event, *arguments)

    monkeypatch.setattr(interrupter.shell.events, "trigger", interrupted)
    interrupter.run(cell, [])
    monkeypatch.undo()
    assert began
    began[0].join(10.0)
    assert left(found) == []


def test_a_statement_that_was_interrupted_twice_reports_that_it_is_not_measured(
    interrupter: Interrupter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Running, "_measure", interrupted)
    interrupter.run("%energy -q --no-settle 6 * 7", [])
    assert "lost: it was interrupted twice" in capsys.readouterr().out


def test_an_interrupt_just_after_a_statement_keeps_its_measurement(
    interrupter: Interrupter, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement = EnergyMagics._run

    def interrupted(magics: EnergyMagics, tree: Any) -> Any:
        ran = statement(magics, tree)
        sys.settrace(after_statement)
        return ran

    def after_statement(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_name == "__exit__":  # of what lets the statement be interrupted
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(EnergyMagics, "_run", interrupted)
    interrupter.run("%energy -q --no-settle -o kept 6 * 7", [])
    assert interrupter.shell.user_ns.pop("kept").outcome == "interrupted"
