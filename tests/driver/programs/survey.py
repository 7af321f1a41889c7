"""A user's work with the GPUs of a machine as one JSON object: list, measure, set, check."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
import traceback
from typing import Any

from door import door

import workbench
from workbench import cli
from workbench.device import lease
from workbench.errors import WorkbenchError
from workbench.measurement import session
from workbench.records import Setting

found: dict[str, Any] = {}


def command(*words: str) -> dict[str, Any]:
    out, error = io.StringIO(), ""
    status = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = cli.main(list(words))
        except SystemExit as stop:
            status = stop.code
        except BaseException:
            error = traceback.format_exc()
    return {"status": status, "text": out.getvalue(), "traceback": error}


def windows(gpu: int) -> list[dict[str, Any]]:
    meter, rows = session.current().meter, []
    time.sleep(1.5)  # the sampler finds the refreshes
    for seconds in (0.3, 0.5, 0.7):
        window = meter.open("window", sync=False)
        time.sleep(seconds)
        window = meter.close(window, sync=False)
        measured = meter.measure(window).gpus[gpu]
        rows.append({
            "truth_j": machine.truth_j(gpu, window.start_s, window.end_s), "energy_j": measured.energy_j,
            "bar_j": measured.energy_uncertainty_j, "source": measured.source, "notes": measured.notes,
        })
    return rows


def setting() -> dict[str, Any]:
    gpu = workbench.devices()[0]
    limits, before = gpu.limits, machine.active(0)
    wanted = {}
    if gpu.can("set_power_limit"):
        wanted["power_limit_w"] = round(0.5 * (limits.min_power_limit_w + limits.max_power_limit_w))
    if gpu.can("lock_sm_clock"):
        clocks = limits.sm_clocks_mhz[limits.mem_clocks_mhz[0]]
        wanted["sm_clock_mhz"] = clocks[len(clocks) // 2]
    result: dict[str, Any] = {"before": before, "wanted": wanted, "error": ""}
    if wanted:
        try:
            with lease.applied(gpu, Setting(**wanted)) as shown:
                result |= {"during": machine.active(0), "shown": [shown.power_limit_w, shown.sm_clock_mhz]}
        except WorkbenchError as problem:
            result["error"] = f"{type(problem).__name__}: {problem}"
    return {**result, "after": machine.active(0)}


gpus = workbench.devices()
found["gpus"] = [
    {"name": each.name, "uuid": each.uuid, "index": each.index, "pci": each.pci_bus_id, "note": each.note,
     "absent": [one.name for one in each.capabilities if not one.present]}
    for each in gpus
]
machine = door()
with workbench.measure("cell") as result:
    time.sleep(0.2)
found["cell"] = str(result)
found["windows"] = windows(len(gpus) - 1) if gpus else []
found["setting"] = setting() if gpus else {}
found["gpus command"] = command("gpus")
found["doctor"] = command("doctor", "--no-load", "--seconds", sys.argv[1] if len(sys.argv) > 1 else "1")
session.current().close()
print(json.dumps(found))
