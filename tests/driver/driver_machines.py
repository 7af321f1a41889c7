"""Drivers under test: our simulator and, where `WORKBENCH_TEST_DRIVER` names a `libnvidia-ml.so.1`, that library.

Machines are made for both. A stand-in driver (one that exports `mock_attach`) takes a machine as JSON. It
may be in a directory named by its version, next to those of other versions. Of any other library, such as a
real driver's, only the machine that is present is used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from workbench.simulation import machine as machines
from workbench.simulation.catalogue import CARDS
from workbench.simulation.state import MachineState

PROGRAMS = Path(__file__).parent / "programs"
REPOSITORY = Path(__file__).resolve().parents[2]
NAMED = os.environ.get("WORKBENCH_TEST_DRIVER", "")
LIBRARY = Path(NAMED).resolve() if NAMED else None
STAND_IN = LIBRARY is not None and LIBRARY.is_file() and b"mock_attach" in LIBRARY.read_bytes()


@dataclass
class Machine:
    """A machine of a driver under test, and the processes that run on it."""

    driver: str
    home: Path
    environment: dict[str, str]
    library: Path | None = None
    children: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(self, program: str, *arguments: str, **environment: str) -> Any:
        """The JSON in the last line of a program's output."""
        child = self.start(program, *arguments, **environment)
        out, error = child.communicate(timeout=300.0)
        assert child.returncode == 0, f"{program} ended with {child.returncode}\n{error[-4000:]}\n{out[-2000:]}"
        return json.loads(out.splitlines()[-1])

    def start(self, program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        path = os.pathsep.join((str(REPOSITORY), str(PROGRAMS)))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH_")}
        command = [sys.executable, str(PROGRAMS / program)]
        child = subprocess.Popen(
            [*command, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**inherited, "PYTHONPATH": path, **self.environment, **environment},
        )
        self.children.append(child)
        return child

    def close(self) -> None:
        for child in self.children:
            child.kill()
            with child:  # waits for it, and closes its pipes
                pass


def versions() -> dict[str, Path]:
    """The stand-in drivers next to the named one, by the name of their directories."""
    if LIBRARY is None or not STAND_IN:
        return {}
    return {each.parent.name: each for each in sorted(LIBRARY.parent.parent.glob(f"*/{LIBRARY.name}"))}


def library_of(version: str) -> Path:
    assert LIBRARY is not None
    return versions().get(version, LIBRARY)


def stand_in(directory: Path, version: str, config: dict[str, Any]) -> Machine:
    """A machine of a stand-in driver."""
    library = library_of(version)
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "machine.json"
    file.write_text(json.dumps({"driver": f"{version}.124.06", **config}))
    return Machine(version, directory, {
        "LD_LIBRARY_PATH": str(library.parent), "MOCKNVML_CONFIG": str(file), "DRIVER_UNDER_TEST": str(library),
        "MOCKNVML_STATE": str(directory / "state"), "WORKBENCH_HOME": str(directory / "home"),
    }, library)


def simulated(directory: Path, cards: str) -> Machine:
    """A machine of our simulator whose GPUs are busy all the time."""
    directory.mkdir(parents=True, exist_ok=True)
    path = machines.create(cards, directory / "machine", seed=1)
    state = MachineState(path)
    for gpu in range(state.count):
        card = CARDS[state.card(gpu, "key")]
        state.publish(gpu, 0.0, [], (0.6 * state.card(gpu, "limit_default_w"), card.sm_clocks_mhz[0],
                                     state.mem_clocks(gpu)[0], 0.9, 0.5, 0))
    state.close()
    time.sleep(0.01)
    return Machine("simulated", directory, {
        "WORKBENCH_SIMULATED_GPUS": str(path), "WORKBENCH_HOME": str(directory / "home"),
    })


def needs_stand_in() -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not STAND_IN, reason="WORKBENCH_TEST_DRIVER names no stand-in driver"
    )
