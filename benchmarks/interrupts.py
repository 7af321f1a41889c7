"""Interrupted at any bytecode of a tuned cell: a thread left, the GPU as found, the next cell measured?

One to three interrupts (SIGINT) are raised in the main thread of a tuned cell, at bytecodes of this package
or of IPython's functions that run a cell and call its hooks, chosen by place and not by time. After each cell
GPU, tuners, threads and journals are checked, for 3 s at most, and the next cell must be measured.

`left`: something was left. `not_measured`: the next cell was not. `by_thread`: no hook of the cell ran, and
the tuner ended itself.

    python -m benchmarks.interrupts [--json FILE] [--quick]
    WORKBENCH_INTERRUPTS_SEED=2 python -m benchmarks.interrupts
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from IPython.core import async_helpers, events, interactiveshell

import kernels_ext
import workbench
from benchmarks.common import arguments, finish
from workbench.device import lease
from workbench.device.discovery import open_device
from workbench.simulation import machine
from workbench.tuning import state_machine

TRIALS, QUICK_TRIALS = 3000, 300
SETTLES_S = 3.0
OURS = tuple(str(Path(str(each.__file__)).parent) for each in (kernels_ext, workbench))
THEIRS = (events.__file__, async_helpers.__file__)
SHELL = {"run_cell", "_run_cell", "run_cell_async", "run_ast_nodes", "run_code"}
QUICK = "-q --no-settle --no-live --no-period"
CELLS = {
    "a tuned cell": f"%%energy --tune {QUICK}\npass",
    "a tuned statement": f"%energy --tune {QUICK} 6 * 7",
    "a tuned cell that runs twice": f"%%energy --tune {QUICK} -r 2\npass",
    "a setting in a tuned cell":
        f"%%energy --tune {QUICK}\nwith workbench.gpu_settings(power_limit_w=150, gpus=0): pass",
    "tuning in a measured cell": f"%%energy {QUICK}\nwith workbench.tune(): pass",
    "tuning in a cell": "with workbench.tune(): pass",
}


@dataclass
class Outcome:
    """How one cell ended."""

    cell: str
    places: list[str]  # of the interrupts
    at_first: list[str] = field(default_factory=list)  # what was left at once
    left: list[str] = field(default_factory=list)  # and after `SETTLES_S`
    measured: bool = False  # the next cell


class Interrupter:
    """Runs cells in a shell, and interrupts them at bytecodes.

    Args:
        home: Of this user for the length of the trials.
    """

    def __init__(self, home: Path) -> None:
        self._home, self._output = home, io.StringIO()
        self._shell = interactiveshell.InteractiveShell.instance()
        self._count, self._at, self._places, self._theirs = 0, list[int](), list[str](), False
        self.run("%load_ext workbench\nimport workbench")
        self._gpu = open_device(0)
        self._found = self._gpu.setting()
        both = [(cell, theirs) for cell in CELLS for theirs in (True, False)]
        self._lengths = {each: self._length(*each) for each in both}

    def _length(self, cell: str, theirs: bool) -> int:
        """How many bytecodes a cell takes, without what it does for the first time only."""
        self._theirs = theirs
        self.run(CELLS[cell])
        return self.run(CELLS[cell])

    def run(self, cell: str, at: list[int] | None = None) -> int:
        """Run a cell; returns how many of its bytecodes could have been interrupted."""
        self._count, self._at, self._places = 0, sorted(at or ()), []
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        with contextlib.redirect_stdout(self._output), contextlib.redirect_stderr(self._output):
            try:
                sys.settrace(self._trace)
                self._shell.run_cell(cell)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
                signal.signal(signal.SIGINT, before)
        return self._count

    def _wanted(self, code: CodeType) -> bool:
        file = code.co_filename
        if file in THEIRS or (file == interactiveshell.__file__ and code.co_name in SHELL):
            return True
        return not self._theirs and file.startswith(OURS)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._wanted(frame.f_code):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self._count += 1
            if self._at and self._count >= self._at[0]:
                del self._at[0]
                sys.settrace(self._trace)  # which the interrupt would end
                self._places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
                signal.raise_signal(signal.SIGINT)
        return self._trace

    def close(self) -> None:
        """The extension is not loaded any more."""
        self._shell.extension_manager.unload_extension("workbench")

    def trial(self, rng: random.Random) -> Outcome:
        """A cell that is interrupted, and the next one."""
        cell, self._theirs = rng.choice(list(CELLS)), rng.random() < 1 / 3
        first = rng.randrange(self._lengths[cell, self._theirs])
        more = [first + rng.choice((0, 1, 3, 10, 100, 1000)) for _ in range(rng.randrange(3))]
        self.run(CELLS[cell], [first, *more])
        outcome, until_s = Outcome(cell, self._places, self._left()), time.monotonic() + SETTLES_S
        outcome.left = outcome.at_first
        while outcome.left and time.monotonic() < until_s:
            time.sleep(0.05)
            outcome.left = self._left()
        self.run(f"%%energy {QUICK} -o kept\npass")
        kept = self._shell.user_ns.pop("kept", None)
        outcome.measured = kept is not None and kept.outcome == "ok" and kept.energy_j is not None
        return outcome

    def _left(self) -> list[str]:
        tuners = [each.name for each in threading.enumerate() if "tuner" in each.name]
        journals = [each.name for each in (self._home / "journals").glob("*.json")]
        setting = self._gpu.setting()
        changed = [str(setting)] if setting != self._found or lease.holder(self._gpu.uuid) else []
        return [*tuners, *map(str, state_machine.running()), *journals, *changed]


def run(trials: int, seed: int) -> list[Outcome]:
    """So many cells, one after the other, on a simulated GPU and in a home of their own."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as home:
        os.environ["WORKBENCH_HOME"] = home
        made = machine.simulate("V100", seed=1, scale=20.0)
        interrupter, rng = Interrupter(Path(home)), random.Random(seed)
        for number in range(trials):
            outcomes.append(interrupter.trial(rng))
            if number % 50 == 49:
                print(f"\r{number + 1}/{trials}: {summary(outcomes)}  ", end="", flush=True)
        interrupter.close()
        made.close()
    print()
    return outcomes


def summary(outcomes: list[Outcome]) -> dict[str, int]:
    """Counts of some trials."""
    return {
        "trials": len(outcomes), "interrupts": sum(len(each.places) for each in outcomes),
        "left": sum(bool(each.left) for each in outcomes),
        "not_measured": sum(not each.measured for each in outcomes),
        "by_thread": sum(bool(each.at_first) and not each.left for each in outcomes),
    }


def main() -> None:
    options, seed = arguments(__doc__ or ""), int(os.environ.get("WORKBENCH_INTERRUPTS_SEED", "0"))
    outcomes = run(QUICK_TRIALS if options.quick else TRIALS, seed)
    failures = [asdict(each) for each in outcomes if each.left or not each.measured]
    for each in failures[:40]:
        print(each)
    result = {**summary(outcomes), "seed": seed}
    print(result)
    finish({"summary": result, "failures": failures}, options.json)


if __name__ == "__main__":
    main()
