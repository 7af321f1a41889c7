"""Every release of nvidia-ml-py from the declared floor on will do; what cannot do is named in a sentence.

`.ci/run` fetches some of them into build/bindings/<version>; where they are not, their tests are skipped.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BINDINGS = REPOSITORY / "build" / "bindings"
FETCHED = re.search(r"^bindings=\"([\d. ]+)\"$", (REPOSITORY / ".ci" / "run").read_text(), re.MULTILINE)
VERSIONS = FETCHED[1].split() if FETCHED else []

# What a user does first: import, open, read, count, change. Answers in one line.
USE = """
import json, sys
import pynvml
import workbench.device.nvml
from workbench.device import lease as control
from workbench.device.discovery import open_device
from workbench.records import Setting
from workbench.simulation.machine import simulate

machine = simulate("H100", stepped=True, seed=1)
try:
    device = open_device(0)
    machine.step(1.0)
    sample = device.sample()
    first = device.counters()
    machine.step(0.5)
    counted = device.counted(first, device.counters())
    with control.applied(device, Setting(power_limit_w=400.0, sm_clock_mhz=1200)) as shown:
        pass
    print(json.dumps({
        "bindings": pynvml.__file__,
        "absent": [[each.name, each.reason] for each in device.capabilities if not each.present],
        "sample": sample, "counted": sorted(counted), "shown": [shown.power_limit_w, shown.sm_clock_mhz],
        "after_w": device.setting().power_limit_w,
    }))
finally:
    machine.close()
"""

REFUSED = """
import json
from workbench.errors import SimulationError
from workbench.device.discovery import open_device, why_no_gpu

try:
    open_device("sim:A100")
except SimulationError as error:
    print(json.dumps([why_no_gpu(), str(error)]))
"""


def answer(code: str, *path: Path) -> Any:
    """The JSON that a fresh Python prints, with `path` first in its module path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(each) for each in (*path, REPOSITORY))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_gpu_is_opened_read_and_changed_with_older_bindings(version: str) -> None:
    directory = BINDINGS / version
    if not (directory / "pynvml.py").exists():
        pytest.skip(f"nvidia-ml-py {version} is not in build/bindings; .ci/run fetches it")
    there, here = answer(USE, directory), answer(USE)
    assert there.pop("bindings") == str(directory / "pynvml.py")
    assert here.pop("bindings") != str(directory / "pynvml.py")
    assert there == here
    assert there["shown"] == [400.0, 1200]


def test_the_declared_floor_is_one_of_the_releases_tried_and_the_oldest() -> None:
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    floors = [each.removeprefix("nvidia-ml-py>=") for each in declared if each.startswith("nvidia-ml-py")]
    assert len(VERSIONS) >= 4
    assert floors == [min(VERSIONS, key=lambda version: [int(part) for part in version.split(".")])]


def test_an_old_package_in_their_place_is_named(tmp_path: Path) -> None:
    """As pynvml 11: a package, which Python prefers to NVIDIA's module, without its private names."""
    package = tmp_path / "pynvml"
    package.mkdir()
    (package / "__init__.py").write_text("nvmlLib = None\nclass NVMLError(Exception): pass\n")
    reason, simulating = answer(REFUSED, tmp_path)
    assert reason == simulating
    assert "pip uninstall pynvml" in reason
