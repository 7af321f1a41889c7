"""One function of the driver after the other fails with a code while a cell is measured and a setting is applied.

Prints the functions tried and, by function, what went wrong: anything but one of our own errors where one is allowed,
an error from a cell, a setting that was not restored.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from pathlib import Path

from door import door

import workbench
from workbench.device import lease, nvml
from workbench.errors import DeviceError
from workbench.records import Setting

CODE = int(sys.argv[1])
SOURCES = sorted(Path(nvml.__file__).parent.glob("*.py"))
CALLED = {
    name for file in SOURCES
    for name in re.findall(r"nvml((?:Device|System|Gpm)[A-Z]\w+)", file.read_text(encoding="utf-8"))
} | {"DeviceSetGpuLockedClocks", "DeviceResetGpuLockedClocks", "DeviceGetComputeRunningProcesses"}
FUNCTIONS = [f"nvml{name}" for name in sorted(CALLED) if name not in ("DeviceGet", "DeviceSet", "DeviceReset")]
CHANGES = re.compile("Set|Reset|Limit|Clock|FieldValues|Handle|Count")  # what a change of a setting calls
ALL_OF = 999  # with this code a setting is applied whatever fails
wrong: dict[str, list[str]] = {}


def attempt(function: str, what: str, act, *, allowed=()) -> None:
    try:
        act()
    except allowed:
        pass
    except BaseException:
        wrong.setdefault(function, []).append(f"{what}\n{traceback.format_exc()[-1500:]}")


def use_anew() -> None:
    for each in workbench.devices():
        each.sample()
        each.processes(graphics=True)
        each.modes()
        each.clocks_are_set()
        each.application_clock_mhz()
        str(each.setting())
    workbench.open_device(0)


def cell() -> None:
    with workbench.measure("cell") as result:
        pass
    str(result)


def change() -> None:
    with lease.applied(gpu, Setting(power_limit_w=300.0, sm_clock_mhz=clock)):
        pass


def set_now() -> list[float]:
    active = machine.active(0)
    return [active["limit_w"], active["lock_hi"], active["mlock_hi"]]


machine, gpu = door(), workbench.devices()[0]
clock = gpu.limits.sm_clocks_mhz[gpu.limits.mem_clocks_mhz[0]][5]
cell()
before = set_now()
for function in FUNCTIONS:
    machine.fault(function, CODE)
    attempt(function, "opened", use_anew, allowed=DeviceError)
    attempt(function, "cell", cell)
    if CODE == ALL_OF or CHANGES.search(function):
        attempt(function, "changed", change, allowed=DeviceError)
    machine.clear_faults()
    if set_now() != before:
        attempt(function, "changed afterwards", change)  # which first restores what is owed
    if set_now() != before:
        wrong.setdefault(function, []).append(f"left at {set_now()}, was {before}")
        gpu.reset(("power_limit_w", "sm_clock_mhz"))
print(json.dumps({"functions": FUNCTIONS, "wrong": wrong}))
