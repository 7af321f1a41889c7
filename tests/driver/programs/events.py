"""A cell during which something happens to GPU 1 of two, or to the driver."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from door import door

import workbench
from workbench.device import lease
from workbench.errors import DeviceError
from workbench.measurement import session
from workbench.records import Setting

what = sys.argv[1]
machine = door()
found: dict[str, Any] = {}


def rows(meter: Any, window: Any) -> list[dict[str, Any]]:
    return [
        {"energy_j": each.energy_j, "bar_j": each.energy_uncertainty_j, "notes": each.notes,
         "truth_j": machine.truth_j(number, window.start_s, window.end_s)}
        for number, each in enumerate(meter.measure(window).gpus)
    ]


def in_child(meter: Any) -> dict[str, Any]:
    """The energy of GPU 0 in a forked process."""
    read, write = os.pipe()
    if not (child := os.fork()):
        window = meter.open("child", sync=False)
        time.sleep(0.5)
        os.write(write, json.dumps(rows(meter, meter.close(window, sync=False))[0]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return dict(json.loads(os.read(read, 65536)))


meter = session.current().meter
gpu = workbench.devices()[1]
time.sleep(1.0)
window = meter.open("cell", sync=False)
time.sleep(0.4)
if what.startswith("lost"):
    with lease.applied(workbench.devices()[0], Setting(power_limit_w=300.0)):
        machine.knob(1, "lost", 15)
        time.sleep(0.5)
        if what == "lost and back":
            machine.knob(1, "lost", 0)
elif what == "reload":
    machine.knob(1, "reset_counter", 0)
elif what == "hang":
    machine.fault("nvmlDeviceGetFieldValues", 0, hang_ms=700)
    time.sleep(0.5)
    machine.clear_faults()
elif what == "fork":
    found["child"] = in_child(meter)
elif what == "clock":
    clocks = gpu.limits.sm_clocks_mhz[gpu.limits.mem_clocks_mhz[0]]
    found["lock"] = clocks[len(clocks) // 2]
    machine.knob(1, "clock_latency_s", 0.05)
    with lease.applied(gpu, Setting(power_limit_w=300.0, sm_clock_mhz=found["lock"])) as shown:
        found["shown at first"] = [shown.power_limit_w, shown.sm_clock_mhz]
        machine.knob(1, "lock_hi", 0)  # another program resets it
        time.sleep(4.5)
        later = gpu.setting()
        found["shown later"] = [later.power_limit_w, later.sm_clock_mhz]
time.sleep(0.6)
window = meter.close(window, sync=False)
found["energies"] = rows(meter, window)
try:
    workbench.devices()[0].sample()
except DeviceError as error:
    found["error"] = str(error)
found["after"] = machine.active(1)
session.current().close()
print(json.dumps(found))
